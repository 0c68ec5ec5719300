// SPDX-License-Identifier: Apache-2.0

// Package nft reads rulesets as the kernel keeps them: nftables by netlink (Read, and Decoder for
// notifications), and legacy iptables by getsockopt (ReadXTables).
//
// It returns rules expression by expression; package ruleset interprets them. Package kernel
// feeds notifications to Decoder. Reading needs CAP_NET_ADMIN. Of nftables it reads the families
// inet, ip and ip6 only, and of an expression the attributes that expr.go lists.
package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Ruleset is what nftables has in this network namespace: all chains and sets as they were
// when it was read. Rules and the elements of sets are read when they are asked for, as
// of then. It tells of the families inet, ip and ip6 only.
type Ruleset struct {
	Chains []Chain
	Sets   map[Ref]Set
}

// Table names a table.
type Table struct {
	Family uint8 // unix.NFPROTO_*
	Name   string
}

// String returns the table as nft writes it.
func (t Table) String() string { return FamilyName(t.Family) + " " + t.Name }

// Ref names a chain or a set.
type Ref struct {
	Table Table
	Name  string
}

// Chain is a chain. Hook, Priority and Type are those of a base chain.
type Chain struct {
	Ref
	Base     bool
	Hook     uint32 // NF_INET_*: 0 prerouting, 2 forward, 4 postrouting
	Priority int32
	Type     string // "filter", "nat", "route"
	Policy   uint32 // what becomes of a packet at its end: NF_DROP or NF_ACCEPT
}

// Set is a set or a map. Exprs are the statements that each element carries.
type Set struct {
	Flags   uint32 // unix.NFT_SET_*
	Size    uint32 // as it was announced; 0: not
	KeyLen  uint32 // in bytes; the parts of a concatenation begin at multiples of 4
	Data    uint32 // bytes of a map's values
	Address bool   // the key has an address: a change of elements is told without a new ruleset
	ObjType uint32 // of a map to stateful objects: 1 counter, 2 quota, 4 limit, ...
	Exprs   []string
	Timeout time.Duration // of elements that have none of their own; 0: they stay
}

// Verdict is a verdict: NF_DROP, NF_ACCEPT, or one of unix.NFT_* below 0, with the
// chain that is jumped to.
type Verdict struct {
	Code  int32
	Chain string
}

// Element is an element of a set. Verdict is nil unless it is a map to verdicts. End
// tells of the end of an interval, which is not in it.
type Element struct {
	Key, To []byte // To: the last key of a range, of a concatenation
	Verdict *Verdict
	End     bool
	Other   bool          // any key that no element has
	Exprs   []string      // statements that it carries
	Timeout time.Duration // of its own; 0: the set's
}

// Rule is a rule, its expressions in order.
type Rule struct {
	Ref     // of its chain
	Handle  uint64
	Comment string
	Exprs   []Expr
}

// Expr is an expression. Which fields mean something depends on its name; registers
// are counted in words of 32 bits, -1 is none and VerdictRegister that of verdicts.
type Expr struct {
	Name           string
	Key            uint32 // meta, ct, socket, rt: of what; payload: base; exthdr: TCP option; objref: type
	Source, Dest   int
	Second         int // bitwise: the other operand; dynset: the data
	Direction      int // ct: 0 original, 1 reply, -1 none
	Offset, Len    uint32
	Op             uint32 // cmp, range, bitwise, exthdr, dynset
	Data, To, Mask []byte // cmp, immediate; range (Data to To); bitwise (its xor is Data)
	Verdict        *Verdict
	Set            string
	Flags          uint32
	Inner          []string // dynset: names of the expressions for each element
	Info           []byte   // match, target: the extension's own
	Extension      string   // match, target: its name
	Revision       uint32
	Object         string        // objref
	Timeout        time.Duration // dynset: of elements; 0: their own, or the set's
	Unread         bool          // it has attributes that this package does not know
}

// VerdictRegister is NFT_REG_VERDICT.
const VerdictRegister = -2

