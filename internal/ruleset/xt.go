// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// compileX takes from the n-th rule of a legacy chain what matters.
func compileX(x nft.XRule, n int) rule {
	r := newRule(fmt.Sprintf("rule %d", n))
	r.exact = x.Plain
	r.never = x.Fragments // ip_packet_match(); no fragment is repeated
	r.only(Match{Proto: x.Proto, Source: x.Source, Destination: x.Destination, In: xInterface(x.In), Out: xInterface(x.Out), NotIn: xInterface(x.NotIn), NotOut: xInterface(x.NotOut)})
	for _, m := range x.Matches {
		if !r.xMatch(m.Name, int(m.Revision), m.Info) {
			r.exact = false
		}
	}
	switch x.Verdict {
	case nft.XNone:
		r.xTarget(x.Target.Name, int(x.Target.Revision), x.Target.Info)
	case nft.XJump:
		r.send(jump, x.Chain)
	case nft.XGoto:
		r.send(goTo, x.Chain)
	case nft.XReturn:
		r.send(giveBack, "")
	case nfQueue:
		r.queue()
	default:
		r.send(terminal, "")
	}
	r.finish()
	return r
}

func xInterface(name string) Interfaces {
	if name == "" {
		return ""
	}
	if prefix, wild := strings.CutSuffix(name, "+"); wild {
		name = prefix + "*"
	}
	return Named([]string{name})
}

// xRead is a match that is read by its arguments. It reports whether the rule's match says the
// whole of it.
type xRead func(r *rule, revision int, info []byte) (exact bool)

// Matches by what they look at. All packets of a flow have in common what xStable matches look at,
// whatever the arguments. xVary says in a word what differs. xReads go by the arguments. Of a
// match in none of them nothing is known, and it counts as looking at each packet.
var (
	xStable = map[string]string{ // by what
		"addrtype":   "addresses and routes: inet_addr_type()",
		"cgroup":     "the socket, which forwarded packets have not",
		"cluster":    "a hash of the connection's source",
		"connlabel":  "the connection: its labels, which it sets as all packets of the flow would",
		"connmark":   "the connection: its mark",
		"devgroup":   "interfaces",
		"dscp":       "DSCP, which a hit compares",
		"dst":        "an extension header, which no repeated packet has: ipv6_find_hdr() fails",
		"esp":        "the SPI, which is the flow's key",
		"eui64":      "MAC and address, which a hit compares",
		"frag":       "an extension header",
		"hbh":        "an extension header",
		"helper":     "the connection: its helper",
		"icmp":       "type and code, which are the flow's key",
		"icmp6":      "type and code",
		"iprange":    "addresses",
		"ipv6header": "which headers there are: none but the protocol's",
		"mac":        "the MAC, which a hit compares",
		"mark":       "the mark, which rules set that are judged themselves",
		"multiport":  "ports: multiport_mt_check() asks for a protocol that has some",
		"osf":        "SYN alone: nf_osf_match()",
		"owner":      "the socket",
		"physdev":    "interfaces",
		"policy":     "IPsec, of the route",
		"realm":      "the route",
		"rpfilter":   "addresses and routes",
		"rt":         "an extension header",
		"socket":     "a look-up by addresses and ports",
		"srh":        "an extension header",
		"udplite":    "ports",
	}
	xVary = map[string]string{
		"ah": "AH's SPI", "bpf": "bpf", "cpu": "cpu", "ecn": "ECN", "hl": "hop limit", "ipcomp": "IPComp's CPI", "ipvs": "ipvs",
		"l2tp": "L2TP session", "length": "length", "mh": "mobility header", "string": "string",
		"tcpmss": "TCP option", "time": "time", "ttl": "TTL", "u32": "u32",
	}
	xReads map[string]xRead
)

func init() { // these lead back to the table
	xReads = map[string]xRead{
		"comment": func(r *rule, _ int, info []byte) bool {
			r.where += fmt.Sprintf(" %q", unix.ByteSliceToString(info))
			return true
		},
		"conntrack": (*rule).xConntrack,
		"state":     (*rule).xStateMatch,
		"tcp":       (*rule).xTCP,
		"udp":       func(r *rule, _ int, info []byte) bool { return r.xPorts(info, 8) },
		"dccp":      func(r *rule, _ int, info []byte) bool { return r.xChunks(info, 8, 4|8, "DCCP type or option") },
		"sctp":      (*rule).xSCTP,
		"pkttype":   (*rule).xPacketType,
		"tos":       (*rule).xTOS,
		"set":       (*rule).xSet,
		"connbytes": (*rule).xConnbytes,
		"limit":     drains("limit"), "quota": drains("quota"), "statistic": drains("statistic"),
		"connlimit": drains("connlimit"), // connlimit_mt(): how many other connections there are
		"hashlimit": named("hashlimit", nameAt(0)),
		"nfacct":    named("nfacct", nameAt(0)), // nfacct_mt() counts, and asks a quota if there is one
		"rateest":   (*rule).xRateEst,
		"recent":    (*rule).xRecent,
	}
}

