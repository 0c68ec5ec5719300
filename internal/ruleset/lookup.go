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

// lookup finds a key in a set, or takes a value or a verdict from a map.
func (m *machine) lookup(e *nft.Expr) {
	v := m.regs[e.Source]
	if v == nil {
		v = &value{}
	}
	m.useAll()
	s := m.set(e.Set)
	m.elementExprs(s.Exprs, e.Set)
	switch {
	case e.Dest == nft.VerdictRegister:
		m.verdictMap(v, e)
	case e.Dest >= 0:
		m.rule.exact = false
		m.regs[e.Dest] = &value{}
	default:
		m.member(v, e)
	}
}

// anonymous returns the elements of a set that is part of the rule: they are as old as the
// rule is. Those of a set with a name come and go.
func (m *machine) anonymous(e *nft.Expr, most int) ([]nft.Element, bool) {
	if m.set(e.Set).Flags&unix.NFT_SET_ANONYMOUS == 0 {
		return nil, false
	}
	return m.n.Elements(nft.Ref{Table: m.table, Name: e.Set}, most)
}

// member narrows the rule to what is in a set.
func (m *machine) member(v *value, e *nft.Expr) {
	const inverted = 1 // NFT_LOOKUP_F_INV
	if v.opaque || v.kind == other || v.kind == packet || v.kind == zero {
		m.rule.exact = false
		return
	}
	elements, all := m.anonymous(e, mostElements)
	not := e.Flags&inverted != 0
	interval := slices.ContainsFunc(elements, func(e nft.Element) bool { return e.End || e.Other })
	switch {
	case !all || interval || len(elements) == 0:
		m.rule.exact = false
	case v.kind == state:
		m.states(func(bits uint32) bool {
			return not != slices.ContainsFunc(elements, func(el nft.Element) bool {
				return truth(v, bits, &nft.Expr{Op: opEqual, Data: el.Key})
			})
		})
	case not:
		m.rule.exact = false
	case v.kind == proto || v.kind == nfproto || v.kind == etherType:
		if len(elements) > 1 {
			m.rule.exact = false
			return
		}
		m.rule.only(kindMatch(v.kind, elements[0].Key, &m.rule.exact))
	default:
		m.devices(v.kind, oneOf(v.kind, elements))
	}
}

// oneOf are the interfaces of a set.
func oneOf(kind kind, elements []nft.Element) Interfaces {
	var names []string
	var indexes []int
	for _, e := range elements {
		if kind == inName || kind == outName {
			names = append(names, unix.ByteSliceToString(e.Key))
		} else if n, ok := number(e.Key); ok {
			indexes = append(indexes, int(n))
		}
	}
	slices.Sort(names) // a set has no order
	return Named(names, indexes...)
}

// verdictMap adds a branch for each element; one that is not read may be anything.
func (m *machine) verdictMap(v *value, e *nft.Expr) {
	elements, all := m.anonymous(e, mostVerdicts)
	if !all {
		for _, kind := range []branchKind{jumpAnywhere, terminal, giveBack} {
			m.rule.to = append(m.rule.to, branch{kind: kind, match: Match{States: AnyState}})
		}
		return
	}
	for _, el := range elements {
		if el.Verdict == nil {
			continue
		}
		match, exact := Match{States: AnyState}, false
		switch {
		case v.opaque || el.Other:
		case v.kind == state:
			m.rule.stateful = true
			match.States, exact = 0, true
			for s, bits := range stateBits {
				if truth(v, bits, &nft.Expr{Op: opEqual, Data: el.Key}) {
					match.States |= s
				}
			}
		case v.kind >= inName && v.kind <= outIndex:
			i := oneOf(v.kind, []nft.Element{el})
			if v.kind == inName || v.kind == inIndex {
				match.In = i
			} else {
				match.Out = i
			}
		case v.kind == proto || v.kind == nfproto || v.kind == etherType:
			exact = true
			match = kindMatch(v.kind, el.Key, &exact)
			match.States = AnyState
		}
		m.verdict(*el.Verdict, match, exact)
	}
}
