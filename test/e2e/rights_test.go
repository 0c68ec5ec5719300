// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestRights: a daemon that has started can no longer do what only the start took, in any of
// its threads, nor can what it executes. That ports which come, upgrades and `shunt stop` need
// no more is what all other tests here show.
func TestRights(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	r.start(program, both...)
	kept := fmt.Sprintf("%016x", uint64(1<<unix.CAP_NET_ADMIN|1<<unix.CAP_BPF))
	want := map[string]string{
		"CapEff": kept, "CapPrm": kept, "CapBnd": kept, "CapInh": fmt.Sprintf("%016x", 0),
		"CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1",
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", r.daemon.PID()))
	if err != nil || len(threads) < 2 {
		t.Fatalf("threads: %v, %v; want some", threads, err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // it ended
		}
		r.must(err)
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			if value = strings.TrimSpace(value); want[key] != "" && value != want[key] {
				t.Errorf("%s: %s %s, want %s", path, key, value, want[key])
			}
		}
	}

	out, errs, code := r.shunt("doctor", "--json")
	var checks []api.Check
	r.must(json.Unmarshal([]byte(out), &checks))
	if code != 0 || len(checks) == 0 {
		t.Errorf("shunt doctor: exit code %d, %s, %s", code, out, errs)
	}
	for _, c := range checks {
		if c.Level == api.LevelFail {
			t.Errorf("asked by the daemon the doctor finds %+v", c)
		}
	}
	r.must(r.daemon.Stop())
	r.nothing()
}
