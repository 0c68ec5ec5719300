// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
)

// port is one of the two interfaces of the router under test, and the tester's end of it.
type port int

const (
	a port = iota
	b
)

func (p port) String() string { return string("AB"[p]) }
func (p port) other() port    { return 1 - p }

// EtherTypes (RFC 5332 §4: 0x8848 is for multicast frames whose top label is upstream-assigned).
const (
	kindIPv4      = 0x0800
	kindIPv6      = 0x86dd
	kindMPLS      = 0x8847
	kindUpstream  = 0x8848
	kindVLAN      = 0x8100
	ethernetBytes = 14
	entryBytes    = 4
)

// entry is one entry of a label stack (RFC 3032 §2.1, RFC 5462). The builder sets S in the
// last one of a stack alone, unless the entry says otherwise.
type entry struct {
	label   uint32
	tc, ttl uint8
	bottom  bottom
	any     bool  // an entropy label: whatever the router made, but 0 to 15 (RFC 6790 §3)
	below   uint8 // with asIP: so much less than the TTL in the IP header
	asIP    bool
}

type bottom uint8

const (
	byPlace bottom = iota
	always
	never
)

// l is an entry: label, TC, TTL.
func l(label uint32, tc, ttl uint8) entry { return entry{label: label, tc: tc, ttl: ttl} }

// s sets S wherever the entry stands; open clears it.
func (e entry) s() entry    { e.bottom = always; return e }
func (e entry) open() entry { e.bottom = never; return e }

// entropy is an entropy label, of the value that the router chose: TTL 0 (RFC 6790 §4.2).
func entropy() entry { return entry{label: 16, any: true} }

func (e entry) word(last bool) uint32 {
	s := uint32(0)
	if e.bottom == always || e.bottom == byPlace && last {
		s = 1
	}
	return e.label<<12 | uint32(e.tc)<<9 | s<<8 | uint32(e.ttl)
}

func parseEntry(b []byte) (e entry, bottom bool) {
	w := binary.BigEndian.Uint32(b)
	return entry{label: w >> 12, tc: uint8(w >> 9 & 7), ttl: uint8(w)}, w>>8&1 == 1
}

// payload is what lies beneath a stack. The free fields are those of the frame that came,
// where a payload is one of which the RFCs leave some fields to the router.
type payload interface {
	bytes(f free) []byte
	kind() uint16
}

// free are the fields of an IP packet that only the router which made it can know.
type free struct {
	tos, ttl uint8
	id       uint16
	flow     uint32
	quote    int // bytes of the original datagram in an ICMP error
}

// usual is what they are where nothing has come yet: for the judge, and for printing.
var usual = free{tos: 0xc0, ttl: 64, quote: 128}

// raw is a payload that is not IP, or not whole.
type raw []byte

func (r raw) bytes(free) []byte { return r }
func (r raw) kind() uint16      { return kindMPLS }

// pseudowire begins with a control word (RFC 4385 §3: nibble 0). It has no address to which
// an ICMP error could go, so nothing but the stack decides what becomes of it.
func pseudowire() raw { return slices.Concat(raw{0, 0, 0, 1}, filler(44)) }

// filler is content that tells where a byte has gone astray.
func filler(n int) raw {
	b := make(raw, n)
	for i := range b {
		b[i] = byte(0x41 + i%53)
	}
	return b
}

// frame is what goes in or is expected out at a port.
type frame struct {
	at    port
	ether uint16 // EtherType; 0: by what follows
	tag   uint16 // VLAN id; 0: untagged
	to    net.HardwareAddr
	stack stack
	load  payload
}

// on makes a frame of entries, a payload, and perhaps an EtherType, a tag or a MAC.
func on(at port, parts ...any) frame {
	f := frame{at: at, load: raw(nil)}
	for _, part := range parts {
		switch p := part.(type) {
		case entry:
			f.stack = append(f.stack, p)
		case stack:
			f.stack = append(f.stack, p...)
		case payload:
			f.load = p
		case net.HardwareAddr:
			f.to = p
		case etherType:
			f.ether = uint16(p)
		case vlan:
			f.tag = uint16(p)
		default:
			panic(fmt.Sprintf("a frame has no %T", part))
		}
	}
	return f
}

type (
	stack     []entry
	etherType uint16
	vlan      uint16
)

// place is where a router stands: the MACs on both of its links.
type place struct {
	host, router [2]net.HardwareAddr
}

// sent are the bytes of a frame that goes into the router.
func (f frame) sent(p place) []byte { return f.build(p.router[f.at], p.host[f.at], usual) }

// expected are the bytes of a frame that comes out of it, with the free fields of what came.
func (f frame) expected(p place, came []byte) []byte {
	fields := usual
	g := f
	g.stack = slices.Clone(f.stack)
	if at := f.ipAt(); len(came) > at+20 {
		fields = readFree(came[at:])
	}
	for i := range g.stack {
		e := &g.stack[i]
		if at := f.labelsAt() + i*entryBytes; e.any && len(came) >= at+entryBytes {
			if seen, _ := parseEntry(came[at:]); seen.label > 15 {
				e.label, e.tc = seen.label, seen.tc // "EL may have any TC": RFC 6790 §4.2
			}
		}
		if e.asIP {
			e.ttl = fields.ttl - e.below
		}
	}
	return g.build(p.host[f.at], p.router[f.at], fields)
}

func (f frame) build(to, from net.HardwareAddr, fields free) []byte {
	if f.to != nil {
		to = f.to
	}
	out := slices.Concat(to, from)
	if f.tag != 0 {
		out = binary.BigEndian.AppendUint16(out, kindVLAN)
		out = binary.BigEndian.AppendUint16(out, f.tag)
	}
	out = binary.BigEndian.AppendUint16(out, f.etherType())
	for i, e := range f.stack {
		out = binary.BigEndian.AppendUint32(out, e.word(i == len(f.stack)-1))
	}
	return append(out, f.load.bytes(fields)...)
}

func (f frame) etherType() uint16 {
	switch {
	case f.ether != 0:
		return f.ether
	case len(f.stack) > 0:
		return kindMPLS
	}
	return f.load.kind()
}

func (f frame) labelsAt() int {
	if f.tag != 0 {
		return ethernetBytes + 4
	}
	return ethernetBytes
}

func (f frame) ipAt() int { return f.labelsAt() + len(f.stack)*entryBytes }

// octets is the length of a labelled packet: the stack and what is beneath.
func (f frame) octets() int { return len(f.stack)*entryBytes + len(f.load.bytes(usual)) }

// sum is the Internet checksum of some bytes (RFC 1071).
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for ; len(p) > 1; p = p[2:] {
			s += uint32(binary.BigEndian.Uint16(p))
		}
		if len(p) == 1 {
			s += uint32(p[0]) << 8
		}
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
