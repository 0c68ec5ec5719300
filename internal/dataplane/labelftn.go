// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// This file is about IP packets that get labels. Two tables say which: the gate (bpf/lsp.h), by which
// TC egress takes them to the imposer, and what it learns of a flow: that one is pinned. And that of
// the imposer's own program (bpf/impose.h), which is of the other label tables. So each can be in force
// without the other: what goes is closed at the gate first, what comes is opened there last.

// Imposer is the veth pair in which IP packets get their labels, by ifindex: what goes into Outer
// meets the program at Inner.
type Imposer struct{ Outer, Inner int }

// QueueFull is for IP packets that XDP sent to the imposer, and that it had no room for. It is no reason
// of the programs: the kernel counts them.
const QueueFull = "queue_full"

// imposerKind is what stands in the name of the pin of the link at Inner.
const imposerKind = "imposer"

// settling is how long packets may be in the imposer's queues.
const settling = 20 * time.Millisecond

// gate is what TC egress is told.
type gate struct {
	open map[netip.Prefix]uint32 // the longest packet; 0: none gets labels
	at   Imposer
	told map[uint32]uint32 // by NHLFE, what its prefixes have
}

// unlabelled is the value for a prefix whose packets get none.
const unlabelled = 0

// prefixKey is the key of a prefix in one of two maps, for IPv4 and for IPv6.
func prefixKey(p netip.Prefix) (six bool, key any) {
	if p.Addr().Is4() {
		k := tcPrefix4{Bits: uint32(p.Bits())}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&k.Addr)), 4), p.Addr().AsSlice())
		return false, &k
	}
	k := tcPrefix6{Bits: uint32(p.Bits())}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&k.Addr)), 16), p.Addr().AsSlice())
	return true, &k
}

// prefixMap is the one of two maps that a prefix is in.
func prefixMap(all map[string]*ebpf.Map, name string, p netip.Prefix) (m *ebpf.Map, key any) {
	six, key := prefixKey(p)
	if six {
		return all[name+"6"], key
	}
	return all[name+"4"], key
}

// setFTNs has packets to prefixes get the labels of NHLFEs that were set before.
func (l *tables) setFTNs(list []FTN) error {
	for _, f := range list {
		if f.NHLFE == 0 {
			continue
		}
		if _, err := l.longest(f.NHLFE); err != nil {
			return fmt.Errorf("ftn %s: %w", f.Prefix, err)
		}
		m, key := prefixMap(l.coll.Maps, "ftns", f.Prefix)
		if err := m.Put(key, l.nhlfes.of[f.NHLFE]); errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("ftn %s: the table is full: %d prefixes of a family are the most", f.Prefix, tcAbiLSPS)
		} else if err != nil {
			return fmt.Errorf("ftn %s: %w", f.Prefix, err)
		}
		l.forgetFTN(f.Prefix)
		if l.ftnsOf[f.NHLFE] == nil {
			l.ftnsOf[f.NHLFE] = map[netip.Prefix]bool{}
		}
		l.ftns[f.Prefix], l.ftnsOf[f.NHLFE][f.Prefix] = f.NHLFE, true
	}
	return nil
}

// concernsFTNs tells whether what an FTN leads to may be another thing after an update.
func (u *LabelUpdate) concernsFTNs() bool {
	return u.Whole || len(u.FTN)+len(u.NHLFEs)+len(u.Adjacencies) > 0
}

// stillFit tells whether all NHLFEs that an FTN leads to are such as it may.
func (l *tables) stillFit() error {
	for id, prefixes := range l.ftnsOf {
		if _, err := l.longest(id); err != nil {
			for p := range prefixes {
				return fmt.Errorf("ftn %s: %w", p, err)
			}
		}
	}
	return nil
}

func (l *tables) forgetFTN(p netip.Prefix) {
	id := l.ftns[p]
	delete(l.ftns, p)
	delete(l.ftnsOf[id], p)
	if len(l.ftnsOf[id]) == 0 {
		delete(l.ftnsOf, id)
	}
}

// removeFTNs takes prefixes away, which the gate does not let in any more.
func (l *tables) removeFTNs(list []FTN) error {
	for _, f := range list {
		if _, there := l.ftns[f.Prefix]; f.NHLFE != 0 || !there {
			continue
		}
		m, key := prefixMap(l.coll.Maps, "ftns", f.Prefix)
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("ftn %s: %w", f.Prefix, err)
		}
		l.forgetFTN(f.Prefix)
	}
	return nil
}

