// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

const (
	kindIPv4      = 0x0800
	kindIPv6      = 0x86dd
	ethernetBytes = 14
	mtu           = 1500
)

// flow is what its packets have in common.
type flow struct {
	lsp          lsp
	source, dest netip.Addr
	proto        byte // UDP, TCP or an ICMP echo
	sport, dport uint16
	dscp         byte
	label        uint32 // of IPv6
	last         uint32 // number of the packet that came last
}

// flows: so many that each has hundreds of packets, and an entry in the flow table of a shunt
// that sees it without labels.
const flows = 128

const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	destOptions = 60
)

// makeFlows: the two LSPs in turn.
func makeFlows(rng *rand.Rand, ways [2]lsp) (all []*flow) {
	for i := range flows {
		l := ways[i%2]
		f := &flow{lsp: l, sport: uint16(1024 + rng.IntN(60000)), dport: uint16(1 + rng.IntN(60000)), dscp: byte(rng.IntN(64)), label: rng.Uint32() & 0xfffff}
		to := l.prefix().Addr().AsSlice()
		to[len(to)-1] += byte(1 + rng.IntN(14))
		f.dest, _ = netip.AddrFromSlice(to)
		from := [16]byte{0x20, 1, 0x0d, 0xb8, 0xff, 14: byte(rng.IntN(256)), 15: byte(rng.IntN(256))}
		f.source = netip.AddrFrom16(from)
		echo := byte(protoICMPv6)
		if l.family == 4 {
			f.source, echo = netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + rng.IntN(250))}), protoICMP
		}
		f.proto = []byte{protoUDP, protoUDP, protoTCP, echo}[rng.IntN(4)]
		all = append(all, f)
	}
	return all
}

// packet is one of a flow.
type packet struct {
	*flow
	number    uint32
	ttl, dscp byte
	ecn       byte
	id        uint16
	fragment  uint16 // the field of IPv4: DF, MF and offset
	options   bool   // of IPv4, or an extension header that says nothing
	payload   []byte // behind the header of UDP, TCP or ICMP; its last four bytes are the number
	seq       uint32
}

// draw makes a packet at random. One in fifty is something that no flow table takes: options,
// a fragment, another DSCP than its flow's.
func draw(rng *rand.Rand, f *flow, number uint32, noise []byte) packet {
	p := packet{flow: f, number: number, ttl: byte(4 + rng.IntN(252)), dscp: f.dscp, ecn: byte(rng.IntN(4)), id: uint16(rng.Uint32()), seq: rng.Uint32()}
	if rng.IntN(2) == 0 {
		p.fragment = 0x4000
	}
	switch rng.IntN(150) {
	case 0:
		p.options = true
	case 1:
		p.fragment = uint16(rng.IntN(100)) | uint16(rng.IntN(2))<<13
	case 2:
		p.dscp = byte(rng.IntN(64))
	}
	size, most := 4, mtu-4*f.lsp.labels-p.headerBytes()
	switch rng.IntN(4) {
	case 0:
	case 1:
		size = most
	default:
		size += rng.IntN(most - 3)
	}
	at := rng.IntN(len(noise) - size)
	p.payload = binary.BigEndian.AppendUint32(append([]byte(nil), noise[at:at+size-4]...), number)
	return p
}

// headerBytes are those of IP, its options, and what is above.
func (p *packet) headerBytes() int {
	n := map[byte]int{protoTCP: 20}[p.proto]
	if n == 0 {
		n = 8
	}
	switch {
	case p.lsp.family == 4 && p.options:
		return n + 24
	case p.lsp.family == 4:
		return n + 20
	case p.options:
		return n + 48
	}
	return n + 40
}

// octets is how long the IP packet is.
func (p *packet) octets() int { return p.headerBytes() + len(p.payload) }

// frame is the packet between two stations.
func (p *packet) frame(from, to []byte) []byte {
	b := make([]byte, 0, ethernetBytes+p.octets())
	b = append(append(b, to...), from...)
	if p.lsp.family == 4 {
		return p.ip4(binary.BigEndian.AppendUint16(b, kindIPv4))
	}
	return p.ip6(binary.BigEndian.AppendUint16(b, kindIPv6))
}

func (p *packet) ip4(b []byte) []byte {
	at, words := len(b), byte(5)
	if p.options {
		words++
	}
	b = append(b, 0x40|words, p.dscp<<2|p.ecn)
	b = binary.BigEndian.AppendUint16(b, uint16(p.octets()))
	b = binary.BigEndian.AppendUint16(b, p.id)
	b = binary.BigEndian.AppendUint16(b, p.fragment)
	b = append(b, p.ttl, p.proto, 0, 0)
	b = append(append(b, p.source.AsSlice()...), p.dest.AsSlice()...)
	if p.options {
		b = append(b, 1, 1, 1, 0) // no operation, end of list (RFC 791 §3.1)
	}
	binary.BigEndian.PutUint16(b[at+10:], ^fold(sum(0, b[at:])))
	return p.transport(b)
}

func (p *packet) ip6(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(p.dscp<<2|p.ecn)<<20|p.label)
	b = binary.BigEndian.AppendUint16(b, uint16(p.octets()-40))
	next := p.proto
	if p.options {
		next = destOptions
	}
	b = append(b, next, p.ttl)
	b = append(append(b, p.source.AsSlice()...), p.dest.AsSlice()...)
	if p.options {
		b = append(b, p.proto, 0, 1, 4, 0, 0, 0, 0) // PadN (RFC 8200 §4.2)
	}
	return p.transport(b)
}

// transport has a right checksum, but for fragments, which have a part of something.
func (p *packet) transport(b []byte) []byte {
	at, length := len(b), p.octets()-p.headerBytes()+8
	seed := sum(uint32(p.proto), p.source.AsSlice(), p.dest.AsSlice())
	check := 6
	switch p.proto {
	case protoUDP:
		b = binary.BigEndian.AppendUint16(b, p.sport)
		b = binary.BigEndian.AppendUint16(b, p.dport)
		b = binary.BigEndian.AppendUint16(b, uint16(length))
		b = append(b, 0, 0)
	case protoTCP:
		length, check = length+12, 16
		b = binary.BigEndian.AppendUint16(b, p.sport)
		b = binary.BigEndian.AppendUint16(b, p.dport)
		b = binary.BigEndian.AppendUint32(b, p.seq)
		b = binary.BigEndian.AppendUint32(b, ^p.seq)
		b = append(b, 0x50, 0x10, 2, 0, 0, 0, 0, 0) // an acknowledgement with data
	default:
		check = 2
		kind := byte(8)
		if p.proto == protoICMPv6 {
			kind = 128
		}
		b = append(b, kind, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, p.sport)
		b = binary.BigEndian.AppendUint16(b, uint16(p.seq))
	}
	b = append(b, p.payload...)
	seed += uint32(length)
	if p.proto == protoICMP {
		seed = 0 // RFC 792: no pseudo header
	}
	s := ^fold(sum(seed, b[at:]))
	if s == 0 && p.proto == protoUDP {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(b[at+check:], s)
	return b
}

// sum adds 16-bit words; fold makes a checksum's sum of it (RFC 1071).
func sum(s uint32, parts ...[]byte) uint32 {
	for _, p := range parts {
		for ; len(p) > 1; p = p[2:] {
			s += uint32(binary.BigEndian.Uint16(p))
		}
		if len(p) == 1 {
			s += uint32(p[0]) << 8
		}
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