// xMatch reads one match of iptables, legacy or by way of nftables, and reports whether the
// rule's match says the whole of it.
func (r *rule) xMatch(name string, revision int, info []byte) (exact bool) {
	if read := xReads[name]; read != nil {
		return read(r, revision, info)
	}
	why, varies := xVary[name]
	_, stable := xStable[name]
	switch {
	case varies:
		r.vary(why)
	case !stable:
		r.vary(fmt.Sprintf("match %q, which is not known", name))
	}
	return false
}

// unread is a match whose arguments are not understood.
func (r *rule) unread(name string) bool {
	r.vary(fmt.Sprintf("match %q in a form that is not known", name))
	return false
}

// drains is a match with state of its own, which each packet uses up.
func drains(why string) xRead {
	return func(r *rule, _ int, _ []byte) bool {
		r.drain(why, r.match)
		return false
	}
}

// named is drains for state with a name, of the network namespace.
func named(kind string, name func([]byte) string) xRead {
	return func(r *rule, _ int, info []byte) bool {
		r.drain(kind, r.match)
		r.feed(kind+" "+name(info), r.match)
		r.ask(kind + " " + name(info))
		return false
	}
}

func nameAt(offset int) func([]byte) string {
	return func(info []byte) string { return unix.ByteSliceToString(info[min(offset, len(info)):]) }
}

// xRateEst is xt_rateest_mt(): it compares two rates that RATEEST targets estimate.
// struct xt_rateest_match_info: name1, name2.
func (r *rule) xRateEst(_ int, info []byte) bool {
	const nameLen = 16 // IFNAMSIZ
	r.vary("rateest")
	for _, at := range []int{0, nameLen} {
		if len(info) >= at+nameLen {
			r.ask("rateest " + unix.ByteSliceToString(info[at:at+nameLen]))
		}
	}
	return false
}

// xRecent is recent_mt(). struct xt_recent_mtinfo: seconds, hit_count, check_set, invert, name.
// --set notes the address and always fits; --rcheck asks the list; the others do both. A full
// list forgets the address that was noted least recently (recent_entry_init()), so which one that is
// depends on every packet, and a rule with a verdict cannot be repeated within a clock.
func (r *rule) xRecent(_ int, info []byte) bool {
	const flags, name, check, set = 8, 10, 1, 2 // XT_RECENT_*
	if len(info) < name {
		return r.unread("recent")
	}
	list := "recent " + unix.ByteSliceToString(info[name:])
	if info[flags]&check == 0 {
		r.feed(list, r.match)
	}
	r.keep(keep{what: list + " forgets", time: seconds(info)}, r.match)
	if info[flags] != set {
		r.drain("recent", r.match)
		r.ask(list)
	}
	return false
}

// xConnbytes is connbytes_mt(), whose counters only grow (see machine.counter). struct
// xt_connbytes_info: from, to, what, direction. Where from is over to, it is inverted; either may
// be missing, as 0 or the highest number. Without counters it never fits.
func (r *rule) xConnbytes(_ int, info []byte) bool {
	const what, direction, average = 16, 17, 2 // XT_CONNBYTES_AVGPKT
	if len(info) <= direction || info[what] >= average || info[direction] > uint8(Both) {
		r.vary("connbytes")
		return false
	}
	u := Until{Counter: Packets + Counter(info[what]), Direction: Direction(info[direction])}
	for _, at := range []int{0, 8} {
		if n := binary.NativeEndian.Uint64(info[at:]); n != ^uint64(0) {
			u.At = max(u.At, n)
		}
	}
	r.spend(u, "connbytes")
	return false
}

// xSet is set_match_v0() to set_match_v4(): an ipset, by fields of the packet that are those of the
// flow. From revision 3 on it may compare the counters of the element it found, which each
// packet moves that finds it; struct xt_set_info_match_v3 and _v4 differ in the order of operator
// and number.
func (r *rule) xSet(revision int, info []byte) bool {
	const counters, size, last = 8, 16, 4 // two of struct ip_set_counter_match
	r.ipset = true
	r.ask("ipset")
	r.feed("counters of an ipset", r.match)
	if revision > last || revision > 2 && len(info) < counters+2*size {
		return r.unread("set")
	}
	if revision < 3 {
		return false
	}
	for _, at := range []int{counters, counters + size} {
		operator := at
		if revision > 3 {
			operator = at + 8
		}
		if info[operator] != 0 { // IPSET_COUNTER_NONE
			r.drain("counters of an ipset", r.match)
			r.ask("counters of an ipset")
		}
	}
	return false
}

