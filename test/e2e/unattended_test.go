// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/foreign"
	"shunt/internal/lab"
)

// at runs a client command that is told the state directory alone.
func (r *rig) at(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	return r.exec(append([]string{program, "--state", r.State()}, args...)...)
}

// told runs a client command and wants its exit code, and words in what it says.
func (r *rig) told(code int, args []string, words ...string) string {
	r.t.Helper()
	out, errs, got := r.at(args...)
	if got != code || strings.Count(errs, "\n") > 1 {
		r.t.Errorf("%v: exit code %d, %q, %q; want %d", args, got, out, errs, code)
	}
	for _, w := range words {
		if !strings.Contains(out+errs, w) {
			r.t.Errorf("%v: no %q in %q, %q", args, w, out, errs)
		}
	}
	return out
}

// left is the status of a data path, from whoever answers.
func (r *rig) left() (s api.Status) {
	r.t.Helper()
	out, errs, code := r.at("status", "--json")
	if code != 0 {
		r.t.Fatalf("status: exit code %d, %s", code, errs)
	}
	r.must(json.Unmarshal([]byte(out), &s))
	return s
}

// TestUnattended: when the daemon has ended, by a signal or a crash, or hangs, every command says so
// and works on what it left, told its state directory alone; "stop" then leaves nothing.
func TestUnattended(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		for _, end := range []string{"SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP"} {
			t.Run(fmt.Sprintf("xdp=%s %s", mode, end), func(t *testing.T) {
				t.Parallel()
				unattended(t, mode, end)
			})
		}
	}
}

func unattended(t *testing.T, mode, end string) {
	signals := map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "SIGKILL": syscall.SIGKILL, "SIGSTOP": syscall.SIGSTOP}
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	r.start(program, with("--xdp", mode)...)
	sink := r.sink(r.Server, 4)
	stop := r.background(r.generator(3, 2000))
	r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 3 })
	r.must(r.daemon.Signal(signals[end]))
	if end != "SIGSTOP" {
		r.daemon.Wait()
	}
	if end == "SIGTERM" || end == "SIGINT" {
		log := r.daemon.Log()
		for _, words := range []string{"the programs stay attached", "ports=lan,wan", "leases-end-within=4.5s", "shunt run", "takes over", "shunt stop", "--state " + r.State()} {
			if !strings.Contains(log, words) {
				t.Errorf("the log has no %q as the daemon ends", words)
			}
		}
	}

	out := r.told(0, []string{"status"}, "lan, wan")
	if first, _, _ := strings.Cut(out, "\n"); !strings.Contains(first, "unattended") {
		t.Errorf("status begins with %q", first)
	}
	words := []string{"no daemon lives", `shunt stop --state ` + r.State()}
	if end == "SIGSTOP" {
		words = []string{fmt.Sprintf("the daemon, pid %d, does not answer", r.daemon.PID()), "--replace"}
	}
	r.told(1, []string{"status", "--check"}, append([]string{"unattended"}, words...)...)
	before := r.left()
	if before.State != api.StateUnattended || before.Flows.Armed != 3 || before.Hits == 0 || before.Flows.Slots == 0 {
		t.Errorf("%+v", before)
	}
	r.told(0, []string{"ports"}, "lan", "wan", map[string]string{"on": "xdp+tc", "off": "tc"}[mode], "no daemon answers")
	flows := r.told(0, []string{"flows", "--only", "armed"}, map[string]string{"on": "xdp", "off": "tc"}[mode])
	if n := strings.Count(flows, "/udp"); n != 3 {
		t.Errorf("%d armed flows in %q", n, flows)
	}
	r.told(0, []string{"explain", "--top", "1"}, "fast")
	r.told(0, []string{"top", "--once"}, "NO DAEMON ANSWERS")
	if later := r.left(); later.Hits <= before.Hits {
		t.Errorf("%d hits, then %d: it does not go on", before.Hits, later.Hits)
	}

	r.told(0, []string{"pause"})
	time.Sleep(50 * time.Millisecond)
	paused := r.left()
	time.Sleep(200 * time.Millisecond)
	if s := r.left(); !s.Paused || s.Hits != paused.Hits || s.Punts == paused.Punts {
		t.Errorf("paused, and from %+v to %+v", paused, s)
	}
	r.told(0, []string{"resume"})
	r.eventually("flows are repeated again", patience, func() bool { return r.left().Hits > paused.Hits })

	if end == "SIGSTOP" {
		_, errs, code := r.at("stop")
		if code != 1 || !strings.Contains(errs, fmt.Sprintf("kill -9 %d", r.daemon.PID())) {
			t.Errorf("stop beside a daemon that hangs: exit code %d, %s", code, errs)
		}
		r.daemon.Kill9()
	}
	sent := stop()
	r.unharmed(sink, sent.Sent, 2)
	if out, errs, code := r.at("stop"); code != 0 || out+errs != "" {
		t.Errorf("stop: exit code %d, %q, %q", code, out, errs)
	}
	r.nothing()
	r.told(1, []string{"status"}, "no daemon answers", "shunt run")
}

