// SPDX-License-Identifier: Apache-2.0

// Package twin holds shunt against the only judge there is: the kernel.
//
// A script of frames, made byte by byte, is played through a router without shunt and
// through an identical one with it. What comes out on the other side must be the same
// frames in the same order, and conntrack must hold the same connections in the same
// states. cases_test.go is the table of routers, conversation_test.go what is said through
// them, play_test.go how, compare_test.go what may differ.
//
// Every flow must also have been repeated for at least nine tenths of its packets after
// the threshold, in the way that was asked for; else a twin would prove nothing. Only SCTP
// under conntrack is never repeated.
//
// It needs root. The labs are private and removed afterwards.
package twin

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"shunt/internal/api"
	"shunt/test/suite"
)

// program is the daemon under test.
var program string

// Two labs at a time: there may be no more processors than that.
var labs = make(chan struct{}, 2)

func TestMain(m *testing.M) {
	suite.Main(m, "twin", func(dir string) error {
		program = filepath.Join(dir, "shunt")
		return suite.Build(program, "")
	}, scores.print)
}

// TestTwins plays every trial without shunt and with it.
func TestTwins(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(trials)) {
		trial := trials[name]
		for _, link := range []struct {
			name  string
			stack bool
			ways  []string
		}{
			{"wire", false, []string{api.WayXDP, api.WayTC}},
			{"stack", true, []string{api.WayTC}},
		} {
			t.Run(name+"/"+link.name, func(t *testing.T) {
				t.Parallel()
				kernel := play(t, name, trial, link.stack, "", nil)
				for _, way := range link.ways {
					t.Run(way, func(t *testing.T) {
						shunt := play(t, name, trial, link.stack, way, kernel)
						compare(t, kernel, shunt)
						for _, s := range append(shunt.shares, shunt.body) {
							if s.value() < 0.9 {
								t.Errorf("%s: %d of %d packets after the threshold were hits in %s; at least 90 %% must be", s.name, s.hits, s.packets, way)
							}
						}
						scores.add(fmt.Sprintf("%s/%s/%s", name, link.name, way), shunt)
					})
				}
			})
		}
	}
}

// share is how much of one flow, or of a body, was repeated.
type share struct {
	name          string
	packets, hits uint64
}

func (s share) value() float64 { return float64(s.hits) / float64(s.packets) }

// score is a line of the table printed at the end.
type score struct {
	name  string
	flows int
	all   share
	worst share
}

type table struct {
	mu   sync.Mutex
	rows []score
}

var scores table

func (t *table) add(name string, p *performance) {
	s := score{name: name, flows: len(p.shares)}
	for _, f := range p.shares {
		s.all.packets += f.packets
		s.all.hits += f.hits
	}
	s.worst = slices.MinFunc(p.shares, func(a, b share) int { return cmp.Compare(a.value(), b.value()) })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, s)
}

func (t *table) print() {
	slices.SortFunc(t.rows, func(a, b score) int { return cmp.Compare(a.name, b.name) })
	fmt.Printf("%-24s %6s %9s %9s %7s  %s\n", "twin", "flows", "packets", "hits", "share", "least")
	for _, s := range t.rows {
		fmt.Printf("%-24s %6d %9d %9d %6.1f%%  %.1f%% %s\n", s.name, s.flows,
			s.all.packets, s.all.hits, 100*s.all.value(), 100*s.worst.value(), s.worst.name)
	}
}