// Read reads chains and sets; a kernel without nftables has none. It needs
// CAP_NET_ADMIN.
func Read() (*Ruleset, error) {
	n := &Ruleset{Sets: map[Ref]Set{}}
	awake := map[Table]bool{}
	for _, ask := range []struct {
		what string
		get  netlink.HeaderType
		take func(netlink.Message) error
	}{
		{"tables", unix.NFT_MSG_GETTABLE, func(m netlink.Message) error { return takeTable(m, awake) }},
		{"chains", unix.NFT_MSG_GETCHAIN, func(m netlink.Message) error { return n.takeChain(m, awake) }},
		{"sets", unix.NFT_MSG_GETSET, n.takeSet},
	} {
		err := dump(ask.get, make([]byte, nl.SizeofNfgenmsg), ask.take)
		if nl.Absent(err) {
			return &Ruleset{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("nftables %s: %w", ask.what, err)
		}
	}
	return n, nil
}

// dumpBuffer is the most that the kernel puts into one message of a dump (netlink_dump()).
// For each message it counts the rules of a chain from the first one on, so that small
// messages make a large chain slow.
const dumpBuffer = 32 << 10

// dump asks for a table of nftables and hands on one message after the other: there
// may be a million of them. The answer may be of before and after a change, which a
// notification follows.
func dump(get netlink.HeaderType, body []byte, take func(netlink.Message) error) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Send(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | get, Flags: netlink.Request | netlink.Dump},
		Data:   body,
	}); err != nil {
		return err
	}
	for m, err := range conn.ReceiveIter() {
		if err != nil {
			return err
		}
		if len(m.Data) < nl.SizeofNfgenmsg {
			return fmt.Errorf("netlink message %#x of %d bytes", m.Header.Type, len(m.Data))
		}
		if err := take(m); err != nil {
			return err
		}
	}
	return nil
}

func routed(family uint8) bool {
	return family == unix.NFPROTO_INET || family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6
}

// takeTable notes a table unless it is dormant: then its chains see no packet.
func takeTable(m netlink.Message, awake map[Table]bool) error {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	t := Table{Family: m.Data[0]}
	var flags uint32
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case unix.NFTA_TABLE_NAME:
			t.Name = ad.String()
		case unix.NFTA_TABLE_FLAGS:
			flags = ad.Uint32()
		}
	})
	awake[t] = flags&dormant == 0
	return err
}

func (n *Ruleset) takeChain(m netlink.Message, awake map[Table]bool) error {
	c := Chain{Ref: Ref{Table: Table{Family: m.Data[0]}}, Policy: 1}
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.Table.Name = ad.String()
		case unix.NFTA_CHAIN_NAME:
			c.Name = ad.String()
		case unix.NFTA_CHAIN_TYPE:
			c.Type = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			c.Policy = binary.BigEndian.Uint32(append(ad.Bytes(), 0, 0, 0, 0))
		case unix.NFTA_CHAIN_HOOK:
			c.Base = true
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				nl.BigEndian(ad)
				switch ad.Type() {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hook = ad.Uint32()
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = int32(ad.Uint32())
				}
			})
		}
	})
	if routed(c.Table.Family) && awake[c.Table] {
		n.Chains = append(n.Chains, c)
	}
	return err
}

// Attributes that x/sys lacks (include/uapi/linux/netfilter/nf_tables.h).
const (
	nftaSetExpr            = 17
	nftaSetExpressions     = 18
	nftaDynsetExprs        = 10
	nftaSetElemExpressions = 11
	nftaBitwiseOp          = 6
	nftaBitwiseSreg2       = 8
	nftSetElemIntervalTo   = 1 // NFT_SET_ELEM_INTERVAL_END
)

func (n *Ruleset) takeSet(m netlink.Message) error {
	name := Ref{Table: Table{Family: m.Data[0]}}
	var s Set
	var keyType uint32
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case unix.NFTA_SET_TABLE:
			name.Table.Name = ad.String()
		case unix.NFTA_SET_NAME:
			name.Name = ad.String()
		case unix.NFTA_SET_FLAGS:
			s.Flags = ad.Uint32()
		case unix.NFTA_SET_OBJ_TYPE:
			s.ObjType = ad.Uint32()
		case unix.NFTA_SET_TIMEOUT:
			s.Timeout = milliseconds(ad)
		case unix.NFTA_SET_KEY_TYPE:
			keyType = ad.Uint32()
		case unix.NFTA_SET_KEY_LEN:
			s.KeyLen = ad.Uint32()
		case unix.NFTA_SET_DATA_LEN:
			s.Data = ad.Uint32()
		case unix.NFTA_SET_DESC:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				nl.BigEndian(ad)
				if ad.Type() == unix.NFTA_SET_DESC_SIZE {
					s.Size = ad.Uint32()
				}
			})
		case nftaSetExpr:
			s.Exprs = append(s.Exprs, exprName(ad))
		case nftaSetExpressions:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) { s.Exprs = append(s.Exprs, exprName(ad)) })
		}
	})
	_, s.Address = findAddress(keyType, s.KeyLen)
	if routed(name.Table.Family) {
		n.Sets[name] = s
	}
	return err
}

