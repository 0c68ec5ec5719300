// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// loop says by which way an NHLFE that is to be stored would lead to itself. What is stored
// has no loop, so there is one only where something leads to this one already, or it itself.
func (t *Table) loop(o *NHLFE) error {
	old := t.nhlfes[o.ID]
	used := old != nil && len(old.users) > 0
	seen := map[uint32]bool{}
	var way []string
	var leads func(n *NHLFE) bool
	leads = func(n *NHLFE) (found bool) {
		n.targets(func(id uint32) {
			switch {
			case id == o.ID:
				found = true
			case used && !found && !seen[id]:
				seen[id] = true
				found = leads(&t.nhlfes[id].NHLFE)
			}
		})
		if found {
			way = append(way, strconv.FormatUint(uint64(n.ID), 10))
		}
		return found
	}
	if !leads(o) {
		return nil
	}
	slices.Reverse(way)
	if most := 8; len(way) > most {
		way = append(way[:most], "...")
	}
	return fmt.Errorf("nhlfe %s > %d is a loop of forwards: let one of them end elsewhere", strings.Join(way, " > "), o.ID)
}

// above is an NHLFE and all that lead to it, through however many: those whose closed form
// a change to it can change.
func (t *Table) above(id uint32) []uint32 {
	ids := []uint32{id}
	if len(t.nhlfes[id].users) == 0 {
		return ids
	}
	seen := map[uint32]bool{id: true}
	for i := 0; i < len(ids); i++ {
		for user := range t.nhlfes[ids[i]].users {
			if !seen[user] {
				seen[user] = true
				ids = append(ids, user)
			}
		}
	}
	return ids
}

// closed tells whether some NHLFEs have closed forms, and those that an FTN leads to such as
// an unlabelled packet can take.
func (t *Table) closed(ids []uint32) error {
	for _, id := range ids {
		if _, err := t.Form(id); err != nil {
			return err
		}
		if e := t.ftn.to[id]; e != nil {
			if err := t.unlabelled(id); err != nil {
				return fmt.Errorf("%w; or delete %s first", err, name(FTN{Prefix: e.key}))
			}
		}
	}
	return nil
}

var errUnlabelled = errors.New("works on a label, and what an ftn leads there has none: " +
	"use a list without pop, swap, peek, dscp-map, and without set-tc and tc-map before the first push")

// unlabelled tells whether an NHLFE, and all it leads to, can be carried out on a packet that
// has no label.
func (t *Table) unlabelled(id uint32) error {
	seen := map[uint32]bool{}
	var byID func(id uint32) error
	var form func(f *Form) error
	byID = func(id uint32) error {
		if seen[id] {
			return nil
		}
		seen[id] = true
		f, err := t.Form(id)
		if err != nil {
			return err
		}
		return form(f)
	}
	form = func(f *Form) error {
		if f.Pops > 0 || f.Swap || f.TC != nil || f.TCMap != "" || f.DSCPMap != "" || f.Does == OpPeek {
			return fmt.Errorf("nhlfe %d %w", f.End, errUnlabelled)
		}
		for to := range f.targets() {
			var err error
			if to.Form != nil {
				err = form(to.Form)
			} else {
				err = byID(to.ID)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return byID(id)
}

// inOrder are the IDs of all NHLFEs, each behind those that it refers to, else by number.
func (t *Table) inOrder() []uint32 {
	ids := make([]uint32, 0, len(t.nhlfes))
	done := make(map[uint32]bool, len(t.nhlfes))
	var visit func(id uint32)
	visit = func(id uint32) {
		if done[id] {
			return
		}
		done[id] = true
		t.nhlfes[id].targets(visit)
		ids = append(ids, id)
	}
	for _, id := range sortedKeys(t.nhlfes) {
		visit(id)
	}
	return ids
}
