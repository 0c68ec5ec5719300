// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"fmt"
	"maps"
	"net/netip"
	"time"
)

// Commit is what one Apply changed.
type Commit struct {
	Seq     uint64 // of its last event; of the one before it if it has none
	Touched Touched
	steps   []step // one per change that changed something, in order
	before  uint64 // the Table's seq
	origin  string
	time    time.Time
}

// Changed is how many changes changed something.
func (c *Commit) Changed() int { return int(c.Seq - c.before) }

// Events are what they are made known by, in order. To write them takes as long as to make them.
func (c *Commit) Events() []Event {
	events := make([]Event, len(c.steps))
	for i, s := range c.steps {
		ch := Change{s.verb, s.key}
		events[i] = Event{c.before + uint64(i) + 1, c.time, c.origin, s.verb.String(), kindOf(s.key), ch.String()}
	}
	return events
}

// Touched is what the data path must be told again: each once, in the order in which it was
// touched first. What the Table does not have any more was deleted.
type Touched struct {
	NHLFEs []uint32 // also those that lead to one that was changed: their Forms may contain it
	ILMs   []ILMKey
	FTNs   []netip.Prefix
	Maps   []string
	Ports  []string
}

// Event is a change as it is made known.
type Event struct {
	Seq    uint64    `json:"seq"` // from 1 on, without a gap
	Time   time.Time `json:"time"`
	Origin string    `json:"origin"` // who wanted it, as Apply was told
	Verb   string    `json:"verb"`
	Kind   string    `json:"kind"` // ilm, nhlfe, ftn, map or space
	Line   string    `json:"line"` // what Parse reads
}

// step is what a change replaced.
type step struct {
	verb Verb
	key  any // the object
	old  any // what was there before; nil: nothing
}

// Apply makes all changes, in their order, or none of them. Origin says in the events who
// wanted them. A change that changes nothing, such as a replace by the same, is no error and
// makes no event. The error is one line: the change, what is wrong with it, and the fix.
func (t *Table) Apply(origin string, changes []Change) (*Commit, error) {
	c := &Commit{before: t.seq, origin: origin, time: time.Now(), steps: make([]step, 0, len(changes))}
	var touched touches
	for _, ch := range changes {
		if err := t.apply(c, &touched, ch); err != nil {
			t.rollback(c)
			return nil, fmt.Errorf("%s: %w", brief(ch.String()), err)
		}
	}
	c.Seq = c.before + uint64(len(c.steps))
	t.seq = c.Seq
	c.Touched = touched.all()
	return c, nil
}

// Undo makes the table what it was before a commit, which must be its last one; it is for a
// data path that refused it. There are no events, and the commit's numbers are given again.
func (t *Table) Undo(c *Commit) {
	if t.seq != c.Seq {
		panic("lfib: Undo of a commit that is not the last one")
	}
	t.rollback(c)
	t.seq = c.before
}

func (t *Table) rollback(c *Commit) {
	for i := len(c.steps) - 1; i >= 0; i-- {
		if s := c.steps[i]; s.old != nil {
			t.put(s.old)
		} else if t.get(s.key) != nil {
			t.remove(s.key)
		}
	}
	c.steps = nil
}

// apply makes one change. What it did, also before it found a fault, is in the commit's steps: one,
// if it changed anything.
func (t *Table) apply(c *Commit, touched *touches, ch Change) error {
	if err := check(ch); err != nil {
		return err
	}
	old := t.get(ch.Object)
	if err := t.fits(ch, old); err != nil {
		return err
	}
	if unchanged(ch, old) {
		return nil
	}
	c.steps = append(c.steps, step{ch.Verb, ch.Object, old})
	touched.object(ch.Object, old == nil)
	if ch.Verb == Delete || off(ch.Object) {
		touched.removed = true
		t.remove(ch.Object)
		return nil
	}
	t.put(ch.Object)
	switch o := ch.Object.(type) {
	case NHLFE:
		above := t.above(o.ID)
		touched.nhlfes.add(above[1:]...)
		return t.closed(above)
	case FTN:
		return t.unlabelled(o.NHLFE)
	}
	return nil
}

// fits tells whether a change can be made to what is there.
func (t *Table) fits(ch Change, old any) error {
	switch {
	case ch.Verb == Add && old != nil:
		return fmt.Errorf("there is %s already: replace it", name(ch.Object))
	case (ch.Verb == Alter || ch.Verb == Delete) && old == nil:
		return fmt.Errorf("there is no %s: name one that is there", name(ch.Object))
	case ch.Verb == Delete:
		if by := t.referrer(ch.Object); by != "" {
			return fmt.Errorf("%s refers to it: delete or change that first", by)
		}
		return nil
	}
	if err := t.known(ch.Object); err != nil {
		return err
	}
	if n, ok := ch.Object.(NHLFE); ok {
		return t.loop(&n)
	}
	return nil
}

// off tells whether an object takes a port's label space away.
func off(object any) bool {
	p, ok := object.(PortSpace)
	return ok && p.Space < 0
}

func unchanged(ch Change, old any) bool {
	if off(ch.Object) {
		return old == nil
	}
	return old != nil && ch.Verb != Delete && same(old, ch.Object)
}

// same tells whether two objects of one kind and key are equal.
func same(a, b any) bool {
	switch a := a.(type) {
	case Map:
		b := b.(Map)
		return a.Kind == b.Kind && maps.Equal(a.To, b.To)
	case NHLFE:
		return Change{Add, a}.String() == Change{Add, b}.String()
	}
	return a == b
}

// touches gathers what is touched, each once.
type touches struct {
	removed bool // something was; until then what is not there has not been touched either
	nhlfes  set[uint32]
	ilms    set[ILMKey]
	ftns    set[netip.Prefix]
	maps    set[string]
	ports   set[string]
}

// object notes one; absent says that it is not there yet.
func (t *touches) object(object any, absent bool) {
	fresh := absent && !t.removed
	switch o := object.(type) {
	case ILM:
		t.ilms.note(o.Key(), fresh)
	case NHLFE:
		t.nhlfes.note(o.ID, fresh)
	case FTN:
		t.ftns.note(o.Prefix, fresh)
	case Map:
		t.maps.note(o.Name, fresh)
	case PortSpace:
		t.ports.note(o.Port, fresh)
	}
}

func (t *touches) all() Touched {
	return Touched{t.nhlfes.list, t.ilms.list, t.ftns.list, t.maps.list, t.ports.list}
}

// set keeps what was added to it, in order. Keys that are known to be new are not looked for, as
// long as all are: a load of a million has no others.
type set[K comparable] struct {
	list []K
	has  map[K]struct{} // nil: nobody has asked yet
}

func (s *set[K]) note(key K, fresh bool) {
	if fresh && s.has == nil {
		s.list = append(s.list, key)
		return
	}
	s.add(key)
}

func (s *set[K]) add(keys ...K) {
	if s.has == nil && len(keys) > 0 {
		s.has = make(map[K]struct{}, len(s.list)+len(keys))
		for _, key := range s.list {
			s.has[key] = struct{}{}
		}
	}
	for _, key := range keys {
		if _, ok := s.has[key]; ok {
			continue
		}
		s.has[key] = struct{}{}
		s.list = append(s.list, key)
	}
}
