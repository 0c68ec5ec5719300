// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"hash/crc32"
)

// Protocol numbers (IANA); unnamed ones are for experiments (RFC 3692) or unassigned.
const (
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoGRE      = 47
	protoESP      = 50
	protoICMPv6   = 58
	protoSCTP     = 132
	protoUDPLite  = 136
	protoUnnamed6 = 252 // 253 is an IPv6 extension header by its number
	protoUnnamed4 = 253
)

// ending is how a TCP conversation stops.
type ending int

const (
	staysOpen ending = iota
	endsByFIN
	endsByRST
)

// conversation is a script for two hosts: what each of them sends, byte by byte. It only
// depends on its fields, so two conversations that are equal say the same.
type conversation struct {
	name   string
	proto  uint8
	ends   [2]leg // of who begins, and of who answers
	noSum  bool   // UDP without a checksum
	misfit bool   // every 32nd packet is not like the others of its flow
	stack  bool   // sent as a host's stack does that leaves work to its card
	padded bool   // small packets only, padded as Ethernet cards do
	slow   bool   // never repeated: conntrack lives by what it would not see (SCTP)
	finish ending // TCP
	key    uint32 // GRE
	dscp   uint8

	next [2]uint32 // TCP and SCTP: next sequence number
}

// step is one frame to be sent, and how many come out on the other side because of it.
type step struct {
	flow     int // conversation, twice, plus direction
	from, to int // client or server
	frame    []byte
	offload  offload
	want     int
	packets  int // as a wire would carry them
}

// opening is the handshake, if the protocol has one.
func (c *conversation) opening() []step {
	c.next = [2]uint32{0xfffff000, 0x7ffff000} // the first wraps soon
	switch c.proto {
	case protoTCP:
		return []step{c.segment(0, syn), c.segment(1, syn|ack), c.segment(0, ack)}
	case protoSCTP: // INIT, INIT ACK with a cookie, COOKIE ECHO, COOKIE ACK (RFC 9260 5.1)
		initiation := func(d int) []byte {
			b := binary.BigEndian.AppendUint32(nil, c.tag(d))
			b = append(b, 0, 1, 0, 0, 0, 4, 0, 4)
			return binary.BigEndian.AppendUint32(b, c.next[d])
		}
		cookie := []byte{0, 7, 0, 8, 1, 2, 3, 4}
		return []step{
			c.whole(0, c.sctp(0, 0, 1, initiation(0))),
			c.whole(1, c.sctp(1, c.tag(0), 2, append(initiation(1), cookie...))),
			c.whole(0, c.sctp(0, c.tag(1), 10, cookie[4:])),
			c.whole(1, c.sctp(1, c.tag(0), 11, nil)),
		}
	}
	return nil
}

// closing is what ends a TCP connection.
func (c *conversation) closing() []step {
	switch {
	case c.proto != protoTCP:
	case c.finish == endsByFIN:
		return []step{c.segment(0, fin|ack), c.segment(1, ack), c.segment(1, fin|ack), c.segment(0, ack)}
	case c.finish == endsByRST:
		return []step{c.segment(1, rst|ack)}
	}
	return nil
}

// talk is the n-th packet of a direction. Size, ECN, TTL, trailer and DF go through all
// their values at their own pace.
func (c *conversation) talk(d, n int) []step {
	h := c.header(n)
	odd := c.misfit && n%32 == 7
	if odd && n/32%3 == 0 {
		h.tos ^= 0x1c // another DSCP
		h.label ^= 5
	}
	if c.stack && (c.proto == protoTCP || c.proto == protoUDP) && !c.noSum && n%2 == 0 {
		return []step{c.unfinished(d, n, h)}
	}
	transport := c.sealed(d, n, c.payload(d, n))
	s := c.whole(d, transport)
	s.frame = append(c.ends[d].packet(h, c.proto, transport), c.trailer(n, len(s.frame))...)
	switch {
	case odd && n/32%3 == 1:
		s.frame = c.ends[d].withOptions(h, c.proto, c.sealed(d, n, bytesOf(n, 301)))
	case odd && n/32%3 == 2:
		first, last := c.ends[d].fragments(h, c.proto, c.sealed(d, n, bytesOf(n, 301)))
		head, tail := s, s
		head.frame, head.want, head.packets = first, 0, 1
		tail.frame, tail.want, tail.packets = last, 2, 1
		return []step{head, tail}
	}
	return []step{s}
}

