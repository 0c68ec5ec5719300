// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"shunt/internal/kernel"
)

const (
	mostMissing  = 1024
	missingApart = 10 * time.Second // between two lines of the log
)

// missing remembers connections that ask for be-liberal and that conntrack does not find. One that has ended
// asks once, by a packet that was under way; one that asks again lives, and stays slow.
type missing struct {
	seen map[kernel.Tuple]bool // true: it was logged
	last time.Time             // a line of the log
}

// again notes a connection and reports whether to log it: it was missing before, and was not logged yet.
func (m *missing) again(t kernel.Tuple, now time.Time) bool {
	logged, before := m.seen[t]
	if !before && len(m.seen) >= mostMissing || m.seen == nil {
		m.seen = map[kernel.Tuple]bool{}
	}
	tell := before && !logged && now.Sub(m.last) >= missingApart
	if tell {
		m.last = now
	}
	m.seen[t] = logged || tell
	return tell
}
