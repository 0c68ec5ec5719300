// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// registers are those of the nftables machine, in words of 32 bits: which of them hold (a part
// of) one of the packet's own addresses, or of its connection's.
type registers [unix.NFT_REG32_COUNT]bool

// load notes what is in a register now: an address of so many bytes, or with 0 something else.
// What is behind it is forgotten: values can be long, and nft fills registers in ascending order.
func (r *registers) load(at, size int) {
	for i := max(at, 0); i < len(r); i++ {
		r[i] = i < at+size/registerSize
	}
}

// holds tells whether a key that begins at a register has an address in a field.
func (r *registers) holds(at int, field addressField) bool {
	first := at + field.at/registerSize
	last := first + field.size/registerSize
	return at >= 0 && last <= len(r) && !slices.Contains(r[first:last], false)
}

// loadsNothing are the expressions without fields (exprFields) that write no register. Any
// other one without fields may have written all of them.
var loadsNothing = map[string]bool{
	"counter": true, "log": true, "limit": true, "quota": true, "connlimit": true, "last": true,
	"notrack": true, "reject": true, "masq": true, "nat": true, "redir": true, "queue": true,
	"dup": true, "fwd": true, "tproxy": true, "synproxy": true, "flow_offload": true,
}

// rule looks for sets that a rule asks with anything but an address of the packet where
// their key has one: a network of it, its next hop. What an element of such a set touches
// cannot be told from its address.
func (d *Decoder) rule(m netlink.Message) error {
	var r registers
	rule, err := decodeRule(m)
	for _, e := range rule.Exprs {
		facts := d.sets[Ref{rule.Table, e.Set}]
		if facts != nil && facts.address && !r.holds(e.Source, facts.key) {
			facts.address = false
		}
		switch {
		case exprFields[e.Name] == nil && !loadsNothing[e.Name]:
			r = registers{}
		case e.Dest >= 0:
			r.load(e.Dest, addressLoaded(&e))
		}
	}
	return err
}

// Addresses in headers.
const (
	payloadNetwork = 1 // NFT_PAYLOAD_NETWORK_HEADER
	ipv4Source     = 12
	ipv4Dest       = 16
	ipv6Source     = 8
	ipv6Dest       = 24
)

// addressLoaded is the size of the address that an expression loads, in bytes; 0 if it
// loads something else.
func addressLoaded(e *Expr) int {
	switch e.Name {
	case "payload":
		at, size := e.Offset, e.Len
		if e.Key == payloadNetwork &&
			(size == 4 && (at == ipv4Source || at == ipv4Dest) || size == 16 && (at == ipv6Source || at == ipv6Dest)) {
			return int(size)
		}
	case "ct": // its size follows from the family: for IPv4 the three words behind it stay unused
		switch e.Key {
		case unix.NFT_CT_SRC, unix.NFT_CT_DST, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6:
			return 16
		case unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP:
			return 4
		}
	}
	return 0
}
