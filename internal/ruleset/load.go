// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// Expressions that load what a packet, its connection or its way is, and those that write it.

// Keys of meta that x/sys lacks (enum nft_meta_keys).
const (
	metaSecPath     = 25
	metaIIFKind     = 26
	metaOIFKind     = 27
	metaBridgePVID  = 28
	metaBridgeProto = 29
	metaTimeNS      = 30
	metaTimeDay     = 31
	metaTimeHour    = 32
	metaSDIFName    = 34
	metaLastKey     = 35 // NFT_META_BRI_BROUTE
)

// metaSizes are the bytes that nft_meta_get_init() gives to a key, where they are not 4.
var metaSizes = map[uint32]int{
	unix.NFT_META_PROTOCOL: 2, unix.NFT_META_IIFTYPE: 2, unix.NFT_META_OIFTYPE: 2, metaBridgePVID: 2, metaBridgeProto: 2,
	unix.NFT_META_NFPROTO: 1, unix.NFT_META_L4PROTO: 1, unix.NFT_META_PKTTYPE: 1, metaSecPath: 1, metaTimeDay: 1, metaLastKey: 1,
	unix.NFT_META_IIFNAME: 16, unix.NFT_META_OIFNAME: 16, unix.NFT_META_BRI_IIFNAME: 16, unix.NFT_META_BRI_OIFNAME: 16,
	metaIIFKind: 16, metaOIFKind: 16, metaSDIFName: 16, metaTimeNS: 8,
}

// metaKinds are the keys that a Match can say. None of them ends the rule (nft_meta_get_eval()),
// since conntrack and the IP stack refuse packets without a protocol.
var metaKinds = map[uint32]kind{
	unix.NFT_META_IIFNAME: inName, unix.NFT_META_OIFNAME: outName, unix.NFT_META_IIF: inIndex, unix.NFT_META_OIF: outIndex,
	unix.NFT_META_L4PROTO: proto, unix.NFT_META_NFPROTO: nfproto, unix.NFT_META_PROTOCOL: etherType,
	unix.NFT_META_PKTTYPE: zero, // what is repeated was for this host: PACKET_HOST is 0
}

func (m *machine) meta(e *nft.Expr) {
	if e.Source >= 0 {
		m.setMeta(e)
		return
	}
	size := 4
	if s := metaSizes[e.Key]; s != 0 {
		size = s
	}
	v := &value{size: size, kind: metaKinds[e.Key]}
	if v.kind != other {
		m.proved++
	}
	switch e.Key {
	case unix.NFT_META_PKTTYPE:
		v.mask = []byte{0xff}
	case unix.NFT_META_MARK:
		v.marked = fromMark
	case unix.NFT_META_LEN:
		v.varies = "length"
	case unix.NFT_META_PRANDOM:
		v.varies = "random"
	case unix.NFT_META_CPU:
		v.varies = "cpu"
	case metaTimeNS, metaTimeDay, metaTimeHour:
		v.varies = "time"
	default:
		if e.Key > metaLastKey {
			v.varies = fmt.Sprintf("meta key %d, which is not known", e.Key)
		}
	}
	m.regs.load(e.Dest, v)
}

// setMeta is nft_meta_set_eval(), which never ends the rule.
func (m *machine) setMeta(e *nft.Expr) {
	v := m.source(e.Source)
	m.use(v)
	m.proved++
	switch e.Key {
	case unix.NFT_META_NFTRACE:
		m.rule.counts = "trace"
		return
	case unix.NFT_META_MARK:
		m.mark(v, "packet mark")
	}
	m.rule.acts = true
}

// mark notes what is put into a mark. A connection's mark lives on: what turns its bits over, or
// moves them, makes another one with each packet. So does what does that to the packet's, if
// that goes into the connection's.
func (m *machine) mark(v *value, which string) {
	switch {
	case v.marked == noMark:
	case v.marked == remarked && which == "ct mark":
		m.rule.vary("ct mark of itself")
	case v.marked == remarked:
		m.rule.feed("packet marks", m.soFar())
	case which == "ct mark":
		m.rule.ask("packet marks")
	}
}

// Keys of ct that x/sys lacks or that end the list (enum nft_ct_keys).
const (
	ctSrcIP = 19 + iota
	ctDstIP
	ctSrcIP6
	ctDstIP6
	ctLastKey // NFT_CT_ID
)

var ctSizes = map[uint32]int{
	unix.NFT_CT_DIRECTION: 1, unix.NFT_CT_HELPER: 16, unix.NFT_CT_L3PROTOCOL: 1, unix.NFT_CT_PROTOCOL: 1,
	unix.NFT_CT_SRC: 16, unix.NFT_CT_DST: 16, unix.NFT_CT_PROTO_SRC: 2, unix.NFT_CT_PROTO_DST: 2,
	unix.NFT_CT_LABELS: 16, unix.NFT_CT_PKTS: 8, unix.NFT_CT_BYTES: 8, unix.NFT_CT_AVGPKT: 8, unix.NFT_CT_ZONE: 2,
	ctSrcIP6: 16, ctDstIP6: 16,
}

