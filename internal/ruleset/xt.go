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
	if x.Inverted || x.Source.IsValid() || x.Destination.IsValid() {
		r.exact = false
	}
	r.only(Match{Proto: x.Proto, Source: x.Source, Destination: x.Destination, In: xInterface(x.In), Out: xInterface(x.Out)})
	for _, m := range x.Matches {
		r.xMatch(m.Name, int(m.Revision), m.Info)
	}
	switch x.Verdict {
	case nft.XNone:
		r.xTarget(x.Target.Name)
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

// Matches by what they look at. What all packets of a flow have in common is "", the rest
// says in a word what is not. Of what is in neither, nothing is known. Some have their own
// reading below.
var xMatches = map[string]string{
	"addrtype": "", "ah": "", "cgroup": "", "cluster": "", "connlabel": "", "connlimit": "", "connmark": "", "dccp": "",
	"devgroup": "", "dscp": "", "dst": "", "esp": "", "eui64": "", "frag": "", "hbh": "", "helper": "", "icmp": "",
	"icmp6": "", "ipcomp": "", "iprange": "", "ipv6header": "", "ipvs": "", "mac": "", "mark": "", "mh": "", "multiport": "",
	"nfacct": "", "osf": "", "owner": "", "physdev": "", "pkttype": "", "policy": "", "realm": "", "rpfilter": "", "rt": "",
	"sctp": "", "set": "", "socket": "", "srh": "", "tos": "", "udplite": "",

	"bpf": "bpf", "connbytes": "connbytes", "cpu": "cpu", "ecn": "ECN", "hashlimit": "hashlimit", "hl": "hop limit",
	"length": "length", "limit": "limit", "quota": "quota", "rateest": "rateest", "recent": "recent",
	"statistic": "statistic", "string": "string", "tcpmss": "TCP option", "time": "time", "ttl": "TTL", "u32": "u32",
}

// xMatch reads one match of iptables, legacy or by way of nftables.
func (r *rule) xMatch(name string, revision int, info []byte) {
	r.ipset = r.ipset || name == "set"
	switch name {
	case "comment":
		r.where += fmt.Sprintf(" %q", unix.ByteSliceToString(info))
		return
	case "conntrack":
		r.xConntrack(revision, info)
		return
	case "state":
		if n, ok := number(info[:min(4, len(info))]); ok {
			r.xState(n, 1<<6, false)
			return
		}
	case "tcp":
		r.xTCP(info)
		return
	case "udp":
		r.xPorts(info, 8)
		return
	case "pkttype": // struct xt_pkttype_info: pkttype, invert
		if kind, ok := number(info[:min(4, len(info))]); ok && len(info) > 4 && (kind == 0) != (info[4] == 0) {
			r.never = true
		}
	case "tos": // struct xt_tos_match_info: mask, value, invert
		if len(info) > 0 && info[0]&ecn != 0 {
			r.vary("ECN")
		}
	}
	r.exact = false
	why, known := xMatches[name]
	switch {
	case !known:
		r.vary(fmt.Sprintf("match %q, which is not known", name))
	case why != "":
		r.vary(why)
	}
}

// xConntrack reads struct xt_conntrack_mtinfo1 to 3.
func (r *rule) xConntrack(revision int, info []byte) {
	const (
		flags, states      = 146, 150 // match_flags and invert_flags; state_mask
		byState, byExpires = 1 << 0, 1 << 7
		alias              = 1 << 13 // the match "state" is this one
	)
	if revision < 1 || len(info) < states+2 {
		r.vary("conntrack, of a revision that is not known")
		return
	}
	match, invert := binary.NativeEndian.Uint16(info[flags:]), binary.NativeEndian.Uint16(info[flags+2:])
	if match&byExpires != 0 {
		r.vary("ct expiration")
	}
	if match&^(byState|alias) != 0 {
		r.exact = false
	}
	if match&byState == 0 {
		return
	}
	mask := uint32(info[states])
	if revision > 1 {
		mask = uint32(binary.NativeEndian.Uint16(info[states:]))
	}
	r.xState(mask, 1<<8, invert&byState != 0)
}

// xState narrows the rule to states; beside NF_CT_STATE_BIT's, the mask has a bit for
// untracked packets, and others for NAT, of which the state says nothing.
func (r *rule) xState(mask, untracked uint32, not bool) {
	const first, related = 1, 4 // INVALID, RELATED
	r.stateful = true
	if mask&^(first|stateBits[Established]|related|stateBits[New]|untracked) != 0 {
		r.exact = false
		return
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
}

// xPorts reads the ports that struct xt_tcp and xt_udp begin with, and their inversions at
// an offset: source 1, destination 2.
func (r *rule) xPorts(info []byte, inversions int) {
	if len(info) <= inversions {
		r.vary("ports that cannot be read")
		return
	}
	source := [2]uint16{binary.NativeEndian.Uint16(info), binary.NativeEndian.Uint16(info[2:])}
	dest := [2]uint16{binary.NativeEndian.Uint16(info[4:]), binary.NativeEndian.Uint16(info[6:])}
	any := [2]uint16{0, 0xffff}
	invert := info[inversions]
	if source != any {
		r.exact = false
		if invert&1 == 0 && source[1] != 0 {
			r.only(Match{SourcePorts: source})
		}
	}
	if dest != any {
		r.exact = false
		if invert&2 == 0 && dest[1] != 0 {
			r.only(Match{DestinationPorts: dest})
		}
	}
}

// xTCP reads struct xt_tcp: ports, an option, flags.
func (r *rule) xTCP(info []byte) {
	const option, mask, want, inversions = 8, 9, 10, 11
	r.xPorts(info, inversions)
	if len(info) <= inversions {
		return
	}
	if info[option] != 0 {
		r.vary("TCP option")
	}
	if info[mask] != 0 {
		r.exact = false
		r.flags(info[mask], info[want], info[inversions]&4 != 0)
	}
}

// Targets by what they do.
var (
	xCounts   = map[string]bool{"AUDIT": true, "IDLETIMER": true, "LED": true, "LOG": true, "NFLOG": true, "RATEEST": true, "SET": true, "TEE": true, "TRACE": true, "ULOG": true}
	xTerminal = map[string]bool{"REJECT": true, "TPROXY": true, "SYNPROXY": true, "DNAT": true, "SNAT": true, "MASQUERADE": true, "REDIRECT": true, "NETMAP": true}
	xActs     = map[string]bool{"CHECKSUM": true, "CLASSIFY": true, "CONNMARK": true, "CONNSECMARK": true, "CT": true, "DNPT": true, "DSCP": true,
		"ECN": true, "HL": true, "HMARK": true, "MARK": true, "NOTRACK": true, "SECMARK": true, "SNPT": true, "TCPMSS": true, "TOS": true, "TTL": true}
)

// xTarget reads a target of iptables, legacy or by way of nftables.
func (r *rule) xTarget(name string) {
	switch {
	case name == "":
	case xCounts[name]:
		r.counts = name
	case name == "NFQUEUE":
		r.queue()
	case xTerminal[name]:
		r.send(terminal, "")
	case xActs[name]:
		r.acts = true
	default:
		r.acts = true
		r.vary(fmt.Sprintf("target %q, which is not known", name))
	}
}
