// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// addressField is where in the key of a set's elements an IP address is, in bytes.
type addressField struct {
	at, size int
	edges    bool // elements are the ends of ranges, each by itself
}

// Types of sets, as nft numbers them (include/datatype.h of nftables). The kernel keeps
// them for nft and does not know what they mean; a tool that says nothing has 0.
const (
	typeIPv4     = 7
	typeIPv6     = 8
	typeBits     = 6 // per part of a concatenation, the last one lowest
	registerSize = 4 // parts of a concatenation begin at multiples of it
)

// partSizes are the sizes of what is put beside addresses, in bytes.
var partSizes = map[uint32]int{
	typeIPv4: 4, typeIPv6: 16,
	9:  6,  // ether_addr
	12: 1,  // inet_proto
	13: 2,  // inet_service
	19: 4,  // mark
	20: 4,  // iface_index
	41: 16, // ifname
}

// findAddress finds the first address in keys of a type. It finds none if a part is
// unknown, or the length contradicts the type.
func findAddress(keyType, keyLen uint32) (field addressField, ok bool) {
	var parts []uint32
	for t := keyType; t != 0; t >>= typeBits {
		parts = append(parts, t&(1<<typeBits-1))
	}
	slices.Reverse(parts)
	at := 0
	for _, part := range parts {
		size := partSizes[part]
		if size == 0 {
			return field, false
		}
		if !ok && (part == typeIPv4 || part == typeIPv6) {
			field, ok = addressField{at: at, size: size}, true
		}
		at += (size + registerSize - 1) / registerSize * registerSize
	}
	return field, ok && at == int(keyLen)
}

// value reads the address from a key, which is NFTA_DATA_VALUE in a nest. It is not valid
// if there is none.
func (f addressField) value(ad *netlink.AttributeDecoder) (a netip.Addr) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		if b := ad.Bytes(); ad.Type() == unix.NFTA_DATA_VALUE && len(b) >= f.at+f.size {
			a, _ = netip.AddrFromSlice(b[f.at : f.at+f.size])
		}
	})
	return a
}

// covering is the smallest prefix in which both addresses are, of one family.
func covering(from, to netip.Addr) netip.Prefix {
	if from.BitLen() != to.BitLen() {
		return netip.Prefix{}
	}
	bits := from.BitLen()
	for bits > 0 && !netip.PrefixFrom(from, bits).Contains(to) {
		bits--
	}
	return netip.PrefixFrom(from, bits).Masked()
}

// edgeSide is the set that ends of ranges belong to, and whether they came or went.
type edgeSide struct {
	set Ref
	op  netlink.HeaderType
}

// edge is one end of a range: its first address, or (closes) the first one behind it.
type edge struct {
	addr   netip.Addr
	closes bool
}

// pairEdges returns what the ranges cover whose ends came, or went, in one transaction. The
// last one may go up to the highest address and have no end; nft puts an end without a
// beginning at address zero. ok is false if the ends do not fit together.
func pairEdges(edges []edge) (ranges []netip.Prefix, ok bool) {
	slices.SortFunc(edges, func(a, b edge) int {
		switch order := a.addr.Compare(b.addr); {
		case order != 0:
			return order
		case a.closes && !b.closes:
			return -1
		case b.closes && !a.closes:
			return 1
		}
		return 0
	})
	var open netip.Addr
	for _, e := range edges {
		switch {
		case e.closes && open.IsValid():
			ranges = append(ranges, covering(open, e.addr.Prev()))
			open = netip.Addr{}
		case e.closes && e.addr.IsUnspecified():
		case e.closes || open.IsValid():
			return nil, false
		default:
			open = e.addr
		}
	}
	if open.IsValid() {
		ranges = append(ranges, covering(open, highest(open)))
	}
	return ranges, true
}

// highest is the last address of a family.
func highest(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	for i := range b {
		b[i] = 0xff
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}
