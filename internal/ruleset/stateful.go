// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// Expressions with state that packets move: sets that rules add to, statements of elements, objects.

// dynset is nft_dynset_eval(). It ends the rule where a set is full. To add an element again does
// nothing, unless its time ran out or another rule took it out. "update" restarts its time, runs
// the statements that it carries, and does nothing else: without statements it keeps alive
// (clock.go). An element that "add" made ends under traffic, and the next packet makes it again. A
// lease would hold that packet back, so such a rule feeds the set.
func (m *machine) dynset(e *nft.Expr) {
	const renews, takesOut = 1, 2 // NFT_DYNSET_OP_UPDATE, NFT_DYNSET_OP_DELETE
	set := m.set(e.Set)
	parts, known := m.regs.key(e.Source, int(set.KeyLen))
	if !known {
		m.rule.vary("registers that were not followed")
	}
	m.useAll(parts)
	if e.Second >= 0 {
		m.use(m.source(e.Second))
	}
	m.rule.counts = "set " + e.Set
	m.from.moves = true
	m.sets.move(nft.Ref{Table: m.table, Name: e.Set}, e.Inner)
	moves := m.carried(e.Set)
	name := m.setName(e.Set)
	timed := set.Flags&unix.NFT_SET_TIMEOUT != 0
	switch {
	case e.Op == takesOut:
		m.rule.feed(name, m.soFar())
		m.rule.deletes = append(m.rule.deletes, name)
	case moves || timed && e.Op != renews:
		m.rule.feed(name, m.soFar())
	case !m.rule.never:
		m.rule.reached(m.soFar())
		m.rule.adds = append(m.rule.adds, name)
	}
	if timed && e.Op != takesOut {
		m.rule.keep(m.element(e, e.Op == renews), m.soFar())
	}
	m.rule.ask(name)
}

// askSet notes that the rule asks a set with a name.
func (m *machine) askSet(set string) {
	s := m.set(set)
	if s.Flags&unix.NFT_SET_ANONYMOUS != 0 {
		return
	}
	m.rule.ask(m.setName(set))
	if m.carried(set) {
		m.rule.feed(m.setName(set), m.soFar())
	}
}

// carried notes the statements that a set's elements carry, which are done when an element is found
// (nft_set_elem_update_expr()), and reports whether packets move one of them.
func (m *machine) carried(set string) (moves bool) {
	exprs := m.set(set).Exprs
	if len(exprs) == 0 {
		exprs = m.sets.statements(m.n, nft.Ref{Table: m.table, Name: set})
	}
	for _, expr := range exprs {
		moves = m.elementExpr(expr, set) || moves
	}
	return moves
}

// elementExpr is what each element of a set carries, and reports whether its outcome depends on
// the packets before.
func (m *machine) elementExpr(name, set string) bool {
	if name == "counter" || name == "last" {
		return false
	}
	if name == "connlimit" {
		name = "ct count"
	}
	where := "set " + set
	if m.set(set).Flags&unix.NFT_SET_ANONYMOUS != 0 {
		where = "a set"
	}
	m.rule.drain(name+" in "+where, m.soFar())
	return true
}

func (m *machine) set(name string) nft.Set {
	ref := nft.Ref{Table: m.table, Name: name}
	m.from.uses[ref] = true
	return m.n.Sets[ref]
}

func (m *machine) setName(set string) string { return fmt.Sprintf("set %s in table %s", set, m.table) }

// object is a reference to a stateful object (NFT_OBJECT_*), or to one of those in a map.
func (m *machine) object(e *nft.Expr) {
	const counter, quota, limit, connlimit, synproxy = 1, 2, 4, 5, 10
	kind, name := e.Key, e.Object
	if e.Set != "" {
		set := m.set(e.Set)
		parts, known := m.regs.key(e.Source, int(set.KeyLen))
		if !known {
			m.rule.vary("registers that were not followed")
		}
		m.useAll(parts)
		kind, name = set.ObjType, ""
		m.rule.ask(m.setName(e.Set))
	} else if kind == counter {
		m.proved++
	}
	words := map[uint32]string{quota: "quota", limit: "limit", connlimit: "ct count"}[kind]
	switch {
	case kind == counter:
		m.rule.counts = "counter"
	case words != "":
		m.rule.drain(words, m.soFar())
		m.named(words, name)
	case kind == synproxy:
		m.rule.acts = true
		m.rule.vary("synproxy")
	case kind > synproxy || kind == 0:
		m.rule.vary(fmt.Sprintf("object of type %d, which is not known", kind))
	default: // what makes a helper, a timeout, a mark: the same for all packets of a flow
		m.rule.acts = true
	}
}

// named notes an object's state. One that a map chooses may be any: it is fed by whatever feeds
// one by name, and feeds whatever is asked by name.
func (m *machine) named(kind, name string) {
	base := kind + " of table " + m.table.String()
	if name == "" {
		m.rule.feed(base+" by a map", m.soFar())
		m.rule.ask(base + " by a map")
		m.rule.ask(base + " by name")
		return
	}
	m.rule.feed(base+" "+name, m.soFar())
	m.rule.feed(base+" by name", m.soFar())
	m.rule.ask(base + " " + name)
	m.rule.ask(base + " by a map")
}
