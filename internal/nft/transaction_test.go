// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
	"shunt/internal/nl/nltest"
)

func TestFindAddress(t *testing.T) {
	const port, mark, name, unknown = 13, 19, 41, 26
	for _, c := range []struct {
		parts []uint32
		size  uint32
		want  addressField
		ok    bool
	}{
		{[]uint32{typeIPv4}, 4, addressField{at: 0, size: 4}, true},
		{[]uint32{typeIPv6}, 16, addressField{at: 0, size: 16}, true},
		{[]uint32{typeIPv4, port}, 8, addressField{at: 0, size: 4}, true},
		{[]uint32{port, typeIPv4}, 8, addressField{at: 4, size: 4}, true},
		{[]uint32{name, mark, typeIPv6, port}, 40, addressField{at: 20, size: 16}, true},
		{[]uint32{typeIPv4, typeIPv4}, 8, addressField{at: 0, size: 4}, true},
		{[]uint32{typeIPv4}, 8, addressField{}, false},
		{[]uint32{typeIPv4, unknown}, 8, addressField{}, false},
		{[]uint32{port}, 2, addressField{}, false},
		{nil, 4, addressField{}, false},
	} {
		var keyType uint32
		for _, p := range c.parts {
			keyType = keyType<<typeBits | p
		}
		if got, ok := findAddress(keyType, c.size); ok != c.ok || ok && got != c.want {
			t.Errorf("%v, %d bytes: %+v, %v", c.parts, c.size, got, ok)
		}
	}
}

func TestPairEdges(t *testing.T) {
	for _, c := range []struct {
		edges string // an end is marked by a !
		want  string // "-": they do not fit together
	}{
		{"", ""},
		{"10.0.0.0 !10.0.1.0", "10.0.0.0/24"},
		{"!0.0.0.0 10.0.0.0 !10.0.1.0", "10.0.0.0/24"},
		{"10.0.1.0 !10.0.1.0 10.0.0.0 !10.0.2.0", "10.0.0.0/24 10.0.1.0/24"},
		{"0.0.0.0 !128.0.0.0 192.0.0.0", "0.0.0.0/1 192.0.0.0/2"},
		{"10.0.0.255 !10.0.1.1", "10.0.0.0/23"},
		{"2001:db8:: !2001:db9::", "2001:db8::/32"},
		{"10.0.0.0 10.0.0.5 !10.0.1.0", "-"},
		{"10.0.0.0 !10.0.1.0 !10.0.2.0", "-"},
		{"!10.0.1.0", "-"},
	} {
		var edges []edge
		for _, word := range strings.Fields(c.edges) {
			addr, closes := strings.CutPrefix(word, "!")
			edges = append(edges, edge{netip.MustParseAddr(addr), closes})
		}
		ranges, ok := pairEdges(edges)
		if got := nltest.Prefixes(ranges); ok == (c.want == "-") || ok && got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.edges, got, ok, c.want)
		}
	}
}

// nftElement is the kernel's message about one element of a set.
func elementMessage(t testing.TB, table, set string, key []byte) netlink.Message {
	return nltest.Message(t, messageType(unix.NFT_MSG_NEWSETELEM), nl.SizeofNfgenmsg, unix.NFPROTO_INET, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		ae.String(unix.NFTA_SET_ELEM_LIST_SET, set)
		nltest.Nest(ae, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(ae *netlink.AttributeEncoder) {
			nltest.Nest(ae, unix.NFTA_LIST_ELEM, func(ae *netlink.AttributeEncoder) {
				nltest.Nest(ae, unix.NFTA_SET_ELEM_KEY, func(ae *netlink.AttributeEncoder) { ae.Bytes(unix.NFTA_DATA_VALUE, key) })
			})
		})
	})
}

// TestShortKeys: an element whose key is not what the set's type says touches anything.
func TestShortKeys(t *testing.T) {
	for _, c := range []struct {
		set  string
		key  []byte
		want string
	}{
		{"bans", []byte{192, 0, 2, 1}, "192.0.2.1/32"},
		{"bans", []byte{192, 0, 2}, ""},
		{"bans", nil, ""},
		{"other", []byte{192, 0, 2, 1}, ""},
	} {
		d := newDecoder()
		d.sets[Ref{Table{unix.NFPROTO_INET, "t"}, "bans"}] = &setFacts{key: addressField{size: 4}, address: true}
		if _, tell, err := d.Decode(elementMessage(t, "t", c.set, c.key)); tell || err != nil {
			t.Fatalf("told %v, %v", tell, err)
		}
		e, tell, err := d.Decode(nltest.Message(t, messageType(unix.NFT_MSG_NEWGEN), nl.SizeofNfgenmsg, 0, func(*netlink.AttributeEncoder) {}))
		if got := nltest.Prefixes(e.Elements); got != c.want || !tell || err != nil {
			t.Errorf("%s %v: %q, told %v, %v", c.set, c.key, got, tell, err)
		}
	}
}

func newDecoder() *Decoder { return &Decoder{sets: make(map[Ref]*setFacts)} }