func (c *conversation) header(n int) header {
	return header{
		tos: c.dscp<<2 | uint8(n%4), // all four ECN marks
		ttl: []uint8{2, 64, 255}[n%3], id: uint16(n*40503 + 1), df: n%5 > 2,
		label: 0xabc00 + uint32(c.dscp),
	}
}

// trailer is padding up to Ethernet's minimum, or some bytes behind the packet.
func (c *conversation) trailer(n, length int) []byte {
	switch {
	case length < 60 && (c.padded || n%4 == 1):
		return make([]byte, 60-length)
	case n%4 == 2 && length < 1000:
		return bytesOf(n, 1+n%9)
	}
	return nil
}

// sizes of payloads; -1 and -2 are the largest that the MTU allows, and one less.
var sizes = []int{2, 18, 1, 3, 64, 0, 255, -1, 512, 1001, -2, 7}

func (c *conversation) payload(d, n int) []byte {
	size := sizes[n%len(sizes)]
	if c.padded {
		size = n % 13
	}
	if size < 0 {
		size += 1 + 1500 - (c.sumStart() - 14) - len(c.transport(d, n, false, nil))
	}
	if c.proto == protoSCTP { // no empty DATA, and no padding behind it
		size = max(4, size&^3)
	}
	return bytesOf(n, size)
}

// bytesOf makes a payload that differs from packet to packet.
func bytesOf(n, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n*31 + i*7)
	}
	return b
}

// sumStart is where L4 begins in a frame.
func (c *conversation) sumStart() int {
	if c.ends[0].source.Addr().Is6() {
		return 14 + 40
	}
	return 14 + 20
}

// far is a direction's tuple as it comes out: the mirror image of the answers to it.
func (c *conversation) far(d int) leg {
	back := c.ends[1-d]
	return leg{source: back.dest, dest: back.source}
}

// transport is L4 without a checksum, as it is sent or as it comes out.
func (c *conversation) transport(d, n int, far bool, payload []byte) []byte {
	l := c.ends[d]
	if far {
		l = c.far(d)
	}
	source, dest := l.source.Port(), l.dest.Port()
	id := source // the echo id is the asking side's port
	if d == 1 {
		id = dest
	}
	switch c.proto {
	case protoTCP:
		return tcp(source, dest, c.next[d], c.next[1-d], psh|ack, payload) // PSH: GRO keeps it single
	case protoUDP:
		return udp(source, dest, payload)
	case protoUDPLite: // RFC 3828: what stands for the length is how much is covered, 0 for all
		b := udp(source, dest, payload)
		b[4], b[5] = 0, 0
		return b
	case protoICMP:
		return echo([]byte{8, 0}[d], id, uint16(n), payload)
	case protoICMPv6:
		return echo([]byte{128, 129}[d], id, uint16(n), payload)
	case protoGRE:
		return gre(c.key, append(make([]byte, 4), payload...))
	case protoSCTP:
		data := binary.BigEndian.AppendUint32(nil, c.next[d])
		return c.sctp(d, c.tag(1-d), 0, append(append(data, make([]byte, 8)...), payload...))
	}
	return append(make([]byte, 8), payload...)
}

