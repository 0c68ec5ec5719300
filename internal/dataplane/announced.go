// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"time"
)

// obeyed is a change of which only some entries were put out of use.
type obeyed struct {
	at    time.Time
	about []Scope
}

// obeyedFor is how long such a change is remembered.
const obeyedFor = time.Second

// note remembers a change, for Announced. The caller holds p.raise.
func (p *Plane) note(about []Scope) {
	now := time.Now()
	old := 0
	for old < len(p.obeyed) && now.Sub(p.obeyed[old].at) > obeyedFor {
		old++
	}
	p.obeyed = append(p.obeyed[old:], obeyed{now, slices.Clone(about)})
}

// Announced tells whether a change that is about the flow of a difference, in its old form or
// in its new one, was obeyed since a time not over a second ago.
func (p *Plane) Announced(d *Difference, since time.Time) bool {
	if p.Generation() != d.Generation {
		return true
	}
	before, after := d.raw.slot(&d.raw.Before), d.raw.slot(&d.raw.After)
	p.raise.Lock()
	defer p.raise.Unlock()
	for _, o := range p.obeyed {
		if o.at.Before(since) {
			continue
		}
		if set := newScopes(o.about); set.match(before) || set.match(after) {
			return true
		}
	}
	return false
}

// slot is the entry that a form stood in, as far as a Scope asks.
func (d *tcDifference) slot(f *tcForm) *tcSlot {
	return &tcSlot{
		Key: d.Key, In6: d.In6, Oif: f.Oif, DmacOut: f.Dmac, SmacOut: f.Smac,
		Saddr: f.Saddr, Daddr: f.Daddr, Sport: f.Sport, Dport: f.Dport, Out6: f.Out6,
	}
}
