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
type machine struct {
	n     *nft.Ruleset
	rule  rule
	table nft.Table
	regs  map[int]*value
	ip    fields // what is asked of the IP header
	l4    fields // and of the first four bytes behind it
}

// compileNft takes from a rule of nftables what matters.
func compileNft(n *nft.Ruleset, r nft.Rule) rule {
	where := fmt.Sprintf("handle %d", r.Handle)
	if r.Comment != "" {
		where += fmt.Sprintf(" %q", r.Comment)
	}
	m := machine{n: n, rule: newRule(where), table: r.Table, regs: map[int]*value{}}
	for i := range r.Exprs {
		m.step(&r.Exprs[i])
		if m.rule.never {
			return m.rule
		}
	}
	m.ip.addresses(m.family(), &m.rule)
	for _, at := range []int{0, 2} {
		port := m.l4.port(at)
		m.onlyPorts(at, port, port)
	}
	return m.rule
}

// steps are the expressions that do something to the rule. Those that are in neither
// table are not known: whatever they are may look at each packet.
var steps = map[string]func(*machine, *nft.Expr){
	"meta":      (*machine).meta,
	"ct":        (*machine).ct,
	"payload":   (*machine).payload,
	"exthdr":    (*machine).exthdr,
	"cmp":       (*machine).compare,
	"range":     (*machine).inRange,
	"bitwise":   (*machine).bitwise,
	"byteorder": (*machine).derive,
	"hash":      (*machine).derive,
	"lookup":    (*machine).lookup,
	"immediate": (*machine).immediate,
	"dynset":    (*machine).dynset,
	"objref":    (*machine).object,
	"match":     func(m *machine, e *nft.Expr) { m.rule.xMatch(e.Extension, int(e.Revision), e.Info) },
	"target":    func(m *machine, e *nft.Expr) { m.rule.xTarget(e.Extension) },
	"reject":    func(m *machine, _ *nft.Expr) { m.rule.send(terminal, "") },
	"tproxy":    func(m *machine, _ *nft.Expr) { m.rule.send(terminal, "") },
	"synproxy":  func(m *machine, _ *nft.Expr) { m.rule.exact, m.rule.acts = false, true },
	"queue":     func(m *machine, _ *nft.Expr) { m.rule.queue() },
	"limit":     func(m *machine, _ *nft.Expr) { m.rule.vary("limit") },
	"quota":     func(m *machine, _ *nft.Expr) { m.rule.vary("quota") },
	"connlimit": func(m *machine, _ *nft.Expr) { m.rule.exact = false }, // judges connections
	"counter":   func(m *machine, _ *nft.Expr) { m.rule.counts = "counter" },
	"last":      func(m *machine, _ *nft.Expr) { m.rule.counts = "last" },
	"log":       func(m *machine, _ *nft.Expr) { m.rule.counts = "log" },
	"dup":       func(m *machine, _ *nft.Expr) { m.rule.counts = "dup" },
	"numgen":    func(m *machine, e *nft.Expr) { m.regs[e.Dest] = &value{varies: "numgen"} },
	"inner":     func(m *machine, _ *nft.Expr) { m.rule.vary("header inside a tunnel") },
}

// stable are expressions whose outcome all packets of a flow share; the first row loads a
// register, the second acts.
var stable = map[string]bool{
	"fib": true, "rt": true, "socket": true, "osf": true, "xfrm": true, "tunnel": true,
	"nat": false, "masq": false, "redir": false, "notrack": false, "flow_offload": false, "fwd": false, "secmark": false,
}

func (m *machine) step(e *nft.Expr) {
	if f := steps[e.Name]; f != nil {
		f(m, e)
		return
	}
	loads, known := stable[e.Name]
	switch {
	case !known:
		m.rule.vary(fmt.Sprintf("expression %q, which is not known", e.Name))
	case loads:
		m.regs[e.Dest] = &value{}
	default:
		m.rule.acts = true
	}
}

// use notes what of a register's content differs between packets of a flow.
func (m *machine) use(source int) *value {
	v := m.regs[source]
	if v == nil {
		return &value{}
	}
	if why := v.varying(m.family(), m.rule.match.Proto); why != "" {
		m.rule.vary(why)
	}
	return v
}

// useAll is use for a key that is in several registers.
func (m *machine) useAll() {
	for source := range m.regs {
		m.use(source)
	}
}

// family is that of the rule's packets, as far as it is known by now; 0: both.
func (m *machine) family() uint8 {
	if f := families(m.table.Family); len(f) == 1 {
		return f[0]
	}
	return m.rule.match.Family
}

// Keys of meta that x/sys lacks (enum nft_meta_keys).
const (
	metaTimeNS   = 30
	metaTimeHour = 32
	metaLastKey  = 35 // NFT_META_BRI_BROUTE
)

