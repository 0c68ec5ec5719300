// SPDX-License-Identifier: Apache-2.0

package lfib

import "fmt"

// entries are those of the ILM, or those of the FTN: what leads a key to an NHLFE. Those that
// lead to the same one are a ring, so any number of them can be put and taken at no more
// than the cost of one, and an NHLFE always knows one that refers to it.
type entries[K comparable] struct {
	at map[K]*entry[K]
	to map[uint32]*entry[K] // one of those that lead to an NHLFE
}

type entry[K comparable] struct {
	key        K
	nhlfe      uint32
	next, prev *entry[K]
}

func newEntries[K comparable]() entries[K] {
	return entries[K]{map[K]*entry[K]{}, map[uint32]*entry[K]{}}
}

// get is the NHLFE of a key.
func (s *entries[K]) get(key K) (nhlfe uint32, ok bool) {
	e := s.at[key]
	if e == nil {
		return 0, false
	}
	return e.nhlfe, true
}

func (s *entries[K]) put(key K, nhlfe uint32) {
	e := s.at[key]
	if e == nil {
		e = &entry[K]{key: key}
		s.at[key] = e
	} else {
		s.unlink(e)
	}
	e.nhlfe, e.next, e.prev = nhlfe, e, e
	if first := s.to[nhlfe]; first != nil {
		e.next, e.prev = first, first.prev
		e.next.prev, e.prev.next = e, e
	} else {
		s.to[nhlfe] = e
	}
}

func (s *entries[K]) remove(key K) {
	if e := s.at[key]; e != nil {
		s.unlink(e)
		delete(s.at, key)
	}
}

func (s *entries[K]) unlink(e *entry[K]) {
	switch {
	case e.next == e:
		delete(s.to, e.nhlfe)
	case s.to[e.nhlfe] == e:
		s.to[e.nhlfe] = e.next
	}
	e.next.prev, e.prev.next = e.prev, e.next
}

// users are the NHLFEs whose lists name something: another NHLFE, or a map.
type users map[uint32]struct{}

func (u *users) add(id uint32) {
	if *u == nil {
		*u = users{}
	}
	(*u)[id] = struct{}{}
}

// any is one of them, 0 if there is none.
func (u users) any() uint32 {
	for id := range u {
		return id
	}
	return 0
}

// targets calls f with every NHLFE that a list names, as often as it does.
func (o *NHLFE) targets(f func(id uint32)) {
	for i := range o.List {
		in := &o.List[i]
		if in.Op == OpForward {
			f(in.ID)
		}
		for _, c := range in.Choices {
			f(c.ID)
		}
		if in.Default != nil {
			f(*in.Default)
		}
	}
}

// link notes what an NHLFE's list names; unlink forgets it again.
func (t *Table) link(o *NHLFE) {
	o.targets(func(id uint32) { t.nhlfes[id].users.add(o.ID) })
	for i := range o.List {
		if m := t.maps[o.List[i].Map]; m != nil {
			m.users.add(o.ID)
		}
	}
}

func (t *Table) unlink(o *NHLFE) {
	o.targets(func(id uint32) { delete(t.nhlfes[id].users, o.ID) })
	for i := range o.List {
		if m := t.maps[o.List[i].Map]; m != nil {
			delete(m.users, o.ID)
		}
	}
}

// referrer names something that refers to what a key tells, "" if nothing does.
func (t *Table) referrer(object any) string {
	switch o := object.(type) {
	case NHLFE:
		if e := t.ilm.to[o.ID]; e != nil {
			return name(e.key.entry(0))
		}
		if e := t.ftn.to[o.ID]; e != nil {
			return name(FTN{Prefix: e.key})
		}
		return nameUser(t.nhlfes[o.ID].users)
	case Map:
		return nameUser(t.maps[o.Name].users)
	}
	return ""
}

func nameUser(u users) string {
	if id := u.any(); id != 0 {
		return name(NHLFE{ID: id})
	}
	return ""
}

// known tells whether all that an object refers to is there, and of the right kind.
func (t *Table) known(object any) error {
	var missing uint32
	find := func(id uint32) {
		if t.nhlfes[id] == nil && missing == 0 {
			missing = id
		}
	}
	switch o := object.(type) {
	case ILM:
		find(o.NHLFE)
	case FTN:
		find(o.NHLFE)
	case NHLFE:
		if err := t.knownMaps(&o); err != nil {
			return err
		}
		o.targets(func(id uint32) {
			if id != o.ID { // which is a loop, and said so
				find(id)
			}
		})
	case Map:
		old := t.maps[o.Name]
		if old != nil && old.Kind != o.Kind && len(old.users) > 0 {
			return fmt.Errorf("%s uses the map as %s: give the new one another name", nameUser(old.users), old.Kind)
		}
	}
	if missing != 0 {
		return fmt.Errorf("there is no nhlfe %d: add it first", missing)
	}
	return nil
}

func (t *Table) knownMaps(o *NHLFE) error {
	for i := range o.List {
		in := &o.List[i]
		if in.Map == "" {
			continue
		}
		kind := DSCPToTC
		if in.Op == OpDSCPMap {
			kind = TCToDSCP
		}
		switch m := t.maps[in.Map]; {
		case m == nil:
			return fmt.Errorf("there is no map %s: add it first, as %s", in.Map, kind)
		case m.Kind != kind:
			return fmt.Errorf("%s: map %s is %s: name one that is %s", in, in.Map, m.Kind, kind)
		}
	}
	return nil
}
