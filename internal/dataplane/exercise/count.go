// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"shunt/internal/dataplane"
)

// Tally is packets by stage and reason, "xdp hit" for instance. What is zero is not in it.
type Tally map[string]uint64

// ParseTally reads "xdp learning, tc-ingress learning 2": names with their counts, 1
// where none is written. A word that is no stage or no reason is an error.
func ParseTally(text string) (Tally, error) {
	t := Tally{}
	for item := range strings.SplitSeq(text, ",") {
		fields := strings.Fields(item)
		if len(fields) == 0 {
			continue
		}
		n := uint64(1)
		if len(fields) == 3 {
			var err error
			if n, err = strconv.ParseUint(fields[2], 10, 64); err != nil {
				return nil, fmt.Errorf("tally %q: %w", item, err)
			}
			fields = fields[:2]
		}
		if len(fields) != 2 || !slices.Contains(dataplane.Stages, fields[0]) || !slices.Contains(dataplane.Reasons, fields[1]) {
			return nil, fmt.Errorf("tally %q: want STAGE REASON [COUNT]", item)
		}
		t[fields[0]+" "+fields[1]] += n
	}
	return t, nil
}

// String is what ParseTally reads, in alphabetical order.
func (t Tally) String() string {
	var items []string
	for _, k := range slices.Sorted(maps.Keys(t)) {
		item := k
		if t[k] != 1 {
			item += " " + strconv.FormatUint(t[k], 10)
		}
		items = append(items, item)
	}
	return strings.Join(items, ", ")
}

// Minus is what was counted since before.
func (t Tally) Minus(before Tally) Tally {
	d := Tally{}
	for k, n := range t {
		if n != before[k] {
			d[k] = n - before[k]
		}
	}
	return d
}

// Count reads all counters of both ports.
func (r *Rig) Count() (Tally, error) {
	t := Tally{}
	for stage, name := range dataplane.Stages {
		for _, index := range []int{r.LANIndex, r.WANIndex} {
			c, err := r.Counters(stage, index)
			if err != nil {
				return nil, err
			}
			for reason, n := range c.Packets {
				if n > 0 {
					t[name+" "+dataplane.Reasons[reason]] += n
				}
			}
		}
	}
	return t, nil
}
