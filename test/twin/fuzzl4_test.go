// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"slices"
)

// timestamp is the IPv4 option, timestampReply the ICMP type: both tell the time of day.
const timestamp, timestampReply = 68, 14

// ipOptions puts IPv4 options behind the header: no-operations, record route, router alert,
// source routes, or anything but a timestamp, which no two routers fill in alike.
func ipOptions(m *mutant) bool {
	if m.six() || !m.whole() || m.frame[14] != 0x45 || len(m.frame) > 1400 {
		return false
	}
	options := slices.Clone(pick(m.Rand, [][]byte{
		{1, 1, 1, 1}, {0, 0, 0, 0}, {7, 7, 4, 0, 0, 0, 0, 0}, {0x94, 4, 0, 0},
		{0x83, 7, 4, 198, 19, 0, 2, 0}, {0x89, 7, 4, 198, 19, 0, 2, 0}, {0x82, 3, 0, 0}, {7, 40, 4, 0}, {7, 0, 0, 0},
	}))
	if m.IntN(4) == 0 {
		options = make([]byte, 4*(1+m.IntN(10)))
		for i := range options {
			if options[i] = byte(m.Uint32()); options[i] == timestamp {
				options[i] = 1
			}
		}
	}
	m.frame[14] += byte(len(options) / 4)
	binary.BigEndian.PutUint16(m.frame[16:], binary.BigEndian.Uint16(m.frame[16:])+uint16(len(options)))
	m.frame = slices.Insert(m.frame, 34, options...)
	return true
}

// fragmented cuts the packet, in order or not, with an overlap or a part missing.
func fragmented(m *mutant) bool {
	v := look(m.frame)
	if !v.ok || v.header > 40 || v.end-v.l4 < 32 || m.done != nil {
		return false
	}
	cut := 8 * (1 + m.IntN((v.end-v.l4)/8-1))
	id := m.Uint32()
	part := func(from, to int, more bool) []byte {
		data := m.frame[v.l4+from : v.l4+to]
		f := slices.Clone(m.frame[:v.l4])
		if m.six() {
			f[20] = 44
			binary.BigEndian.PutUint16(f[18:], uint16(8+len(data)))
			f = append(f, v.proto, 0, byte(from>>8), byte(from), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
			if more {
				f[len(f)-5] |= 1
			}
			return append(f, data...)
		}
		binary.BigEndian.PutUint16(f[16:], uint16(20+len(data)))
		flags := uint16(from / 8)
		if more {
			flags |= 0x2000
		}
		binary.BigEndian.PutUint16(f[20:], flags)
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], ^fold(sum(f[14:34])))
		return append(f, data...)
	}
	back := 0
	if m.IntN(6) == 0 {
		back = 8
	}
	parts := [][]byte{part(0, cut, true), part(cut-back, v.end-v.l4, false)}
	if m.IntN(4) == 0 {
		slices.Reverse(parts)
	}
	if m.IntN(8) == 0 {
		parts = parts[:1]
	}
	m.frame, m.more = parts[0], append(m.more, parts[1:]...)
	return true
}

// ip6Mutations are those of the IPv6 header, and what may stand behind it.
var ip6Mutations = []mutation{
	field8("ip6-version", in6(0), 0xf0),
	field8("ip6-dscp", in6(0), 0x0f),
	field8("ip6-ecn", in6(1), 0x30),
	field8("ip6-label", in6(3), 0xff),
	field16("ip6-length", in6(4)),
	protocol("ip6-next", in6(6)),
	{"ip6-hops", func(m *mutant) bool { return m.change(in6(7), func(byte) byte { return byte(m.IntN(3)) }) }},
	{"ip6-extension", extension},
	{alone, func(m *mutant) bool { return m.done == nil && m.insert(44) }},
	{"ip6-extensions", func(m *mutant) bool { return extension(m) && (extension(m) || true) }},
}

// extension puts a header between IPv6 and what follows: hop-by-hop, routing, authentication, destination options, mobility, experiment, or no next header at all.
func extension(m *mutant) bool {
	return m.insert(pick(m.Rand, []byte{0, 43, 51, 59, 60, 60, 135, 139, 140, 253, 254}))
}

