// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unsafe"

	"shunt/internal/lfib"
)

// setAdjacency says where a way out leads now. Packets see the old neighbour or the new one. One
// that nobody has spoken of leads nowhere.
func (l *tables) setAdjacency(to *Adjacency) error {
	if most := uint32(mplsMplsSizeLABEL_ADJACENCIES) - 1; to.ID == 0 || to.ID > most {
		return fmt.Errorf("over %d ways out of labels: use fewer neighbours", most)
	}
	var port tcPort
	up := to.Index != 0 && l.plane.maps["ports"].Lookup(uint32(to.Index), &port) == nil // it is a port of shunt
	a := mplsAdjacency{Dmac: to.Destination, Smac: to.Source, Mtu: uint16(min(to.MTU, 0xffff)), Tx: uint16(port.Tx)}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	start, mtu := int64(to.ID)*int64(len(b)), unsafe.Offsetof(a.Mtu)
	m := l.memory["adjacencies"]
	if !up { // packets under way may still read the rest
		m.WriteAt([]byte{0, 0}, start+int64(mtu))
		return nil
	}
	m.WriteAt(b[:8], start) // the neighbour's MAC
	m.WriteAt(b[8:], start+8)
	return nil
}

// setMap writes a map of TCs by DSCP, or of DSCPs by TC.
func (l *tables) setMap(m *LabelMap) error {
	n, _, err := l.maps.get(m.Name)
	if err != nil {
		return fmt.Errorf("map %s: %w: %d are the most", m.Name, err, mplsMplsSizeLABEL_MAPS-1)
	}
	write(l, "label_maps", n, &mplsLabelMap{To: *m.To})
	return nil
}

// takes notes what a number takes from now on, nil for nothing, and is what it took before.
func (l *tables) takes(number uint32, now *made) (before *made) {
	if n := int(number); n >= len(l.made) {
		l.made = append(l.made, make([]*made, n+1-len(l.made))...)
	}
	before, l.made[number] = l.made[number], now
	return before
}

// setNHLFE has an NHLFE, which has a number, mean a form from now on. Packets see the old list or the
// new one. The NHLFEs and maps that it names must have been set.
func (l *tables) setNHLFE(id, number uint32, f *lfib.Form) error {
	m, err := l.make(f, ends[f.Does])
	if err != nil {
		l.unmake(m)
		return fmt.Errorf("NHLFE %d: %w", id, full("NHLFEs", err))
	}
	l.point(number, m)
	l.unmake(l.takes(number, m))
	return nil
}

// removeNHLFE takes an NHLFE away. No label and no other NHLFE may name it any more.
func (l *tables) removeNHLFE(id uint32) {
	number, ok := l.nhlfes.of[id]
	if !ok {
		return
	}
	l.unmake(l.takes(number, nil))
	l.nhlfes.drop(id)
	l.out.drop(id)
}

// point turns a number over to what was made: a word for those packets that go by its record, and
// one for those that it is a plain swap for.
func (l *tables) point(number uint32, m *made) {
	var word [8]byte
	binary.NativeEndian.PutUint32(word[:], m.record)
	l.memory["nhlfe_rows"].WriteAt(word[:4], int64(number)*4)
	binary.NativeEndian.PutUint64(word[:], m.swap)
	l.memory["swaps"].WriteAt(word[:], int64(number)*8)
}

// swapOf is the word of enum swap for a form that does nothing but to swap a label; else 0. Uniform
// or pipe is the same to it, which exposes nothing; a size of its own is looked at on the longer way.
func swapOf(r *mplsNhlfe) uint64 {
	const models = mplsNhlfeFlagNHLFE_PIPE | mplsNhlfeFlagNHLFE_SHORT_PIPE
	if mplsNhlfeEnd(r.End) != mplsNhlfeEndNHLFE_SEND || mplsNhlfeFlag(r.Flags)&^models != mplsNhlfeFlagNHLFE_SWAP ||
		r.Pops != 1 || r.Pushes != 1 || r.Push[0].Flags != 0 || r.Mtu != 0 {
		return 0
	}
	return uint64(bits.ReverseBytes32(r.Push[0].Lse)) | uint64(r.Segment)<<mplsSwapSWAP_SEGMENT |
		uint64(r.Adjacency)<<mplsSwapSWAP_ADJACENCY
}

// make writes a form aside. What it returns beside an error is to be unmade.
func (l *tables) make(f *lfib.Form, end mplsNhlfeEnd) (*made, error) {
	m := &made{}
	r, err := l.encode(f)
	if err != nil {
		return m, err
	}
	if f.Choice != nil {
		if err := l.choice(f, m); err != nil {
			return m, err
		}
		r.Choice = m.choice
	}
	r.End = uint8(end)
	if m.record, err = l.records.take(); err != nil {
		return m, err
	}
	m.swap = swapOf(&r)
	write(l, "nhlfes", m.record, &r)
	return m, nil
}

