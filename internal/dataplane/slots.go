// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"
)

// Tuple is a pair of addresses with ports, as on the wire. ICMP: Source's port is the id.
type Tuple struct{ Source, Destination netip.AddrPort }

// Slot is one slot of the flow table as the programs keep it. Its methods cost next to
// nothing, so that a table of a million can be gone through to choose a few; what was
// chosen is turned into a Flow.
type Slot struct {
	raw  tcSlot
	busy bool // it was being rewritten whenever it was looked at
	at   int  // its place in the table
}

// States of a slot, as Slot.State and Flow.State have them.
const (
	StateSeen   = "seen"
	StateArmed  = "armed"
	StateClosed = "closed"
)

// State is StateSeen, StateArmed or StateClosed.
func (s *Slot) State() string {
	switch tcSlotState(s.raw.State) {
	case tcSlotStateSLOT_ARMED:
		return StateArmed
	case tcSlotStateSLOT_CLOSED:
		return StateClosed
	}
	return StateSeen
}

// Port is the ifindex that the flow comes in by.
func (s *Slot) Port() int { return int(s.raw.Key.Kind >> uint32(tcKindKIND_PORT)) }

// Proto is the IP protocol number.
func (s *Slot) Proto() uint8 { return uint8(s.raw.Key.Kind) }

// Why is the word for the last reason that is kept of the flow.
func (s *Slot) Why() string { return reasonWord(s.raw.Why) }

// Generation, Lease and Born are those of an armed slot; times are jiffies.
func (s *Slot) Generation() uint32 { return s.raw.Gen }

// Lease is when the lease ends.
func (s *Slot) Lease() uint32 { return s.raw.Lease }

// Seen is when the kernel had the flow's last packet, in jiffies.
func (s *Slot) Seen() uint32 { return s.raw.Seen }

// Place is the slot's place in the table: the same flow has the same one, for as long as it is kept.
func (s *Slot) Place() int { return s.at }

// Born is when the flow was first armed.
func (s *Slot) Born() uint32 { return s.raw.Born }

// Repeated are the packets, and bytes of IP, that were repeated since the flow was armed.
func (s *Slot) Repeated() (packets, bytes uint64) {
	if s.State() == StateSeen {
		return 0, 0
	}
	return s.raw.Packets, s.raw.Bytes
}

// Sighted are the packets that the kernel had since the last idle second, of a flow that is
// not armed.
func (s *Slot) Sighted() uint32 {
	if s.State() == StateArmed {
		return 0 // the field has another use then
	}
	return s.raw.Count
}

// Ends are both ends as the flow comes in and, once NAT is armed, as it leaves.
func (s *Slot) Ends() (in, out Tuple) {
	k := &s.raw.Key
	in = k.tuple(s.raw.In6)
	if s.State() != StateArmed || s.raw.Flags&uint8(tcSlotFlagSLOT_NAT) == 0 {
		return in, in
	}
	return in, tuple(k.family(), s.raw.Out6, s.raw.Saddr, s.raw.Daddr, s.raw.Sport, s.raw.Dport)
}

// Between tells whether the flow goes from one address to the other, either way, on either side
// of a NAT.
func (s *Slot) Between(a, b netip.Addr) bool {
	in, out := s.Ends()
	return in.between(a, b) || out.between(a, b)
}

func (t *Tuple) between(a, b netip.Addr) bool {
	from, to := t.Source.Addr(), t.Destination.Addr()
	return from == a && to == b || from == b && to == a
}

// Flow is one slot in plain types. Times are jiffies.
type Flow struct {
	Port, Out       int // ifindex; Out is 0 until learned
	Proto           uint8
	In, NAT         Tuple // NAT is In again where nothing is rewritten
	XDP, Translated bool
	Conntrack       bool
	LSP             bool // its packets get labels (bpf/lsp.h)
	Busy            bool // being rewritten at this very moment: nothing but the key is certain
	Waiting         bool // hits go by TC ingress until what is on its way there has come
	State           string
	Why             string
	MACIn, MACOut   [2]net.HardwareAddr // destination, source
	DSCPIn, DSCPOut int
	MTU             int
	Generation      uint32
	Lease, Seen     uint32
	Born            uint32
	Count, Renewals uint32
	Packets, Bytes  uint64
	Mark, Priority  uint32
}

func address(family uint8, head [3]uint32, last uint32) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint32(b[12:], last)
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	for i, w := range head {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b)
}

func hostOrder(wire uint16) uint16 { return wire<<8 | wire>>8 }

