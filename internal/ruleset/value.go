// SPDX-License-Identifier: Apache-2.0

package ruleset

import "cmp"

// value is what a register of nftables holds.
type value struct {
	kind    kind
	size    int       // in bytes
	base    uint32    // packet: base*
	offset  int       // packet
	counter Counter   // counted
	way     Direction // counted
	swapped bool      // counted: in network order, as "less than" needs it
	mask    []byte    // packet: the bits that count; else nil, or what bitwise left of it
	opaque  bool      // shifted or the like: no longer to be compared
	changed []byte    // packet, opaque: the bits that differ from those in the packet
	varies  string    // what in it differs between packets of a flow, whichever bits count
	marked  marked    // what became of a mark in it
}

type kind uint8

const (
	other kind = iota
	state
	inName
	outName
	inIndex
	outIndex
	proto
	nfproto
	etherType
	packet  // bytes of it
	zero    // in all packets that are repeated: is an option there? for another host?
	counted // packets or bytes of the connection, which only grow
)

// marked says what a value that goes into a mark was made of.
type marked uint8

const (
	noMark   marked = iota
	fromMark        // a mark, whose bits were kept, set or cleared: to do so again changes nothing
	remarked        // a mark, in which bits were turned over or moved: each time again
)

// registers are those of the nftables machine, by the word of 32 bits at which a value begins.
type registers map[int]*value

// load puts a value into a register. What it overwrites, in part or whole, is gone.
func (r registers) load(at int, v *value) {
	for old, held := range r {
		if old < at+words(v.size) && at < old+words(held.size) {
			delete(r, old)
		}
	}
	if at >= 0 {
		r[at] = v
	}
}

func words(size int) int { return max(1, (size+3)/4) }

// key returns the values of which a key of so many bytes is made that begins in a register;
// false if it is not known which.
func (r registers) key(at, size int) (parts []*value, ok bool) {
	for end := at + words(size); at < end; {
		v := r[at]
		if v == nil {
			return parts, false
		}
		parts = append(parts, v)
		if at += words(v.size); at > end {
			return parts, false
		}
	}
	return parts, true
}

// enum nft_payload_bases
const (
	baseLink      = 0
	baseNetwork   = 1
	baseTransport = 2
	baseInner     = 3
)

const (
	protoICMP, protoTCP, protoUDP, protoDCCP, protoESP, protoICMPv6, protoSCTP, protoUDPLite = 1, 6, 17, 33, 50, 58, 132, 136
)

// masked tells whether some bits do not count.
func (v *value) masked() bool {
	for _, b := range v.mask {
		if b != 0xff {
			return true
		}
	}
	return false
}

// varying says which part of the value differs between packets of one flow; "": none. A
// flow's packets have the learned MACs, DSCP and flow label in common, and its key
// (flow_check() in bpf/flow.h). protocols are those that the packet may have; none: any.
func (v *value) varying(family uint8, protocols []uint8) string {
	if v.varies != "" || v.kind != packet {
		return v.varies
	}
	if len(protocols) == 0 {
		protocols = []uint8{anyProtocol}
	}
	for i, mask := range v.mask {
		if mask == 0 {
			continue
		}
		for _, p := range protocols {
			if why := v.byteVaries(v.offset+i, mask, family, p); why != "" {
				return why
			}
		}
	}
	return ""
}

// anyProtocol is a number that stands for any: HOPOPT, which is no protocol of a repeated packet.
const anyProtocol = 0

func (v *value) byteVaries(at int, mask byte, family, protocol uint8) string {
	switch v.base {
	case baseLink:
		if at < 14 {
			return ""
		}
		return "link layer"
	case baseNetwork:
		four, six := "", ""
		if family != 6 {
			four = ip4Varies(at, mask)
		}
		if family != 4 {
			six = ip6Varies(at, mask)
		}
		return cmp.Or(four, six)
	case baseTransport:
		return l4Varies(at, mask, protocol)
	}
	return "payload"
}

const ecn = 3

func ip4Varies(at int, mask byte) string {
	const dontFragment = 0x40
	switch {
	case at == 1 && mask&ecn != 0:
		return "ECN"
	case at == 2 || at == 3:
		return "length"
	case at == 4 || at == 5:
		return "IP id"
	case at == 6 && mask&dontFragment != 0:
		return "DF"
	case at == 8:
		return "TTL"
	case at == 10 || at == 11:
		return "checksum"
	case at >= 20:
		return "payload"
	}
	return "" // version, DSCP, fragment offset (0), protocol, addresses
}

func ip6Varies(at int, mask byte) string {
	switch {
	case at == 1 && mask&(ecn<<4) != 0:
		return "ECN"
	case at == 4 || at == 5:
		return "length"
	case at == 7:
		return "hop limit"
	case at >= 40:
		return "payload"
	}
	return ""
}

// hasPorts reports whether a protocol's header begins with two ports, which the key has.
func hasPorts(protocol uint8) bool {
	switch protocol {
	case protoTCP, protoUDP, protoUDPLite, protoSCTP, protoDCCP:
		return true
	}
	return false
}

// l4Varies goes by key_ports() in bpf/parse.h: what is not in the key may differ.
func l4Varies(at int, mask byte, protocol uint8) string {
	switch {
	case (hasPorts(protocol) || protocol == protoESP) && at < 4:
		return ""
	case protocol == protoICMP || protocol == protoICMPv6: // type, code and id are the flow's
		if at < 2 || at == 4 || at == 5 {
			return ""
		}
		return "ICMP header"
	case protocol == protoTCP && at == 13 && mask&^tcpKnown == 0:
		return ""
	case protocol == protoTCP && at == 13:
		return "TCP flags"
	case protocol == protoTCP && at < 20:
		return "TCP header"
	case (protocol == protoUDP || protocol == protoUDPLite) && at < 8:
		return "UDP header"
	}
	return "payload"
}

// known returns the value's bytes as every packet has them that is repeated, and which of
// their bits are certain; nil where none is.
func (v *value) known(family, protocol uint8) (value, known []byte) {
	if v.varies != "" || v.opaque {
		return nil, nil
	}
	switch {
	case v.kind == zero:
		return make([]byte, len(v.mask)), []byte{0xff}
	case v.kind != packet:
		return nil, nil
	}
	value, known = make([]byte, len(v.mask)), make([]byte, len(v.mask))
	some := false
	for i := range v.mask {
		value[i], known[i] = certain(v.base, v.offset+i, family, protocol)
		some = some || known[i] != 0
	}
	if !some {
		return nil, nil
	}
	return value, known
}

// certain is what every repeated packet has at some place, and which bits of it: no
// fragment, no IPv4 option, TCP with ACK and without SYN, FIN and RST.
func certain(base uint32, at int, family, protocol uint8) (value, known byte) {
	switch {
	case base == baseNetwork && family == 4 && at == 0:
		return 0x45, 0xff
	case base == baseNetwork && family == 4 && at == 6:
		return 0, 0xbf
	case base == baseNetwork && family == 4 && at == 7:
		return 0, 0xff
	case base == baseTransport && protocol == protoTCP && at == 13:
		return tcpACK, tcpKnown
	}
	return 0, 0
}
