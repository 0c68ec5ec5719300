// SPDX-License-Identifier: Apache-2.0

package dataplane

import "encoding/binary"

// hashDepth is LABEL_DEEP of bpf/abi_mpls.h.
const hashDepth = 16

const (
	firstOrdinary  = 16
	labelELI       = 7
	labelExtension = 15
)

// LabelHash is the number that the data path makes of a packet as it came in, behind its Ethernet
// header, with labels or without: hash_of() of bpf/entropy.h. Ways that are chosen by hash, and
// entropy labels, go by it.
func (l *Labels) LabelHash(packet []byte, labelled bool) uint32 {
	m := hasher(l.plane.control().Mix)
	if !labelled {
		return m.done(m.ip(0, packet))
	}
	return m.packet(packet)
}

// hasher is the multiplier.
type hasher uint64

func (m hasher) mix(h, with uint64) uint64 {
	h = (h ^ with) * uint64(m)
	return h ^ h>>32
}

// done is the last step.
func (m hasher) done(h uint64) uint32 { return uint32(m.mix(h, 0) >> 32) }

func (m hasher) packet(b []byte) uint32 {
	var h uint64
	for range hashDepth {
		if len(b) < 4 {
			break
		}
		lse := binary.BigEndian.Uint32(b)
		b = b[4:]
		label, bottom := lse>>12, lse>>8&1 != 0
		switch {
		case label == labelELI && !bottom:
			if len(b) < 4 {
				return 0
			}
			return m.done(m.mix(0, uint64(binary.BigEndian.Uint32(b)>>12)))
		case label == labelExtension && !bottom && len(b) >= 4:
			lse, b = binary.BigEndian.Uint32(b), b[4:]
			bottom = lse>>8&1 != 0
		case label >= firstOrdinary:
			h = m.mix(h, uint64(label))
		}
		if bottom {
			return m.done(m.ip(h, b))
		}
	}
	return m.done(h)
}

// ip is mix_packet(): addresses, protocol, and ports where they are in this very packet.
func (m hasher) ip(h uint64, b []byte) uint64 {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		h = m.mix(h, binary.NativeEndian.Uint64(b[12:]))
		h = m.mix(h, uint64(b[9]))
		if b[0]&15 != 5 || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return h
		}
		return m.ports(h, b[20:], b[9])
	case len(b) >= 40 && b[0]>>4 == 6:
		for at := 8; at < 40; at += 8 {
			h = m.mix(h, binary.NativeEndian.Uint64(b[at:]))
		}
		h = m.mix(h, uint64(b[6]))
		return m.ports(h, b[40:], b[6])
	}
	return h
}

func (m hasher) ports(h uint64, b []byte, proto byte) uint64 {
	if proto != 6 && proto != 17 && proto != 132 || len(b) < 4 {
		return h
	}
	return m.mix(h, uint64(binary.BigEndian.Uint32(b)))
}
