// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// evaluation is one rule under way. What a register holds is known byte by byte.
type evaluation struct {
	*drops
	table   nft.Table
	fits    tri
	verdict *nft.Verdict
	bytes   [128]byte
	known   [128]bool
	name    [32]string // what a register was loaded with, as nft writes it
	words   []string
}

func (e *evaluation) step(x *nft.Expr) {
	switch x.Name {
	case "meta":
		if x.Source < 0 {
			e.meta(x)
		}
	case "ct":
		if x.Source < 0 {
			e.ct(x)
		}
	case "payload":
		if x.Source < 0 {
			e.payload(x)
		}
	case "bitwise":
		e.bitwise(x)
	case "cmp", "range":
		e.compare(x)
	case "lookup":
		e.lookup(x)
	case "immediate":
		if x.Verdict != nil {
			e.decide(*x.Verdict)
		} else {
			e.load(x.Dest, x.Data, "")
		}
	case "reject":
		e.say("reject")
		e.verdict = &nft.Verdict{Code: nfDrop}
	case "counter", "log", "last", "notrack", "dup", "objref", "secmark":
	case "limit", "quota", "connlimit", "match", "dynset", "target", "queue", "synproxy", "tproxy":
		e.say(x.Name + " " + x.Extension)
		e.fits = maybe
	default: // loads what is not known, or acts
		e.forget(x.Dest, 16, x.Name)
	}
}

func (e *evaluation) decide(v nft.Verdict) {
	if v.Code == unix.NFT_CONTINUE || v.Code == unix.NFT_BREAK {
		return
	}
	if words := map[int32]string{nfDrop: "drop", nfAccept: "accept"}[v.Code]; words != "" {
		e.say(words)
	}
	e.verdict = &v
}

func (e *evaluation) say(words string) { e.words = append(e.words, strings.TrimSpace(words)) }

// text is the rule, as far as it was followed.
func (e *evaluation) text(comment string) string {
	words := strings.Join(e.words, " ")
	if comment != "" {
		words += fmt.Sprintf(" comment %q", comment)
	}
	return words
}

// load puts bytes into registers, which are counted in words of four.
func (e *evaluation) load(register int, b []byte, name string) {
	for i, v := range b {
		if at := 4*register + i; register >= 0 && at < len(e.bytes) {
			e.bytes[at], e.known[at] = v, true
		}
	}
	e.call(register, name)
}

func (e *evaluation) forget(register, size int, name string) {
	for i := range size {
		if at := 4*register + i; register >= 0 && at < len(e.bytes) {
			e.known[at] = false
		}
	}
	e.call(register, name)
}

func (e *evaluation) call(register int, name string) {
	if register >= 0 && register < len(e.name) {
		e.name[register] = name
	}
}

// read returns what a register holds, and whether all of it is known.
func (e *evaluation) read(register, size int) ([]byte, bool) {
	from, to := 4*register, 4*register+size
	if register < 0 || to > len(e.bytes) {
		return nil, false
	}
	return e.bytes[from:to], !slices.Contains(e.known[from:to], false)
}

