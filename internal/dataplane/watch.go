// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"math"
	"unsafe"
)

// unwatched says that TCP may have gone by unseen everywhere: what was known of connections before is no evidence
// against a FIN or RST now. Zero is what a slot has whose connection was never seen.
func (p *Plane) unwatched() {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.Watch), p.control().Watch%math.MaxUint16+1)
}

// unwatch says so for what comes in by a port that had no programs. It goes through the whole table: idle
// connections are in none of its lists.
func (t *table) unwatch(port int) {
	for n := range t.size() {
		if s := t.slot(n); int(s.Key.Kind>>uint32(tcKindKIND_PORT)) == port {
			s.Watch = 0
		}
	}
}
