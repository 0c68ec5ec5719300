// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// mostElements of a set are looked at, and of a map to verdicts.
const (
	mostElements = 64
	mostVerdicts = 1024
)

// lookup is nft_lookup_eval(): it finds a key in a set, or takes a value or a verdict from a
// map. A key is all of its parts: an element says only as much as each of them does.
func (m *machine) lookup(e *nft.Expr) {
	const inverted = 1 // NFT_LOOKUP_F_INV
	set := m.set(e.Set)
	parts, known := m.regs.key(e.Source, int(set.KeyLen))
	if !known {
		m.rule.vary("registers that were not followed")
	}
	m.askSet(e.Set)
	switch {
	case e.Dest == nft.VerdictRegister:
		m.verdictMap(e.Set, parts, known)
	case e.Dest >= 0:
		m.useAll(parts)
		if set.Flags&unix.NFT_SET_ANONYMOUS != 0 {
			m.carried(e.Set)
		}
		m.regs.load(e.Dest, &value{size: int(set.Data)})
	default:
		outcomes, all := m.elements(e.Set, mostElements, parts)
		o := anything()
		if known && all {
			o = union(outcomes)
		}
		before := m.protos
		m.onlyProtocols(outcomes) // of another protocol's packets no other part of the key is compared
		if e.Flags&inverted != 0 {
			m.fails(m.key(parts), o)
			m.protos = before
		} else {
			m.holds(m.key(parts), o)
		}
	}
}

// key stands for a value of several parts.
func (m *machine) key(parts []*value) *value {
	for _, v := range parts {
		if v.varying(m.family(), m.protocols()) != "" || v.kind == counted {
			return v
		}
	}
	return &value{}
}

// found is an element, and for which packets its key is the one that is looked for.
type found struct {
	outcome
	nft.Element
}

// elements returns those of a set that a repeated packet may find, and whether all of them are
// known. Known are the elements of a set that is part of a rule, since it is as old as the rule
// is, and those of one with a name, if no packet moves them and their change is as good as a
// new ruleset (nft.Set.Address).
func (m *machine) elements(name string, most int, parts []*value) (some []found, all bool) {
	elements, all := m.constant(name, most)
	flags := m.set(name).Flags
	if !all {
		if flags&unix.NFT_SET_ANONYMOUS != 0 {
			m.carried(name)
		}
		return nil, false
	}
	interval := flags&unix.NFT_SET_INTERVAL != 0
	for _, el := range elements {
		o := anything()
		for _, expr := range el.Exprs {
			m.elementExpr(expr, name)
		}
		if !el.Other && !el.End && !(interval && len(el.To) == 0) && (len(el.To) == 0 || slices.Equal(el.Key, el.To)) {
			o = m.equalKey(parts, el.Key)
		}
		if !el.End && !o.never {
			some = append(some, found{o, el})
		}
	}
	return some, true
}

// equalKey is equal for each part of a key.
func (m *machine) equalKey(parts []*value, key []byte) outcome {
	all := outcome{match: Match{States: AnyState}, exact: true}
	for _, v := range parts {
		if len(key) < v.size || v.size == 0 {
			return anything()
		}
		o := m.equal(v, key[:v.size])
		key = key[min(len(key), words(v.size)*4):]
		var ok bool
		all.match, ok = all.match.both(o.match)
		all.exact = all.exact && o.exact
		all.never = all.never || o.never || !ok && !o.stateful
		all.stateful = all.stateful || o.stateful
		if !ok {
			all.match.States = 0
		}
	}
	return all
}

// union says for which packets any of some keys is the one that is looked for. It is exact
// where all are, and differ in state alone or in one interface alone.
func union(keys []found) outcome {
	if len(keys) == 0 {
		return outcome{never: true}
	}
	all := keys[0].outcome
	for _, k := range keys[1:] {
		all.stateful = all.stateful || k.stateful
		a, b := all.match, k.match
		differ := 0
		for _, is := range []bool{a.States != b.States, a.In != b.In, a.Out != b.Out} {
			if is {
				differ++
			}
		}
		all.match.States |= b.States
		all.match.In, all.match.Out = either(a.In, b.In), either(a.Out, b.Out)
		b.States, b.In, b.Out = all.match.States, all.match.In, all.match.Out
		if all.match != b { // protocols or families: no match says "this or that"
			all.match = Match{States: all.match.States}
			differ = 2
		}
		all.exact = all.exact && k.exact && differ <= 1
	}
	return all
}

// either lists what either of two lists admits.
func either(a, b Interfaces) Interfaces {
	if a == "" || b == "" {
		return ""
	}
	return a.union(b)
}

// onlyProtocols notes the protocols that a rule asks for by keys, each of which names one.
func (m *machine) onlyProtocols(keys []found) {
	var all []uint8
	for _, k := range keys {
		if k.match.Proto == 0 {
			return
		}
		all = append(all, k.match.Proto)
	}
	if len(all) > 0 && m.protos == nil {
		m.protos = all
	}
}

// constant returns the elements of a set that packets cannot change.
func (m *machine) constant(name string, most int) ([]nft.Element, bool) {
	set, ref := m.set(name), nft.Ref{Table: m.table, Name: name}
	if set.Flags&unix.NFT_SET_ANONYMOUS != 0 {
		return m.n.Elements(ref, most)
	}
	if set.Address || set.Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) != 0 || m.sets.moved[ref] {
		return nil, false
	}
	m.sets.trusted[ref] = true
	return m.sets.elements(m.n, ref, most)
}

// verdictMap adds a branch for each element; one that is not read may be anything. What
// stands behind it in the rule is reached by packets for which the map says "continue".
func (m *machine) verdictMap(name string, parts []*value, known bool) {
	m.ended = true
	keys, all := m.elements(name, mostVerdicts, parts)
	if !all || !known {
		m.useAll(parts)
		m.goesOn = true
		for _, kind := range []branchKind{jumpAnywhere, terminal, giveBack} {
			m.rule.to = append(m.rule.to, branch{kind: kind, match: Match{States: AnyState}})
		}
		return
	}
	m.proved++ // each branch says for itself
	m.onlyProtocols(keys)
	for _, k := range keys {
		if !k.exact {
			m.useAll(parts)
		}
		m.rule.stateful = m.rule.stateful || k.stateful
		if k.Verdict == nil {
			continue
		}
		m.goesOn = m.goesOn || k.Verdict.Code == unix.NFT_CONTINUE
		m.verdict(*k.Verdict, k.match, k.exact)
	}
}
