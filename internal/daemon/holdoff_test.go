// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"
)

// TestHoldOff wants a passing trouble to cost a second of XDP, and a lasting one little.
func TestHoldOff(t *testing.T) {
	var p port
	now := time.Unix(1e9, 0)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if p.loses = p.holdOff(now); p.loses.Sub(now) != want*time.Second {
			t.Errorf("trouble %d: no XDP for %v, want %d s", i+1, p.loses.Sub(now), want)
		}
		now = p.loses.Add(time.Second) // it is tried again, in vain
	}
	now = p.loses.Add(losesHoldOff + time.Second)
	if p.loses = p.holdOff(now); p.loses.Sub(now) != losesFirst {
		t.Errorf("new trouble after a quiet time: no XDP for %v, want %v", p.loses.Sub(now), losesFirst)
	}
}