// choice writes the row that a form chooses by.
func (l *tables) choice(f *lfib.Form, m *made) (err error) {
	if m.choice, err = l.choices.take(); err != nil {
		return err
	}
	var c mplsChoice
	numbers := map[*lfib.Form]uint32{}
	for i, target := range f.Choice {
		switch {
		case target.Form != nil:
			n, ok := numbers[target.Form]
			if !ok {
				if n, err = l.nhlfes.take(); err != nil {
					return err
				}
				m.inner = append(m.inner, n)
				inner, err := l.make(target.Form, ends[target.Form.Does])
				if err != nil {
					l.unmake(inner)
					return err
				}
				l.takes(n, inner)
				numbers[target.Form] = n
				l.point(n, inner)
			}
			c.Nhlfe[i] = n
		case target.ID != 0:
			n, ok := l.nhlfes.of[target.ID]
			if !ok {
				return fmt.Errorf("chooses NHLFE %d, which is not there", target.ID)
			}
			c.Nhlfe[i] = n
		}
	}
	write(l, "choices", m.choice, &c)
	return nil
}

// unmake gives back what make took, which nothing names any more. It stays as it is until it is
// taken again: packets under way may still read it.
func (l *tables) unmake(m *made) {
	if m == nil {
		return
	}
	l.records.give(m.record)
	l.choices.give(m.choice)
	for _, n := range m.inner {
		l.unmake(l.takes(n, nil))
		l.nhlfes.give(n)
	}
}

// ends are the words of internal/lfib in those of the data path.
var ends = map[lfib.Does]mplsNhlfeEnd{
	lfib.OpSend: mplsNhlfeEndNHLFE_SEND, lfib.OpPeek: mplsNhlfeEndNHLFE_PEEK, lfib.OpDeliver: mplsNhlfeEndNHLFE_DELIVER,
	lfib.OpDrop: mplsNhlfeEndNHLFE_DROP, lfib.OpByTC: mplsNhlfeEndNHLFE_BY_TC, lfib.OpByDSCP: mplsNhlfeEndNHLFE_BY_DSCP,
	lfib.OpByHash: mplsNhlfeEndNHLFE_BY_HASH,
}

// encode is a form as the data path reads it, but for its choice.
func (l *tables) encode(f *lfib.Form) (r mplsNhlfe, err error) {
	r = mplsNhlfe{Pops: uint8(f.Pops), Mtu: uint16(f.MTU)}
	if f.Swap {
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_SWAP)
		r.Pops++
	}
	switch f.Model {
	case lfib.Pipe:
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_PIPE)
	case lfib.ShortPipe:
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_SHORT_PIPE)
	}
	if f.Space != nil {
		r.Space = uint8(*f.Space) + 1
	}
	if f.TC != nil {
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_SET_TC)
		r.Tc = *f.TC
	}
	if f.DSCP != nil {
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_SET_DSCP)
		r.Dscp = *f.DSCP
	}
	if f.TCMap != "" {
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_MAP_TC)
		if r.Tc, err = l.mapRow(f.TCMap); err != nil {
			return r, err
		}
	}
	if f.DSCPMap != "" {
		r.Flags |= uint8(mplsNhlfeFlagNHLFE_MAP_DSCP)
		if r.Dscp, err = l.mapRow(f.DSCPMap); err != nil {
			return r, err
		}
	}
	if f.Send != nil {
		r.Adjacency = l.wayOut(f.Send)
		if f.Upstream {
			r.Flags |= uint8(mplsNhlfeFlagNHLFE_UPSTREAM)
		}
		var fresh bool
		if r.Segment, fresh, err = l.out.get(f.End); err != nil {
			return r, err
		}
		if fresh {
			l.clear(out, r.Segment)
		}
	}
	for _, p := range f.Push {
		to, err := l.push(p, &r)
		if err != nil {
			return r, err
		}
		if p.Entropy { // <label, ELI, EL>, RFC 6790 4.2
			r.Needs |= uint8(mplsNhlfeNeedNEED_HASH)
			indicator := to
			indicator.Lse = indicator.Lse&0xfff | uint32(lfib.ELI)<<12
			r.Push[r.Pushes] = mplsPush{Flags: uint8(mplsPushFlagPUSH_ENTROPY | mplsPushFlagPUSH_TTL)}
			r.Push[r.Pushes+1] = indicator
			r.Pushes += 2
		}
		r.Push[r.Pushes] = to
		r.Pushes++
	}
	return r, nil
}

func (l *tables) push(p lfib.Push, r *mplsNhlfe) (to mplsPush, err error) {
	to.Lse = uint32(p.Label) << 12
	if p.TC != nil {
		to.Flags |= uint8(mplsPushFlagPUSH_TC)
		to.Lse |= uint32(*p.TC) << 9
	}
	if p.TTL != nil {
		to.Flags |= uint8(mplsPushFlagPUSH_TTL)
		to.Lse |= uint32(*p.TTL)
	}
	if p.Map != "" {
		to.Flags |= uint8(mplsPushFlagPUSH_MAP)
		r.Needs |= uint8(mplsNhlfeNeedNEED_DSCP)
		to.Map, err = l.mapRow(p.Map)
	}
	return to, err
}

func (l *tables) mapRow(name string) (uint8, error) {
	n, ok := l.maps.of[name]
	if !ok {
		return 0, fmt.Errorf("map %s is not there", name)
	}
	return uint8(n), nil
}