// longest is the longest IP packet that goes through an NHLFE, whatever that chooses: unlabelled, if
// it leaves packets as they are. An error tells that it does so with some of them.
func (l *tables) longest(id uint32) (uint32, error) {
	number, ok := l.nhlfes.of[id]
	if !ok {
		return 0, fmt.Errorf("no NHLFE %d", id)
	}
	r := reach{tables: l, most: 0xffff, seen: map[uint32]bool{}}
	r.visit(number)
	switch {
	case r.delivers && r.others:
		return 0, fmt.Errorf("nhlfe %d delivers some packets and not others, which can be done to labelled ones alone: use two prefixes", id)
	case r.delivers:
		return unlabelled, nil
	}
	return r.most, nil
}

// reach is where an NHLFE leads to.
type reach struct {
	*tables
	most             uint32
	delivers, others bool
	seen             map[uint32]bool
}

func (r *reach) visit(number uint32) {
	if r.seen[number] || int(number) >= len(r.made) || r.made[number] == nil {
		return
	}
	r.seen[number] = true
	n := read[mplsNhlfe](r.tables, "nhlfes", r.made[number].record)
	switch mplsNhlfeEnd(n.End) {
	case mplsNhlfeEndNHLFE_DELIVER:
		r.delivers = true
	case mplsNhlfeEndNHLFE_SEND:
		r.others = true
		a := read[mplsAdjacency](r.tables, "adjacencies", n.Adjacency)
		if a.Mtu != 0 {
			mtu := min(int(a.Mtu), cmp.Or(int(n.Mtu), 0xffff)) - 4*int(n.Pushes)
			r.most = min(r.most, uint32(max(mtu, 1)))
		}
	case mplsNhlfeEndNHLFE_BY_TC, mplsNhlfeEndNHLFE_BY_DSCP, mplsNhlfeEndNHLFE_BY_HASH:
		for _, to := range read[mplsChoice](r.tables, "choices", n.Choice).Nhlfe {
			r.visit(to)
		}
	default:
		r.others = true
	}
}

// read is a row of a table.
func read[T any](l *tables, table string, n uint32) (x T) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&x)), unsafe.Sizeof(x))
	l.memory[table].ReadAt(b, int64(n)*int64(len(b)))
	return x
}

// closeGate is for prefixes that an update takes away, or has led to where packets are left as they are. It
// returns when no packet to them is on its way to the labels.
func (l *Labels) closeGate(u *LabelUpdate) error {
	if err := l.readGate(); err != nil || !u.concernsFTNs() {
		return err
	}
	closed := false
	stays := map[netip.Prefix]bool{}
	for _, f := range u.FTN {
		stays[f.Prefix] = f.NHLFE != 0
		if _, open := l.gate.open[f.Prefix]; open && f.NHLFE == 0 {
			closed = true
			if err := l.shut(f.Prefix); err != nil {
				return err
			}
		}
	}
	for p := range l.gate.open {
		if !u.Whole {
			break
		}
		if stays[p] {
			continue
		}
		closed = true
		if err := l.shut(p); err != nil {
			return err
		}
	}
	if err := l.leaveAsTheyAre(u, &closed); err != nil {
		return err
	}
	if closed {
		l.plane.Bump()
		settle()
	}
	return nil
}

// shut takes a prefix from the gate.
func (l *Labels) shut(p netip.Prefix) error {
	m, key := prefixMap(l.plane.maps, "lsps", p)
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("ftn %s: %w", p, err)
	}
	delete(l.gate.open, p)
	return nil
}