func tuple(family uint8, head tcFlowWords, source, dest uint32, sport, dport uint16) Tuple {
	return Tuple{
		netip.AddrPortFrom(address(family, head.Saddr, source), hostOrder(sport)),
		netip.AddrPortFrom(address(family, head.Daddr, dest), hostOrder(dport)),
	}
}

// family is 4 or 6.
func (k *tcFlowKey) family() uint8 {
	if k.Kind&uint32(tcKindKIND_IPV6) != 0 {
		return 6
	}
	return 4
}

func (k *tcFlowKey) tuple(head tcFlowWords) Tuple {
	return tuple(k.family(), head, k.Saddr, k.Daddr, k.Sport, k.Dport)
}

// Flow is the slot in plain types.
func (s *Slot) Flow() Flow {
	raw := s.raw // the MACs of a Flow are its own
	flag := func(f tcSlotFlag) bool { return raw.Flags&uint8(f) != 0 }
	f := Flow{
		Port: s.Port(), Out: int(raw.Oif), Proto: s.Proto(), In: raw.Key.tuple(raw.In6),
		NAT: tuple(raw.Key.family(), raw.Out6, raw.Saddr, raw.Daddr, raw.Sport, raw.Dport),
		XDP: flag(tcSlotFlagSLOT_XDP), Translated: flag(tcSlotFlagSLOT_NAT), Conntrack: flag(tcSlotFlagSLOT_CT), LSP: flag(tcSlotFlagSLOT_LSP),
		Busy: s.busy, Waiting: flag(tcSlotFlagSLOT_DRAIN) && raw.Given != raw.Taken,
		State: s.State(), Why: reasonWord(raw.Why),
		DSCPIn: int(raw.DscpIn >> 2), DSCPOut: int(raw.DscpOut >> 2),
		MTU: int(raw.Mtu), Generation: raw.Gen, Lease: raw.Lease, Seen: raw.Seen, Born: raw.Born,
		Count: s.Sighted(), Renewals: uint32(raw.Renewals), Packets: raw.Packets, Bytes: raw.Bytes,
		Mark: raw.Mark, Priority: raw.Priority,
		MACIn:  [2]net.HardwareAddr{raw.DmacIn[:], raw.SmacIn[:]},
		MACOut: [2]net.HardwareAddr{raw.DmacOut[:], raw.SmacOut[:]},
	}
	f.In, f.NAT = s.Ends()
	if f.State == StateSeen {
		f.Out, f.Packets, f.Bytes, f.Renewals = 0, 0, 0, 0
	}
	return f
}

func reasonWord(n uint8) string { return Reasons[min(int(n), len(Reasons)-1)] }

// Slots calls yield with every slot in use, until it returns false. The slot is good for the
// call alone; who keeps it copies it. Each is whole: what a packet was writing meanwhile is
// read again.
func (p *Plane) Slots(yield func(*Slot) bool) error { return p.Walk(0, yield) }

// Walk is Slots with a rest after every 1024 slots: a large table takes seconds then, and next to
// nothing of a CPU.
func (p *Plane) Walk(rest time.Duration, yield func(*Slot) bool) error {
	slots := make([]tcSlot, 1024)
	size := int(tcAbiSLOT_SIZE)
	var s Slot // one for all: a table may have millions
	for at := 0; at < int(p.flows.Size()); at += len(slots) * size {
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&slots[0])), len(slots)*size)
		if _, err := p.flows.ReadAt(raw, int64(at)); err != nil {
			return fmt.Errorf("flow table: %w", err)
		}
		for i := range slots {
			if tcSlotState(slots[i].State) == tcSlotStateSLOT_EMPTY && slots[i].Seq&1 == 0 {
				continue
			}
			s = Slot{raw: slots[i], at: at/size + i}
			if err := p.reread(&s, int64(at+i*size)); err != nil {
				return err
			}
			if s.raw.Key.Kind != 0 && tcSlotState(s.raw.State) != tcSlotStateSLOT_EMPTY && !yield(&s) {
				return nil
			}
		}
		time.Sleep(rest)
	}
	return nil
}

// reread reads a slot again that was written while it was read. A writer takes a fraction of
// a microsecond.
func (p *Plane) reread(s *Slot, at int64) error {
	for range 16 {
		var seq [4]byte
		if _, err := p.flows.ReadAt(seq[:], at); err != nil {
			return fmt.Errorf("flow table: %w", err)
		}
		if s.raw.Seq&1 == 0 && s.raw.Seq == binary.NativeEndian.Uint32(seq[:]) {
			return nil
		}
		if _, err := p.flows.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&s.raw)), tcAbiSLOT_SIZE), at); err != nil {
			return fmt.Errorf("flow table: %w", err)
		}
	}
	s.busy = true
	return nil
}