func exprName(ad *netlink.AttributeDecoder) (name string) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_EXPR_NAME {
			name = ad.String()
		}
	})
	return name
}

func request(table Table, attrs func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	attrs(ae)
	encoded, err := ae.Encode()
	return append([]byte{table.Family, unix.NFNETLINK_V0, 0, 0}, encoded...), err
}

// Elements returns the elements of a set, and whether all of them: a set that has more
// than most, or is gone, is not read.
func (n *Ruleset) Elements(set Ref, most int) (elements []Element, all bool) {
	if s, ok := n.Sets[set]; !ok || s.Size > uint32(most) {
		return nil, false
	}
	err := n.eachElement(set, func(e Element) { elements = append(elements, e) })
	return elements, err == nil && len(elements) <= most
}

// Statements returns the expressions that elements of a set carry, and their least own timeout; 0: none.
func (n *Ruleset) Statements(set Ref) (names []string, least time.Duration) {
	err := n.eachElement(set, func(e Element) {
		if e.Timeout > 0 && (least == 0 || e.Timeout < least) {
			least = e.Timeout
		}
		for _, name := range e.Exprs {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	})
	if err != nil {
		return append(names, "a statement that cannot be read"), least
	}
	return names, least
}

func (n *Ruleset) eachElement(set Ref, visit func(Element)) error {
	body, err := request(set.Table, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, set.Table.Name)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	})
	if err != nil {
		return err
	}
	return dump(unix.NFT_MSG_GETSETELEM, body, func(m netlink.Message) error {
		return nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				nl.Inner(ad, func(ad *netlink.AttributeDecoder) { visit(decodeElement(ad)) })
			}
		})
	})
}

func decodeElement(ad *netlink.AttributeDecoder) (e Element) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, _ = decodeData(ad)
		case nftaSetElemKeyEnd:
			e.To, _ = decodeData(ad)
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = milliseconds(ad)
		case unix.NFTA_SET_ELEM_EXPR:
			e.Exprs = append(e.Exprs, exprName(ad))
		case nftaSetElemExpressions:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) { e.Exprs = append(e.Exprs, exprName(ad)) })
		case unix.NFTA_SET_ELEM_DATA:
			_, e.Verdict = decodeData(ad)
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := ad.Uint32()
			e.End, e.Other = flags&nftSetElemIntervalTo != 0, flags&nftSetElemCatchall != 0
		}
	})
	return e
}

// decodeData reads a nested NFTA_DATA_*.
func decodeData(ad *netlink.AttributeDecoder) (value []byte, verdict *Verdict) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			value = ad.Bytes()
		case unix.NFTA_DATA_VERDICT:
			verdict = &Verdict{}
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				nl.BigEndian(ad)
				switch ad.Type() {
				case unix.NFTA_VERDICT_CODE:
					verdict.Code = int32(ad.Uint32())
				case unix.NFTA_VERDICT_CHAIN:
					verdict.Chain = ad.String()
				}
			})
		}
	})
	return value, verdict
}

func decodeExpr(ad *netlink.AttributeDecoder) Expr {
	e := Expr{Source: -1, Dest: -1, Second: -1, Direction: -1}
	var data []byte
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			e.Name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data = ad.Bytes()
		}
	})
	field := exprFields[e.Name]
	if field == nil {
		return e
	}
	err := nl.Nested(data, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		e.Unread = e.Unread || ad.Type() > lastAttr[e.Name]
		field(&e, ad)
	})
	if err != nil { // whatever it is, nobody understands it
		e.Name += "?"
	}
	return e
}

// register gives a register's place in words of 32 bits: NFT_REG_1 to 4 are four words
// each, NFT_REG32_00 (8) and what follows one.
func register(ad *netlink.AttributeDecoder) int {
	switch r := ad.Uint32(); {
	case r == 0:
		return VerdictRegister
	case r <= 4:
		return int(r-1) * 4
	default:
		return int(r) - 8
	}
}

// FamilyName returns a family, of unix.NFPROTO_*, as nft writes it.
func FamilyName(f uint8) string {
	switch f {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	}
	return fmt.Sprintf("family %d", f)
}
