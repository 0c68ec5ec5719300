// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Table is the label forwarding information base. Its zero value is not usable: call New.
type Table struct {
	nhlfes map[uint32]*nhlfe
	ilm    entries[ILMKey]
	ftn    entries[netip.Prefix]
	maps   map[string]*namedMap
	ports  map[string]PortSpace
	seq    uint64 // of the last event
}

// ILMKey tells an ILM entry from others.
type ILMKey struct {
	Space Space
	TC    int8 // -1: any
	Label Label
}

func (k ILMKey) entry(nhlfe uint32) ILM {
	return ILM{Space: k.Space, Label: k.Label, TC: int(k.TC), NHLFE: nhlfe}
}

// Key tells the entry from others.
func (o ILM) Key() ILMKey { return ILMKey{Space: o.Space, TC: int8(o.TC), Label: o.Label} }

type nhlfe struct {
	NHLFE
	users users
}

type namedMap struct {
	Map
	users users
}

// New is an empty table.
func New() *Table {
	return &Table{
		nhlfes: map[uint32]*nhlfe{},
		ilm:    newEntries[ILMKey](),
		ftn:    newEntries[netip.Prefix](),
		maps:   map[string]*namedMap{},
		ports:  map[string]PortSpace{},
	}
}

// NHLFE is the one with an ID. Its list must only be read.
func (t *Table) NHLFE(id uint32) (NHLFE, bool) {
	if n := t.nhlfes[id]; n != nil {
		return n.NHLFE, true
	}
	return NHLFE{}, false
}

// ILM is the NHLFE that an entry leads to.
func (t *Table) ILM(key ILMKey) (nhlfe uint32, ok bool) { return t.ilm.get(key) }

// FTN is the NHLFE that exactly this prefix leads to.
func (t *Table) FTN(prefix netip.Prefix) (nhlfe uint32, ok bool) { return t.ftn.get(prefix) }

// Map is the one with a name. Its values must only be read.
func (t *Table) Map(name string) (Map, bool) {
	if m := t.maps[name]; m != nil {
		return m.Map, true
	}
	return Map{}, false
}

// Space is the label space of a port, -1 if MPLS is off there.
func (t *Table) Space(port string) int { return t.PortSpace(port).Space }

// PortSpace is what comes in by a port is looked up in.
func (t *Table) PortSpace(port string) PortSpace {
	if o, ok := t.ports[port]; ok {
		return o
	}
	return PortSpace{port, -1, -1}
}

// NHLFEs are all of them, by ID. Their lists must only be read.
func (t *Table) NHLFEs() []NHLFE {
	all := make([]NHLFE, 0, len(t.nhlfes))
	for _, id := range sortedKeys(t.nhlfes) {
		all = append(all, t.nhlfes[id].NHLFE)
	}
	return all
}

// ILMs are all entries, by space, label and TC, the one for any TC first.
func (t *Table) ILMs() []ILM {
	all := make([]ILM, 0, len(t.ilm.at))
	for key, e := range t.ilm.at {
		all = append(all, key.entry(e.nhlfe))
	}
	slices.SortFunc(all, func(a, b ILM) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Label, b.Label), cmp.Compare(a.TC, b.TC))
	})
	return all
}

// Imposes tells whether there is an FTN entry.
func (t *Table) Imposes() bool { return len(t.ftn.at) > 0 }

// FTNs are all entries, IPv4 first, by address and length.
func (t *Table) FTNs() []FTN {
	all := make([]FTN, 0, len(t.ftn.at))
	for prefix, e := range t.ftn.at {
		all = append(all, FTN{prefix, e.nhlfe})
	}
	slices.SortFunc(all, func(a, b FTN) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return all
}

// Maps are all of them, by name. Their values must only be read.
func (t *Table) Maps() []Map {
	all := make([]Map, 0, len(t.maps))
	for _, name := range sortedKeys(t.maps) {
		all = append(all, t.maps[name].Map)
	}
	return all
}

// Spaces are the ports that have a label space, by name.
func (t *Table) Spaces() []PortSpace {
	all := make([]PortSpace, 0, len(t.ports))
	for _, port := range sortedKeys(t.ports) {
		all = append(all, t.ports[port])
	}
	return all
}

// Save is lines that make this table of an empty one, in an order in which each refers only
// to what is there already.
func (t *Table) Save() []string {
	lines := make([]string, 0, len(t.maps)+len(t.nhlfes)+len(t.ilm.at)+len(t.ftn.at)+len(t.ports))
	write := func(verb Verb, object any) { lines = append(lines, Change{verb, object}.String()) }
	for _, m := range t.Maps() {
		write(Add, m)
	}
	for _, id := range t.inOrder() {
		write(Add, t.nhlfes[id].NHLFE)
	}
	for _, o := range t.ILMs() {
		write(Add, o)
	}
	for _, o := range t.FTNs() {
		write(Add, o)
	}
	for _, o := range t.Spaces() {
		write(Set, o)
	}
	return lines
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// get is the object that is stored under the key of another one, nil if there is none.
func (t *Table) get(key any) any {
	switch o := key.(type) {
	case ILM:
		if id, ok := t.ilm.get(o.Key()); ok {
			o.NHLFE = id
			return o
		}
	case FTN:
		if id, ok := t.ftn.get(o.Prefix); ok {
			o.NHLFE = id
			return o
		}
	case NHLFE:
		if n := t.nhlfes[o.ID]; n != nil {
			return n.NHLFE
		}
	case Map:
		if m := t.maps[o.Name]; m != nil {
			return m.Map
		}
	case PortSpace:
		if old, ok := t.ports[o.Port]; ok {
			return old
		}
	}
	return nil
}

// put stores an object in place of what is there under its key.
func (t *Table) put(object any) {
	switch o := object.(type) {
	case ILM:
		t.ilm.put(o.Key(), o.NHLFE)
	case FTN:
		t.ftn.put(o.Prefix, o.NHLFE)
	case NHLFE:
		n := t.nhlfes[o.ID]
		if n == nil {
			n = &nhlfe{}
			t.nhlfes[o.ID] = n
		} else {
			t.unlink(&n.NHLFE)
		}
		n.NHLFE = o
		t.link(&n.NHLFE)
	case Map:
		m := t.maps[o.Name]
		if m == nil {
			m = &namedMap{}
			t.maps[o.Name] = m
		}
		m.Map = o
	case PortSpace:
		t.ports[o.Port] = o
	}
}

// remove deletes what is stored under the key of an object. Nothing may refer to it.
func (t *Table) remove(key any) {
	switch o := key.(type) {
	case ILM:
		t.ilm.remove(o.Key())
	case FTN:
		t.ftn.remove(o.Prefix)
	case NHLFE:
		t.unlink(&t.nhlfes[o.ID].NHLFE)
		delete(t.nhlfes, o.ID)
	case Map:
		delete(t.maps, o.Name)
	case PortSpace:
		delete(t.ports, o.Port)
	}
}
