// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// view is where the parts of a frame are, as far as it can be told.
type view struct {
	frame      []byte
	ok         bool // there is a packet, and it is as long as it says
	fragment   bool
	family     int
	header, l4 int // length of the IP header; where L4 begins
	end        int // of the packet
	proto      uint8
}

// look finds the parts of a frame.
func look(frame []byte) view {
	v := view{frame: frame, end: len(frame)}
	if len(frame) < 34 {
		return v
	}
	ip := frame[14:]
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_IP && ip[0]>>4 == 4:
		v.family, v.header, v.proto = 4, int(ip[0]&15)*4, ip[9]
		v.l4, v.end = 14+v.header, 14+int(binary.BigEndian.Uint16(ip[2:]))
		v.fragment = binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
		v.ok = v.header >= 20
	case kind == unix.ETH_P_IPV6 && ip[0]>>4 == 6 && len(frame) >= 54:
		v.family, v.header, v.proto = 6, 40, ip[6]
		v.l4, v.end = 54, 54+int(binary.BigEndian.Uint16(ip[4:]))
		v.ok = true
		v.skip()
	}
	v.ok = v.ok && v.l4 <= v.end && v.end <= len(frame)
	return v
}

// skip goes over IPv6 extension headers that have a length.
func (v *view) skip() {
	for slices.Contains([]uint8{0, 43, 44, 51, 60}, v.proto) && v.l4+8 <= len(v.frame) {
		h := v.frame[v.l4:]
		length := 8 + 8*int(h[1])
		switch v.proto {
		case 51:
			length = 8 + 4*int(h[1])
		case 44:
			length = 8
			v.fragment = binary.BigEndian.Uint16(h[2:])&^6 != 0
		}
		v.proto = h[0]
		v.l4 += length
	}
}

// addresses are source and destination.
func (v view) addresses() (source, dest netip.Addr) {
	if v.family == 4 {
		return netip.AddrFrom4([4]byte(v.frame[26:])), netip.AddrFrom4([4]byte(v.frame[30:]))
	}
	return netip.AddrFrom16([16]byte(v.frame[22:])), netip.AddrFrom16([16]byte(v.frame[38:]))
}

// id is of the datagram that a fragment belongs to. In IPv6 the fragment header must be the
// only extension header.
func (v view) id() string {
	if v.family == 4 {
		return string(v.frame[18:20]) + string(v.frame[26:34])
	}
	return string(v.frame[v.l4-4:v.l4]) + string(v.frame[22:54])
}

// offset is where a fragment belongs in its datagram, in bytes.
func (v view) offset() int {
	if v.family == 4 {
		return 8 * int(binary.BigEndian.Uint16(v.frame[20:])&0x1fff)
	}
	return int(binary.BigEndian.Uint16(v.frame[v.l4-6:]) &^ 7)
}

// sum is where the L4 checksum is, or -1.
func (v view) sum() int {
	at := sumAt(v.proto)
	if !v.ok || v.fragment || at < 0 || v.l4+at+2 > v.end {
		return -1
	}
	return v.l4 + at
}

// total sums up what the L4 checksum covers, itself included: 0xffff if it is right.
func (v view) total() uint16 {
	source, dest := v.addresses()
	return fold(pseudo(source, dest, v.proto, v.end-v.l4) + sum(v.frame[v.l4:v.end]))
}

// seal makes the L4 checksum right; UDP without one stays so.
func (v view) seal() {
	at := v.sum()
	if at < 0 || v.proto == protoUDP && binary.BigEndian.Uint16(v.frame[at:]) == 0 {
		return
	}
	binary.BigEndian.PutUint16(v.frame[at:], 0)
	s := ^v.total()
	if s == 0 && v.proto == protoUDP {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(v.frame[at:], s)
}

// wrongSum is what conntrack thinks of it (nf_checksum): that all of the packet behind its
// header is covered, whatever UDP says its length is.
func (v view) wrongSum() bool {
	at := v.sum()
	if at < 0 || v.proto == protoUDP && binary.BigEndian.Uint16(v.frame[at:]) == 0 {
		return false
	}
	return v.total() != 0xffff
}

// tame lets a mutated segment be near what it should be, or out of every window: within
// 64 KiB, so that what conntrack believes of a connection stays near the truth, or over 128
// MiB away. And it takes SYN, FIN and RST out of those that are not to have them.
func tame(frame []byte, seq, acked uint32, control bool) {
	frame = frame[len(frame)-len(untagged(frame)):] // in place; MACs are no matter here
	v := look(frame)
	if v.proto != protoTCP || v.l4+14 > len(frame) {
		return
	}
	l4, changed := frame[v.l4:], false
	for i, want := range []uint32{seq, acked} {
		field := l4[4+4*i:]
		off := binary.BigEndian.Uint32(field) - want
		if off = min(off, -off); off > 1<<16 && off < 1<<27 {
			field[0] ^= 0x40
			changed = true
		}
	}
	if !control && l4[13]&(syn|fin|rst) != 0 {
		l4[13] &^= syn | fin | rst
		changed = true
	}
	if changed {
		v.seal()
	}
}

// far reports that a TCP segment's number at a place is out of every window.
func (v view) far(at int, want uint32) bool {
	off := binary.BigEndian.Uint32(v.frame[v.l4+at:]) - want
	return v.proto == protoTCP && min(off, -off) > 1<<16
}

// untagged is a frame without VLAN tags.
func untagged(frame []byte) []byte {
	for len(frame) >= 18 {
		if kind := binary.BigEndian.Uint16(frame[12:]); kind != 0x8100 && kind != 0x88a8 {
			break
		}
		frame = slices.Concat(frame[:12], frame[16:])
	}
	return frame
}

// tuple names the flow that a frame belongs to where it comes in, "" if that cannot be told.
func (v view) tuple() string {
	if !v.ok || v.fragment || v.l4+8 > v.end {
		return ""
	}
	source, dest := v.addresses()
	l4 := v.frame[v.l4:]
	switch v.proto {
	case protoTCP, protoUDP, protoUDPLite:
		l4 = l4[:4]
	case protoICMP, protoICMPv6:
		l4 = []byte{l4[0], l4[4], l4[5]}
	default:
		l4 = nil
	}
	return fmt.Sprintf("%d %s %s %x", v.proto, source, dest, l4)
}
