// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket/layers"

	"shunt/internal/dataplane"
)

// KeyOf is the wire key of a packet that comes in by a port.
func KeyOf(p Packet, port int) (Key, Words) {
	family := 4
	var k Key
	var w Words
	w.Saddr, k.Saddr = split(p.Src.Addr())
	w.Daddr, k.Daddr = split(p.Dst.Addr())
	if p.Src.Addr().Is6() {
		family = 6
	}
	k.Kind = Kind(port, family, int(p.Proto))
	k.Sport, k.Dport = ports(p)
	return k, w
}

func split(a netip.Addr) (head [3]uint32, last uint32) {
	b := a.AsSlice()
	for i := 0; i < len(b)-4; i += 4 {
		head[i/4] = Word(b[i:])
	}
	return head, Word(b[len(b)-4:])
}

// ports are the two 16-bit fields of the key that L4 gives.
func ports(p Packet) (s, d uint16) {
	at := func(n int) uint16 { return binary.NativeEndian.Uint16(p.Payload[n:]) }
	switch layers.IPProtocol(p.Proto) {
	case layers.IPProtocolTCP, layers.IPProtocolUDP:
		return Wire16(p.Src.Port()), Wire16(p.Dst.Port())
	case layers.IPProtocolICMPv4, layers.IPProtocolICMPv6:
		return Wire16(p.Src.Port()), Wire16(uint16(p.Type) << 8)
	case layers.IPProtocolSCTP, layers.IPProtocolUDPLite, layers.IPProtocolESP, 33: // DCCP
		return at(0), at(2)
	case layers.IPProtocolGRE:
		flags := binary.BigEndian.Uint16(p.Payload)
		if flags&0xa000 == 0x2000 { // key and no checksum (RFC 2890)
			return at(4), at(6)
		}
	}
	return 0, 0
}

// Learned is the slot that the kernel's making `out` of `in` must lead to: armed, with
// a lease that ends at the given jiffies and no history. The deltas are differences of
// the two frames' own checksums: HC - HC' in ones' complement (RFC 1624 eqn. 3, turned
// around). Ports are those of the rig.
func (r *Rig) Learned(in, out Packet, lease uint32) Slot {
	s := Slot{State: Armed, Flags: FlagPaired | FlagXDP, Gen: r.Generation(), Lease: lease, Seen: lease}
	s.Key, s.In6 = KeyOf(in, r.LANIndex)
	to, words := KeyOf(out, 0)
	s.Saddr, s.Daddr, s.Sport, s.Dport = to.Saddr, to.Daddr, to.Sport, to.Dport
	s.Out6 = words
	s.DscpIn, s.DscpOut = in.TOS&0xfc, out.TOS&0xfc
	copy(s.DmacIn[:], in.To)
	copy(s.SmacIn[:], in.From)
	copy(s.DmacOut[:], out.To)
	copy(s.SmacOut[:], out.From)
	s.LabelIn = Word(binary.BigEndian.AppendUint32(nil, in.Label))
	s.Mtu, s.Oif, s.Why = 1500, uint32(r.WANIndex), learned
	s.Tx = r.tx(r.WANIndex)
	from := s.Key
	if in.Src != out.Src || in.Dst != out.Dst || from.Sport != to.Sport || from.Dport != to.Dport {
		s.Flags |= FlagNAT
	}
	s.L3Step = uint32(l3Delta(in, out))<<16 | 1
	s.L4Delta = l4Delta(in, out)
	return s
}

// learned is REASON_LEARNED.
var learned = uint8(slices.Index(dataplane.Reasons, "learned"))

// tx is the port's index in the redirect map.
func (r *Rig) tx(index int) uint16 {
	var port struct{ Flags, Tx uint32 }
	if err := r.maps["ports"].Lookup(uint32(index), &port); err != nil {
		panic("port of an open rig: " + err.Error())
	}
	return uint16(port.Tx)
}

// difference is ~m + m' in ones' complement. A sum of words and their complements is
// never all zeros: what adds nothing is 0xffff.
func difference(before, after uint64) uint16 {
	d := Fold(uint64(Fold(after)) + uint64(^Fold(before)))
	if d == 0 {
		d = 0xffff
	}
	return Wire16(d)
}

// l3Delta is about the words of the IPv4 header that a rewrite changes. Programs work it
// out for IPv6 as well and never use it.
func l3Delta(in, out Packet) uint16 {
	words := func(p Packet, ttl uint64) uint64 {
		return Sum(p.Src.Addr().AsSlice()) + Sum(p.Dst.Addr().AsSlice()) + uint64(p.TOS&0xfc) + ttl<<8
	}
	return difference(words(in, 1), words(out, 0))
}

// l4Delta is about what the L4 checksum covers: addresses by the pseudo header, ports.
func l4Delta(in, out Packet) uint16 {
	words := func(p Packet) (s uint64) {
		if layers.IPProtocol(p.Proto) != layers.IPProtocolICMPv4 {
			s = Sum(p.Src.Addr().AsSlice()) + Sum(p.Dst.Addr().AsSlice())
		}
		switch layers.IPProtocol(p.Proto) {
		case layers.IPProtocolTCP, layers.IPProtocolUDP:
			s += uint64(p.Src.Port()) + uint64(p.Dst.Port())
		case layers.IPProtocolICMPv4, layers.IPProtocolICMPv6:
			s += uint64(p.Src.Port())
		}
		return s
	}
	return difference(words(in), words(out))
}
