// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"shunt/internal/lfib"
)

// LabelSizes say how much label switching may take. The memory is taken as it begins: for each
// NHLFE 348 bytes, for each NHLFE or label, whichever are more, 48 per CPU; 8 MB for label space 0,
// and as much for each other one in use. Numbers are rounded up to a power of two, of which a row is
// lost; a million is the most.
type LabelSizes struct {
	Labels int // ILM entries
	NHLFEs int
}

// tables are those of one mpls.bpf.c. They begin empty and are in force once ports have their
// program; the ones that were in force go then. So a new daemon can build its tables aside
// while those of the daemon before go on.
//
// Nothing is changed where a packet may be reading it: an entry gets a row of its own, then
// one word names the new row. The old one is used again when every packet is through that
// could see it (rows.go).
type tables struct {
	plane  *Plane
	coll   *ebpf.Collection
	memory map[string]*ebpf.Memory
	spaces map[lfib.Space]*space
	ports  map[int]lfib.Space // by ifindex

	nhlfes   rows[uint32]        // by ID: the number that stands in ilm.nhlfe and in choices
	records  row                 // of nhlfes: what a number stands for at the moment
	made     []*made             // by number
	byTC     map[LabelKey]uint32 // numbers of choices that were made for labels
	choices  row
	wayOut   func(*lfib.Send) uint32 // its adjacency, which is its row
	adjacent map[uint32]int          // rows: unused, leads, lapsed or ended
	maps     rows[string]
	in       rows[LabelKey]
	out      rows[uint32]
	ftns     map[netip.Prefix]uint32          // NHLFEs
	ftnsOf   map[uint32]map[netip.Prefix]bool // by NHLFE
	segments int                              // rows of a CPU, each for one of `in` and one of `out`
	since    [2][]time.Time                   // when the counters of in- and out-segments began, by row
}

// made is what a number of nhlfe_rows takes.
type made struct {
	record uint32
	swap   uint64 // enum swap: all of it, if it is a plain swap
	choice uint32
	inner  []uint32 // numbers of the forms behind a choice that have no ID
}

// space is the table of a label space: an inner map, but for space 0.
type space struct {
	m      *ebpf.Map // nil: space 0
	memory *ebpf.Memory
	labels int
}

// labelSections are the global variables of bpf/maps_mpls.h.
var labelSections = []string{"platform", "nhlfe_rows", "swaps", "nhlfes", "choices", "adjacencies", "label_maps", "label_ports", "segments", "losses"}

// Of so many NHLFEs one may choose.
const choiceShare = 16

// The verifier follows no offset into a table beyond mostBytes (BPF_MAX_VAR_OFF), so a table has
// at most mostRows, twice as many if it is `nhlfes`, and fewer counters on many CPUs.
const (
	mostRows  = 1 << 20
	mostBytes = 1 << 29
)

func power(n int) int { return min(1<<bits.Len(uint(max(n, 63))), mostRows) }

// fits says how many labels there can be where every CPU has counters of its own.
func (s LabelSizes) fits() error {
	rows := power(max(s.Labels, s.NHLFEs))
	most := mostBytes / sizeOf[mplsSegmentPair]() / cpus()
	if rows <= most {
		return nil
	}
	return fmt.Errorf("labels = %d are too many for the %d possible CPUs of this machine: use at most %d", max(s.Labels, s.NHLFEs), cpus(), most-1)
}

