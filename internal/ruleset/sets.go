// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"maps"
	"slices"
	"time"

	"shunt/internal/nft"
)

// sets are what is known of sets with a name.
type sets struct {
	trusted map[nft.Ref]bool     // taken for constant
	moved   map[nft.Ref]bool     // some rule adds elements, whatever the set's flags say
	carried map[nft.Ref][]string // and these statements with them
	counted map[nft.Ref]int      // taken for one with so few of these
	read    map[nft.Ref]elements
	own     map[nft.Ref]inside
}

type elements struct {
	list []nft.Element
	all  bool
}

// inside is what elements have of their own: statements, and the least of their timeouts.
type inside struct {
	exprs   []string
	timeout time.Duration
}

func newSets() *sets {
	return &sets{trusted: map[nft.Ref]bool{}, moved: map[nft.Ref]bool{}, carried: map[nft.Ref][]string{}, counted: map[nft.Ref]int{},
		read: map[nft.Ref]elements{}, own: map[nft.Ref]inside{}}
}

// forget drops what was read of some sets.
func (s *sets) forget(which func(nft.Ref) bool) {
	maps.DeleteFunc(s.read, func(ref nft.Ref, _ elements) bool { return which(ref) })
	maps.DeleteFunc(s.own, func(ref nft.Ref, _ inside) bool { return which(ref) })
}

// move notes a rule that adds elements with statements, or takes some out.
func (s *sets) move(ref nft.Ref, statements []string) {
	s.moved[ref] = true
	s.carried[ref] = also(s.carried[ref], statements)
}

func also(list, more []string) []string {
	for _, name := range more {
		if !slices.Contains(list, name) {
			list = append(list[:len(list):len(list)], name)
		}
	}
	return list
}

// misjudged reports whether a rule behind another one, or in a chain that was read later, showed
// that a set is not what it was taken for. What is known now holds for the next time.
func (s *sets) misjudged() (wrong bool) {
	for ref := range s.trusted {
		wrong = wrong || s.moved[ref]
	}
	for ref, n := range s.counted {
		wrong = wrong || len(s.carried[ref]) > n
	}
	if wrong {
		clear(s.trusted)
		clear(s.counted)
	}
	return wrong
}

func (s *sets) elements(n *nft.Ruleset, ref nft.Ref, most int) ([]nft.Element, bool) {
	known, ok := s.read[ref]
	if !ok {
		known.list, known.all = n.Elements(ref, mostVerdicts)
		s.read[ref] = known
	}
	if !known.all || len(known.list) > most {
		return nil, false
	}
	return known.list, true
}

// statements returns the expressions that elements of a set carry, those of the set itself aside:
// a rule gave them, or who added the element.
func (s *sets) statements(n *nft.Ruleset, ref nft.Ref) []string {
	if n, known := s.counted[ref]; !known || n > len(s.carried[ref]) {
		s.counted[ref] = len(s.carried[ref])
	}
	return also(s.inside(n, ref).exprs, s.carried[ref])
}

// inside returns what elements of a set have of their own.
func (s *sets) inside(n *nft.Ruleset, ref nft.Ref) inside {
	known, ok := s.own[ref]
	if !ok {
		known.exprs, known.timeout = n.Statements(ref)
		s.own[ref] = known
	}
	return known
}
