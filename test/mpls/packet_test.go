// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// The addresses of the two links (RFC 5735, RFC 5180), and of what lies beyond B.
var (
	host4   = [2]netip.Addr{netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.19.0.2")}
	router4 = [2]netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.19.0.1")}
	host6   = [2]netip.Addr{netip.MustParseAddr("2001:2:0:18::2"), netip.MustParseAddr("2001:2:0:19::2")}
	router6 = [2]netip.Addr{netip.MustParseAddr("2001:2:0:18::1"), netip.MustParseAddr("2001:2:0:19::1")}

	beyond4 = netip.MustParseAddr("198.51.100.7") // RFC 5737
	beyond6 = netip.MustParseAddr("2001:db8:51::7")

	// nobody4 is no host's address: no ICMP error goes to it (RFC 1122 §3.2.2).
	nobody4 = netip.MustParseAddr("0.0.0.0")
	nobody6 = netip.MustParseAddr("::")
	// There is no route to these.
	unknown4 = netip.MustParseAddr("203.0.113.9")
	unknown6 = netip.MustParseAddr("2001:db8:dead::9")
)

const (
	protoICMP     = 1
	protoUDP      = 17
	protoFragment = 44
	protoICMPv6   = 58
)

// packet is an IP packet, of UDP if data is nil.
type packet struct {
	version      int
	ttl          uint8
	dscp, ecn    uint8
	id           uint16
	df, more     bool
	offset       int    // bytes, of a fragment
	options      []byte // IPv4, or IPv6 extension headers
	next         uint8  // IPv6: the type of the first of those
	source, dest netip.Addr
	proto        uint8
	data         []byte
	sport, dport uint16
	size         int    // payload of UDP
	spoil        uint16 // bits of the IPv4 checksum that are wrong
	trailer      int    // bytes behind it, as Ethernet pads short frames (IEEE 802.3 §4.2.3.3)
	own          bool   // made by the router: TTL, identification and flow label are its choice
}

// v4 and v6 are UDP from the host at A to the one at B, of 60 and 80 bytes.
func v4(ttl uint8) packet {
	return packet{version: 4, ttl: ttl, id: 0x1234, source: host4[a], dest: host4[b], proto: protoUDP, sport: 10000, dport: 9, size: 32}
}

func v6(ttl uint8) packet {
	return packet{version: 6, ttl: ttl, source: host6[a], dest: host6[b], proto: protoUDP, sport: 10000, dport: 9, size: 32}
}

func (p packet) ds(dscp, ecn uint8) packet        { p.dscp, p.ecn = dscp, ecn; return p }
func (p packet) from(source netip.Addr) packet    { p.source = source; return p }
func (p packet) to(dest netip.Addr) packet        { p.dest = dest; return p }
func (p packet) ports(source, dest uint16) packet { p.sport, p.dport = source, dest; return p }
func (p packet) dontFragment() packet             { p.df = true; return p }
func (p packet) with(options ...byte) packet      { p.options = options; return p }
func (p packet) spoiled(bits uint16) packet       { p.spoil = bits; return p }
func (p packet) padded(n int) packet              { p.trailer = n; return p }
func (p packet) icmp(kind, code uint8, b ...byte) packet {
	p.proto = protoICMP
	if p.version == 6 {
		p.proto = protoICMPv6
	}
	p.data = slices.Concat([]byte{kind, code, 0, 0}, b)
	var pseudo []byte
	if p.version == 6 {
		pseudo = p.pseudo(len(p.data))
	}
	binary.BigEndian.PutUint16(p.data[2:], sum(pseudo, p.data))
	return p
}

// long makes the whole packet so many bytes long.
func (p packet) long(total int) packet {
	p.size += total - len(p.bytes(usual))
	return p
}

// tos is the octet of DSCP and ECN (RFC 2474, RFC 3168).
func (p packet) tos() uint8 { return p.dscp<<2 | p.ecn }

func (p packet) kind() uint16 {
	if p.version == 6 {
		return kindIPv6
	}
	return kindIPv4
}

func (p packet) bytes(f free) []byte {
	flow := uint32(0)
	if p.own {
		p.ttl, p.id, flow = f.ttl, f.id, f.flow
	}
	transport, trailer := p.transport(), make([]byte, p.trailer)
	if p.version == 6 {
		return append(p.header6(flow, transport), trailer...)
	}
	return append(p.header4(transport), trailer...)
}

func (p packet) header4(transport []byte) []byte {
	h := make([]byte, 20, 20+len(p.options))
	h = append(h, p.options...)
	h[0], h[1] = 0x40|byte(len(h)/4), p.tos()
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(transport)))
	binary.BigEndian.PutUint16(h[4:], p.id)
	fragment := uint16(p.offset / 8)
	if p.df {
		fragment |= 0x4000
	}
	if p.more {
		fragment |= 0x2000
	}
	binary.BigEndian.PutUint16(h[6:], fragment)
	h[8], h[9] = p.ttl, p.proto
	copy(h[12:], p.source.AsSlice())
	copy(h[16:], p.dest.AsSlice())
	binary.BigEndian.PutUint16(h[10:], sum(h)^p.spoil)
	return append(h, transport...)
}

