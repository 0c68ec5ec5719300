// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"shunt/internal/dataplane"
)

// Key is struct flow_key of bpf/abi.h. Addresses and ports are as on the wire: [Word]
// and [Wire16] make them.
type Key struct {
	Saddr, Daddr uint32
	Sport, Dport uint16
	Kind         uint32
}

// Kind is flow_key.kind.
func Kind(ifindex, family, proto int) uint32 {
	kind := uint32(ifindex)*512 + uint32(proto)
	if family == 6 {
		kind += 256
	}
	return kind
}

// Port is the ifindex in a kind.
func (k Key) Port() int { return int(k.Kind / 512) }

// IPv6 tells whether the family in a kind is 6.
func (k Key) IPv6() bool { return k.Kind/256%2 == 1 }

// Proto is the protocol in a kind.
func (k Key) Proto() uint8 { return uint8(k.Kind) }

// Words is struct flow_words: the first three words of IPv6 addresses.
type Words struct{ Saddr, Daddr [3]uint32 }

// Slot is struct slot, field by field: what a flow's entry holds.
type Slot struct {
	Seq, Gen, Lease  uint32
	State, DscpIn    uint8
	Flags, DscpOut   uint8
	Key              Key
	DmacIn, SmacIn   [6]byte
	LabelIn          uint32
	Mtu              uint16
	Why, TcpScale    uint8
	Count, Seen, Oif uint32
	Saddr, Daddr     uint32
	Sport, Dport     uint16
	L4Delta, Tx      uint16
	DmacOut, SmacOut [6]byte
	L3Step           uint32
	Packets, Bytes   uint64
	TcpSeq, TcpAck   uint32
	Mark             uint32
	TcpWnd, Watch    uint16
	In6, Out6        Words
	Priority, Born   uint32
	Zone             uint16
	Given, Taken     uint8
	Renewals, Spent  uint16
}

// The values of enum slot_state and enum slot_flag.
const (
	Seen   = 1
	Armed  = 2
	Closed = 3

	FlagXDP     = 1
	FlagDrain   = 2
	FlagLiberal = 4
	FlagNAT     = 8
	FlagCT      = 16
	FlagPaired  = 32
	FlagLSP     = 64
)

// ways is the number of slots in a bucket.
const ways = 2

// Control is struct control: what the daemon tells every packet.
type Control struct {
	Abi, Gen, Paused, NoMarks       uint32
	Threshold, Idle                 uint32
	Lease, LeaseLive, Beat, BeatMax uint32
	TcpOff, Hz, Clock, Verify       uint32
	Secret                          [8]uint64
	Mix                             uint64
	Policed                         uint64
	Rates                           [64]Rate
	SourceFlows, LabelHold          uint32
	Imposer, Watch                  uint32
}

// Rate is struct rate: nanoseconds between packets, and how far ahead of that they may be.
type Rate struct{ Every, Ahead uint64 }

// Place is where a slot is.
type Place struct{ Bucket, Way uint32 }

// Word is four bytes of an address as a program on this machine reads them.
func Word(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// Wire16 turns a number into the two bytes that stand on the wire, read as this machine does.
func Wire16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// checkLayout compares the Go structs above with the programs' type information, so that a
// change of abi.h that was not made here is no riddle.
func checkLayout() error {
	types, err := dataplane.Types()
	if err != nil {
		return err
	}
	for name, like := range map[string]any{"slot": Slot{}, "flow_key": Key{}, "control": Control{}} {
		var s *btf.Struct
		if err := types.TypeByName(name, &s); err != nil {
			return fmt.Errorf("type information of the programs: %s: %w", name, err)
		}
		if err := sameLayout(s, reflect.TypeOf(like)); err != nil {
			return err
		}
	}
	return nil
}

func sameLayout(s *btf.Struct, t reflect.Type) error {
	if int(s.Size) != int(t.Size()) || len(s.Members) != t.NumField() {
		return fmt.Errorf("struct %s has %d members in %d bytes, exercise.%s %d in %d; make slot.go match bpf/abi.h",
			s.Name, len(s.Members), s.Size, t.Name(), t.NumField(), t.Size())
	}
	for i, m := range s.Members {
		f := t.Field(i)
		if !strings.EqualFold(strings.ReplaceAll(m.Name, "_", ""), f.Name) || uintptr(m.Offset.Bytes()) != f.Offset {
			return fmt.Errorf("struct %s: %s at %d, exercise.%s: %s at %d; make slot.go match bpf/abi.h",
				s.Name, m.Name, m.Offset.Bytes(), t.Name(), f.Name, f.Offset)
		}
	}
	return nil
}

// Put writes a slot to the first place its key may have, and returns the place.
func (r *Rig) Put(s Slot) (Place, error) {
	b := r.Hash().Places(s.Key, s.In6)
	at := Place{Bucket: b[0]}
	return at, r.PutAt(at, s)
}

// PutAt writes a slot anywhere, and tells of an armed one as learning does.
func (r *Rig) PutAt(at Place, s Slot) error {
	if _, err := r.flows.WriteAt(bytesOf(&s), r.Offset(at)); err != nil || s.State != Armed {
		return err
	}
	n := at.Bucket*ways + at.Way
	var bits [1]byte
	if _, err := r.armed.ReadAt(bits[:], int64(n/8)); err != nil {
		return err
	}
	bits[0] |= 1 << (n % 8)
	_, err := r.armed.WriteAt(bits[:], int64(n/8))
	return err
}

// At reads a slot.
func (r *Rig) At(at Place) (Slot, error) {
	var s Slot
	_, err := r.flows.ReadAt(bytesOf(&s), r.Offset(at))
	return s, err
}

// Offset is where a slot is in the one value of the map "[Flows]", in bytes.
func (r *Rig) Offset(at Place) int64 {
	return int64(at.Bucket*ways+at.Way) * int64(unsafe.Sizeof(Slot{}))
}

func bytesOf(s *Slot) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)) }

// Find looks for a key in the four slots it may have.
func (r *Rig) Find(k Key, w Words) (Slot, Place, bool) {
	for _, n := range r.Hash().Places(k, w) {
		for way := uint32(0); way < ways; way++ {
			at := Place{n, way}
			s, err := r.At(at)
			if err == nil && s.State != 0 && s.Key == k && (!k.IPv6() || s.In6 == w) {
				return s, at, true
			}
		}
	}
	return Slot{}, Place{}, false
}

// Clear empties the flow table.
func (r *Rig) Clear() error {
	if _, err := r.flows.WriteAt(make([]byte, r.flows.Size()), 0); err != nil {
		return err
	}
	sources, err := r.maps[Sources].Memory()
	if err != nil {
		return err
	}
	_, err = sources.WriteAt(make([]byte, sources.Size()), 0)
	return err
}

// ForgetSamples empties the memory of packets without a slot.
func (r *Rig) ForgetSamples() error {
	notes, err := r.maps[".data.notebooks"].Memory()
	if err != nil {
		return err
	}
	_, err = notes.WriteAt(make([]byte, notes.Size()), 0)
	return err
}

// Control reads the settings.
func (r *Rig) Control() Control {
	var c Control
	if err := r.maps[".data.control"].Lookup(uint32(0), &c); err != nil {
		panic("control map of an open rig: " + err.Error())
	}
	return c
}

// Edit changes the settings. Not for use while packets are under way that count on them.
func (r *Rig) Edit(change func(*Control)) {
	c := r.Control()
	change(&c)
	if err := r.maps[".data.control"].Put(uint32(0), &c); err != nil {
		panic("control map of an open rig: " + err.Error())
	}
}