func interfaceBytes(name string) []byte {
	return append([]byte(name), make([]byte, 16-min(16, len(name)))...)
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func (e *evaluation) meta(x *nft.Expr) {
	v6 := e.p.Source.Addr().Is6()
	in, out := e.p.In, e.p.Out
	if e.hook == hookPrerouting {
		out = ""
	}
	switch x.Key {
	case unix.NFT_META_IIFNAME:
		e.load(x.Dest, interfaceBytes(in), "iifname")
	case unix.NFT_META_OIFNAME:
		e.load(x.Dest, interfaceBytes(out), "oifname")
	case unix.NFT_META_IIF:
		e.load(x.Dest, native(uint32(e.p.InIndex)), "iif")
	case unix.NFT_META_OIF:
		e.load(x.Dest, native(uint32(e.p.OutIndex)), "oif")
	case unix.NFT_META_L4PROTO:
		e.load(x.Dest, []byte{e.p.Proto, 0, 0, 0}, "meta l4proto")
	case unix.NFT_META_NFPROTO:
		e.load(x.Dest, []byte{map[bool]byte{false: unix.NFPROTO_IPV4, true: unix.NFPROTO_IPV6}[v6], 0, 0, 0}, "meta nfproto")
	case unix.NFT_META_PROTOCOL:
		e.load(x.Dest, map[bool][]byte{false: {8, 0, 0, 0}, true: {0x86, 0xdd, 0, 0}}[v6], "meta protocol")
	default:
		e.forget(x.Dest, 16, "meta")
	}
}

func (e *evaluation) ct(x *nft.Expr) {
	if x.Key != unix.NFT_CT_STATE {
		e.forget(x.Dest, 16, "ct")
		return
	}
	const established, fresh, untracked = 1 << 1, 1 << 3, 1 << 6 // NF_CT_STATE_BIT
	state := uint32(established)
	switch {
	case e.p.Untracked || e.hook == hookPrerouting && e.priority <= conntrackPriority:
		state = untracked
	case e.p.New:
		state = fresh
	}
	e.load(x.Dest, native(state), "ct state")
}

// ends are the packet's addresses where the chain sees it: NAT of the destination comes at prerouting, of the
// source at postrouting.
func (d *drops) ends() (from, to netip.AddrPort) {
	from, to = d.p.Source, d.p.Destination
	if d.p.NATDest.IsValid() && (d.hook != hookPrerouting || d.priority > natBefore) {
		to = d.p.NATDest
	}
	if d.p.NATSource.IsValid() && d.hook == hookPostrouting && d.priority > natBehind {
		from = d.p.NATSource
	}
	return from, to
}

func (e *evaluation) payload(x *nft.Expr) {
	const network, transport = 1, 2 // NFT_PAYLOAD_*
	from, to := e.ends()
	var header [64]byte
	var known [64]bool
	put := func(at int, b ...byte) {
		for i, v := range b {
			header[at+i], known[at+i] = v, true
		}
	}
	names := map[uint32]string{}
	switch {
	case x.Key == network && from.Addr().Is4():
		put(9, e.p.Proto)
		put(12, from.Addr().AsSlice()...)
		put(16, to.Addr().AsSlice()...)
		names = map[uint32]string{9: "ip protocol", 12: "ip saddr", 16: "ip daddr"}
	case x.Key == network:
		put(6, e.p.Proto)
		put(8, from.Addr().AsSlice()...)
		put(24, to.Addr().AsSlice()...)
		names = map[uint32]string{6: "ip6 nexthdr", 8: "ip6 saddr", 24: "ip6 daddr"}
	case x.Key == transport && (e.p.Proto == protoICMP || e.p.Proto == protoICMPv6):
		put(0, e.p.ICMPType, 0)
		names = map[uint32]string{0: protoNames[e.p.Proto] + " type", 1: protoNames[e.p.Proto] + " code"}
	case x.Key == transport:
		put(0, binary.BigEndian.AppendUint16(nil, from.Port())...)
		put(2, binary.BigEndian.AppendUint16(nil, to.Port())...)
		proto := protoNames[e.p.Proto]
		if proto == "" {
			proto = "th"
		}
		names = map[uint32]string{0: proto + " sport", 2: proto + " dport"}
	}
	name := names[x.Offset]
	if name == "" {
		name = "payload"
	}
	if end := int(x.Offset + x.Len); end <= len(header) && !slices.Contains(known[x.Offset:end], false) {
		e.load(x.Dest, header[x.Offset:end], name)
	} else {
		e.forget(x.Dest, int(x.Len), name)
	}
}

func (e *evaluation) bitwise(x *nft.Expr) {
	const maskXor = 0 // NFT_BITWISE_MASK_XOR
	value, known := e.read(x.Source, len(x.Mask))
	name := ""
	if x.Source >= 0 && x.Source < len(e.name) {
		name = e.name[x.Source]
	}
	if !known || x.Op != maskXor || len(x.Data) != len(x.Mask) {
		e.forget(x.Dest, 16, name)
		return
	}
	out := make([]byte, len(value))
	for i := range out {
		out[i] = value[i]&x.Mask[i] ^ x.Data[i]
	}
	e.load(x.Dest, out, name+maskWords(name, x.Mask))
}

// compare is of cmp and range.
func (e *evaluation) compare(x *nft.Expr) {
	const eq, neq, lt, lte, gt, gte = 0, 1, 2, 3, 4, 5 // NFT_CMP_*; of a range 0 and 1
	value, known := e.read(x.Source, len(x.Data))
	e.sayMatch(x)
	if !known {
		e.fits = maybe
		return
	}
	order := bytes.Compare(value, x.Data)
	fits := false
	switch {
	case x.Name == "range":
		fits = (order >= 0 && bytes.Compare(value, x.To) <= 0) == (x.Op == 0)
	case x.Op == eq:
		fits = order == 0
	case x.Op == neq:
		fits = order != 0
	case x.Op == lt:
		fits = order < 0
	case x.Op == lte:
		fits = order <= 0
	case x.Op == gt:
		fits = order > 0
	case x.Op == gte:
		fits = order >= 0
	}
	if !fits {
		e.fits = no
	}
}

// mostElements is how large a set may be to be looked through.
const mostElements = 65536

func (e *evaluation) lookup(x *nft.Expr) {
	const inverted = 1 // NFT_LOOKUP_F_INV
	set := nft.Ref{Table: e.table, Name: x.Set}
	name := ""
	if x.Source >= 0 && x.Source < len(e.name) {
		name = e.name[x.Source]
	}
	words := "@" + x.Set
	if strings.HasPrefix(x.Set, "__") {
		words = "{ ... }"
	}
	if x.Dest == nft.VerdictRegister {
		words = "vmap " + words
	}
	e.say(name + " " + words)
	elements, all := e.n.Elements(set, mostElements)
	in, verdict := e.member(x.Source, e.n.Sets[set], elements)
	if !all {
		in = maybe
	}
	if x.Flags&inverted != 0 {
		in = yes - in
	}
	if in != yes {
		e.fits = min(e.fits, in)
	}
	if verdict != nil && in == yes {
		e.decide(*verdict)
	} else if x.Dest >= 0 {
		e.forget(x.Dest, 16, "map")
	}
}

// member looks a register up in a set's elements. Intervals are pairs of a begin and an end, which is not in it.
func (e *evaluation) member(register int, s nft.Set, elements []nft.Element) (tri, *nft.Verdict) {
	const concat = 128 // NFT_SET_CONCAT
	interval := s.Flags&unix.NFT_SET_INTERVAL != 0
	if interval && s.Flags&concat != 0 {
		return maybe, nil
	}
	var low *nft.Element
	for i := range elements {
		x := &elements[i]
		if x.Other {
			continue
		}
		value, known := e.read(register, len(x.Key))
		if !known {
			return maybe, nil
		}
		order := bytes.Compare(x.Key, value)
		if !interval && order == 0 {
			return yes, x.Verdict
		}
		if interval && order <= 0 {
			if at := low; at == nil || bytes.Compare(x.Key, at.Key) > 0 || bytes.Equal(x.Key, at.Key) && !x.End {
				low = x
			}
		}
	}
	if low != nil && !low.End {
		return yes, low.Verdict
	}
	for i := range elements {
		if elements[i].Other {
			return yes, elements[i].Verdict
		}
	}
	return no, nil
}
