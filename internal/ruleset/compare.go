// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

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

// outcome is what can be said of a comparison with one constant.
type outcome struct {
	match    Match // it holds for these packets at the most
	exact    bool  // and for all of them
	never    bool  // it holds for none that is repeated
	stateful bool  // it is about conntrack's state
}

func anything() outcome { return outcome{match: Match{States: AnyState}} }

// compare is nft_cmp_eval(): memcmp() of a register and a constant.
func (m *machine) compare(e *nft.Expr) {
	v := m.regs[e.Source]
	switch {
	case v == nil || len(e.Data) > words(v.size)*4:
		m.rule.vary("registers that were not followed")
	case v.kind == counted:
		m.counter(v, e.Op, e.Data)
	case e.Op == opEqual:
		m.holds(v, m.equal(v, e.Data))
		if v.kind == packet && !v.opaque {
			m.bytes(v, e.Data)
		}
	case e.Op == opNotEqual:
		m.fails(v, m.equal(v, e.Data))
	default:
		m.use(v)
		m.portBound(v, e)
	}
}

// holds narrows the rule to the packets for which a comparison holds.
func (m *machine) holds(v *value, o outcome) {
	m.rule.stateful = m.rule.stateful || o.stateful
	if o.never {
		m.rule.never = true
		return
	}
	m.rule.only(o.match)
	m.rule.match.States &= o.match.States
	if o.exact {
		m.proved++
	} else {
		m.use(v)
	}
}

// fails narrows the rule to those for which it does not hold.
func (m *machine) fails(v *value, o outcome) {
	m.rule.stateful = m.rule.stateful || o.stateful
	switch {
	case o.never:
		m.proved++
	case !o.exact:
		m.use(v)
	case o.stateful && o.match == Match{States: o.match.States}: // the other states are left
		m.rule.match.States &^= o.match.States
		m.proved++
	case o.match == Match{States: AnyState}:
		m.rule.never = true
	case o.match == Match{States: AnyState, In: o.match.In}:
		m.rule.only(Match{NotIn: o.match.In})
		m.proved++
	case o.match == Match{States: AnyState, Out: o.match.Out}:
		m.rule.only(Match{NotOut: o.match.Out})
		m.proved++
	}
}

// equal says for which packets a value is a constant. Where it is not exact, the packets of a
// flow may differ in it, unless use says otherwise.
func (m *machine) equal(v *value, data []byte) outcome {
	o := anything()
	if v.opaque || v.varies != "" {
		return o
	}
	switch v.kind {
	case state:
		return equalState(v, data)
	case inName, outName, inIndex, outIndex:
		i := device(v.kind, data)
		if i == "" || v.mask != nil {
			return o
		}
		o.exact = true
		if v.kind == inName || v.kind == inIndex {
			o.match.In = i
		} else {
			o.match.Out = i
		}
	case proto, nfproto, etherType:
		if v.mask != nil {
			return o
		}
		o.match, o.exact = equalKind(v.kind, data)
	case packet, zero:
		o.exact, o.never = m.decided(v, data)
		if at := map[uint8]int{4: 9, 6: 6}[m.family()]; at != 0 && v.base == baseNetwork && v.offset == at && v.size == 1 && !v.masked() {
			o.match.Proto = data[0]
		}
	}
	return o
}

// decided reports whether all packets that could be repeated have a constant in some place,
// or none of them.
func (m *machine) decided(v *value, data []byte) (all, none bool) {
	want, known := v.known(m.family(), m.rule.match.Proto)
	if known == nil || len(data) != len(known) {
		return false, false
	}
	all = true
	for i, k := range known {
		mask := v.mask[i]
		all = all && mask&^k == 0
		none = none || want[i]&mask&k != data[i]&k || data[i]&^mask != 0
	}
	return all && !none, none
}

// equalState says which of conntrack's states a register with them (NF_CT_STATE_BIT, by
// nft_ct_get_eval()) can be in. They may be none: RELATED and INVALID are never repeated.
func equalState(v *value, data []byte) outcome {
	o := anything()
	want, ok := number(data)
	mask := ^uint32(0)
	if v.mask != nil {
		var masked bool
		mask, masked = number(v.mask)
		ok = ok && masked
	}
	if !ok {
		return o
	}
	o.match.States, o.exact, o.stateful = 0, true, true
	for s, bits := range stateBits {
		if bits&mask == want {
			o.match.States |= s
		}
	}
	return o
}

