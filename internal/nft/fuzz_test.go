// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
	"shunt/internal/nl/nltest"
)

// askingRule is the kernel's message about a rule that asks a set for the packet's source.
func askingRule(t testing.TB) netlink.Message {
	expression := func(ae *netlink.AttributeEncoder, name string, attrs func(*netlink.AttributeEncoder)) {
		nltest.Nest(ae, unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_EXPR_NAME, name)
			nltest.Nest(ae, unix.NFTA_EXPR_DATA, attrs)
		})
	}
	number := func(ae *netlink.AttributeEncoder, typ uint16, n byte) { ae.Bytes(typ, []byte{0, 0, 0, n}) }
	return nltest.Message(t, messageType(unix.NFT_MSG_NEWRULE), nl.SizeofNfgenmsg, unix.NFPROTO_INET, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, "t")
		ae.String(unix.NFTA_RULE_CHAIN, "c")
		nltest.Nest(ae, unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) {
			expression(ae, "payload", func(ae *netlink.AttributeEncoder) {
				number(ae, unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
				number(ae, unix.NFTA_PAYLOAD_BASE, payloadNetwork)
				number(ae, unix.NFTA_PAYLOAD_OFFSET, ipv4Source)
				number(ae, unix.NFTA_PAYLOAD_LEN, 4)
			})
			expression(ae, "lookup", func(ae *netlink.AttributeEncoder) {
				ae.String(unix.NFTA_LOOKUP_SET, "bans")
				number(ae, unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
			})
		})
	})
}

// transaction decodes data as each message of a transaction, and checks the result.
func transaction(t *testing.T, data []byte) {
	for _, edges := range []bool{false, true} {
		d := newDecoder()
		for _, set := range []string{"bans", ""} {
			d.sets[Ref{Table{unix.NFPROTO_INET, "t"}, set}] = &setFacts{key: addressField{size: 4, edges: edges}, address: true}
		}
		for _, typ := range []netlink.HeaderType{unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_NEWSET,
			unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWGEN} {
			m := netlink.Message{Header: netlink.Header{Type: messageType(typ)}, Data: data}
			e, tell, err := d.Decode(m)
			if tell != (typ == unix.NFT_MSG_NEWGEN) && err == nil || len(e.Elements) > MostElements {
				t.Fatalf("type %d: %+v, told %v, %v", typ, e, tell, err)
			}
			for _, p := range e.Elements {
				if !p.IsValid() {
					t.Fatalf("type %d: %v", typ, e.Elements)
				}
			}
		}
	}
}

// FuzzPairEdges: what the pairs cover contains every end of them.
func FuzzPairEdges(f *testing.F) {
	f.Add([]byte{10, 0, 0, 0, 0, 10, 0, 1, 0, 1})
	f.Add([]byte{0, 0, 0, 0, 1, 240, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var edges []edge
		for ; len(data) >= 5; data = data[5:] {
			edges = append(edges, edge{netip.AddrFrom4([4]byte(data)), data[4]&1 != 0})
		}
		ranges, ok := pairEdges(edges)
		for _, e := range edges {
			at := e.addr
			if e.closes {
				at = at.Prev()
			}
			if ok && at.IsValid() && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(at) }) {
				t.Fatalf("%v of %v is not in %v", at, edges, ranges)
			}
		}
	})
}

// FuzzTransaction: the decoder does not panic, and lists valid prefixes only.
func FuzzTransaction(f *testing.F) {
	for _, m := range []netlink.Message{elementMessage(f, "t", "bans", []byte{192, 0, 2, 1}), askingRule(f)} {
		f.Add(m.Data)
	}
	f.Fuzz(transaction)
}
