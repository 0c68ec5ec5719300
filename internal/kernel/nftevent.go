// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes that x/sys lacks (include/uapi/linux/netfilter/nf_tables.h).
const (
	nftaSetElemKeyEnd  = 10
	nftSetElemCatchall = 2
	nftSetConcat       = 0x80
)

// mostElements is how many addresses a transaction may touch before it is told without
// them: then it is as good as about everything.
const mostElements = 4096

// nftDecoder gathers the messages of an nftables transaction, which ends with
// NFT_MSG_NEWGEN, into one event.
//
// A transaction that does nothing but add and delete elements with an address (a ban list
// being filled) touches only packets with this address, if every rule that asks the set
// does so with an address of the packet: nft remembers the sets, and what rules ask them
// (nftrule.go). Everything else is told as touching anything.
type nftDecoder struct {
	sets map[NftName]*setFacts

	// of the transaction that is being announced
	anything bool
	elements []netip.Prefix
	edges    map[edgeSide][]edge
}

// setFacts is what is remembered of a set or map.
type setFacts struct {
	key     addressField
	address bool // the key has such a field, and no rule asks with something else in it
}

// reload reads the sets and rules there are.
func (d *nftDecoder) reload() error {
	*d = nftDecoder{sets: make(map[NftName]*setFacts)}
	for _, table := range []struct {
		get    netlink.HeaderType
		decode func(netlink.Message) error
	}{{unix.NFT_MSG_GETSET, d.set}, {unix.NFT_MSG_GETRULE, d.rule}} {
		messages, err := dump(unix.NETLINK_NETFILTER, nftMessage(table.get), make([]byte, sizeofNfgenmsg))
		if absent(err) {
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

func nftMessage(typ netlink.HeaderType) netlink.HeaderType {
	return unix.NFNL_SUBSYS_NFTABLES<<8 | typ
}

// decode tells of a transaction at its end.
func (d *nftDecoder) decode(m netlink.Message) (Event, bool, error) {
	switch m.Header.Type {
	case nftMessage(unix.NFT_MSG_NEWGEN):
		return d.end(m)
	case nftMessage(unix.NFT_MSG_NEWSETELEM), nftMessage(unix.NFT_MSG_DELSETELEM):
		return Event{}, false, d.touch(m)
	}
	d.anything = true
	var err error
	switch m.Header.Type {
	case nftMessage(unix.NFT_MSG_NEWSET):
		err = d.set(m)
	case nftMessage(unix.NFT_MSG_NEWRULE):
		err = d.rule(m)
	case nftMessage(unix.NFT_MSG_DELSET):
		var s NftName
		s, err = setOf(m, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
		delete(d.sets, s)
	}
	return Event{}, false, err
}

// end is NFT_MSG_NEWGEN.
func (d *nftDecoder) end(m netlink.Message) (Event, bool, error) {
	e := Event{Kind: EventNftables}
	err := attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_PROC_NAME {
			e.Name = ad.String()
		}
	})
	for _, edges := range d.edges {
		ranges, ok := pairEdges(edges)
		d.anything = d.anything || !ok
		d.elements = append(d.elements, ranges...)
	}
	if !d.anything && len(d.elements) <= mostElements {
		e.Elements = d.elements
	}
	d.anything, d.elements, d.edges = false, nil, nil
	return e, true, err
}

// setOf reads which set a message is about.
func setOf(m netlink.Message, table, name uint16) (NftName, error) {
	var s NftName
	err := attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
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
func (d *nftDecoder) set(m netlink.Message) error {
	var keyType, keyLen, flags uint32
	s, err := setOf(m, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
	if err != nil {
		return err
	}
	err = attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		bigEndian(ad)
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
func (d *nftDecoder) touch(m netlink.Message) error {
	s, err := setOf(m, unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET)
	if err != nil {
		return err
	}
	facts := d.sets[s]
	if facts == nil || !facts.address || len(d.elements) > mostElements {
		d.anything = true
		return nil
	}
	some := false
	err = attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		inner(ad, func(ad *netlink.AttributeDecoder) {
			some = true
			d.element(edgeSide{s, m.Header.Type}, facts.key, ad)
		})
	})
	d.anything = d.anything || !some
	return err
}

// element is one element of a set: an address, a range, or one end of a range, whose
// other end is an element of its own (nft_set_rbtree.c).
func (d *nftDecoder) element(side edgeSide, key addressField, ad *netlink.AttributeDecoder) {
	var from, to netip.Addr
	var flags uint32
	inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			from = key.value(ad)
		case nftaSetElemKeyEnd:
			to = key.value(ad)
		case unix.NFTA_SET_ELEM_FLAGS:
			bigEndian(ad)
			flags = ad.Uint32()
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
		d.anything = d.anything || len(d.edges[side]) > mostElements
	default:
		d.elements = append(d.elements, netip.PrefixFrom(from, from.BitLen()))
	}
}
