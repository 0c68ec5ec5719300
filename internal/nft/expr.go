// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// exprFields read the attributes of each kind of expression whose content matters
// (include/uapi/linux/netfilter/nf_tables.h); of the others the name is enough.
var exprFields = map[string]func(*Expr, *netlink.AttributeDecoder){
	"meta":      metaField,
	"ct":        ctField,
	"payload":   payloadField,
	"exthdr":    exthdrField,
	"cmp":       cmpField,
	"range":     rangeField,
	"bitwise":   bitwiseField,
	"lookup":    lookupField,
	"immediate": immediateField,
	"dynset":    dynsetField,
	"objref":    objrefField,
	"match":     extensionField,
	"target":    extensionField,
	"byteorder": copyField,
	"hash":      copyField,
	"rt":        loadField,
	"fib":       loadField,
	"numgen":    loadField,
	"osf":       loadField,
	"xfrm":      loadField,
	"socket":    secondField,
	"tunnel":    secondField,
}

// lastAttr is the highest attribute of each kind of expression that this package knows
// (include/uapi/linux/netfilter/nf_tables.h of Linux 6.18). An expression with a higher one is
// not understood.
var lastAttr = map[string]uint16{
	"meta": 3, "ct": 4, "payload": 8, "exthdr": 7, "cmp": 3, "range": 4, "bitwise": 8, "lookup": 5,
	"immediate": 2, "dynset": 10, "objref": 5, "match": 3, "target": 3, "byteorder": 5, "hash": 9,
	"rt": 2, "fib": 3, "numgen": 4, "osf": 3, "xfrm": 4, "socket": 3, "tunnel": 3,
}

func metaField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_META_DREG:
		e.Dest = register(ad)
	case unix.NFTA_META_KEY:
		e.Key = ad.Uint32()
	case unix.NFTA_META_SREG:
		e.Source = register(ad)
	}
}

func ctField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_CT_DREG:
		e.Dest = register(ad)
	case unix.NFTA_CT_KEY:
		e.Key = ad.Uint32()
	case unix.NFTA_CT_SREG:
		e.Source = register(ad)
	case unix.NFTA_CT_DIRECTION:
		e.Direction = int(ad.Uint8())
	}
}

func payloadField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_PAYLOAD_DREG:
		e.Dest = register(ad)
	case unix.NFTA_PAYLOAD_SREG:
		e.Source = register(ad)
	case unix.NFTA_PAYLOAD_BASE:
		e.Key = ad.Uint32()
	case unix.NFTA_PAYLOAD_OFFSET:
		e.Offset = ad.Uint32()
	case unix.NFTA_PAYLOAD_LEN:
		e.Len = ad.Uint32()
	}
}

func exthdrField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_EXTHDR_DREG:
		e.Dest = register(ad)
	case unix.NFTA_EXTHDR_SREG:
		e.Source = register(ad)
	case unix.NFTA_EXTHDR_TYPE:
		e.Key = uint32(ad.Uint8())
	case unix.NFTA_EXTHDR_LEN:
		e.Len = ad.Uint32()
	case unix.NFTA_EXTHDR_OP:
		e.Op = ad.Uint32()
	case unix.NFTA_EXTHDR_FLAGS:
		e.Flags = ad.Uint32()
	}
}

func cmpField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_CMP_SREG:
		e.Source = register(ad)
	case unix.NFTA_CMP_OP:
		e.Op = ad.Uint32()
	case unix.NFTA_CMP_DATA:
		e.Data, _ = decodeData(ad)
	}
}

func rangeField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_RANGE_SREG:
		e.Source = register(ad)
	case unix.NFTA_RANGE_OP:
		e.Op = ad.Uint32()
	case unix.NFTA_RANGE_FROM_DATA:
		e.Data, _ = decodeData(ad)
	case unix.NFTA_RANGE_TO_DATA:
		e.To, _ = decodeData(ad)
	}
}

func bitwiseField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_BITWISE_SREG:
		e.Source = register(ad)
	case unix.NFTA_BITWISE_DREG:
		e.Dest = register(ad)
	case unix.NFTA_BITWISE_MASK:
		e.Mask, _ = decodeData(ad)
	case unix.NFTA_BITWISE_XOR:
		e.Data, _ = decodeData(ad)
	case nftaBitwiseOp:
		e.Op = ad.Uint32()
	case nftaBitwiseSreg2:
		e.Second = register(ad)
	}
}

func lookupField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_LOOKUP_SET:
		e.Set = ad.String()
	case unix.NFTA_LOOKUP_SREG:
		e.Source = register(ad)
	case unix.NFTA_LOOKUP_DREG:
		e.Dest = register(ad)
	case unix.NFTA_LOOKUP_FLAGS:
		e.Flags = ad.Uint32()
	}
}

func immediateField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_IMMEDIATE_DREG:
		e.Dest = register(ad)
	case unix.NFTA_IMMEDIATE_DATA:
		e.Data, e.Verdict = decodeData(ad)
	}
}

func dynsetField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_DYNSET_SET_NAME:
		e.Set = ad.String()
	case unix.NFTA_DYNSET_SREG_KEY:
		e.Source = register(ad)
	case unix.NFTA_DYNSET_OP:
		e.Op = ad.Uint32()
	case unix.NFTA_DYNSET_SREG_DATA:
		e.Second = register(ad)
	case unix.NFTA_DYNSET_TIMEOUT:
		e.Timeout = milliseconds(ad)
	case unix.NFTA_DYNSET_EXPR:
		e.Inner = append(e.Inner, exprName(ad))
	case nftaDynsetExprs:
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) { e.Inner = append(e.Inner, exprName(ad)) })
	}
}

func objrefField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_OBJREF_IMM_TYPE:
		e.Key = ad.Uint32()
	case unix.NFTA_OBJREF_IMM_NAME:
		e.Object = ad.String()
	case unix.NFTA_OBJREF_SET_SREG:
		e.Source = register(ad)
	case unix.NFTA_OBJREF_SET_NAME:
		e.Set = ad.String()
	}
}

func extensionField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_MATCH_NAME:
		e.Extension = ad.String()
	case unix.NFTA_MATCH_REV:
		e.Revision = ad.Uint32()
	case unix.NFTA_MATCH_INFO:
		e.Info = ad.Bytes()
	}
}

// copyField is of what makes one register from another: both begin alike.
func copyField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.NFTA_BITWISE_SREG:
		e.Source = register(ad)
	case unix.NFTA_BITWISE_DREG:
		e.Dest = register(ad)
	case unix.NFTA_HASH_LEN: // of byteorder it is the operation, which does not matter
		e.Len = ad.Uint32()
	}
}

// loadField is of what fills the register that its first attribute names; the second one says
// with what.
func loadField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case 1:
		e.Dest = register(ad)
	case 2:
		if b := ad.Bytes(); len(b) == 4 {
			e.Key = binary.BigEndian.Uint32(b)
		}
	}
}

// secondField is loadField with the two attributes the other way round.
func secondField(e *Expr, ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case 1:
		e.Key = ad.Uint32()
	case 2:
		e.Dest = register(ad)
	}
}