// xPacketType is pkttype_mt(): what is repeated is PACKET_HOST, 0. struct xt_pkttype_info:
// pkttype, invert.
func (r *rule) xPacketType(_ int, info []byte) bool {
	if len(info) < 8 {
		return r.unread("pkttype")
	}
	kind, invert := binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:]) != 0
	if (kind == 0) == invert {
		r.never = true
	}
	return true
}

// xTOS is tos_mt(). struct xt_tos_match_info: mask, value, invert.
func (r *rule) xTOS(revision int, info []byte) bool {
	if revision != 1 || len(info) == 0 {
		return r.unread("tos")
	}
	if info[0]&ecn != 0 {
		r.vary("ECN")
	}
	return false
}

// xConntrack is conntrack_mt(). struct xt_conntrack_mtinfo1 to 3.
func (r *rule) xConntrack(revision int, info []byte) bool {
	const (
		flags, states      = 146, 150 // match_flags and invert_flags; state_mask
		byState, byExpires = 1 << 0, 1 << 7
		alias, all         = 1 << 13, 1<<14 - 1 // the match "state" is this one
	)
	if revision < 1 || revision > 3 || len(info) < states+2 {
		return r.unread("conntrack")
	}
	match, invert := binary.NativeEndian.Uint16(info[flags:]), binary.NativeEndian.Uint16(info[flags+2:])
	if match&^all != 0 {
		return r.unread("conntrack")
	}
	if match&byExpires != 0 {
		r.vary("ct expiration")
	}
	if match&byState == 0 {
		return match == 0
	}
	mask := uint32(info[states])
	if revision > 1 {
		mask = uint32(binary.NativeEndian.Uint16(info[states:]))
	}
	return r.xState(mask, 1<<8, invert&byState != 0) && match&^(byState|alias) == 0
}

// xStateMatch is state_mt().
func (r *rule) xStateMatch(_ int, info []byte) bool {
	n, ok := number(info[:min(4, len(info))])
	if !ok {
		return r.unread("state")
	}
	return r.xState(n, 1<<6, false)
}

// xState narrows the rule to states; beside NF_CT_STATE_BIT's, the mask has a bit for
// untracked packets, and others for NAT, of which the state says nothing.
func (r *rule) xState(mask, untracked uint32, not bool) (exact bool) {
	const first, related = 1, 4 // INVALID, RELATED
	r.stateful = true
	if mask&^(first|stateBits[Established]|related|stateBits[New]|untracked) != 0 {
		return false
	}
	var some States
	for s, bits := range stateBits {
		if s == Untracked {
			bits = untracked
		}
		if (mask&bits != 0) != not {
			some |= s
		}
	}
	r.match.States &= some
	return true
}

// xPorts is udp_mt() and the like. It reads the ports that struct xt_tcp and xt_udp begin with,
// and their inversions at an offset: source 1, destination 2.
func (r *rule) xPorts(info []byte, inversions int) (exact bool) {
	if len(info) <= inversions {
		return r.unread("ports")
	}
	ports := func(at int, inverted bool) (p [2]uint16) {
		p = [2]uint16{binary.NativeEndian.Uint16(info[at:]), binary.NativeEndian.Uint16(info[at+2:])}
		any := p == [2]uint16{0, 0xffff}
		exact = exact && any && !inverted
		if any || inverted || p[1] == 0 {
			return [2]uint16{}
		}
		return p
	}
	exact = true
	r.only(Match{SourcePorts: ports(0, info[inversions]&1 != 0), DestinationPorts: ports(4, info[inversions]&2 != 0)})
	return exact
}

// xTCP is tcp_mt(). struct xt_tcp: ports, an option, flags, inversions.
func (r *rule) xTCP(_ int, info []byte) bool {
	const option, mask, want, inversions = 8, 9, 10, 11
	exact := r.xPorts(info, inversions)
	if len(info) <= inversions {
		return false
	}
	if info[option] != 0 {
		r.vary("TCP option")
		exact = false
	}
	if info[mask] != 0 {
		exact = r.flags(info[mask], info[want], info[inversions]&4 != 0) && exact
	}
	return exact
}

// xSCTP is sctp_mt(). struct xt_sctp_info: two ranges of ports, 256 bytes of chunks, how they are
// matched, four flags of chunks with a count, flags, inversions.
func (r *rule) xSCTP(_ int, info []byte) bool {
	const flags, chunks = 284, 4
	return r.xChunks(info, flags, chunks, "SCTP chunks")
}

// xChunks reads whether a match looks at more than the ports.
func (r *rule) xChunks(info []byte, flags, parts int, what string) bool {
	if len(info) < flags+4 {
		return r.unread(what)
	}
	if int(binary.NativeEndian.Uint16(info[flags:]))&parts != 0 {
		r.vary(what)
	}
	return false
}