// newTables makes empty ones.
func (p *Plane) newTables(size LabelSizes) (*tables, error) {
	types := p.types
	p.types = nil // large; who makes tables anew reads it again
	nhlfes, segments := power(size.NHLFEs), power(max(size.Labels, size.NHLFEs))
	records, choices := 2*nhlfes, max(nhlfes/choiceShare, 64)
	if err := size.fits(); err != nil {
		return nil, err
	}
	spec, err := loadMpls()
	if err != nil {
		return nil, err
	}
	for name, length := range map[string]int{
		"platform":   int(mplsMplsSizeLABELS) * sizeOf[mplsIlm](),
		"nhlfe_rows": nhlfes * 4, "swaps": nhlfes * 8, "nhlfes": records * sizeOf[mplsNhlfe](), "choices": choices * sizeOf[mplsChoice](),
		"segments": cpus() * segments * sizeOf[mplsSegmentPair](), "losses": cpus() * segments * sizeOf[mplsLoss](),
	} {
		resize(spec, ".data."+name, length)
	}
	put(spec.Programs, p.loaded)
	put(spec.Programs, map[tcLoaded]int{
		tcLoadedNHLFES: nhlfes - 1, tcLoadedNHLFE_ROWS: records - 1, tcLoadedCHOICES: choices - 1, tcLoadedSEGMENTS: segments - 1,
		tcLoadedSEGMENTS_SIZE: segments * sizeOf[mplsSegmentPair](), tcLoadedLOSSES_SIZE: segments * sizeOf[mplsLoss](),
	})
	for name, m := range p.maps { // as they were sized
		if mine := spec.Maps[name]; mine != nil {
			mine.ValueSize, mine.MaxEntries = m.ValueSize(), m.MaxEntries()
			mine.Key, mine.Value, mine.Contents = nil, nil, nil
			delete(spec.Variables, strings.TrimPrefix(name, ".data."))
		}
	}
	coll, err := loadOver(spec, ebpf.CollectionOptions{MapReplacements: p.maps, Cache: types})
	if err != nil {
		return nil, fmt.Errorf("label switching: %w", err)
	}
	l := &tables{
		plane: p, adjacent: map[uint32]int{}, coll: coll, memory: map[string]*ebpf.Memory{}, spaces: map[lfib.Space]*space{}, ports: map[int]lfib.Space{}, byTC: map[LabelKey]uint32{},
		ftns: map[netip.Prefix]uint32{}, ftnsOf: map[uint32]map[netip.Prefix]bool{},
		nhlfes: newRows[uint32](nhlfes), records: row{most: uint32(records - 1)}, choices: row{most: uint32(choices - 1)},
		maps: newRows[string](int(mplsMplsSizeLABEL_MAPS)),
		in:   newRows[LabelKey](segments), out: newRows[uint32](segments), segments: segments,
		since: [2][]time.Time{make([]time.Time, segments), make([]time.Time, segments)},
	}
	if err := coll.Maps["programs"].Put(uint32(mplsProgramPROGRAM_XDP), p.xdp); err != nil {
		l.close()
		return nil, fmt.Errorf("label switching: %w", err)
	}
	for _, name := range labelSections {
		if l.memory[name], err = coll.Maps[".data."+name].Memory(); err != nil {
			l.close()
			return nil, fmt.Errorf("label switching: %s: %w", name, err)
		}
	}
	l.spaces[0] = &space{memory: l.memory["platform"]}
	return l, nil
}

// program is the XDP program of ports that have a label space.
func (l *tables) program() *ebpf.Program { return l.coll.Programs["shunt_mpls"] }

// SetLabelHold says for how many jiffies labels are switched with the daemon dead; 0: for ever.
func (p *Plane) SetLabelHold(jiffies uint32) {
	var c tcControl
	p.setWord(unsafe.Offsetof(c.LabelHold), jiffies-1) // 0 is the most
}

// close lets go of the tables. Those in use go on.
func (l *tables) close() {
	for _, s := range l.spaces {
		s.m.Close() // of none it does nothing
	}
	l.coll.Close()
}

func sizeOf[T any]() int { var x T; return int(unsafe.Sizeof(x)) }

// write puts a row into a table, all at once to the eye of Go, in any order to that of a packet.
func write[T any](l *tables, table string, n uint32, x *T) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(x)), unsafe.Sizeof(*x))
	l.memory[table].WriteAt(b, int64(n)*int64(len(b)))
}

// setPort gives a port a label space, or none if space is under 0. Of ports whose ifindexes
// are alike modulo MAX_PORTS only one can have one.
func (l *tables) setPort(to LabelPort) error {
	n := uint32(to.Index) % uint32(tcAbiMAX_PORTS)
	p := read[mplsLabelPort](l, "label_ports", n)
	taken := p.Ifindex != 0 && p.Ifindex != uint32(to.Index)
	if to.Space < 0 {
		if !taken {
			write(l, "label_ports", n, &mplsLabelPort{})
		}
		delete(l.ports, to.Index)
		return nil
	}
	if taken {
		return fmt.Errorf("ports with ifindex %d and %d cannot both have a label space: make one of them anew, for another ifindex", p.Ifindex, to.Index)
	}
	l.ports[to.Index] = lfib.Space(to.Space)
	mac := binary.NativeEndian.Uint64(append(to.MAC[:], 0, 0))
	write(l, "label_ports", n, &mplsLabelPort{Ifindex: uint32(to.Index), Upstream: uint16(to.Upstream + 1),
		Key: mac<<mplsMplsSizeLABEL_PORT_MAC | uint64(to.Space)})
	return nil
}

// space is the table of a label space, which is made if it is not there.
func (l *tables) space(n lfib.Space) (*space, error) {
	if s := l.spaces[n]; s != nil {
		return s, nil
	}
	inner := l.coll.Maps["label_spaces"]
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: uint32(mplsMplsSizeLABELS), Flags: mmapable})
	if err == nil {
		err = inner.Put(uint32(n), m)
	}
	if err != nil {
		return nil, fmt.Errorf("label space %d: %w", n, err)
	}
	memory, err := m.Memory()
	if err != nil {
		return nil, fmt.Errorf("label space %d: %w", n, err)
	}
	l.spaces[n] = &space{m: m, memory: memory}
	return l.spaces[n], nil
}

