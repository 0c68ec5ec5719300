// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// machine follows the registers of one nftables rule as far as needed to know what the
// rule compares.
//
// A rule is exact only if each of its expressions proved so: it loads a register, or acts, and
// cannot end the rule (NFT_BREAK), or it compares, and rule.match says the whole of it.
type machine struct {
	n      *nft.Ruleset
	sets   *sets
	from   *judged // the rule's chain
	rule   rule
	table  nft.Table
	regs   registers
	protos []uint8 // protocols that it asks for, if several; nil: any
	ip     fields  // what is asked of the IP header
	l4     fields  // and of the first four bytes behind it
	proved int     // expressions
	ended  bool    // a verdict was given
	goesOn bool    // but not for all packets
}

// compileNft takes from a rule of nftables what matters.
func compileNft(n *nft.Ruleset, s *sets, from *judged, r nft.Rule) rule {
	where := fmt.Sprintf("handle %d", r.Handle)
	if r.Comment != "" {
		where += fmt.Sprintf(" %q", r.Comment)
	}
	m := machine{n: n, sets: s, from: from, rule: newRule(where), table: r.Table, regs: registers{}}
	done := 0
	for i := range r.Exprs {
		if m.ended {
			if m.goesOn {
				m.rule.vary("expressions behind a verdict map")
			}
			break
		}
		m.step(&r.Exprs[i])
		done++
	}
	m.narrow()
	m.rule.exact = m.proved == done
	m.rule.finish()
	return m.rule
}

// narrow narrows the rule by the header fields that it was asked for.
func (m *machine) narrow() {
	m.ip.addresses(m.family(), &m.rule)
	for _, at := range []int{0, 2} {
		port := m.l4.port(at)
		m.onlyPorts(at, port, port)
	}
}

// soFar says which packets come as far as the next expression.
func (m *machine) soFar() Match {
	saved := m.rule.match
	never := m.rule.never
	m.narrow()
	here := m.rule.match
	m.rule.match, m.rule.never = saved, never
	return here
}

// steps are the expressions that this package understands. Any other may look at each packet.
var steps = map[string]func(*machine, *nft.Expr){
	"meta":      (*machine).meta,
	"ct":        (*machine).ct,
	"payload":   (*machine).payload,
	"exthdr":    (*machine).exthdr,
	"cmp":       (*machine).compare,
	"range":     (*machine).inRange,
	"bitwise":   (*machine).bitwise,
	"byteorder": (*machine).byteorder,
	"hash":      (*machine).hash,
	"lookup":    (*machine).lookup,
	"immediate": (*machine).immediate,
	"dynset":    (*machine).dynset,
	"objref":    (*machine).object,
	"match": func(m *machine, e *nft.Expr) {
		m.narrow()
		if m.rule.xMatch(e.Extension, int(e.Revision), e.Info) {
			m.proved++
		}
	},
	"target": func(m *machine, e *nft.Expr) {
		m.narrow()
		m.rule.xTarget(e.Extension, int(e.Revision), e.Info)
		m.proved++
	},
	"reject":    func(m *machine, _ *nft.Expr) { m.rule.send(terminal, ""); m.proved++; m.ended = true }, // NF_DROP, whatever it sends
	"queue":     func(m *machine, _ *nft.Expr) { m.rule.queue(); m.ended = true },
	"limit":     func(m *machine, _ *nft.Expr) { m.rule.drain("limit", m.soFar()) },      // nft_limit_eval(): tokens
	"quota":     func(m *machine, _ *nft.Expr) { m.rule.drain("quota", m.soFar()) },      // nft_overquota(): bytes
	"connlimit": func(m *machine, _ *nft.Expr) { m.rule.drain("ct count", m.soFar()) },   // nf_conncount_add(): of others, too
	"counter":   func(m *machine, _ *nft.Expr) { m.rule.counts = "counter"; m.proved++ }, // none of these three sets a verdict
	"last":      func(m *machine, _ *nft.Expr) { m.rule.counts = "last"; m.proved++ },
	"log":       func(m *machine, _ *nft.Expr) { m.rule.counts = "log"; m.proved++ },
	"dup":       func(m *machine, _ *nft.Expr) { m.rule.counts = "dup" },
	"numgen":    (*machine).numgen,
	"inner":     func(m *machine, _ *nft.Expr) { m.rule.vary("header inside a tunnel") },
	"rt":        func(m *machine, e *nft.Expr) { m.loads(e, rtLast, 16) },     // the route, which all packets of a flow take
	"fib":       func(m *machine, e *nft.Expr) { m.loads(e, fibLast, 16) },    // a look-up by addresses, mark and interface
	"socket":    func(m *machine, e *nft.Expr) { m.loads(e, socketLast, 16) }, // a look-up by addresses and ports
	"tunnel":    func(m *machine, e *nft.Expr) { m.loads(e, tunnelLast, 4) },
	"xfrm":      func(m *machine, e *nft.Expr) { m.loads(e, xfrmLast, 16) },   // what IPsec unpacked is not learned
	"osf":       func(m *machine, e *nft.Expr) { m.loads(e, ^uint32(0), 16) }, // nft_osf_eval() ends the rule without SYN
	"notrack":   func(m *machine, _ *nft.Expr) { m.rule.acts = true; m.proved++ },
	"secmark":   acts, "flow_offload": acts, "fwd": acts,
	"nat": acts, "masq": acts, "redir": acts, // once for a connection
	"tproxy":   acts, // nft_tproxy_eval() gives no verdict, and ends the rule where there is no socket
	"synproxy": func(m *machine, _ *nft.Expr) { m.rule.acts = true; m.rule.vary("synproxy") },
}

