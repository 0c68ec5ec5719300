// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"maps"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Attributes that x/sys lacks (include/uapi/linux/netfilter/nf_tables.h).
const (
	nftaSetElemKeyEnd  = 10
	nftSetElemCatchall = 2
	nftSetConcat       = 0x80
)

// MostElements is how many addresses a transaction may touch before it is told without
// them: then it is as good as about everything.
const MostElements = 4096

// Decoder gathers the messages of an nftables transaction, which ends with
// NFT_MSG_NEWGEN, into one Transaction. The zero value is used after Reload.
//
// A transaction that does nothing but add and delete elements with an address (a ban list
// being filled) touches only packets with this address, if every rule that asks the set
// does so with an address of the packet: nft remembers the sets, and what rules ask them
// (nftrule.go). Everything else is told as touching anything.
type Decoder struct {
	sets map[Ref]*setFacts

	// of the transaction that is being announced
	anything bool
	touched  Touched
	elements []netip.Prefix
	edges    map[edgeSide][]edge
}

// setFacts is what is remembered of a set or map.
type setFacts struct {
	key     addressField
	address bool // the key has such a field, and no rule asks with something else in it
}

// Reload reads the sets and rules there are.
func (d *Decoder) Reload() error {
	*d = Decoder{sets: make(map[Ref]*setFacts)}
	for _, table := range []struct {
		get    netlink.HeaderType
		decode func(netlink.Message) error
	}{{unix.NFT_MSG_GETSET, d.set}, {unix.NFT_MSG_GETRULE, d.rule}} {
		messages, err := nl.Dump(unix.NETLINK_NETFILTER, messageType(table.get), make([]byte, nl.SizeofNfgenmsg))
		if nl.Absent(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			if err := table.decode(m); err != nil {
				return err
			}
		}
	}
	return nil
}

func messageType(typ netlink.HeaderType) netlink.HeaderType {
	return unix.NFNL_SUBSYS_NFTABLES<<8 | typ
}

// Transaction is a change of the ruleset.
type Transaction struct {
	Program string // that made it
	// Elements are the prefixes whose packets, from or to them, the change can affect. nil
	// means all packets.
	Elements []netip.Prefix
	Touched  Touched
}

// Touched is what of the ruleset was announced as changed: other rules than those of Chains, and
// other elements than those of Sets, are what they were. Chains and sets themselves may be new or
// gone. The zero value is nothing.
type Touched struct {
	All          bool // anything may have changed
	Chains, Sets map[Ref]bool
}

// Add takes in what else was touched.
func (t *Touched) Add(o Touched) {
	t.All = t.All || o.All
	t.Chains, t.Sets = union(t.Chains, o.Chains), union(t.Sets, o.Sets)
}

func union(to, from map[Ref]bool) map[Ref]bool {
	if to == nil && len(from) > 0 {
		to = make(map[Ref]bool, len(from))
	}
	maps.Copy(to, from)
	return to
}

// Decode takes a message, and returns the transaction that ends with it; false if none does.
func (d *Decoder) Decode(m netlink.Message) (Transaction, bool, error) {
	switch m.Header.Type {
	case messageType(unix.NFT_MSG_NEWGEN):
		return d.end(m)
	case messageType(unix.NFT_MSG_NEWSETELEM), messageType(unix.NFT_MSG_DELSETELEM):
		return Transaction{}, false, d.touch(m)
	}
	d.anything = true
	return Transaction{}, false, d.take(m)
}