// TestStateKnowsItsPins: whoever names the state directory alone means the data path that belongs to
// it, and whoever names another one is told.
func TestStateKnowsItsPins(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	r.daemon.Kill9()
	other := filepath.Join(filepath.Dir(r.BPFFS()), "other")
	for _, words := range [][]string{{"stop"}, {"status"}, {"pause"}, {"doctor", "lan"}, {"run", "--port", "lan"}} {
		args := slices.Concat([]string{program}, words, []string{"--state", r.State(), "--bpffs", other})
		r.refusal(words[0], args, 1, r.State(), r.BPFFS(), other)
	}
	if len(r.attached(r.LAN)) != 3 {
		t.Errorf("attached: %v", r.attached(r.LAN))
	}
	// a start that fails leaves what it found
	if _, errs, code := r.exec(program, "run", "--port", "lan", "--state", r.State(), "--config", "/nonesuch"); code != 1 {
		t.Errorf("exit code %d, %s", code, errs)
	}
	// where neither directory is right, the programs are seen all the same
	nowhere := t.TempDir()
	r.refusal("stop elsewhere", []string{program, "stop", "--state", filepath.Join(nowhere, "state"), "--bpffs", other}, 1, "lan, wan", "programs of shunt")
	if out, errs, code := r.at("stop"); code != 0 || out+errs != "" {
		t.Errorf("stop: exit code %d, %q, %q", code, out, errs)
	}
	r.nothing()
}

// TestReplace: under traffic one daemon after the other is replaced, by another version, too, and one
// that hangs; each frame arrives, and flows stay fast.
func TestReplace(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			args := with("--xdp", mode, "--replace")
			r.start(program, args...) // there is none to replace
			sink := r.sink(r.Server, 4)
			stop := r.background(r.generator(20, 4000))
			r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 20 })
			before := r.status()
			for _, next := range []string{program, upgrade, upgrade, program} {
				old := r.daemon
				if next == program {
					r.must(old.Signal(syscall.SIGSTOP))
				}
				r.start(next, args...)
				r.eventually("the new daemon answers", 30*time.Second, func() bool {
					s, err := r.api.Status(context.Background())
					return err == nil && s.PID == r.daemon.PID()
				})
				if err := old.Wait(); err != nil && next == upgrade {
					t.Errorf("the old daemon ended with %v", err)
				}
				time.Sleep(200 * time.Millisecond)
			}
			after := r.status()
			sent := stop()
			r.unharmed(sink, sent.Sent, after.Generation-before.Generation)
			hits, punts := after.Hits-before.Hits, after.Punts-before.Punts
			t.Logf("%d sent; %d repeated, the kernel had %d", sent.Sent, hits, punts)
			if punts*50 > hits {
				t.Errorf("%d repeated, and the kernel had %d", hits, punts)
			}
			if after.State != api.StateRunning {
				t.Errorf("state %s: %+v", after.State, after.Problems)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		r := newRig(t, lab.FirewallOptions{})
		r.start(program, both...)
		pid := r.status().PID
		r.refusal("a wrong configuration", []string{program, "run", "--replace", "--port", "lan", "--lease", "1h", "--state", r.State(), "--bpffs", r.BPFFS()}, 2, "lease")
		r.refusal("no rights", []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program, "run", "--replace", "--port", "lan",
			"--state", r.State(), "--bpffs", r.BPFFS()}, 1, "root")
		if s := r.status(); s.PID != pid {
			t.Errorf("pid %d, then %d", pid, s.PID)
		}
	})
}