func acts(m *machine, _ *nft.Expr) { m.rule.acts = true }

// The highest keys that these expressions are known to have.
const (
	rtLast     = 4 // NFT_RT_XFRM
	fibLast    = 3 // NFT_FIB_RESULT_ADDRTYPE
	socketLast = 3 // NFT_SOCKET_CGROUPV2
	tunnelLast = 1 // NFT_TUNNEL_ID
	xfrmLast   = 6 // NFT_XFRM_KEY_SPI
)

func (m *machine) step(e *nft.Expr) {
	f := steps[e.Name]
	switch {
	case f == nil:
		m.rule.vary(fmt.Sprintf("expression %q, which is not known", e.Name))
	case e.Unread:
		m.rule.vary(fmt.Sprintf("expression %q in a form that is not known", e.Name))
	default:
		f(m, e)
	}
}

// loads is an expression that fills a register with what all packets of a flow have in common.
func (m *machine) loads(e *nft.Expr, last uint32, size int) {
	v := &value{size: size}
	if e.Key > last {
		v.varies = fmt.Sprintf("%s key %d, which is not known", e.Name, e.Key)
	}
	m.regs.load(e.Dest, v)
}

// use notes what of a value differs between packets of a flow.
func (m *machine) use(v *value) {
	if why := v.varying(m.family(), m.protocols()); why != "" {
		m.rule.vary(why)
	}
}

func (m *machine) useAll(parts []*value) {
	for _, v := range parts {
		m.use(v)
	}
}

// source is the value in a register; what is not known varies.
func (m *machine) source(at int) *value {
	if v := m.regs[at]; v != nil {
		return v
	}
	return &value{size: 16, varies: "registers that were not followed"}
}

// family is that of the rule's packets, as far as it is known by now; 0: both.
func (m *machine) family() uint8 {
	if f := families(m.table.Family); len(f) == 1 {
		return f[0]
	}
	return m.rule.match.Family
}

