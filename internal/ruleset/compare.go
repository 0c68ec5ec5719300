// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// Operators of cmp (enum nft_cmp_ops) and range.
const (
	opEqual    = unix.NFT_CMP_EQ
	opNotEqual = unix.NFT_CMP_NEQ
	opLess     = unix.NFT_CMP_LT
	opAtMost   = unix.NFT_CMP_LTE
	opGreater  = unix.NFT_CMP_GT
	opAtLeast  = unix.NFT_CMP_GTE
)

// What nft's state register holds of a packet (NF_CT_STATE_BIT).
var stateBits = map[States]uint32{Established: 2, New: 8, Untracked: 64}

func (m *machine) compare(e *nft.Expr) {
	v := m.regs[e.Source]
	if v == nil {
		m.rule.exact = false
		return
	}
	if v.opaque {
		m.use(e.Source)
		m.rule.exact = false
		return
	}
	if m.decided(v, e) {
		return
	}
	m.use(e.Source)
	switch v.kind {
	case state:
		m.states(func(bits uint32) bool { return truth(v, bits, e) })
	case inName, outName, inIndex, outIndex:
		m.device(v.kind, e)
	case proto, nfproto, etherType:
		m.kindOf(v, e)
	case packet:
		m.bytes(v, e)
	default:
		m.rule.exact = false
	}
}

// decided tells whether a comparison has the same outcome for whatever could be repeated,
// and notes if that is no.
func (m *machine) decided(v *value, e *nft.Expr) bool {
	want, known := v.known(m.family(), m.rule.match.Proto)
	if known == nil || len(e.Data) < len(known) || e.Op != opEqual && e.Op != opNotEqual {
		return false
	}
	all, conflict := true, false
	for i, k := range known {
		mask := v.mask[i]
		all = all && mask&^k == 0
		conflict = conflict || want[i]&mask&k != e.Data[i]&k || e.Data[i]&^mask != 0
	}
	if !all && !conflict {
		return false
	}
	if conflict == (e.Op == opEqual) {
		m.rule.never = true
	}
	return true
}

// states narrows the rule to those of conntrack's states that it is true for. They may be
// none: in a chain before conntrack it asks for nothing that is known.
func (m *machine) states(is func(bits uint32) bool) {
	m.rule.stateful = true
	for s, bits := range stateBits {
		if !is(bits) {
			m.rule.match.States &^= s
		}
	}
}

// truth compares bits, as the register holds them.
func truth(v *value, bits uint32, e *nft.Expr) bool {
	want, ok := number(e.Data)
	if !ok {
		return true
	}
	if mask, ok := number(v.mask); ok {
		bits &= mask
	}
	return e.Op == opEqual && bits == want || e.Op == opNotEqual && bits != want || e.Op != opEqual && e.Op != opNotEqual
}

func (m *machine) device(kind kind, e *nft.Expr) {
	var i Interfaces
	if e.Op == opEqual {
		i = device(kind, e.Data)
	}
	m.devices(kind, i)
}

// device is an interface as a register holds it. A name that has no end is the beginning
// of one.
func device(kind kind, data []byte) Interfaces {
	const nameLen = 16 // IFNAMSIZ
	if kind == inName || kind == outName {
		name := unix.ByteSliceToString(data)
		if len(name) == len(data) && len(data) < nameLen {
			name += "*"
		}
		return Named([]string{name})
	}
	if index, ok := number(data); ok {
		return Named(nil, int(index))
	}
	return ""
}

// devices narrows the rule to some interfaces; "": to some that cannot be told.
func (m *machine) devices(kind kind, i Interfaces) {
	to := &m.rule.match.In
	if kind == outName || kind == outIndex {
		to = &m.rule.match.Out
	}
	if i == "" || *to != "" {
		m.rule.exact = false
		return
	}
	*to = i
}

// kindOf narrows the rule to a protocol or a family.
func (m *machine) kindOf(v *value, e *nft.Expr) {
	if e.Op != opEqual || len(v.mask) > 0 {
		m.rule.exact = false
		return
	}
	m.rule.only(kindMatch(v.kind, e.Data, &m.rule.exact))
}