// leaveAsTheyAre tells the gate of prefixes whose packets will get no labels, once an update is made.
func (l *Labels) leaveAsTheyAre(u *LabelUpdate, closed *bool) error {
	next := l.next(u)
	for _, f := range u.FTN {
		if most := l.gate.open[f.Prefix]; f.NHLFE != 0 && most != unlabelled && next.deliver(f.NHLFE) {
			if err := l.letIn(f.Prefix, unlabelled, closed); err != nil {
				return err
			}
		}
	}
	if l.tables == nil {
		return nil
	}
	for id, prefixes := range l.tables.ftnsOf {
		if l.gate.told[id] == unlabelled || !next.deliver(id) {
			continue
		}
		l.gate.told[id] = unlabelled
		for p := range prefixes {
			if _, open := l.gate.open[p]; !open {
				continue
			}
			if err := l.letIn(p, unlabelled, closed); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle returns when nothing is in the imposer that went there before.
func settle() {
	grace()
	time.Sleep(settling)
}

// openGate lets packets in to the prefixes that the tables have, now that an update is in them; to
// none without an imposer.
func (l *Labels) openGate(u *LabelUpdate) error {
	if len(l.tables.ftns) == 0 || u.Imposer == (Imposer{}) {
		return l.leaveImposer()
	}
	changed, err := l.enterImposer(u.Imposer)
	if err != nil || !changed && !u.concernsFTNs() {
		return err
	}
	for id, prefixes := range l.tables.ftnsOf {
		most, err := l.tables.longest(id)
		if err != nil {
			return err
		}
		if told, ok := l.gate.told[id]; ok && told == most {
			continue
		}
		for p := range prefixes {
			if err := l.letIn(p, most, &changed); err != nil {
				return err
			}
		}
		l.gate.told[id] = most
	}
	for _, f := range u.FTN {
		if f.NHLFE == 0 {
			continue
		}
		if err := l.letIn(f.Prefix, l.gate.told[f.NHLFE], &changed); err != nil {
			return err
		}
	}
	maps.DeleteFunc(l.gate.told, func(id, _ uint32) bool { return l.tables.ftnsOf[id] == nil })
	if changed {
		l.plane.Bump()
	}
	return nil
}

// letIn writes what is new for a prefix.
func (l *Labels) letIn(p netip.Prefix, most uint32, changed *bool) error {
	if now, open := l.gate.open[p]; open && now == most {
		return nil
	}
	m, key := prefixMap(l.plane.maps, "lsps", p)
	if err := m.Put(key, most); err != nil {
		return fmt.Errorf("ftn %s: %w", p, err)
	}
	l.gate.open[p], *changed = most, true
	return nil
}

// readGate finds what an earlier daemon has left open.
func (l *Labels) readGate() error {
	if l.gate.open != nil {
		return nil
	}
	open := map[netip.Prefix]uint32{}
	var most uint32
	var four tcPrefix4
	all := l.plane.maps["lsps4"].Iterate()
	for all.Next(&four, &most) {
		addr := netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&four.Addr)))
		open[netip.PrefixFrom(addr, int(four.Bits))] = most
	}
	err := all.Err()
	var six tcPrefix6
	all = l.plane.maps["lsps6"].Iterate()
	for all.Next(&six, &most) {
		addr := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&six.Addr)))
		open[netip.PrefixFrom(addr, int(six.Bits))] = most
	}
	if err = errors.Join(err, all.Err()); err != nil {
		return fmt.Errorf("prefixes of an earlier daemon: %w", err)
	}
	l.gate.open, l.gate.told = open, map[uint32]uint32{}
	return nil
}

// enterImposer puts the tables' program at its inner end, and tells where it is.
func (l *Labels) enterImposer(at Imposer) (changed bool, err error) {
	if err := l.plane.attachImposer(at.Inner, l.tables.coll.Programs["shunt_impose"]); err != nil {
		return false, err
	}
	if l.gate.at == at {
		return false, nil
	}
	if err := l.plane.maps["tx"].Put(uint32(tcAbiIMPOSER_TX), uint32(at.Outer)); err != nil {
		return false, fmt.Errorf("redirect map: %w", err)
	}
	var c tcControl
	l.plane.setWord(unsafe.Offsetof(c.Imposer), uint32(at.Outer))
	l.gate.at = at
	return true, nil
}

// leaveImposer has no packet go there, and returns when none is in it. Then it can be removed.
func (l *Labels) leaveImposer() error {
	if l.plane.control().Imposer == 0 {
		return nil
	}
	var c tcControl
	l.plane.setWord(unsafe.Offsetof(c.Imposer), 0)
	l.plane.Bump()
	settle()
	l.gate.at = Imposer{}
	if err := l.plane.maps["tx"].Delete(uint32(tcAbiIMPOSER_TX)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("redirect map: %w", err)
	}
	return l.plane.detachImposers("")
}

// attachImposer puts a program at the inner end of the imposer, in the place of an earlier one.
func (p *Plane) attachImposer(index int, prog *ebpf.Program) error {
	p.counts(index)
	path := p.pin("links", linkName(index, imposerKind))
	if err := p.detachImposers(path); err != nil {
		return err
	}
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		err = l.Update(prog)
		if err == nil {
			return l.Close()
		}
		if err := errors.Join(l.Unpin(), l.Close()); err != nil { // its interface has gone
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach XDP program of interface %d, where IP packets get labels: %w", index, err)
	}
	defer l.Close()
	if err := l.Pin(path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// detachImposers takes such programs away, but for one.
func (p *Plane) detachImposers(but string) error {
	entries, err := os.ReadDir(p.pin("links", ""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(p.pin("links", ""), e.Name())
		if path == but || !strings.HasSuffix(e.Name(), "-"+imposerKind) {
			continue
		}
		if err := unpin(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
