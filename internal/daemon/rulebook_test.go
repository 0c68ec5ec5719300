// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"testing"

	"shunt/internal/kernel"
)

// TestHearClocks: of changes that can only move a clock, those are read that do, and flows learn on
// meanwhile. Next-hop groups are read without the ruleset.
func TestHearClocks(t *testing.T) {
	elements := kernel.Event{Kind: kernel.EventNftables, Elements: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
	for _, c := range []struct {
		name          string
		own           bool
		done          uint64
		e             kernel.Event
		stale, groups int
	}{
		{"elements without timeouts", false, 1, elements, 0, 0},
		{"elements with timeouts", true, 1, elements, 1, 0},
		{"elements while the ruleset is being read", false, 0, elements, 1, 0},
		{"next hops", false, 1, kernel.Event{Kind: kernel.EventNexthop}, 0, 1},
		{"routes", true, 1, kernel.Event{Kind: kernel.EventRoute}, 0, 0},
	} {
		b := &rulebook{stale: make(chan struct{}, 1), groups: make(chan struct{}, 1), heard: 1, done: c.done} // no plane: none is told
		b.elements.Store(c.own)
		b.hear(c.e)
		b.hear(c.e)
		if len(b.stale) != c.stale || len(b.groups) != c.groups || b.heard != 1 {
			t.Errorf("%s: %d, %d, %d changes; want %d, %d, 1", c.name, len(b.stale), len(b.groups), b.heard, c.stale, c.groups)
		}
	}
}
