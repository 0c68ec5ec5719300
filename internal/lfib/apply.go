package lfib

import (
	"fmt"
	"maps"
	"net/netip"
	"time"
)

// Commit is what one Apply changed.
type Commit struct {
	Seq     uint64  // of its last event; of the one before it if it has none
	Events  []Event // one per change that changed something, in order
	Touched Touched
	steps   []step
	before  uint64 // the Table's seq
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
	key any // the object
	old any // what was there before; nil: nothing
}

// Apply makes all changes, in their order, or none of them. Origin says in the events who
// wanted them. A change that changes nothing, such as a replace by the same, is no error and
// makes no event. The error is one line: the change, what is wrong with it, and the fix.
func (t *Table) Apply(origin string, changes []Change) (*Commit, error) {
	c := &Commit{before: t.seq, Seq: t.seq, Events: make([]Event, 0, len(changes)), steps: make([]step, 0, len(changes))}
	var touched touches
	now := time.Now()
	for _, ch := range changes {
		changed, err := t.apply(c, &touched, ch)
		if err != nil {
			t.rollback(c)
			return nil, fmt.Errorf("%s: %w", brief(ch.String()), err)
		}
		if changed {
			c.Seq++
			c.Events = append(c.Events, Event{c.Seq, now, origin, ch.Verb.String(), kindOf(ch.Object), ch.String()})
		}
	}
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

// apply makes one change, and tells whether it changed anything. What it did before it found
// a fault is in the commit's steps.
func (t *Table) apply(c *Commit, touched *touches, ch Change) (changed bool, err error) {
	if err := check(ch); err != nil {
		return false, err
	}
	old := t.get(ch.Object)
	if err := t.fits(ch, old); err != nil {
		return false, err
	}
	if unchanged(ch, old) {
		return false, nil
	}
	c.steps = append(c.steps, step{ch.Object, old})
	touched.object(ch.Object)
	if ch.Verb == Delete || off(ch.Object) {
		t.remove(ch.Object)
		return true, nil
	}
	t.put(ch.Object)
	switch o := ch.Object.(type) {
	case NHLFE:
		above := t.above(o.ID)
		touched.nhlfes.add(above...)
		return true, t.closed(above)
	case FTN:
		return true, t.unlabelled(o.NHLFE)
	}
	return true, nil
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
	nhlfes set[uint32]
	ilms   set[ILMKey]
	ftns   set[netip.Prefix]
	maps   set[string]
	ports  set[string]
}

func (t *touches) object(object any) {
	switch o := object.(type) {
	case ILM:
		t.ilms.add(o.Key())
	case NHLFE:
		t.nhlfes.add(o.ID)
	case FTN:
		t.ftns.add(o.Prefix)
	case Map:
		t.maps.add(o.Name)
	case PortSpace:
		t.ports.add(o.Port)
	}
}

func (t *touches) all() Touched {
	return Touched{t.nhlfes.list, t.ilms.list, t.ftns.list, t.maps.list, t.ports.list}
}

// set keeps what was added to it, in order.
type set[K comparable] struct {
	list []K
	has  map[K]struct{}
}

func (s *set[K]) add(keys ...K) {
	for _, key := range keys {
		if _, ok := s.has[key]; ok {
			continue
		}
		if s.has == nil {
			s.has = map[K]struct{}{}
		}
		s.has[key] = struct{}{}
		s.list = append(s.list, key)
	}
}