func (p packet) header6(flow uint32, transport []byte) []byte {
	h := make([]byte, 40, 40+len(p.options)+len(transport))
	binary.BigEndian.PutUint32(h, 6<<28|uint32(p.tos())<<20|flow)
	binary.BigEndian.PutUint16(h[4:], uint16(len(p.options)+len(transport)))
	h[6], h[7] = p.proto, p.ttl
	if len(p.options) > 0 {
		h[6] = p.next
	}
	copy(h[8:], p.source.AsSlice())
	copy(h[24:], p.dest.AsSlice())
	return slices.Concat(h, p.options, transport)
}

// transport is the UDP datagram, or the data as it is.
func (p packet) transport() []byte {
	if p.data != nil {
		return p.data
	}
	u := make([]byte, 8, 8+p.size)
	binary.BigEndian.PutUint16(u, p.sport)
	binary.BigEndian.PutUint16(u[2:], p.dport)
	u = append(u, filler(p.size)...)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	check := sum(p.pseudo(len(u)), u)
	if check == 0 {
		check = 0xffff // RFC 768: zero says that there is none
	}
	binary.BigEndian.PutUint16(u[6:], check)
	return u
}

// pseudo is the header that checksums of the transport cover (RFC 768, RFC 8200 §8.1).
func (p packet) pseudo(length int) []byte {
	tail := binary.BigEndian.AppendUint32(nil, uint32(length))
	return slices.Concat(p.source.AsSlice(), p.dest.AsSlice(), tail, []byte{0, 0, 0, p.proto})
}

// fragments are the parts of an IPv4 packet of at most limit bytes each (RFC 791 §3.2).
func (p packet) fragments(limit int) (parts []packet) {
	whole := p.transport()
	room := (limit - 20 - len(p.options)) &^ 7
	for at := 0; at < len(whole); at += room {
		part := p
		part.offset = p.offset + at
		part.data = whole[at:min(at+room, len(whole))]
		part.more = at+room < len(whole)
		parts = append(parts, part)
	}
	return parts
}

// answer is an ICMP or ICMPv6 error as RFC 4884 and RFC 4950 have it. TTL, TOS and
// identification are the router's choice, and so is how much is quoted above 128 bytes.
type answer struct {
	version      int
	source, dest netip.Addr
	icmp, code   uint8
	mtu          uint32
	about        []byte  // the datagram
	stack        []entry // as it was received (RFC 4950 §3); nil: no extension
}

func (w answer) kind() uint16 { return packet{version: w.version}.kind() }

func (w answer) bytes(f free) []byte {
	unit := 4 // RFC 4884 §5.1: the length is in words of 32 bits, for ICMPv6 of 64
	if w.version == 6 {
		unit = 8
	}
	message := make([]byte, 4)
	if w.stack == nil {
		f.quote = min(f.quote, len(w.about)) // nothing follows, so nothing is padded
	}
	quoted := slices.Clone(w.about[:min(f.quote, len(w.about))])
	quoted = append(quoted, make([]byte, f.quote-len(quoted))...)
	if w.stack != nil {
		message[0] = byte(f.quote / unit)
		if w.version == 4 {
			message[0], message[1] = 0, message[0]
		}
	}
	switch {
	case w.mtu != 0 && w.version == 4: // RFC 1191 §4: the low half
		binary.BigEndian.PutUint16(message[2:], uint16(w.mtu))
	case w.mtu != 0:
		binary.BigEndian.PutUint32(message, w.mtu)
	}
	p := packet{version: w.version, dscp: f.tos >> 2, ecn: f.tos & 3, source: w.source, dest: w.dest, own: true}
	return p.icmp(w.icmp, w.code, slices.Concat(message, quoted, w.extension())...).bytes(f)
}

// extension is the header of RFC 4884 §7 and the object of RFC 4950 §3: class 1, type 1.
func (w answer) extension() []byte {
	if w.stack == nil {
		return nil
	}
	e := []byte{0x20, 0, 0, 0, 0, byte(4 + entryBytes*len(w.stack)), 1, 1}
	for i, label := range w.stack {
		e = binary.BigEndian.AppendUint32(e, label.word(i == len(w.stack)-1))
	}
	binary.BigEndian.PutUint16(e[2:], sum(e))
	return e
}

// readFree takes the free fields out of an IP packet that came.
func readFree(ip []byte) free {
	f := usual
	switch {
	case ip[0]>>4 == 4:
		f.tos, f.ttl, f.id = ip[1], ip[8], binary.BigEndian.Uint16(ip[4:])
		if ip[9] == protoICMP && len(ip) >= 28 {
			f.quote = len(ip) - 28
			if n := int(ip[25]) * 4; n >= 128 && n <= len(ip)-28 {
				f.quote = n
			}
		}
	case ip[0]>>4 == 6 && len(ip) >= 48:
		w := binary.BigEndian.Uint32(ip)
		f.tos, f.ttl, f.flow = uint8(w>>20), ip[7], w&0xfffff
		if ip[6] == protoICMPv6 {
			f.quote = len(ip) - 48
			if n := int(ip[44]) * 8; ip[40] != 2 && n >= 128 && n <= len(ip)-48 {
				f.quote = n
			}
		}
	}
	return f
}
