// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
)

// Labels is label switching on a Plane, by tables that updates fill; the first one makes them
// and is to be a whole one. What is in force goes on when this process ends.
type Labels struct {
	plane   *Plane
	size    LabelSizes
	mu      sync.Mutex // guards tables and gate
	tables  *tables
	gate    gate
	refused error // why there are none
}

// Labels returns it, with so much room for its tables.
func (p *Plane) Labels(size LabelSizes) *Labels { return &Labels{plane: p, size: size} }

// UpdateLabels puts a transaction in force. Packets see each entry as it was or as it is. After an
// error the same entries are to be written again, as they were before.
func (l *Labels) UpdateLabels(u *LabelUpdate) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != nil {
		return l.refused
	}
	if err := l.closeGate(u); err != nil {
		return err
	}
	if l.tables != nil && !u.Whole {
		if err := l.tables.update(u); err != nil {
			return err
		}
		return l.use(u)
	}
	fresh, err := l.plane.newTables(l.size)
	if err != nil && u.nothing() {
		l.refused = err // those who want no labels need not care
		return nil
	}
	if err != nil {
		return err
	}
	if err := fresh.update(u); err != nil {
		fresh.close()
		return err
	}
	old := l.tables
	l.tables = fresh
	clear(l.gate.told)
	err = l.use(u)
	if old != nil {
		old.close()
	}
	return err
}

// Program is the XDP program of ports that have a label space, for tests of the data path.
func (l *Labels) Program() *ebpf.Program { return l.tables.program() }

// Imposition is the XDP program by which IP packets get labels, for tests of the data path.
func (l *Labels) Imposition() *ebpf.Program { return l.tables.coll.Programs["shunt_impose"] }

// use has the ports with a label space go by the tables that an update is in, all others by IP
// alone, and what leaves the kernel by its prefixes.
func (l *Labels) use(u *LabelUpdate) error {
	want := map[int]*ebpf.Program{}
	for index := range l.tables.ports {
		want[index] = l.tables.program()
	}
	if err := l.plane.giveXDP(want); err != nil {
		return err
	}
	return l.openGate(u)
}

func (u *LabelUpdate) nothing() bool {
	return len(u.Adjacencies)+len(u.Maps)+len(u.NHLFEs)+len(u.ILM)+len(u.FTN)+len(u.Ports) == 0
}

// Close lets go of the tables, which stay in force.
func (l *Labels) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tables != nil {
		l.tables.close()
	}
	return nil
}

// update writes all that is named before what names it, and takes away in the other order.
func (l *tables) update(u *LabelUpdate) error {
	l.wayOut = u.AdjacencyOf
	for _, id := range u.Ended {
		l.adjacent[id] = ended
	}
	if err := l.adjacencies(u.Adjacencies); err != nil {
		return err
	}
	for i := range u.Maps {
		if u.Maps[i].To == nil {
			continue
		}
		if err := l.setMap(&u.Maps[i]); err != nil {
			return err
		}
	}
	if err := l.lists(u.NHLFEs); err != nil {
		return err
	}
	for i := range u.ILM {
		if u.ILM[i].NHLFE == [8]uint32{} {
			l.removeLabel(LabelKey{u.ILM[i].Space, u.ILM[i].Label})
		} else if err := l.setLabel(&u.ILM[i]); err != nil {
			return err
		}
	}
	if err := l.setFTNs(u.FTN); err != nil {
		return err
	}
	if u.concernsFTNs() {
		if err := l.stillFit(); err != nil {
			return err
		}
	}
	for _, p := range u.Ports {
		if err := l.setPort(p); err != nil {
			return err
		}
	}
	if err := l.removeFTNs(u.FTN); err != nil {
		return err
	}
	for _, n := range u.NHLFEs {
		if n.Form == nil {
			l.removeNHLFE(n.ID)
		}
	}
	for _, m := range u.Maps {
		if m.To == nil {
			l.maps.drop(m.Name)
		}
	}
	return l.freeSpaces()
}

// adjacencies writes ways out. A row that may have been another one's rests until nobody can be on
// his way there.
func (l *tables) adjacencies(list []Adjacency) error {
	for i := range list {
		a := &list[i]
		if was := l.adjacent[a.ID]; was == ended || was == lapsed && a.Index != 0 {
			grace()
			maps.DeleteFunc(l.adjacent, func(_ uint32, is int) bool { return is != leads })
		}
		if err := l.setAdjacency(a); err != nil {
			return err
		}
		l.adjacent[a.ID] = lapsed
		if a.Index != 0 {
			l.adjacent[a.ID] = leads
		}
	}
	return nil
}

// What a row of adjacencies is.
const (
	unused = iota
	leads
	lapsed // it leads nowhere at the moment
	ended  // nobody has been led there since the update before
)

// lists writes NHLFEs. All get their numbers first: they may choose one another.
func (l *tables) lists(list []NHLFE) error {
	numbers := make([]uint32, len(list))
	for i, n := range list {
		if n.Form == nil {
			continue
		}
		var err error
		if numbers[i], _, err = l.nhlfes.get(n.ID); err != nil {
			return fmt.Errorf("nhlfe %d: %w", n.ID, full("NHLFEs", err))
		}
	}
	for i, n := range list {
		if n.Form == nil {
			continue
		}
		if err := l.setNHLFE(n.ID, numbers[i], n.Form); err != nil {
			return err
		}
	}
	return nil
}

// LabelStats reads all counters.
func (l *Labels) LabelStats() (LabelStats, error) {
	s := LabelStats{In: map[LabelKey]Segment{}, Out: map[uint32]Segment{}, Ports: map[int]LabelPortStats{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tables != nil {
		for key, row := range l.tables.in.of {
			s.In[key] = l.tables.counted(in, row)
		}
		for id, row := range l.tables.out.of {
			s.Out[id] = l.tables.counted(out, row)
		}
	}
	l.plane.raise.Lock()
	indexes := slices.Collect(maps.Keys(l.plane.ports))
	l.plane.raise.Unlock()
	if l.gate.at.Inner != 0 {
		indexes = append(indexes, l.gate.at.Inner)
	}
	for _, index := range indexes {
		c, err := l.plane.Counters(StageMPLS, index)
		if err != nil {
			return s, err
		}
		x, err := l.plane.Counters(StageXDP, index)
		if err != nil {
			return s, err
		}
		t, err := l.plane.Counters(StageTCIngress, index)
		if err != nil {
			return s, err
		}
		port := LabelPortStats{LookupFailures: c.Of("mpls_no_label"), Reasons: map[string]uint64{}}
		for reason, n := range c.Packets {
			if word := Reasons[reason]; n > 0 && word != "mpls_switched" && word != "mpls_imposed" {
				port.Reasons[word] = n
			}
		}
		// without a label space a port has the program for IP, or TC ingress alone
		if off := c.Of("mpls_off") + max(x.Of("mpls_off"), t.Of("mpls_off")); off > 0 {
			port.Reasons["mpls_off"] = off
		}
		if index == l.gate.at.Inner {
			t, err := l.plane.Transmit(l.gate.at.Outer)
			if err != nil {
				return s, err
			}
			if lost := t.Drops + t.Errors; lost > 0 {
				port.Reasons[QueueFull] = lost
			}
		}
		if len(port.Reasons) > 0 {
			s.Ports[index] = port
		}
	}
	return s, nil
}
