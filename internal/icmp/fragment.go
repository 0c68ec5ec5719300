// SPDX-License-Identifier: Apache-2.0

package icmp

import (
	"encoding/binary"
	"slices"
)

const moreFragments = 0x2000 // in IPv4's word of flags and offset; IPv6's is 1

// Fragments cuts a packet to parts of at most mtu bytes with their labels: the same stack on each
// (RFC 3032 §3.4, §3.5). There are none where the rules forbid it (DontFragment), nor where
// there is no room, or the packet is a fragment that cannot be.
func (p Packet) Fragments(mtu int) [][]byte {
	if p.DontFragment() {
		return nil
	}
	if p.isIPv6() {
		return p.cut6(mtu - len(p.Stack))
	}
	return p.cut4(mtu - len(p.Stack))
}

// cut4 is RFC 791 §3.2.
func (p Packet) cut4(limit int) (parts [][]byte) {
	n := int(p.IP[0]&15) * 4
	header, load := p.IP[:n], p.IP[n:]
	word := binary.BigEndian.Uint16(p.IP[6:])
	room := (limit - n) &^ 7
	if room < 8 || word&moreFragments != 0 && len(load)%8 != 0 || int(word&0x1fff)*8+len(load) > 0xffff {
		return nil
	}
	for at := 0; at < len(load); at += room {
		part := load[at:min(at+room, len(load))]
		flags := word + uint16(at/8)
		if at+len(part) < len(load) {
			flags |= moreFragments
		}
		h := slices.Clone(header)
		if at > 0 {
			blank(h[header4:])
		}
		binary.BigEndian.PutUint16(h[2:], uint16(n+len(part)))
		binary.BigEndian.PutUint16(h[6:], flags)
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], checksum(0, h))
		parts = append(parts, slices.Concat(p.Stack, h, part))
	}
	return parts
}

// blank makes no-operations of the options that are in the first fragment alone: those without
// the copied flag (RFC 791 §3.1), as ip_options_fragment() does.
func blank(options []byte) {
	const end, nop, copied = 0, 1, 0x80
	for len(options) > 0 && options[0] != end {
		n := 1
		if options[0] != nop {
			if len(options) < 2 || int(options[1]) < 2 || int(options[1]) > len(options) {
				return
			}
			n = int(options[1])
		}
		if options[0]&copied == 0 {
			for i := range n {
				options[i] = nop
			}
		}
		options = options[n:]
	}
}

// cut6 is RFC 8200 §4.5, of a packet that has a fragment header: what is before it is in each.
func (p Packet) cut6(limit int) (parts [][]byte) {
	at, ok := p.fragmentHeader()
	if !ok || at == 0 {
		return nil
	}
	n := at + 8
	load, word := p.IP[n:], binary.BigEndian.Uint16(p.IP[at+2:])
	room := (limit - n) &^ 7
	if room < 8 || word&1 != 0 && len(load)%8 != 0 || int(word&^7)+len(load) > 0xffff {
		return nil
	}
	for from := 0; from < len(load); from += room {
		part := load[from:min(from+room, len(load))]
		flags := word + uint16(from)
		if from+len(part) < len(load) {
			flags |= 1
		}
		h := slices.Clone(p.IP[:n])
		binary.BigEndian.PutUint16(h[4:], uint16(n-header6+len(part)))
		binary.BigEndian.PutUint16(h[at+2:], flags)
		parts = append(parts, slices.Concat(p.Stack, h, part))
	}
	return parts
}