func (m *machine) meta(e *nft.Expr) {
	if e.Source >= 0 {
		m.use(e.Source)
		if e.Key == unix.NFT_META_NFTRACE {
			m.rule.counts = "trace"
		} else {
			m.rule.acts = true
		}
		return
	}
	v := &value{}
	switch e.Key {
	case unix.NFT_META_IIFNAME:
		v.kind = inName
	case unix.NFT_META_OIFNAME:
		v.kind = outName
	case unix.NFT_META_IIF:
		v.kind = inIndex
	case unix.NFT_META_OIF:
		v.kind = outIndex
	case unix.NFT_META_L4PROTO:
		v.kind = proto
	case unix.NFT_META_NFPROTO:
		v.kind = nfproto
	case unix.NFT_META_PROTOCOL:
		v.kind = etherType
	case unix.NFT_META_PKTTYPE: // what is repeated was for this host: PACKET_HOST is 0
		v.kind, v.mask = zero, []byte{0xff}
	case unix.NFT_META_LEN:
		v.varies = "length"
	case unix.NFT_META_PRANDOM:
		v.varies = "random"
	case unix.NFT_META_CPU:
		v.varies = "cpu"
	default:
		switch {
		case e.Key >= metaTimeNS && e.Key <= metaTimeHour:
			v.varies = "time"
		case e.Key > metaLastKey:
			v.varies = fmt.Sprintf("meta key %d, which is not known", e.Key)
		}
	}
	m.regs[e.Dest] = v
}

func (m *machine) ct(e *nft.Expr) {
	if e.Source >= 0 {
		m.use(e.Source)
		m.rule.acts = true
		return
	}
	v := &value{}
	switch {
	case e.Key == unix.NFT_CT_STATE:
		v.kind = state
	case e.Key == unix.NFT_CT_EXPIRATION:
		v.varies = "ct expiration"
	case e.Key >= unix.NFT_CT_PKTS && e.Key <= unix.NFT_CT_AVGPKT:
		v.varies = [...]string{"ct packets", "ct bytes", "ct avgpkt"}[e.Key-unix.NFT_CT_PKTS]
	case e.Key > unix.NFT_CT_ID:
		v.varies = fmt.Sprintf("ct key %d, which is not known", e.Key)
	}
	m.regs[e.Dest] = v
}

func (m *machine) payload(e *nft.Expr) {
	if e.Source >= 0 {
		m.rule.acts = true
		if m.use0(e.Source).kind != packet { // else it is the same place with some bits changed
			m.use(e.Source)
		}
		return
	}
	if e.Len > 16 || e.Key > baseInner {
		m.rule.vary("payload")
		return
	}
	m.regs[e.Dest] = &value{kind: packet, base: e.Key, offset: int(e.Offset), mask: bytes.Repeat([]byte{0xff}, int(e.Len))}
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
	case e.Op == ip6 || e.Op == ip4:
		if e.Flags&present == 0 {
			m.rule.never = true
		}
		m.regs[e.Dest] = &value{kind: zero, mask: []byte{0xff}}
	default:
		m.regs[e.Dest] = &value{varies: "TCP option"}
	}
}

func (m *machine) bitwise(e *nft.Expr) {
	const maskXor = 0 // NFT_BITWISE_MASK_XOR, or _BOOL
	v := *m.use0(e.Source)
	if e.Op == maskXor && len(bytes.Trim(e.Data, "\x00")) == 0 && !v.opaque {
		v.mask = slices.Clone(e.Mask)
	} else {
		v.opaque = true
	}
	m.regs[e.Dest] = &v
}

// use0 is use, before it is known which bits count.
func (m *machine) use0(source int) *value {
	if v := m.regs[source]; v != nil {
		return v
	}
	return &value{}
}

// derive makes a number of a register that says nothing of what it was made from.
func (m *machine) derive(e *nft.Expr) {
	if e.Source >= 0 {
		m.useAll()
	}
	m.regs[e.Dest] = &value{}
}

func (m *machine) immediate(e *nft.Expr) {
	if e.Verdict == nil {
		m.regs[e.Dest] = &value{}
		return
	}
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

func (m *machine) dynset(e *nft.Expr) {
	m.useAll()
	m.rule.exact = false
	m.rule.counts = "set " + e.Set
	inner := e.Inner
	if len(inner) == 0 {
		inner = m.set(e.Set).Exprs
	}
	m.elementExprs(inner, e.Set)
}

// elementExprs are what each element of a set carries: it is done when the element is found.
func (m *machine) elementExprs(names []string, set string) {
	for _, name := range names {
		switch name {
		case "counter", "connlimit", "last":
		default:
			m.rule.vary(name + " in set " + set)
		}
	}
}

func (m *machine) set(name string) nft.Set {
	return m.n.Sets[nft.Ref{Table: m.table, Name: name}]
}

// object is a reference to a stateful object (NFT_OBJECT_*).
func (m *machine) object(e *nft.Expr) {
	const counter, quota, limit, connlimit = 1, 2, 4, 5
	kind := e.Key
	if e.Set != "" {
		m.useAll()
		kind = m.set(e.Set).ObjType
		m.rule.exact = false
	}
	switch kind {
	case counter:
		m.rule.counts = "counter"
	case quota:
		m.rule.vary("quota")
	case limit:
		m.rule.vary("limit")
	case connlimit:
		m.rule.exact = false
	default:
		m.rule.acts = true
	}
}

// number reads what nftables keeps in the machine's own order.
func number(b []byte) (uint32, bool) {
	if len(b) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(b), true
}
