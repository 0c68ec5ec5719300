// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"shunt/internal/kernel"
)

// TestMissing: a connection that asks twice is told once, and a flood of them costs no more lines than memory.
func TestMissing(t *testing.T) {
	var m missing
	now := time.Now()
	of := func(n int) kernel.Tuple { return kernel.Tuple{Proto: tcp, Zone: uint16(n)} }
	for i, c := range []struct {
		connection int
		after      time.Duration
		want       bool
	}{
		{1, 0, false}, {2, 0, false}, {1, time.Second, true}, {1, time.Minute, false},
		{2, time.Second, false}, {2, missingApart + 2*time.Second, true}, {2, time.Hour, false}, {3, time.Hour, false},
	} {
		if got := m.again(of(c.connection), now.Add(c.after)); got != c.want {
			t.Errorf("step %d: %v, want %v", i, got, c.want)
		}
	}
	for n := range 3 * mostMissing {
		m.again(of(n), now)
	}
	if len(m.seen) > mostMissing {
		t.Errorf("%d connections are remembered", len(m.seen))
	}
}