// device is an interface as a register holds it, zeroes behind its name; "": it cannot be told. A
// name that has no end is the beginning of one.
func device(kind kind, data []byte) Interfaces {
	const nameLen = 16 // IFNAMSIZ
	if kind == inName || kind == outName {
		name := unix.ByteSliceToString(data)
		if name == "" || strings.ContainsAny(name, "*/ ") || len(bytes.Trim(data[len(name):], "\x00")) > 0 {
			return ""
		}
		if len(name) == len(data) && len(data) < nameLen {
			name += "*"
		}
		return Named([]string{name})
	}
	if index, ok := number(data); ok && index != 0 {
		return Named(nil, int(index))
	}
	return ""
}

// equalKind says which protocol or family a constant is.
func equalKind(kind kind, data []byte) (m Match, exact bool) {
	m.States = AnyState
	switch {
	case kind == proto && len(data) == 1 && data[0] != anyProtocol:
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
		return m, false
	}
	return m, true
}

// counter notes a comparison of what nf_conntrack_acct counts. The counters of a connection only
// grow (nf_ct_acct_add()), and every comparison with a constant has one and the same outcome
// for all numbers above that constant: past it the comparison is spent. `conntrack -Z` sets
// counters back; the data path reads them again whenever it renews a lease. "Less than" compares
// bytes, so it follows the number only in network order.
func (m *machine) counter(v *value, op uint32, constants ...[]byte) {
	u := Until{Counter: v.counter, Direction: v.way}
	ordered := op != opEqual && op != opNotEqual || len(constants) > 1
	for _, c := range constants {
		if len(c) != 8 || v.opaque || ordered && !v.swapped {
			m.use(v)
			return
		}
		n := binary.NativeEndian.Uint64(c)
		if v.swapped {
			n = binary.BigEndian.Uint64(c)
		}
		u.At = max(u.At, n)
	}
	m.rule.spend(u, v.varies)
}

// bytes notes what is asked of the packet's own bytes; addresses and ports are put
// together of it when the rule is read to its end.
func (m *machine) bytes(v *value, data []byte) {
	switch v.base {
	case baseNetwork:
		m.ip.want(m.family(), v, data)
		if p := m.ip.protocol(m.family()); p != 0 {
			m.rule.only(Match{Proto: p})
		}
	case baseTransport:
		m.l4.want(0, v, data)
	}
}

// portBound narrows the rule's ports by "less than" and the like.
func (m *machine) portBound(v *value, e *nft.Expr) {
	if v.kind != packet || v.opaque || v.base != baseTransport || len(v.mask) != 2 || v.masked() || len(e.Data) != 2 {
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

// inRange is nft_range_eval().
func (m *machine) inRange(e *nft.Expr) {
	v := m.regs[e.Source]
	switch {
	case v == nil || max(len(e.Data), len(e.To)) > words(v.size)*4:
		m.rule.vary("registers that were not followed")
		return
	case v.kind == counted:
		m.counter(v, e.Op, e.Data, e.To)
		return
	}
	m.use(v)
	if v.kind == packet && v.base == baseTransport && len(v.mask) == 2 && !v.masked() && e.Op == opEqual &&
		len(e.Data) == 2 && len(e.To) == 2 {
		m.onlyPorts(v.offset, binary.BigEndian.Uint16(e.Data), binary.BigEndian.Uint16(e.To))
	}
}

// onlyPorts narrows the rule's ports, where all its packets have some: of ICMP the same
// bytes are type, code and checksum.
func (m *machine) onlyPorts(offset int, from, to uint16) {
	if !m.allHavePorts() {
		return
	}
	switch {
	case from == 0 && to == 0: // would be "any"
	case offset == 0:
		m.rule.only(Match{SourcePorts: [2]uint16{from, to}})
	case offset == 2:
		m.rule.only(Match{DestinationPorts: [2]uint16{from, to}})
	}
}

func (m *machine) allHavePorts() bool {
	all := m.protocols()
	return len(all) > 0 && !slices.ContainsFunc(all, func(p uint8) bool { return !hasPorts(p) })
}

// protocols are those that the rule's packets may have, as far as it is known by now; nil: any.
func (m *machine) protocols() []uint8 {
	if p := m.rule.match.Proto; p != 0 {
		return []uint8{p}
	}
	return m.protos
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
