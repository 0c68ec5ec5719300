// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Chance passes, and what is more than chance does not.
func TestResetTargets(t *testing.T) {
	for _, c := range []struct {
		kernel, shunt, connections int
		missed                     int
	}{
		{0, 0, 450000, 0},
		{0, 9, 450000, 0}, // one in 512, were both alike
		{0, 10, 450000, 1},
		{9, 0, 450000, 0},
		{10, 26, 450000, 0},
		{10, 31, 450000, 1},
		{90, 90, 450000, 0},
		{91, 91, 450000, 1}, // the kernel is no excuse
		{0, 200, 450000, 2},
	} {
		if targets := resetTargets(c.kernel, c.shunt, c.connections); Missed(targets) != c.missed {
			t.Errorf("%+v: %+v", c, targets)
		}
	}
}

// Rounds come together by mode, whichever was first.
func TestConnectionsSum(t *testing.T) {
	f := ConnectionsReport{Samples: []ConnectionsPhase{
		{Mode: Kernel, Connections: 5000, Resets: 1, CPU: 10, P50: 1, P99: 4},
		{Mode: Shunt, Connections: 5001, Resets: 3, CPU: 11, P50: 1, P99: 4},
		{Mode: Shunt, Connections: 4999, CPU: 10, P50: 1, P99: 5},
		{Mode: Kernel, Connections: 4998, Resets: 2, CPU: 10, P50: 1, P99: 5},
	}}
	f.sum()
	for i, want := range []ConnectionsMode{{Mode: Kernel, Connections: 9998, Resets: 3}, {Mode: Shunt, Connections: 10000, Resets: 3}} {
		got := f.Modes[i]
		got.Figures = nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if r := f.Ratios["cpu_s"].Samples; !slices.Equal(r, []float64{1.1, 1}) {
		t.Errorf("CPU, shunt over kernel: %v", r)
	}
	if n := Missed(f.Targets); n != 1 { // the resets: 1.5 of 5,000
		t.Errorf("%d missed: %+v", n, f.Targets)
	}
}

// Drift that is even over a round hits both modes alike.
func TestConnectionTurns(t *testing.T) {
	var length, moment [2]int // of each mode; twice, in sixths
	at := 0
	for turn, sixths := range connectionTurns {
		length[turn%2] += sixths
		moment[turn%2] += sixths * (2*at + sixths)
		at += sixths
	}
	if length != [2]int{6, 6} || moment[0] != moment[1] {
		t.Errorf("lengths %v, moments %v", length, moment)
	}
}
