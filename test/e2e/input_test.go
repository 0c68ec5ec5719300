// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// refusal asserts an error of one line that has the words, and an exit code.
func (r *rig) refusal(what string, args []string, code int, words ...string) {
	r.t.Helper()
	_, stderr, got := r.exec(args...)
	line, rest, _ := strings.Cut(stderr, "\n")
	if got != code || !strings.HasPrefix(line, "shunt: ") || rest != "" {
		r.t.Errorf("%s: exit code %d and %q; want %d and one line", what, got, stderr, code)
	}
	for _, w := range words {
		if !strings.Contains(line, w) {
			r.t.Errorf("%s: %q does not name %q", what, line, w)
		}
	}
}

// TestBadInput: each mistake is one line that names the thing, with the right exit code,
// and leaves nothing behind.
func TestBadInput(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	places := []string{"--state", r.State(), "--bpffs", r.BPFFS()}
	shunt := func(args ...string) []string { return slices.Concat([]string{program}, args, places) }
	file := func(text string) string {
		path := filepath.Join(r.Dir(), "shunt.toml")
		r.must(os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	// nobody may look into the lab's directory, nor make anything there
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	able := append(slices.Clip(nobody), "--inh-caps=+net_admin,+bpf,+perfmon", "--ambient-caps=+net_admin,+bpf,+perfmon")
	// to whom the kernel's limit of locked memory is no hindrance
	half := append(slices.Clip(nobody), "--inh-caps=+bpf,+perfmon", "--ambient-caps=+bpf,+perfmon")
	open := t.TempDir()
	r.must(os.Chmod(filepath.Dir(open), 0o755))
	r.must(os.Chmod(open, 0o777))
	openState := []string{program, "run", "--port", "lan", "--state", filepath.Join(open, "state"), "--bpffs", r.BPFFS()}
	noBPFFS := filepath.Join(open, "pins")
	root := []string{"run needs root (CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON)", "sudo"}
	for _, c := range []struct {
		name  string
		args  []string
		code  int
		words []string
	}{
		{"no interface", shunt("run"), 2, []string{"port"}},
		{"no file", shunt("run", "--config", "/nonesuch.toml"), 1, []string{"/nonesuch.toml"}},
		{"unknown key", shunt("run", "--config", file("port = [\"lan\"]\ntreshold = 3\n")), 2, []string{"shunt.toml:2", "treshold", "threshold"}},
		{"bad flag", shunt("run", "--port", "lan", "--lease", "1h"), 2, []string{"lease", "100ms"}},
		{"bad mode", shunt("run", "--port", "lan", "--xdp", "maybe"), 2, []string{"xdp", "auto"}},
		{"unknown flag", shunt("run", "--prot", "lan"), 2, []string{"--prot"}},
		{"unknown command", shunt("rnu"), 2, []string{"rnu", "run"}},
		{"too many words", shunt("status", "lan"), 2, []string{"lan"}},
		{"no rights", slices.Concat(nobody, shunt("run", "--port", "lan")), 1, root},
		{"no rights but to the state", slices.Concat(nobody, openState), 1, root},
		{"half of the rights", slices.Concat(half, openState), 1, []string{"run needs root (CAP_NET_ADMIN)", "sudo"}},
		{"rights, but not to the state", slices.Concat(able, shunt("run", "--port", "lan")), 1, []string{r.Dir(), "--state"}},
		{"rights, but not to the bpffs", slices.Concat(able, openState), 1, []string{r.BPFFS(), "root", "--bpffs"}},
		{"no bpffs", []string{program, "run", "--port", "lan", "--state", r.State(), "--bpffs", noBPFFS}, 1,
			[]string{noBPFFS, "mount -t bpf"}},
		{"status without daemon", shunt("status"), 1, []string{"no daemon", r.State()}},
		{"ports without daemon", shunt("ports", "--json"), 1, []string{"no daemon"}},
		{"flows without daemon", shunt("flows"), 1, []string{"no daemon"}},
		{"explain without daemon", shunt("explain", "10.0.0.1:1", "10.0.0.2:2/udp"), 1, []string{"no daemon"}},
		{"explain nonsense", shunt("explain", "nonsense"), 2, []string{"explain", "ADDR:PORT"}},
		{"pause without daemon", shunt("pause"), 1, []string{"no daemon"}},
		{"resume without daemon", shunt("resume"), 1, []string{"no daemon"}},
	} {
		r.refusal(c.name, c.args, c.code, c.words...)
		r.nothing()
	}
	r.refusal("bad value", shunt("run", "--config", file("port = [\"lan\"]\nxdp = \"maybe\"\n")), 2, "shunt.toml:2", "maybe", "auto")
	if left, err := os.ReadDir(open); err != nil || len(left) > 0 {
		t.Errorf("in a directory that anybody may write: %v (%v)", left, err)
	}
	if out, errs, code := r.shunt("stop"); code != 0 || out+errs != "" {
		t.Errorf("stop where nothing runs: exit code %d, %q, %q; want nothing done, quietly", code, out, errs)
	}
	r.nothing()
}

// TestDoctorWithoutRights: what fails for want of rights alone is one finding, and its
// remedy is not to ask the doctor.
func TestDoctorWithoutRights(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	out, _, code := r.exec("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "doctor", "--json",
		"--state", "/nonesuch", "--bpffs", r.BPFFS())
	var checks []api.Check
	r.must(json.Unmarshal([]byte(out), &checks))
	failed := map[string]api.Check{}
	for _, c := range checks {
		if c.Level == api.LevelFail {
			failed[c.Name] = c
		}
		if strings.Contains(c.Finding+c.Remedy, "shunt doctor") {
			t.Errorf("the doctor sends to the doctor: %+v", c)
		}
	}
	if c := failed["rights"]; code != 1 || !strings.Contains(c.Finding, "CAP_NET_ADMIN") || c.Remedy == "" {
		t.Errorf("exit code %d, %+v", code, c)
	}
	if c, there := failed["programs"]; there {
		t.Errorf("without rights no program can be tried: %+v", c)
	}
}

// TestSecondDaemon: while one lives another refuses, and the first does not notice.
func TestSecondDaemon(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	r.refusal("second daemon", slices.Concat([]string{program, "run", "--state", r.State(), "--bpffs", r.BPFFS()}, both),
		1, "a daemon runs already", "shunt stop")
	sink := r.sink(r.Server, 1)
	sent := r.send(r.generator(1, 5000), 1000)
	r.whole("after a second daemon", sink, sent.Sent)
	if hits := r.status().Hits; hits < 900 {
		t.Errorf("%d hits of %d frames", hits, sent.Sent)
	}
	r.refusal("nobody asks", []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "status",
		"--state", r.State()}, 1, "permission denied")
}

// TestStop: "stop" leaves nothing, living daemon or dead; SIGTERM leaves the data path.
func TestStop(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	stop := func(what string) {
		t.Helper()
		if out, errs, code := r.shunt("stop"); code != 0 || out+errs != "" {
			t.Errorf("stop, %s: exit code %d, %q, %q", what, code, out, errs)
		}
		r.nothing()
		r.ping()
	}
	args := with("--xdp", "on")
	r.start(program, args...)
	stop("with a daemon")
	if err := r.daemon.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}

	r.start(program, args...)
	sink := r.sink(r.Server, 1)
	g := r.generator(1, 5000)
	r.send(g, 500)
	r.terminate()
	for _, e := range []lab.End{r.LAN, r.WAN} {
		if names := r.attached(e); len(names) != 3 {
			t.Errorf("after SIGTERM, on %v: %v; want three programs", e, names)
		}
	}
	r.send(g, 500)
	r.whole("around SIGTERM", sink, 1000)
	r.start(program, args...)
	if hits := r.status().Hits; hits < 900 {
		t.Errorf("%d hits of 1000 frames, half of them without a daemon", hits)
	}
	r.daemon.Kill9()
	stop("after kill -9")
	r.start(program, args...)
	r.terminate()
	stop("after SIGTERM")

	// a unit's own "shunt stop" is at the same work as one by hand
	for _, dead := range []bool{false, true} {
		r.start(program, args...)
		if dead {
			r.daemon.Kill9()
		}
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if out, errs, code := r.shunt("stop"); code != 0 || out+errs != "" {
					t.Errorf("one of two stops, daemon dead %v: exit code %d, %q, %q", dead, code, out, errs)
				}
			})
		}
		both.Wait()
		r.nothing()
		r.ping()
	}
}

// TestStopFails: what cannot be removed is named, and once it is out of the way, "stop"
// leaves nothing and "run" begins as ever.
func TestStopFails(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	foreign := filepath.Join(r.BPFFS(), "links", "foreign")
	shunt := func(words string) []string {
		return []string{program, words, "--state", r.State(), "--bpffs", r.BPFFS()}
	}
	for _, next := range []string{"stop", "run"} {
		r.start(program, with("--xdp", "on")...)
		r.must(os.MkdirAll(filepath.Join(foreign, "er"), 0o700))
		r.refusal("stop", shunt("stop"), 1, foreign)
		if err := r.daemon.Wait(); err == nil {
			t.Error("the daemon could not remove all, and ended as if it had")
		}
		r.ping()
		r.must(os.RemoveAll(foreign))
		if next == "run" {
			r.start(program, with("--xdp", "on")...)
			r.fast("after a stop that failed", r.sink(r.Server, 1), true)
		}
		if out, errs, code := r.shunt("stop"); code != 0 || out+errs != "" {
			t.Errorf("stop again, before %s: exit code %d, %q, %q", next, code, out, errs)
		}
		r.nothing()
	}
}
