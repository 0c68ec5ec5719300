// SPDX-License-Identifier: Apache-2.0

package lfib

import "encoding/binary"

// lse is a label stack entry, of four bytes at least (RFC 3032 §2.1).
type lse []byte

const lseLen = 4

func (e lse) label() Label { return Label(binary.BigEndian.Uint32(e) >> 12) }
func (e lse) tc() uint8    { return e[2] >> 1 & 7 }
func (e lse) bottom() bool { return e[2]&1 != 0 }
func (e lse) ttl() uint8   { return e[3] }

func (e lse) setTC(tc uint8)   { e[2] = e[2]&^0xe | tc<<1 }
func (e lse) setTTL(ttl uint8) { e[3] = ttl }

// newLSE writes an entry.
func newLSE(label Label, tc uint8, bottom bool, ttl uint8) lse {
	word := uint32(label)<<12 | uint32(tc)<<9 | uint32(ttl)
	if bottom {
		word |= 1 << 8
	}
	return binary.BigEndian.AppendUint32(nil, word)
}

// version is 4 or 6 for an IP packet by its first nibble that has a whole header, else 0
// (RFC 3032 §2.2: what cannot be identified is not guessed).
func version(packet []byte) int {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return 4
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return 6
	}
	return 0
}

// EtherTypes behind the new Ethernet header.
const (
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86dd
	EtherMPLS = 0x8847

	EtherUpstream = 0x8848 // the label on top is upstream-assigned (RFC 5332 §4)
)

func etherType(packet []byte) uint16 {
	if version(packet) == 6 {
		return EtherIPv6
	}
	return EtherIPv4
}

func ipTTL(packet []byte) uint8 {
	if version(packet) == 6 {
		return packet[7]
	}
	return packet[8]
}

func setIPTTL(packet []byte, ttl uint8) {
	if version(packet) == 6 {
		packet[7] = ttl
		return
	}
	editIPv4(packet, 8, ttl)
}

func dscp(packet []byte) uint8 {
	if version(packet) == 6 {
		return packet[0]<<2&0x3c | packet[1]>>6
	}
	return packet[1] >> 2
}

// setDSCP leaves ECN as it is (RFC 2474 §3, RFC 3168 §5).
func setDSCP(packet []byte, dscp uint8) {
	if version(packet) == 6 {
		packet[0] = packet[0]&0xf0 | dscp>>2
		packet[1] = packet[1]&0x3f | dscp<<6
		return
	}
	editIPv4(packet, 1, dscp<<2|packet[1]&3)
}

// editIPv4 writes a byte of an IPv4 header. The checksum follows by what changed, so that one
// that was wrong stays wrong (RFC 1624, equation 3).
func editIPv4(packet []byte, at int, value byte) {
	word := packet[at&^1:]
	old := binary.BigEndian.Uint16(word)
	packet[at] = value
	sum := uint32(^binary.BigEndian.Uint16(packet[10:])) + uint32(^old) + uint32(binary.BigEndian.Uint16(word))
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum))
}
