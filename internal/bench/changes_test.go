// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"context"
	"testing"
	"time"

	"shunt/internal/bench"
)

// One short round: routes are changed in one phase and not in the other, all frames are
// accounted for, and the daemon is seen to work. How fast flows stay is not judged here.
func TestChanges(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := bench.Options{Rounds: 1, Binary: binary, Say: func(string, ...any) {}}
	report, err := bench.Changes(context.Background(), o, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range report.Modes {
		if changing := m.Made.Median > 100; changing != m.Changing {
			t.Errorf("changing %t: %.0f changes a second", m.Changing, m.Made.Median)
		}
		if p := m.Phases[0]; p.Sunk == 0 || p.Hits+p.Forwarded != p.Sunk || m.HitShare.Median != p.HitShare() {
			t.Errorf("changing %t: hit share %v of %+v", m.Changing, m.HitShare.Median, p)
		}
		if m.DaemonCPU.Median <= 0 || m.DaemonCPU.Median > 2 {
			t.Errorf("changing %t: the daemon took %.3f of a CPU", m.Changing, m.DaemonCPU.Median)
		}
	}
	if len(report.Targets) != 2 {
		t.Errorf("targets: %+v", report.Targets)
	}
}
