// SPDX-License-Identifier: Apache-2.0

package dataplane

import "shunt/internal/lfib"

// next is what the tables will be once an update is in them, as far as it is asked here: which NHLFEs
// leave packets as they are. It has to be known before: such packets must not go to the imposer.
type next struct {
	*tables                       // nil: there are none yet
	ids     map[uint32]*lfib.Form // that the update makes
	numbers map[uint32]*lfib.Form // the same, of those that have a number already
}

func (l *Labels) next(u *LabelUpdate) next {
	n := next{tables: l.tables, ids: map[uint32]*lfib.Form{}, numbers: map[uint32]*lfib.Form{}}
	for i := range u.NHLFEs {
		id, form := u.NHLFEs[i].ID, u.NHLFEs[i].Form
		n.ids[id] = form
		if l.tables == nil {
			continue
		}
		if number, ok := l.tables.nhlfes.of[id]; ok {
			n.numbers[number] = form
		}
	}
	return n
}

// deliver tells whether an NHLFE will deliver some packets. There is no loop in what it leads to
// (lfib.Table), but there may be many ways to one place.
func (n *next) deliver(id uint32) bool { return n.byID(id, map[uint32]bool{}) }

// seen has numbers.
func (n *next) byID(id uint32, seen map[uint32]bool) bool {
	if form := n.ids[id]; form != nil {
		return n.byForm(form, seen)
	}
	if n.tables == nil {
		return false
	}
	return n.byNumber(n.nhlfes.of[id], seen)
}

func (n *next) byForm(form *lfib.Form, seen map[uint32]bool) bool {
	if form.Choice == nil {
		return form.Does == lfib.OpDeliver
	}
	done := map[lfib.Target]bool{}
	for _, to := range form.Choice {
		if to == (lfib.Target{}) || done[to] {
			continue
		}
		done[to] = true
		if to.Form != nil && n.byForm(to.Form, seen) || to.Form == nil && n.byID(to.ID, seen) {
			return true
		}
	}
	return false
}

func (n *next) byNumber(number uint32, seen map[uint32]bool) bool {
	if number == 0 || seen[number] || int(number) >= len(n.made) || n.made[number] == nil {
		return false
	}
	seen[number] = true
	if form := n.numbers[number]; form != nil {
		return n.byForm(form, seen)
	}
	row := read[mplsNhlfe](n.tables, "nhlfes", n.made[number].record)
	if mplsNhlfeEnd(row.End) == mplsNhlfeEndNHLFE_DELIVER {
		return true
	}
	if row.Choice == 0 {
		return false
	}
	for _, to := range read[mplsChoice](n.tables, "choices", row.Choice).Nhlfe {
		if n.byNumber(to, seen) {
			return true
		}
	}
	return false
}