func kindMatch(kind kind, data []byte, exact *bool) (m Match) {
	switch {
	case kind == proto && len(data) == 1:
		m.Proto = data[0]
	case kind == nfproto && len(data) == 1 && data[0] == unix.NFPROTO_IPV4:
		m.Family = 4
	case kind == nfproto && len(data) == 1 && data[0] == unix.NFPROTO_IPV6:
		m.Family = 6
	case kind == etherType && bytes.Equal(data, []byte{8, 0}):
		m.Family = 4
	case kind == etherType && bytes.Equal(data, []byte{0x86, 0xdd}):
		m.Family = 6
	default:
		*exact = false
	}
	return m
}

// bytes notes what is asked of the packet's own bytes; addresses and ports are put
// together of it when the rule is read to its end.
func (m *machine) bytes(v *value, e *nft.Expr) {
	m.rule.exact = false
	if e.Op != opEqual {
		m.portBound(v, e)
		return
	}
	switch v.base {
	case baseNetwork:
		m.ip.want(m.family(), v, e.Data)
		if p := m.ip.protocol(m.family()); p != 0 {
			m.rule.only(Match{Proto: p})
		}
	case baseTransport:
		m.l4.want(0, v, e.Data)
	}
}

// portBound narrows the rule's ports by "less than" and the like.
func (m *machine) portBound(v *value, e *nft.Expr) {
	if v.base != baseTransport || len(v.mask) != 2 || v.masked() || len(e.Data) != 2 {
		return
	}
	port, from, to := binary.BigEndian.Uint16(e.Data), uint16(0), uint16(0xffff)
	switch e.Op {
	case opLess:
		to = port - min(port, 1)
	case opAtMost:
		to = port
	case opGreater:
		from = port + min(0xffff-port, 1)
	case opAtLeast:
		from = port
	default:
		return
	}
	m.onlyPorts(v.offset, from, to)
}

func (m *machine) inRange(e *nft.Expr) {
	v := m.use(e.Source)
	m.rule.exact = false
	if v.kind == packet && v.base == baseTransport && len(v.mask) == 2 && !v.masked() && e.Op == opEqual &&
		len(e.Data) == 2 && len(e.To) == 2 {
		m.onlyPorts(v.offset, binary.BigEndian.Uint16(e.Data), binary.BigEndian.Uint16(e.To))
	}
}

func (m *machine) onlyPorts(offset int, from, to uint16) {
	switch {
	case from == 0 && to == 0: // would be "any"
	case offset == 0:
		m.rule.only(Match{SourcePorts: [2]uint16{from, to}})
	case offset == 2:
		m.rule.only(Match{DestinationPorts: [2]uint16{from, to}})
	}
}

// fields are the bytes of a header that a rule compares.
type fields struct{ value, mask [40]byte }

// want notes bytes, unless it is not known to which family's header they belong: then a
// family's header has no more of them than both have in common, nothing.
func (f *fields) want(family uint8, v *value, data []byte) {
	if v.base == baseNetwork && family == 0 {
		return
	}
	for i, mask := range v.mask {
		if at := v.offset + i; at < len(f.mask) && i < len(data) {
			f.mask[at] |= mask
			f.value[at] = f.value[at]&^mask | data[i]&mask
		}
	}
}

// protocol is the one that the IP header must name; 0: any.
func (f *fields) protocol(family uint8) uint8 {
	at := 9
	if family == 6 {
		at = 6
	}
	if family == 0 || f.mask[at] != 0xff {
		return 0
	}
	return f.value[at]
}

// addresses narrows a rule to the prefixes of the IP header's addresses.
func (f *fields) addresses(family uint8, r *rule) {
	switch family {
	case 4:
		r.only(Match{Source: f.prefix(12, 4), Destination: f.prefix(16, 4)})
	case 6:
		r.only(Match{Source: f.prefix(8, 16), Destination: f.prefix(24, 16)})
	}
}

func (f *fields) prefix(at, size int) netip.Prefix {
	bits := 0
	for bits < size*8 && f.mask[at+bits/8]&(0x80>>(bits%8)) != 0 {
		bits++
	}
	if bits == 0 {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(f.value[at : at+size])
	return netip.PrefixFrom(a, bits).Masked()
}

// port is the one at an offset behind the IP header; 0: any.
func (f *fields) port(at int) (p uint16) {
	if f.mask[at]&f.mask[at+1] == 0xff {
		p = binary.BigEndian.Uint16(f.value[at:])
	}
	return p
}