// freeSpaces lets go of those without a label that no port has: to a packet it is the same.
func (l *tables) freeSpaces() error {
	for n, s := range l.spaces {
		if n == 0 || s.labels > 0 || slices.Contains(slices.Collect(maps.Values(l.ports)), n) {
			continue
		}
		if err := l.coll.Maps["label_spaces"].Delete(uint32(n)); err != nil {
			return fmt.Errorf("label space %d: %w", n, err)
		}
		s.m.Close()
		delete(l.spaces, n)
	}
	return nil
}

const mmapable = 1 << 10 // BPF_F_MMAPABLE

// setLabel has a label mean, by its TC, NHLFEs that were set before; 0 is none. Its counters
// begin at 0 if it is new.
func (l *tables) setLabel(i *ILM) error {
	s, err := l.space(i.Space)
	if err != nil {
		return err
	}
	key, label := LabelKey{i.Space, i.Label}, i.Label
	segment, fresh, err := l.in.get(key)
	if err != nil {
		return fmt.Errorf("label %d: %w", label, full("labels", err))
	}
	if fresh {
		l.clear(in, segment)
	}
	number, chooses, err := l.numberOf(&i.NHLFE)
	if err != nil {
		if fresh {
			l.in.drop(key)
		}
		return fmt.Errorf("label %d: %w", label, full("NHLFEs", err))
	}
	var word [8]byte
	binary.NativeEndian.PutUint32(word[:], number)
	binary.NativeEndian.PutUint32(word[4:], segment)
	s.memory.WriteAt(word[:], int64(label)*8)
	l.forgetChoice(key)
	if chooses {
		l.byTC[key] = number
	}
	if fresh {
		s.labels++
	}
	return nil
}

// numberOf is the number of an NHLFE, or of a choice between several that is made for the caller.
func (l *tables) numberOf(byTC *[8]uint32) (number uint32, chooses bool, err error) {
	if *byTC == [8]uint32{byTC[0], byTC[0], byTC[0], byTC[0], byTC[0], byTC[0], byTC[0], byTC[0]} {
		number, ok := l.nhlfes.of[byTC[0]]
		if !ok {
			err = fmt.Errorf("no NHLFE %d", byTC[0])
		}
		return number, false, err
	}
	f := &lfib.Form{Does: lfib.OpByTC, Choice: &[64]lfib.Target{}}
	for tc, id := range byTC {
		if _, ok := l.nhlfes.of[id]; id != 0 && !ok {
			return 0, false, fmt.Errorf("no NHLFE %d", id)
		}
		f.Choice[tc].ID = id
	}
	if number, err = l.nhlfes.take(); err != nil {
		return 0, true, err
	}
	m, err := l.make(f, mplsNhlfeEndNHLFE_BY_LABEL)
	if err != nil {
		l.unmake(m)
		l.nhlfes.give(number)
		return 0, true, err
	}
	l.takes(number, m)
	l.point(number, m)
	return number, true, nil
}

// forgetChoice gives back what a label that goes by TC had made. No packet will be led there.
func (l *tables) forgetChoice(key LabelKey) {
	number, ok := l.byTC[key]
	if !ok {
		return
	}
	l.unmake(l.takes(number, nil))
	delete(l.byTC, key)
	l.nhlfes.give(number)
}

// removeLabel takes a label away.
func (l *tables) removeLabel(key LabelKey) {
	if _, ok := l.in.of[key]; !ok {
		return
	}
	s := l.spaces[key.Space]
	s.memory.WriteAt(make([]byte, 8), int64(key.Label)*8)
	s.labels--
	l.forgetChoice(key)
	l.in.drop(key)
}

func full(what string, err error) error {
	if errors.Is(err, errNoRoom) {
		return fmt.Errorf("the table of %s is full: raise %q in the configuration", what, "labels")
	}
	return err
}

// The two kinds of segments.
const (
	in = iota
	out
)

// clear sets a segment's counters to 0, on all CPUs. Nobody counts into it, but into the one
// of the other kind that is in the same row.
func (l *tables) clear(kind int, n uint32) {
	size := sizeOf[mplsSegment]()
	for cpu := range cpus() {
		row := uint32(cpu*l.segments) + n
		l.memory["segments"].WriteAt(make([]byte, size), int64(row)*int64(2*size)+int64(kind*size))
		if kind == in {
			write(l, "losses", row, &mplsLoss{})
		}
	}
	l.since[kind][n] = time.Now()
}

// counted sums a segment's counters over all CPUs.
func (l *tables) counted(kind int, n uint32) Segment {
	sum := Segment{Since: l.since[kind][n]}
	for cpu := range cpus() {
		row := uint32(cpu*l.segments) + n
		both := read[mplsSegmentPair](l, "segments", row)
		if kind == out {
			sum.Packets += both.Out.Packets
			sum.Octets += both.Out.Octets
			continue
		}
		lost := read[mplsLoss](l, "losses", row)
		sum.Packets += both.In.Packets
		sum.Octets += both.In.Octets
		sum.Errors += lost.Errors
		sum.Discards += lost.Discards
	}
	return sum
}
