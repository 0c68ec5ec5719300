package kernel

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// registers are those of the nftables machine, in units of 32 bits: which of them hold
// (a part of) one of the packet's own addresses, or of its connection's.
type registers [unix.NFT_REG32_COUNT]bool

// registerAt is the index of a register: 1 to 4 are old names for four units each, 0 is the
// verdict, which is none.
func registerAt(number uint32) (int, bool) {
	switch {
	case number >= unix.NFT_REG_1 && number <= unix.NFT_REG_4:
		return int(number-unix.NFT_REG_1) * (unix.NFT_REG_SIZE / registerSize), true
	case number >= unix.NFT_REG32_00 && number < unix.NFT_REG32_00+unix.NFT_REG32_COUNT:
		return int(number - unix.NFT_REG32_00), true
	}
	return 0, false
}

// clear forgets what is in a register and all behind it: values can be long, and nft fills
// them in ascending order.
func (r *registers) clear(number uint32) {
	at, ok := registerAt(number)
	for i := at; ok && i < len(r); i++ {
		r[i] = false
	}
}

// fill notes an address of so many bytes.
func (r *registers) fill(number uint32, size int) {
	at, ok := registerAt(number)
	for i := at; ok && i < min(at+size/registerSize, len(r)); i++ {
		r[i] = true
	}
}

// holds tells whether a key that begins at a register has an address in a field.
func (r *registers) holds(number uint32, field addressField) bool {
	at, ok := registerAt(number)
	first := at + field.at/registerSize
	last := first + field.size/registerSize
	if !ok || last > len(r) {
		return false
	}
	for _, is := range r[first:last] {
		if !is {
			return false
		}
	}
	return true
}

// destination is the attribute by which each kind of expression names the register that it
// writes; 0 for those that write none. One that is not listed may have written any.
var destination = map[string]uint16{
	"payload": unix.NFTA_PAYLOAD_DREG, "ct": unix.NFTA_CT_DREG, "lookup": unix.NFTA_LOOKUP_DREG,
	"meta": 1, "immediate": 1, "exthdr": 1, "fib": 1, "rt": 1, "numgen": 1, "xfrm": 1,
	"bitwise": 2, "byteorder": 2, "socket": 2, "hash": 2, "tunnel": 2,
	"cmp": 0, "range": 0, "counter": 0, "log": 0, "limit": 0, "quota": 0, "connlimit": 0, "last": 0,
	"objref": 0, "dynset": 0, "match": 0, "target": 0, "notrack": 0, "reject": 0, "masq": 0, "nat": 0,
	"redir": 0, "queue": 0, "dup": 0, "fwd": 0, "tproxy": 0, "synproxy": 0, "flow_offload": 0,
}

// asking is, for the expressions that ask a set, the attributes with its name and with the
// first register of the key (include/uapi/linux/netfilter/nf_tables.h).
var asking = map[string]struct{ set, key uint16 }{
	"lookup": {unix.NFTA_LOOKUP_SET, unix.NFTA_LOOKUP_SREG},
	"dynset": {1, 4}, // NFTA_DYNSET_SET_NAME, _SREG_KEY
	"objref": {4, 3}, // NFTA_OBJREF_SET_NAME, _SET_SREG
}

// rule looks for sets that a rule asks with anything but an address of the packet where
// their key has one: a network of it, its next hop. What an element of such a set touches
// cannot be told from its address.
func (d *nftDecoder) rule(m netlink.Message) error {
	var r registers
	s, err := setOf(m, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	if err != nil {
		return err
	}
	return attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_RULE_EXPRESSIONS {
			inner(ad, func(ad *netlink.AttributeDecoder) { d.expression(s, &r, ad) })
		}
	})
}

// expression follows one expression of a rule in a table.
func (d *nftDecoder) expression(in nftSet, r *registers, ad *netlink.AttributeDecoder) {
	var name, set string
	numbers := map[uint16]uint32{}
	inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			inner(ad, func(ad *netlink.AttributeDecoder) {
				bigEndian(ad)
				if a, asks := asking[name]; asks && ad.Type() == a.set {
					set = ad.String()
				} else if len(ad.Bytes()) == 4 {
					numbers[ad.Type()] = ad.Uint32()
				}
			})
		}
	})
	if a, asks := asking[name]; asks {
		facts := d.sets[nftSet{in.family, in.table, set}]
		if facts != nil && facts.address && !r.holds(numbers[a.key], facts.key) {
			facts.address = false
		}
	}
	switch attribute, known := destination[name]; {
	case !known:
		*r = registers{}
	case attribute != 0:
		r.clear(numbers[attribute])
		r.fill(numbers[attribute], addressLoaded(name, numbers))
	}
}

// Attributes of the expressions that load addresses.
const (
	payloadNetwork = 1 // NFT_PAYLOAD_NETWORK_HEADER
	ipv4Source     = 12
	ipv4Dest       = 16
	ipv6Source     = 8
	ipv6Dest       = 24
)

// addressLoaded is the size of the address that an expression loads, in bytes; 0 if it
// loads something else.
func addressLoaded(name string, numbers map[uint16]uint32) int {
	switch name {
	case "payload":
		at, size := numbers[unix.NFTA_PAYLOAD_OFFSET], numbers[unix.NFTA_PAYLOAD_LEN]
		if numbers[unix.NFTA_PAYLOAD_BASE] == payloadNetwork &&
			(size == 4 && (at == ipv4Source || at == ipv4Dest) || size == 16 && (at == ipv6Source || at == ipv6Dest)) {
			return int(size)
		}
	case "ct": // its size follows from the family: for IPv4 the three units behind it stay unused
		switch numbers[unix.NFTA_CT_KEY] {
		case unix.NFT_CT_SRC, unix.NFT_CT_DST, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6:
			return 16
		case unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP:
			return 4
		}
	}
	return 0
}