// TestDegraded: a router of which a port, or a side, cannot be fast says so first, in its log and by an
// exit code, and what is not there yet is waited for.
func TestDegraded(t *testing.T) {
	run := func(r *rig, command string) {
		r.t.Helper()
		_, err := r.LAN.NS.Run(strings.Fields(command)...)
		r.must(err)
	}
	for _, c := range []struct {
		name  string
		ports []string
		set   func(*rig) (mend func())
		words []string
	}{
		{"foreign XDP program", []string{"lan", "wan"}, func(r *rig) func() {
			x, err := foreign.XDP(r.WAN.NS, r.WAN.Device)
			r.must(err)
			return func() { r.must(x.Close()) }
		}, []string{"only lan is attached", "another XDP program", "xdp off"}},
		{"chain", []string{"lan", "wan"}, func(r *rig) func() {
			r.nft(`table netdev guard { chain in { type filter hook ingress device "lan" priority 0; }; }`)
			return func() { r.nft("delete table netdev guard") }
		}, []string{"only wan is attached", "netdev guard in"}},
		{"all refused", []string{"lan", "wan"}, func(r *rig) func() {
			r.nft(`table netdev guard { chain in { type filter hook ingress devices = { lan, wan } priority 0; }; }`)
			return func() { r.nft("delete table netdev guard") }
		}, []string{"no flow can be fast"}},
		{"not there", []string{"lan", "wan", "dsl"}, func(r *rig) func() {
			return func() { run(r, "ip link add dsl type veth peer name dsl-peer") }
		}, []string{"dsl: no such interface now", "as soon as it is there"}},
		{"matches nothing", []string{"lan", "wan", "usb*"}, func(r *rig) func() {
			return func() { run(r, "ip link add usb7 type veth peer name dsl-peer") }
		}, []string{"no interface matches usb*"}},
		{"one side", []string{"lan"}, func(r *rig) func() { return nil }, []string{"only lan is attached", "--port"}},
		{"a bridge", []string{"lan", "wan", "br0"}, func(r *rig) func() {
			run(r, "ip link add br0 type bridge")
			return func() { run(r, "ip link del br0"); run(r, "ip link add br0 type veth peer name dsl-peer") }
		}, []string{"br0 is a bridge"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{})
			mend := c.set(r)
			var args []string
			for _, port := range c.ports {
				args = append(args, "--port", port)
			}
			r.start(program, args...)
			check := append([]string{"degraded"}, c.words[0])
			r.told(1, []string{"status", "--check"}, check...)
			out := r.told(0, []string{"status"}, c.words...)
			if first, _, _ := strings.Cut(out, "\n"); !strings.Contains(first, "degraded") {
				t.Errorf("status begins with %q", first)
			}
			if log := r.daemon.Log(); !strings.Contains(log, "WARN \"degraded: ") && !strings.Contains(log, "WARN degraded: ") || !strings.Contains(log, c.words[0]) {
				t.Error("the log does not warn")
			}
			if mend == nil {
				return
			}
			mend()
			r.eventually("nothing is wrong any more", patience, func() bool { return r.status().State == api.StateRunning })
			r.told(0, []string{"status", "--check"}, "running")
		})
	}
}

// TestHangsAreTold: a daemon that says nothing costs a client seconds.
func TestHangsAreTold(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, both...)
	r.must(r.daemon.Signal(syscall.SIGSTOP))
	began := time.Now()
	r.told(0, []string{"status"}, fmt.Sprintf("pid %d, does not answer", r.daemon.PID()))
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("status took %v", took)
	}
	r.must(r.daemon.Signal(syscall.SIGCONT))
	if _, err := os.Stat(r.State()); err != nil {
		t.Error(err)
	}
}