// bitwise is nft_bitwise_eval(), which never ends the rule.
func (m *machine) bitwise(e *nft.Expr) {
	const maskXor = 0 // NFT_BITWISE_MASK_XOR, once _BOOL
	m.proved++
	v := *m.source(e.Source)
	if e.Second >= 0 {
		m.use(m.source(e.Second))
	}
	changes := len(bytes.Trim(e.Data, "\x00")) > 0
	turns := e.Op != maskXor
	for i, x := range e.Data {
		turns = turns || i < len(e.Mask) && x&e.Mask[i] != 0
	}
	if turns && v.marked != noMark {
		v.marked = remarked
	}
	switch {
	case e.Op != maskXor || v.opaque || len(e.Mask) != v.size || v.mask != nil && len(v.mask) != v.size:
		v.opaque, v.changed = true, bytes.Repeat([]byte{0xff}, len(v.mask))
	case changes:
		v.opaque, v.changed = true, make([]byte, v.size)
		for i := range v.changed {
			v.changed[i] = ^e.Mask[i]
			if i < len(e.Data) {
				v.changed[i] |= e.Data[i]
			}
			if v.mask != nil {
				v.changed[i] |= ^v.mask[i]
			}
		}
	default:
		mask := slices.Clone(e.Mask)
		for i := range v.mask {
			mask[i] &= v.mask[i]
		}
		v.mask = mask
	}
	m.regs.load(e.Dest, &v)
}

// byteorder is nft_byteorder_eval(), which never ends the rule.
func (m *machine) byteorder(e *nft.Expr) {
	m.proved++
	v := *m.source(e.Source)
	if v.kind == counted {
		v.swapped = !v.swapped
	} else {
		m.use(&v)
		v = value{size: v.size, marked: v.marked}
		if v.marked != noMark {
			v.marked = remarked
		}
	}
	m.regs.load(e.Dest, &v)
}

// hash is nft_jhash_eval(), of registers, or nft_symhash_eval(): of what the flow dissector sees,
// which looks into GRE, IP in IP and the like, where flows of their own may be.
func (m *machine) hash(e *nft.Expr) {
	m.proved++
	if e.Source >= 0 {
		parts, known := m.regs.key(e.Source, int(e.Len))
		if !known {
			m.rule.vary("registers that were not followed")
		}
		m.useAll(parts)
	}
	v := &value{size: 4}
	if e.Source < 0 && !m.plainProtocols() {
		v.varies = insideTunnels
	}
	m.regs.load(e.Dest, v)
}

// insideTunnels varies for the flows of these protocols alone (__skb_flow_dissect()).
const insideTunnels = "hash of what is in a tunnel"

var tunnelProtocols = []uint8{4, 41, 47, 115, 137} // IPIP, IPv6, GRE, L2TP, MPLS

// plainProtocols reports whether the rule's packets have no other IP header in them.
func (m *machine) plainProtocols() bool {
	all := m.protocols()
	return len(all) > 0 && !slices.ContainsFunc(all, func(p uint8) bool { return !hasPorts(p) && p != protoICMP && p != protoICMPv6 })
}

// numgen is nft_ng_inc_eval(), which counts, or nft_ng_random_eval().
func (m *machine) numgen(e *nft.Expr) {
	m.rule.drain("numgen", m.soFar())
	m.regs.load(e.Dest, &value{size: 4, varies: "numgen"})
}

func (m *machine) immediate(e *nft.Expr) {
	m.proved++
	if e.Verdict == nil {
		m.regs.load(e.Dest, &value{size: len(e.Data)})
		return
	}
	m.ended = e.Verdict.Code != unix.NFT_CONTINUE
	m.verdict(*e.Verdict, Match{States: AnyState}, true)
}

// verdict adds a branch for some of the rule's packets.
func (m *machine) verdict(v nft.Verdict, match Match, exact bool) {
	b := branch{chain: v.Chain, match: match, exact: exact}
	switch v.Code {
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return
	case unix.NFT_JUMP:
		b.kind = jump
	case unix.NFT_GOTO:
		b.kind = goTo
	case unix.NFT_RETURN:
		b.kind = giveBack
	default:
		if v.Code&0xff == nfQueue {
			m.rule.vary("queue")
		}
	}
	if !slices.Contains(m.rule.to, b) {
		m.rule.to = append(m.rule.to, b)
	}
}

const nfQueue = 3 // NF_QUEUE

// number reads what nftables keeps in the machine's own order.
func number(b []byte) (uint32, bool) {
	if len(b) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(b), true
}
