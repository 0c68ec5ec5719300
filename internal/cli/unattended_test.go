// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"shunt/internal/api"
	"shunt/internal/config"
)

// left is what a daemon that is gone left.
type left struct {
	*fake
	closed int
}

func (l *left) Close() error { l.closed++; return nil }
func (l *left) Beats() bool  { return false }

// TestUnattended: where no daemon answers, what it left does, and says so first; a script is told by
// the exit code.
func TestUnattended(t *testing.T) {
	l := &left{fake: example()}
	l.status.State, l.status.PID, l.status.Started = api.StateUnattended, 0, time.Time{}
	l.status.Counters = nil
	l.status.Problems = []api.Check{
		{Name: "daemon", Level: api.LevelFail, Finding: "no daemon lives, the last one ended 12s ago; its programs stay attached to lan0, wan0 and go on",
			Remedy: `"shunt run" takes over, "shunt stop" removes it all`},
		{Name: "port wan1", Level: api.LevelFail, Finding: "wan1: no such interface now", Remedy: "it becomes a port as soon as it is there"},
	}
	var asked []config.Paths
	set(t, &Pinned, func(paths config.Paths) (Unattended, error) { asked = append(asked, paths); return l, nil })
	dead := t.TempDir()
	for name, args := range map[string][]string{
		"unattended-status": {"status"}, "unattended-ports": {"ports"}, "unattended-flows": {"flows", "--limit", "2"},
	} {
		code, out, err := shunt(append(args, "--state", dead)...)
		if code != 0 || err != "" {
			t.Errorf("%v: exit %d, %s", args, code, err)
		}
		golden(t, name, out)
	}
	code, out, err := shunt("status", "--check", "--state", dead)
	if want := `shunt: unattended: no daemon lives, the last one ended 12s ago; its programs stay attached to lan0, wan0 and go on; ` +
		`"shunt run" takes over, "shunt stop" removes it all; and 1 more, see "shunt status"` + "\n"; code != 1 || out != "" || err != want {
		t.Errorf("--check: exit %d, %q, %q", code, out, err)
	}
	for _, args := range [][]string{{"pause"}, {"resume"}, {"explain", "--all"}, {"top", "--once"}} {
		if code, _, err := shunt(append(args, "--state", dead)...); code != 0 || err != "" {
			t.Errorf("%v: exit %d, %s", args, code, err)
		}
	}
	if diff := gocmp.Diff([]bool{true, false}, l.paused); diff != "" {
		t.Error(diff)
	}
	if len(asked) != l.closed || asked[0].State != dead {
		t.Errorf("opened %v, closed %d times", asked, l.closed)
	}
	// where nothing is left, or it cannot be read, nobody answers
	set(t, &Pinned, func(config.Paths) (Unattended, error) { return nil, nil })
	if code, _, err := shunt("pause", "--state", dead); code != 1 || !strings.HasPrefix(err, "shunt: no daemon answers at ") {
		t.Errorf("exit %d, %s", code, err)
	}
	set(t, &Pinned, func(config.Paths) (Unattended, error) { return nil, errors.New("/b: its layout is 7") })
	if code, _, err := shunt("ports", "--state", dead); code != 1 || err != "shunt: /b: its layout is 7\n" {
		t.Errorf("exit %d, %s", code, err)
	}
}

// TestStatusCheck: 0 only if all is as it should be.
func TestStatusCheck(t *testing.T) {
	f := example()
	state := serve(t, f)
	if code, out, err := shunt("status", "--check", "--state", state); code != 0 || out != "running\n" || err != "" {
		t.Errorf("running: exit %d, %q, %q", code, out, err)
	}
	f.status.State = api.StateDegraded
	f.status.Problems = []api.Check{{Name: "port wan0", Level: api.LevelFail, Finding: "wan0 is a bridge", Remedy: "name only physical ports"}}
	if code, out, err := shunt("status", "--check", "--state", state); code != 1 || out != "" || err != "shunt: degraded: wan0 is a bridge; name only physical ports\n" {
		t.Errorf("degraded: exit %d, %q, %q", code, out, err)
	}
	f.status.Counters = nil
	_, out, _ := shunt("status", "--state", state)
	golden(t, "status-degraded", out)
	f.status.State, f.status.Paused, f.status.Problems = api.StatePaused, true, nil
	if code, _, err := shunt("status", "--check", "--state", state); code != 1 || !strings.HasPrefix(err, "shunt: paused: everything goes to the kernel") {
		t.Errorf("paused: exit %d, %q", code, err)
	}
}