func (m *mutant) insert(kind byte) bool {
	if !m.six() || !m.whole() || len(m.frame) > 1400 {
		return false
	}
	next := m.frame[20]
	h := []byte{next, 0, 1, 4, 0, 0, 0, 0} // PadN
	switch kind {
	case 43:
		h = []byte{next, 0, pick(m.Rand, []byte{0, 2, 4}), byte(m.IntN(2)), 0, 0, 0, 0}
	case 44:
		h = []byte{next, 0, 0, 0, 0, 0, 0, byte(m.IntN(4))} // alone (RFC 6946)
	case 51:
		h = []byte{next, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}
	case 60, 0:
		if m.IntN(3) == 0 {
			h[2] = byte(m.Uint32()) // an option that nobody knows: discard, answer or skip
		}
	}
	m.frame[20] = kind
	binary.BigEndian.PutUint16(m.frame[18:], binary.BigEndian.Uint16(m.frame[18:])+uint16(len(h)))
	m.frame = slices.Insert(m.frame, 54, h...)
	return true
}

// inL4 is a place in the header of a protocol.
func inL4(at int, protos ...uint8) func(*mutant) int {
	return func(m *mutant) int {
		if !slices.Contains(protos, m.proto) || !m.whole() {
			return -1
		}
		return m.sumStart() + at
	}
}

var l4Mutations = []mutation{
	field16("source-port", inL4(0, protoTCP, protoUDP, protoSCTP, protoUDPLite)),
	field16("dest-port", inL4(2, protoTCP, protoUDP, protoSCTP, protoUDPLite)),
	field16("udp-length", inL4(4, protoUDP, protoUDPLite)),
	field16("udp-checksum", inL4(6, protoUDP, protoUDPLite)),
	field16("tcp-seq-high", inL4(4, protoTCP)),
	field16("tcp-seq-low", inL4(6, protoTCP)),
	field16("tcp-ack-high", inL4(8, protoTCP)),
	field16("tcp-ack-low", inL4(10, protoTCP)),
	field8("tcp-offset", inL4(12, protoTCP), 0xf0),
	field8("tcp-reserved", inL4(12, protoTCP), 0x0f),
	field8("tcp-flags", inL4(13, protoTCP), 0xff),
	field8("tcp-ecn-push", inL4(13, protoTCP), 0xe8),
	field16("tcp-window", inL4(14, protoTCP)),
	field16("tcp-urgent", inL4(18, protoTCP)),
	{"tcp-options", tcpOptions},
	{"icmp-type", func(m *mutant) bool {
		return m.change(inL4(0, protoICMP, protoICMPv6), func(byte) byte {
			if kind := byte(m.Uint32()); kind != 13 {
				return kind
			}
			return 14 // and no question for the time, which passes
		})
	}},
	field8("icmp-code", inL4(1, protoICMP, protoICMPv6), 0x0f),
	field16("icmp-id", inL4(4, protoICMP, protoICMPv6)),
	field16("icmp-sequence", inL4(6, protoICMP, protoICMPv6)),
	field16("gre-flags", inL4(0, protoGRE)),
	field16("gre-protocol", inL4(2, protoGRE)),
	field16("gre-key", inL4(4, protoGRE)),
	field16("sctp-tag", inL4(4, protoSCTP)),
	field8("sctp-chunk", inL4(12, protoSCTP), 0x0f),
	field16("esp-spi", inL4(2, protoESP)),
	field16("unnamed", inL4(0, protoUnnamed4, protoUnnamed6)),
}

// tcpControl makes a SYN, FIN or RST of a segment, at the very next sequence number, near
// it, or anywhere.
func tcpControl(m *mutant) bool {
	if m.proto != protoTCP || !m.whole() || len(m.l4()) < 20 {
		return false
	}
	m.l4()[13] = pick(m.Rand, []byte{rst, rst | ack, fin | ack, fin | ack | psh, syn, syn | ack, fin, syn | fin, 0xff, 0})
	seq := binary.BigEndian.Uint32(m.l4()[4:])
	switch m.IntN(4) {
	case 0:
		seq += uint32(m.IntN(4000)) - 2000
	case 1:
		seq = m.Uint32()
	}
	binary.BigEndian.PutUint32(m.l4()[4:], seq)
	return true
}

// tcpOptions puts options behind the header, wrong ones too.
func tcpOptions(m *mutant) bool {
	if m.proto != protoTCP || !m.whole() || len(m.l4()) < 20 || m.l4()[12] != 5<<4 || len(m.frame) > 1400 {
		return false
	}
	options := slices.Clone(pick(m.Rand, [][]byte{
		{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}, {1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9}, {2, 4, 5, 0xb4}, {3, 3, 14, 0},
		{8, 0, 0, 0}, {5, 255, 1, 1}, {0, 0, 0, 0}, {254, 4, 1, 2},
	}))
	m.l4()[12] += byte(len(options) / 4 << 4)
	m.frame = slices.Insert(m.frame, m.sumStart()+20, options...)
	at := 16
	if m.six() {
		at = 18
	}
	binary.BigEndian.PutUint16(m.frame[at:], binary.BigEndian.Uint16(m.frame[at:])+uint16(len(options)))
	return true
}
