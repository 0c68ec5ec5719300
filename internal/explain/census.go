// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"time"

	"shunt/internal/dataplane"
)

// Census counts flows by their state in the API's words, with rests so that it takes next to nothing of
// a CPU. l.Now must be of the end of a rest, too: clock reads it again.
func (l Look) Census(rest time.Duration, clock func() uint32) (map[string]int, error) {
	n, gen, at := map[string]int{}, l.Plane.Generation(), 0
	err := l.Plane.Walk(rest, func(s *dataplane.Slot) bool {
		if at++; at%1024 == 0 {
			l.Now, gen = clock(), l.Plane.Generation()
		}
		n[l.state(s, gen)]++
		return true
	})
	return n, err
}
