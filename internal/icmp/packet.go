// SPDX-License-Identifier: Apache-2.0

// Package icmp makes the packets that a label switching router owes for those that its data
// path cannot deal with: the ICMP errors about a TTL that ran out and a packet that is too
// big, in the form of RFC 4884 and RFC 4950, and the fragments of RFC 3032 §3. It is called by
// the daemon, which reads such packets from a socket, decides by the tables, and sends.
//
// All of it is construction from bytes to bytes: no socket, no table; no clock but the one that
// is handed to a Bucket. What came in is an attacker's: every length is checked, and what is no
// whole IP packet, by the same rules as the kernel's ip_rcv_core() and ip6_rcv_core(), is never
// answered nor mended.
//
// Limits: at most MostLabels labels; IPv6 extension headers are walked to the first one that
// is none of hop-by-hop, routing, destination and fragment.
package icmp

import (
	"encoding/binary"
	"net/netip"
)

// MostLabels is how many labels a packet may have to be answered or cut. With them an ICMP
// error still has room for the 128 bytes that RFC 4884 wants quoted.
const MostLabels = 64

const (
	labelBytes = 4
	header4    = 20
	header6    = 40
)

// EtherTypes of what Parse reads.
const (
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86dd
	EtherMPLS = 0x8847
)

// Packet is an IP packet with the labels in front of it.
type Packet struct {
	Stack []byte // the entries, S in the last; none is empty
	IP    []byte // whole, and without what Ethernet has padded it with
}

// Parse reads what is behind an Ethernet header. It is false if the EtherType is another one,
// or what is beneath the labels is no whole IP packet. The bytes are not copied.
func Parse(etherType uint16, b []byte) (Packet, bool) {
	var p Packet
	switch etherType {
	case EtherMPLS:
		n := stackLen(b)
		p.Stack, b = b[:n:n], b[n:]
		if n == 0 {
			return p, false
		}
	case EtherIPv4, EtherIPv6:
	default:
		return p, false
	}
	n := wholeIP(b)
	p.IP = b[:n:n]
	return p, n > 0
}

// stackLen is how many bytes of entries there are up to the bottom, 0 if there is none.
func stackLen(b []byte) int {
	for n := labelBytes; n <= len(b) && n <= MostLabels*labelBytes; n += labelBytes {
		if b[n-2]&1 != 0 {
			return n
		}
	}
	return 0
}

// wholeIP is the length of an IP packet that begins the bytes, 0 if there is no whole one.
func wholeIP(b []byte) int {
	switch {
	case len(b) >= header4 && b[0]>>4 == 4:
		header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
		if header < header4 || total < header || total > len(b) || checksum(0, b[:header]) != 0 {
			return 0
		}
		return total
	case len(b) >= header6 && b[0]>>4 == 6:
		if total := header6 + int(binary.BigEndian.Uint16(b[4:])); total <= len(b) {
			return total
		}
	}
	return 0
}

func (p Packet) isIPv6() bool { return p.IP[0]>>4 == 6 }

// Source is the address of who sent it.
func (p Packet) Source() netip.Addr {
	if p.isIPv6() {
		return netip.AddrFrom16([16]byte(p.IP[8:24]))
	}
	return netip.AddrFrom4([4]byte(p.IP[12:16]))
}

// Dest is the address that it is for.
func (p Packet) Dest() netip.Addr {
	if p.isIPv6() {
		return netip.AddrFrom16([16]byte(p.IP[24:40]))
	}
	return netip.AddrFrom4([4]byte(p.IP[16:20]))
}

// DontFragment tells whether Fragments would give none for a rule's sake: IPv4 with DF, IPv6
// without a fragment header or over 1280 bytes (RFC 3032 §3.4, §3.5).
func (p Packet) DontFragment() bool {
	if p.isIPv6() {
		at, _ := p.fragmentHeader()
		return at == 0 || len(p.IP) > 1280
	}
	return p.IP[6]&0x40 != 0
}

// later tells whether it is a fragment, and not the first.
func (p Packet) later() bool {
	if p.isIPv6() {
		at, _ := p.fragmentHeader()
		return at != 0 && binary.BigEndian.Uint16(p.IP[at+2:])&^7 != 0
	}
	return binary.BigEndian.Uint16(p.IP[6:])&0x1fff != 0
}

// IPv6 extension headers (RFC 8200 §4).
const (
	hopByHop    = 0
	routing     = 43
	fragment    = 44
	destination = 60
)

// fragmentHeader finds the fragment header, 0 if there is none.
func (p Packet) fragmentHeader() (at int, ok bool) {
	_, _, at, ok = p.upper()
	return at, ok
}

// upper walks the extension headers: the protocol behind them, where that begins, and where the
// fragment header is, 0 if there is none. It is false if they are not whole.
func (p Packet) upper() (proto byte, at, fragmentAt int, ok bool) {
	proto, at = p.IP[6], header6
	for {
		size := 8
		switch proto {
		case hopByHop, routing, destination:
			if at+8 > len(p.IP) {
				return 0, 0, fragmentAt, false
			}
			size += int(p.IP[at+1]) * 8
		case fragment:
			if at+8 > len(p.IP) || fragmentAt != 0 {
				return 0, 0, fragmentAt, false
			}
			fragmentAt = at
			if binary.BigEndian.Uint16(p.IP[at+2:])&^7 != 0 { // what follows is the middle of something
				return p.IP[at], at + 8, fragmentAt, true
			}
		default:
			return proto, at, fragmentAt, true
		}
		proto, at = p.IP[at], at+size
		if at > len(p.IP) {
			return 0, 0, fragmentAt, false
		}
	}
}

// checksum is the Internet checksum (RFC 1071) of some bytes, added to a sum.
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
