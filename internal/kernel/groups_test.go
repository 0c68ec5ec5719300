// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"
	"time"

	"shunt/internal/nl/nltest"
)

// TestIdleGroup: the resilient group with the least idle timer counts, and one without a timer does
// not.
func TestIdleGroup(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	is := func(when string, want time.Duration, group uint32) {
		t.Helper()
		if idle, id, err := IdleGroup(); idle != want || id != group || err != nil {
			t.Errorf("%s: %v of group %d, %v; want %v of %d", when, idle, id, err, want, group)
		}
	}
	is("without any", 0, 0)
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up
		ip nexthop add id 1 dev va
		ip nexthop add id 10 group 1
		ip nexthop add id 11 group 1 type resilient buckets 8 idle_timer 0`)
	is("with none that is idle", 0, 0)
	events := listen(t)
	nltest.Run(t, `
		ip nexthop add id 12 group 1 type resilient buckets 8 idle_timer 30
		ip nexthop add id 13 group 1 type resilient buckets 8 idle_timer 4`)
	is("with two", 4*time.Second, 13)
	await(t, events, EventNexthop) // new, and told all the same
	nltest.Run(t, `ip nexthop replace id 13 group 1 type resilient buckets 8 idle_timer 60`)
	is("changed", 30*time.Second, 12)
}