// take takes a message about anything but elements.
func (d *Decoder) take(m netlink.Message) (err error) {
	switch m.Header.Type {
	case messageType(unix.NFT_MSG_NEWTABLE), messageType(unix.NFT_MSG_DELTABLE): // its rules have messages of their own (nft_flush_table())
	case messageType(unix.NFT_MSG_NEWCHAIN), messageType(unix.NFT_MSG_DELCHAIN):
		err = d.touchChain(m, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	case messageType(unix.NFT_MSG_NEWSET):
		err = d.set(m)
	case messageType(unix.NFT_MSG_DELSET):
		var s Ref
		s, err = refOf(m, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
		d.touched.Add(Touched{Sets: map[Ref]bool{s: true}})
		delete(d.sets, s)
	case messageType(unix.NFT_MSG_NEWRULE):
		if err = d.rule(m); err == nil {
			err = d.touchChain(m, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
		}
	case messageType(unix.NFT_MSG_DELRULE):
		err = d.touchChain(m, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	default:
		d.touched.All = true
	}
	return err
}

func (d *Decoder) touchChain(m netlink.Message, table, name uint16) error {
	c, err := refOf(m, table, name)
	d.touched.Add(Touched{Chains: map[Ref]bool{c: true}})
	return err
}

// end is NFT_MSG_NEWGEN.
func (d *Decoder) end(m netlink.Message) (Transaction, bool, error) {
	var e Transaction
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_PROC_NAME {
			e.Program = ad.String()
		}
	})
	for _, edges := range d.edges {
		ranges, ok := pairEdges(edges)
		d.anything = d.anything || !ok
		d.elements = append(d.elements, ranges...)
	}
	if !d.anything && len(d.elements) <= MostElements {
		e.Elements = d.elements
	}
	e.Touched = d.touched
	d.anything, d.touched, d.elements, d.edges = false, Touched{}, nil, nil
	return e, true, err
}

// refOf reads which chain or set a message is about.
func refOf(m netlink.Message, table, name uint16) (Ref, error) {
	var s Ref
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case table:
			s.Table.Name = ad.String()
		case name:
			s.Name = ad.String()
		}
	})
	if err == nil {
		s.Table.Family = m.Data[0]
	}
	return s, err
}

// set remembers a new set.
func (d *Decoder) set(m netlink.Message) error {
	var keyType, keyLen, flags uint32
	s, err := refOf(m, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
	if err != nil {
		return err
	}
	d.touched.Add(Touched{Sets: map[Ref]bool{s: true}})
	err = nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case unix.NFTA_SET_KEY_TYPE:
			keyType = ad.Uint32()
		case unix.NFTA_SET_KEY_LEN:
			keyLen = ad.Uint32()
		case unix.NFTA_SET_FLAGS:
			flags = ad.Uint32()
		}
	})
	facts := &setFacts{}
	facts.key, facts.address = findAddress(keyType, keyLen)
	facts.key.edges = flags&(unix.NFT_SET_INTERVAL|nftSetConcat) == unix.NFT_SET_INTERVAL
	d.sets[s] = facts
	return err
}

// touch notes what the elements of a message can have changed.
func (d *Decoder) touch(m netlink.Message) error {
	s, err := refOf(m, unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET)
	if err != nil {
		return err
	}
	d.touched.Add(Touched{Sets: map[Ref]bool{s: true}})
	facts := d.sets[s]
	if facts == nil || !facts.address || len(d.elements) > MostElements {
		d.anything = true
		return nil
	}
	some := false
	err = nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			some = true
			d.element(edgeSide{s, m.Header.Type}, facts.key, ad)
		})
	})
	d.anything = d.anything || !some
	return err
}

// element is one element of a set: an address, a range, or one end of a range, whose
// other end is an element of its own (nft_set_rbtree.c).
func (d *Decoder) element(side edgeSide, key addressField, ad *netlink.AttributeDecoder) {
	var from, to netip.Addr
	var flags uint32
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			from = key.value(ad)
		case nftaSetElemKeyEnd:
			to = key.value(ad)
		case unix.NFTA_SET_ELEM_FLAGS:
			nl.BigEndian(ad)
			flags = ad.Uint32()
		case unix.NFTA_SET_ELEM_EXPR, nftaSetElemExpressions: // a statement: as good as a rule
			d.anything = true
		}
	})
	switch {
	case !from.IsValid() || flags&nftSetElemCatchall != 0:
		d.anything = true
	case to.IsValid():
		d.elements = append(d.elements, covering(from, to))
	case key.edges:
		if d.edges == nil {
			d.edges = make(map[edgeSide][]edge)
		}
		d.edges[side] = append(d.edges[side], edge{from, flags&unix.NFT_SET_ELEM_INTERVAL_END != 0})
		d.anything = d.anything || len(d.edges[side]) > MostElements
	default:
		d.elements = append(d.elements, netip.PrefixFrom(from, from.BitLen()))
	}
}
