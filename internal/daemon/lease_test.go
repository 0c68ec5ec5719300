// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"
)

// TestLease: a flood of renewals stretches the lease, but none that is given, with its
// 12.5 % of jitter, lasts over 30 s; what the operator configured stays.
func TestLease(t *testing.T) {
	for _, c := range []struct{ base, most time.Duration }{
		{4 * time.Second, longestLease},
		{28 * time.Second, 28 * time.Second},
		{time.Minute, time.Minute},
	} {
		l := leaseControl{base: c.base, cpus: 1}
		var renewals uint64
		for range 10 {
			l.now = l.next(renewals, time.Second, false)
			renewals += 100 * renewalBudget
		}
		if l.now != c.most {
			t.Errorf("lease %v under a flood: %v, want %v", c.base, l.now, c.most)
		}
		if l.now = l.next(renewals+100*renewalBudget, time.Second, true); l.now != c.base {
			t.Errorf("lease %v under a flood, of a ruleset that may change in silence: %v", c.base, l.now)
		}
		for range 100 {
			l.now = l.next(renewals, time.Second, false)
		}
		if l.now != c.base {
			t.Errorf("lease %v after the flood: %v", c.base, l.now)
		}
	}
	if longest := longestLease + longestLease/8; longest > 30*time.Second {
		t.Errorf("a lease may last %v", longest)
	}
}

// TestLeaseByCPU: a rate of renewals that stretches the lease on one CPU does not on sixteen.
func TestLeaseByCPU(t *testing.T) {
	for cpus, want := range map[int]time.Duration{1: 16 * time.Second, 2: 8 * time.Second, 16: 4 * time.Second} {
		l := leaseControl{base: 4 * time.Second, cpus: cpus}
		l.now = l.next(0, time.Second, false)
		if got := l.next(4*renewalBudget, time.Second, false); got != want {
			t.Errorf("%d CPUs: %v, want %v", cpus, got, want)
		}
	}
}

// TestLeaseBesideClock: beside a clock that packets wind no lease lasts over half of its time, with
// jitter and under a flood of renewals, and none is shortened that is short enough.
func TestLeaseBesideClock(t *testing.T) {
	for _, c := range []struct{ clock, base, least, most time.Duration }{
		{2 * time.Second, 4 * time.Second, 8 * time.Second / 9, 8 * time.Second / 9},
		{18 * time.Second, 4 * time.Second, 4 * time.Second, 8 * time.Second},
		{time.Hour, 4 * time.Second, 4 * time.Second, longestLease},
		{0, 4 * time.Second, 4 * time.Second, longestLease},
		{time.Second, 200 * time.Millisecond, 200 * time.Millisecond, 4 * time.Second / 9},
	} {
		l := leaseControl{base: c.base, cpus: 1, limit: limitBy(c.clock)}
		if got := l.next(0, time.Second, false); got != c.least {
			t.Errorf("clock of %v, lease of %v: %v, want %v", c.clock, c.base, got, c.least)
		}
		var renewals uint64
		for range 10 {
			l.now = l.next(renewals, time.Second, false)
			renewals += 100 * renewalBudget
		}
		if l.now != c.most || c.clock > 0 && l.now+l.now/8 > c.clock/2 {
			t.Errorf("clock of %v, lease of %v, under a flood: %v, want %v", c.clock, c.base, l.now, c.most)
		}
		if got := l.next(renewals+100*renewalBudget, time.Second, true); got != c.least {
			t.Errorf("clock of %v, of a ruleset that may change in silence: %v, want %v", c.clock, got, c.least)
		}
	}
}
