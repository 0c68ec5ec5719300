// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// row is what was measured of one kind, one way.
type row struct {
	kind, way string
	announced bool
	lease     time.Duration
	samples   []sample
	again     int // measurements that did not count
	kernel    int // losses of the kernel alone
}

func (r *row) late() (all []time.Duration) {
	for _, s := range r.samples {
		all = append(all, s.late)
	}
	return all
}

// bound is what the last packet that is treated as before may be late by.
func (r *row) bound() time.Duration {
	if r.announced {
		return atOnce
	}
	return r.lease + r.lease/jitter + atOnce
}

// judge asserts that the 99th percentile keeps the bound.
func (r *row) judge(t *testing.T) {
	t.Helper()
	if got := percentile(r.late(), 99); got > r.bound() {
		t.Errorf("%s: the change was obeyed after %v, in %d times; want %v", r.way, got, len(r.samples), r.bound())
	}
}

// table is printed when all tests have run.
type table struct {
	mu   sync.Mutex
	rows []*row
}

var measured table

func (t *table) add(r *row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

func (t *table) print() {
	if len(t.rows) == 0 {
		return
	}
	fmt.Printf("%-36s %-3s %5s  %9s %9s %9s  %6s %6s  %s\n", "change", "way", "times", "median ms", "p99 ms", "bound ms", "lost", "kernel", "announced by")
	order := func(r *row) int { return slices.IndexFunc(kinds, func(k *kind) bool { return k.name == r.kind }) }
	slices.SortStableFunc(t.rows, func(a, b *row) int { return order(a) - order(b) })
	var all []time.Duration
	for _, r := range t.rows {
		fmt.Println(r)
		if r.announced {
			all = append(all, r.late()...)
		}
	}
	if len(all) > 0 {
		fmt.Printf("%d changes that are announced: median %s ms, p99 %s ms, most %s ms\n", len(all),
			ms(percentile(all, 50)), ms(percentile(all, 99)), ms(percentile(all, 100)))
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }

func (r *row) String() string {
	losses := 0
	var words []string
	for _, s := range r.samples {
		losses += s.losses
		for _, w := range s.words {
			if !slices.Contains(words, w) {
				words = append(words, w)
			}
		}
	}
	by := strings.Join(words, " ")
	if by == "" {
		by = "-"
	}
	text := fmt.Sprintf("%-36s %-3s %5d  %9s %9s %9s  %6.1f %6d  %s", r.kind, r.way, len(r.samples),
		ms(percentile(r.late(), 50)), ms(percentile(r.late(), 99)), ms(r.bound()), float64(losses)/float64(max(len(r.samples), 1)), r.kernel, by)
	if r.again > 0 {
		text += fmt.Sprintf(" (%d taken again)", r.again)
	}
	return text
}