// sealed is a transport with its checksum, and counts its bytes as sent. Some payloads are
// chosen so that the sum is 0 before or after NAT, where ones' complement has two zeros
// and UDP a meaning of its own (RFC 768, RFC 1624).
func (c *conversation) sealed(d, n int, payload []byte) []byte {
	at := sumAt(c.proto)
	if at < 0 {
		b := c.transport(d, n, false, payload)
		c.next[d]++
		return b
	}
	zero := n%7 == 3 || n%7 == 5
	if zero && len(payload) > 1 {
		l, far := c.ends[d], n%7 == 5
		if far {
			l = c.far(d)
		}
		payload[0], payload[1] = 0, 0
		binary.BigEndian.PutUint16(payload, checksum(l.source.Addr(), l.dest.Addr(), c.proto, c.transport(d, n, far, payload)))
	}
	b := c.transport(d, n, false, payload)
	c.next[d] += uint32(len(payload))
	if c.noSum {
		return b
	}
	s := checksum(c.ends[d].source.Addr(), c.ends[d].dest.Addr(), c.proto, b)
	if s == 0 && (c.proto == protoUDP || c.proto == protoUDPLite || n%2 == 0) {
		s = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], s)
	return b
}

// unfinished is a packet whose checksum, and on every fourth also its segmentation, is
// left to the card: the field holds the sum of the pseudo header.
func (c *conversation) unfinished(d, n int, h header) step {
	o := offload{partial: true, start: uint16(c.sumStart()), offset: uint16(sumAt(c.proto))}
	payload, segments := c.payload(d, n), 1
	if n%8 == 4 {
		payload, segments = bytesOf(n, 2503), 3
		o.size, o.gso = 1001, gsoUDP
		if c.proto == protoTCP {
			o.gso = gsoTCP4
			if c.ends[d].source.Addr().Is6() {
				o.gso = gsoTCP6
			}
		}
	}
	transport := c.transport(d, n, false, payload)
	c.next[d] += uint32(len(payload))
	o.headers = c.sumStart() + len(transport) - len(payload)
	l := c.ends[d]
	binary.BigEndian.PutUint16(transport[sumAt(c.proto):],
		fold(pseudo(l.source.Addr(), l.dest.Addr(), c.proto, len(transport))))
	s := c.whole(d, transport)
	s.frame, s.offload, s.packets = l.packet(h, c.proto, transport), o, segments
	return s
}

// segment is a TCP segment without data.
func (c *conversation) segment(d int, flags byte) step {
	l := c.ends[d]
	b := tcp(l.source.Port(), l.dest.Port(), c.next[d], c.next[1-d], flags, nil)
	if flags&ack == 0 {
		clear(b[8:12])
	}
	if flags&(syn|fin) != 0 {
		c.next[d]++
	}
	binary.BigEndian.PutUint16(b[16:], checksum(l.source.Addr(), l.dest.Addr(), protoTCP, b))
	return c.whole(d, b)
}

// whole is a step for a transport under the flow's ordinary header.
func (c *conversation) whole(d int, transport []byte) step {
	h := header{tos: c.dscp << 2, ttl: 64, id: 1, label: c.header(0).label}
	return step{
		flow: d, from: c.ends[d].at, to: c.ends[1-d].at, want: 1, packets: 1,
		frame: c.ends[d].packet(h, c.proto, transport),
	}
}

// tag is the SCTP verification tag that the other side must send to d.
func (c *conversation) tag(d int) uint32 { return 0x11111111 * uint32(d+1) }

// sctp is one packet with one chunk (RFC 9260 3).
func (c *conversation) sctp(d int, tag uint32, kind byte, value []byte) []byte {
	l := c.ends[d]
	b := binary.BigEndian.AppendUint16(nil, l.source.Port())
	b = binary.BigEndian.AppendUint16(b, l.dest.Port())
	b = binary.BigEndian.AppendUint32(b, tag)
	b = append(b, 0, 0, 0, 0, kind, 0)
	if kind == 0 {
		b[13] = 3 // DATA: the whole message
	}
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}