// ct is nft_ct_get_eval(): all but the state ends the rule where there is no connection.
func (m *machine) ct(e *nft.Expr) {
	if e.Source >= 0 {
		v := m.source(e.Source)
		m.use(v)
		m.rule.acts = true
		if e.Key == unix.NFT_CT_MARK {
			m.mark(v, "ct mark")
			m.proved++
		}
		return
	}
	size := 4
	if s := ctSizes[e.Key]; s != 0 {
		size = s
	}
	if families(m.table.Family)[0] == 4 && len(families(m.table.Family)) == 1 && (e.Key == unix.NFT_CT_SRC || e.Key == unix.NFT_CT_DST) {
		size = 4
	}
	v := &value{size: size}
	switch e.Key {
	case unix.NFT_CT_STATE:
		v.kind = state
		m.proved++
	case unix.NFT_CT_MARK:
		v.marked = fromMark
	case unix.NFT_CT_EXPIRATION:
		v.varies = "ct expiration"
	case unix.NFT_CT_AVGPKT:
		v.varies = "ct avgpkt"
	case unix.NFT_CT_PKTS, unix.NFT_CT_BYTES:
		v.kind, v.counter, v.varies = counted, Packets, "ct packets"
		if e.Key == unix.NFT_CT_BYTES {
			v.counter, v.varies = Bytes, "ct bytes"
		}
		v.way = Both
		if e.Direction >= 0 {
			v.way = Direction(min(e.Direction, 1))
		}
	default:
		if e.Key > ctLastKey {
			v.varies = fmt.Sprintf("ct key %d, which is not known", e.Key)
		}
	}
	m.regs.load(e.Dest, v)
}

// payload is nft_payload_eval() and nft_payload_set_eval(). To write is to do the same to all
// packets only where the bits that it changes are those that they have in common.
func (m *machine) payload(e *nft.Expr) {
	if e.Len == 0 || e.Len > 16 || e.Key > baseInner {
		m.rule.vary("payload")
		return
	}
	place := &value{size: int(e.Len), kind: packet, base: e.Key, offset: int(e.Offset), mask: bytes.Repeat([]byte{0xff}, int(e.Len))}
	if e.Source < 0 {
		if m.isThere(place) {
			m.proved++
		}
		m.regs.load(e.Dest, place)
		return
	}
	m.rule.acts = true
	v := m.source(e.Source)
	if v.kind == packet && v.base == place.base && v.offset == place.offset && v.size == place.size && v.varies == "" && len(v.mask) == v.size {
		for i, kept := range v.mask { // the others are set, to whatever
			place.mask[i] = ^kept
		}
		if v.opaque { // turned over or set: it does not tell which
			place.mask = v.changed
		}
	} else {
		m.use(v)
	}
	m.use(place)
}

// isThere reports whether every packet that could be repeated has so many bytes there: an IP
// header without options, and 8 bytes behind it, of TCP 20 (parse() in bpf/parse.h). Otherwise
// loading them may end the rule.
func (m *machine) isThere(v *value) bool {
	end := v.offset + v.size
	switch {
	case v.base == baseNetwork:
		return end <= 20 || m.family() == 6 && end <= 40
	case v.base == baseTransport:
		return end <= 8 || m.rule.match.Proto == protoTCP && end <= 20
	}
	return false
}

// exthdr: no packet that is repeated has IPv6 extension headers or IPv4 options. Of TCP's
// options the MSS comes with SYN alone.
func (m *machine) exthdr(e *nft.Expr) {
	const ip6, tcpOption, ip4, mss, present = 0, 1, 2, 2, 1 // NFT_EXTHDR_OP_*, TCPOPT_MSS, NFT_EXTHDR_F_PRESENT
	if e.Op == tcpOption {
		m.rule.only(Match{Proto: protoTCP})
	}
	switch {
	case e.Op == tcpOption && e.Dest < 0:
		m.rule.acts = true
		if e.Key != mss {
			m.rule.vary("TCP option")
		}
	case e.Op == ip4 || e.Op == ip6 && isExtension(e.Key): // nft_exthdr_ipv4_eval(), nft_exthdr_ipv6_eval()
		if e.Flags&present == 0 {
			m.rule.never = true
		}
		if family := m.family(); e.Op == ip4 && family == 4 || e.Op == ip6 && family == 6 { // else it ends the rule
			m.proved++
		}
		m.regs.load(e.Dest, &value{size: 1, kind: zero, mask: []byte{0xff}})
	case e.Op == tcpOption:
		m.regs.load(e.Dest, &value{size: max(1, int(e.Len)), varies: "TCP option"})
	default:
		m.regs.load(e.Dest, &value{size: max(1, int(e.Len)), varies: "chunk or header"})
	}
}

// isExtension is is_extension() in bpf/parse.h, for the headers that nft knows.
func isExtension(header uint32) bool {
	return slices.Contains([]uint32{0, 43, 44, 51, 60, 135}, header)
}
