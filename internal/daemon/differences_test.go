// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"shunt/internal/api"
)

// TestDifferencesKept: the last ones are kept, the latest first, and the log is told of one in
// ten seconds. What was announced after all is neither kept nor counted.
func TestDifferencesKept(t *testing.T) {
	d := &Daemon{differences: differences{before: 1000}}
	k := &d.differences
	start := time.Now()
	told, untold := 0, 0
	const n, announced = 300, 7
	for i := range n + announced {
		k.waiting++
		tell, unlogged := k.keep(api.Difference{At: start.Add(time.Duration(i) * 100 * time.Millisecond), Packets: uint64(i)}, i >= n)
		if tell {
			told++
			untold += unlogged
		}
	}
	if told != 3 || untold != 2*99 {
		t.Errorf("the log was told %d times, and of %d more; want 3 times in 30 s, and of 198", told, untold)
	}
	list, err := d.Differences()
	if err != nil || len(list) != differencesKept || list[0].Packets != n-1 || list[differencesKept-1].Packets != n-differencesKept {
		t.Errorf("%d are kept, from %d to %d; %v", len(list), list[0].Packets, list[len(list)-1].Packets, err)
	}
	if got := k.count(1000 + n + announced); got != n {
		t.Errorf("%d are counted, want %d", got, n)
	}
	if got := k.count(1000); got != 0 { // told before it was counted
		t.Errorf("%d are counted of none", got)
	}
	if k.waiting != 0 {
		t.Errorf("%d wait", k.waiting)
	}
}
