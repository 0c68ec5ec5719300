// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestReload: what a running daemon can change it changes under traffic, without losing a packet
// and from the moment on at which the command returns; a file with anything wrong changes nothing.
func TestReload(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			file := filepath.Join(t.TempDir(), "shunt.toml")
			write := func(text string) {
				t.Helper()
				r.must(os.WriteFile(file, []byte(text), 0o600))
			}
			base := fmt.Sprintf("port = [\"lan\", \"wan\"]\nxdp = %q\nflows = 1024\n", mode)
			write(fmt.Sprintf("port = [\"lan\"]\nxdp = %q\nflows = 1024\n", mode))
			r.start(program, "--config", file)
			sink := r.sink(r.Server, 1)
			stop := r.background(r.generator(4, 2000))

			if names := r.attached(r.WAN); len(names) > 0 {
				t.Fatalf("wan has %v before it is configured", names)
			}
			write(base)
			r.reload()
			r.eventually("a new port makes flows fast", patience, func() bool { return len(r.armed()) == 4 })

			write(base + "lease = \"2s\"\nthreshold = 20\nverify = 7\nlabel_hold = \"1m\"\n[police]\nttl = \"1000/s\"\n")
			r.reload()
			if s := r.status(); s.LeaseSeconds != 2 || s.Threshold != 20 {
				t.Errorf("lease %v s, threshold %d after the reload", s.LeaseSeconds, s.Threshold)
			}
			want := map[string]string{"lease": `"2s" ` + file + ":4", "threshold": "20 " + file + ":5", "verify": "7 " + file + ":6",
				"label_hold": `"1m0s" ` + file + ":7", "police.ttl": `"1000/s" ` + file + ":9", "tcp": `"on" default`}
			if diff := cmp.Diff(want, r.settings("lease", "threshold", "verify", "label_hold", "police.ttl", "tcp")); diff != "" {
				t.Error(diff)
			}
			r.eventually("flows are fast under the new settings", patience, func() bool { return len(r.armed()) == 4 })

			// Refused as a whole, each with its line; the lease of 9 s in them is not applied either.
			before, generation := r.settings(), r.status().Generation
			for _, bad := range []struct{ text, words string }{
				{"lease = \"9s\"\nthreshold = 0\n", ":5: threshold = 0: allowed is a number"},
				{"lease = \"9s\"\n\nfast = true\n", `:6: unknown key "fast"`},
				{"lease = \"9s\"\nflows = 2048\n", ":5: "}, // twice: wrong TOML
				{"lease = \"9s\"\nlabels = 8192\n", ":5: labels = 8192: the running daemon has 4096"},
				{"lease = \"9s\"\n[ports.\"eth7\"]\nxdp = \"off\"\n", `:5: [ports."eth7"] is about no port`},
			} {
				write(base + bad.text)
				_, stderr, code := r.shunt("reload")
				if code == 0 || !strings.HasPrefix(stderr, "shunt: "+file+bad.words) || strings.Count(stderr, "\n") != 1 {
					t.Errorf("%q: exit %d and %q; want the line and %q", bad.text, code, stderr, bad.words)
				}
			}
			write(strings.Replace(base, "1024", "2048", 1) + "lease = \"9s\"\n")
			if _, stderr, code := r.shunt("reload"); code == 0 || !strings.Contains(stderr, file+":3: flows = 2048: the running daemon has 1024") {
				t.Errorf("flows: exit %d, %q", code, stderr)
			}
			r.must(os.Remove(file))
			if _, stderr, code := r.shunt("reload"); code == 0 || !strings.Contains(stderr, "no such file") {
				t.Errorf("no file: exit %d, %q", code, stderr)
			}
			if diff := cmp.Diff(before, r.settings()); diff != "" || r.status().Generation != generation {
				t.Errorf("a refused file changed something, generation %d to %d:\n%s", generation, r.status().Generation, diff)
			}

			// SIGHUP does the same, and the log has the answer.
			write(base + "lease = \"3s\"\n\n[[exclude]]\nproto = \"udp\"\nport = \"9\"\n")
			r.must(r.daemon.Signal(syscall.SIGHUP))
			r.eventually("SIGHUP applies the file", patience, func() bool { return r.status().LeaseSeconds == 3 })
			r.eventually("the log says what changed", patience, func() bool {
				return strings.Contains(r.daemon.Log(), `configuration applied changed="threshold, lease, verify, label_hold, exclude, police.ttl"`)
			})
			hits := r.status().Hits
			time.Sleep(200 * time.Millisecond)
			if now := r.status().Hits; now != hits || len(r.armed()) > 0 {
				t.Errorf("%d hits of excluded flows, %d are armed", now-hits, len(r.armed()))
			}
			write(base + "threshold = 0\n")
			r.must(r.daemon.Signal(syscall.SIGHUP))
			r.eventually("the log says what is wrong", patience, func() bool {
				return strings.Contains(r.daemon.Log(), "configuration refused; nothing was changed") && strings.Contains(r.daemon.Log(), "threshold = 0")
			})

			write(base)
			r.reload()
			r.eventually("flows are fast without the exclusion", patience, func() bool { return len(r.armed()) == 4 })
			sent := stop()
			r.whole("under reloads", sink, sent.Sent)

			write(fmt.Sprintf("port = [\"lan\"]\nxdp = %q\nflows = 1024\n", mode))
			r.reload()
			if names := r.attached(r.WAN); len(names) > 0 {
				t.Errorf("wan has %v after it was taken out", names)
			}
			r.fast("without wan", sink, false)
		})
	}
}

// TestReloadWithoutFile: a daemon that has only flags has nothing to read again.
func TestReloadWithoutFile(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, with("--config", "")...)
	if _, stderr, code := r.shunt("reload"); code != 1 || !strings.Contains(stderr, "/etc/shunt/shunt.toml does not exist") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func (r *rig) reload() {
	r.t.Helper()
	if out, stderr, code := r.shunt("reload"); code != 0 || out+stderr != "" {
		r.t.Fatalf("reload: exit %d, %s%s", code, out, stderr)
	}
}

// settings are values in force with their origin, by key: all, or those that are named.
func (r *rig) settings(keys ...string) map[string]string {
	r.t.Helper()
	out, stderr, code := r.shunt("config", "show", "--json")
	var all []api.Setting
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 {
		r.t.Fatalf("config show: %v, %s", err, stderr)
	}
	found := map[string]string{}
	for _, s := range all {
		if len(keys) == 0 || slices.Contains(keys, s.Key) {
			found[s.Key] += s.Value + " " + s.From
		}
	}
	return found
}
