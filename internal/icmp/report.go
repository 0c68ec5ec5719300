// SPDX-License-Identifier: Apache-2.0

package icmp

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
)

const (
	protoICMP   = 1
	protoICMPv6 = 58

	// How long a whole message may be: RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c).
	longest4, longest6 = 576, 1280

	icmpHeader  = 8
	leastQuoted = 128 // RFC 4884 §4.1, if an extension follows
	hopLimit    = 64
	precedence  = 0xc0 // internetwork control, as icmp_send() has it: RFC 1812 §4.3.2.5
)

// Answerable tells whether an ICMP error may be sent about a packet (RFC 1122 §3.2.2, RFC 4443
// §2.4 (e)): it is no error itself, no fragment but the first, and has come from one host for one.
// Whether the source's address is a broadcast address of some subnet is not known here.
func (p Packet) Answerable() bool {
	return isHost(p.Source()) && !isGroup(p.Dest()) && !p.later() && !p.isError()
}

// isHost tells whether an address can be that of a single host which is not the router.
func isHost(a netip.Addr) bool {
	if a.Is4() {
		first := a.As4()[0]
		return first != 0 && first != 127 && first < 224
	}
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.Is4In6()
}

func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a.Is4() && a.As4() == [4]byte{255, 255, 255, 255}
}

// isError tells whether a packet is an ICMP error or a redirect, or hides what it is. Types that
// nobody has assigned may be errors.
func (p Packet) isError() bool {
	if p.isIPv6() {
		proto, at, _, ok := p.upper()
		if !ok {
			return true
		}
		return proto == protoICMPv6 && (at >= len(p.IP) || p.IP[at] < 128 || p.IP[at] == 137)
	}
	if p.IP[9] != protoICMP {
		return false
	}
	at := int(p.IP[0]&15) * 4
	if at >= len(p.IP) {
		return true
	}
	switch p.IP[at] {
	case 0, 8, 9, 10, 13, 14, 15, 16, 17, 18: // queries: RFC 1122 §3.2.2
		return false
	}
	return true
}

// TimeExceeded is the error about a TTL that ran out, from an address to the packet's source: an
// IP packet. It has the labels that the packet came with as its extension (RFC 4950 §3).
func TimeExceeded(p Packet, from netip.Addr) []byte {
	if p.isIPv6() {
		return p.answer(from, [icmpHeader]byte{3, 0}, true)
	}
	return p.answer(from, [icmpHeader]byte{11, 0}, true)
}

// TooBig is the error about a packet that is too big to go on, from an address to the packet's
// source: an IP packet. The MTU is that for IP: less the labels (RFC 3032 §3.4, §3.5). That of
// ICMPv6 cannot be extended (RFC 4884 §4.6).
func TooBig(p Packet, mtu int, from netip.Addr) []byte {
	if p.isIPv6() {
		h := [icmpHeader]byte{2, 0}
		binary.BigEndian.PutUint32(h[4:], uint32(mtu))
		return p.answer(from, h, false)
	}
	h := [icmpHeader]byte{3, 4}
	binary.BigEndian.PutUint16(h[6:], uint16(min(mtu, 0xffff))) // RFC 1191 §4
	return p.answer(from, h, true)
}

// answer is an error that begins with a header: the length in it is still to be set, and the
// checksum, and the IP header before it.
func (p Packet) answer(from netip.Addr, header [icmpHeader]byte, extended bool) []byte {
	longest, ip, unit, lengthAt := longest4, header4, 4, 5
	if p.isIPv6() {
		longest, ip, unit, lengthAt = longest6, header6, 8, 4
	}
	room := longest - ip - icmpHeader
	var extension []byte
	if extended && len(p.Stack) > 0 {
		extension = stackExtension(p.Stack)
		room = (room - len(extension)) &^ (unit - 1) // RFC 4884 §5: the length is in words
	}
	quoted := slices.Clone(p.IP[:min(len(p.IP), room)])
	if extension != nil {
		padded := max(leastQuoted, (len(quoted)+unit-1)&^(unit-1))
		quoted = append(quoted, make([]byte, padded-len(quoted))...)
		header[lengthAt] = byte(len(quoted) / unit)
	}
	message := slices.Concat(header[:], quoted, extension)
	if p.isIPv6() {
		return packet6(from, p.Source(), message)
	}
	return packet4(from, p.Source(), message)
}

// stackExtension is the header of RFC 4884 §7, version 2, and the object of RFC 4950 §3: class 1,
// type 1, the entries as they were received.
func stackExtension(stack []byte) []byte {
	e := []byte{0x20, 0, 0, 0, 0, 0, 1, 1}
	binary.BigEndian.PutUint16(e[4:], uint16(4+len(stack)))
	e = append(e, stack...)
	binary.BigEndian.PutUint16(e[2:], checksum(0, e))
	return e
}

// packet4 is an IPv4 packet of an ICMP message.
func packet4(from, to netip.Addr, message []byte) []byte {
	binary.BigEndian.PutUint16(message[2:], checksum(0, message))
	h := make([]byte, header4, header4+len(message))
	h[0], h[1], h[8], h[9] = 0x45, precedence, hopLimit, protoICMP
	binary.BigEndian.PutUint16(h[2:], uint16(header4+len(message)))
	binary.BigEndian.PutUint16(h[4:], uint16(rand.Uint32()))
	copy(h[12:], from.AsSlice())
	copy(h[16:], to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(0, h))
	return append(h, message...)
}

// packet6 is an IPv6 packet of an ICMPv6 message, whose checksum covers the addresses (RFC 8200
// §8.1).
func packet6(from, to netip.Addr, message []byte) []byte {
	h := make([]byte, header6, header6+len(message))
	copy(h[8:], from.AsSlice())
	copy(h[24:], to.AsSlice())
	pseudo := uint32(^checksum(uint32(len(message))+protoICMPv6, h[8:]))
	binary.BigEndian.PutUint16(message[2:], checksum(pseudo, message))
	h[0], h[6], h[7] = 0x60, protoICMPv6, hopLimit
	binary.BigEndian.PutUint16(h[4:], uint16(len(message)))
	return append(h, message...)
}

// Relabel puts the stack that a packet came with in front of an answer to it, to be switched to
// where the packet would have gone: each TTL is that of the answer's IP header (RFC 3032 §2.3.2).
func (p Packet) Relabel(answer []byte) []byte {
	out := slices.Concat(p.Stack, answer)
	for at := labelBytes - 1; at < len(p.Stack); at += labelBytes {
		out[at] = hopLimit
	}
	return out
}
