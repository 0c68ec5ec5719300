// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"math/bits"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A connection that ended is found by its key, in two places for each port that it may come in
// by: connections end all the time, most of them never armed, and to go through all entries
// for each would cost more than they are worth.

// placing is what bpf/flow.h places keys by.
type placing struct {
	secret [8]uint64
	mix    uint64
	shift  int // BUCKET_SHIFT
}

func placingOf(c *tcControl, slots int) placing {
	return placing{c.Secret, c.Mix, 32 - bits.Len(uint(slots/int(tcAbiWAYS)-1))}
}

// hash is flow_hash().
func (p *placing) hash(k *tcFlowKey, w *tcFlowWords) uint64 {
	addresses := uint64(k.Saddr) | uint64(k.Daddr)<<32
	rest := uint64(k.Sport) | uint64(k.Dport)<<16 | uint64(k.Kind)<<32
	h := addresses*p.secret[0] + rest*p.secret[1]
	if k.Kind&uint32(tcKindKIND_IPV6) == 0 {
		return h
	}
	pair := func(a, b uint32, i int) uint64 { return (uint64(a) + p.secret[i]) * (uint64(b) + p.secret[i+1]) }
	return h + pair(w.Saddr[0], w.Saddr[1], 2) + pair(w.Saddr[2], w.Daddr[0], 4) + pair(w.Daddr[1], w.Daddr[2], 6)
}

// find calls yield with the slots that have a key, as flow_find() does.
func (p *placing) find(t *table, k *tcFlowKey, w *tcFlowWords, yield func(*tcSlot)) {
	h := p.hash(k, w)
	for _, choice := range [2]uint64{h, (h ^ h>>29) * p.mix} {
		bucket := int(uint32(choice>>32) >> p.shift)
		for way := range int(tcAbiWAYS) {
			s := t.slot(bucket*int(tcAbiWAYS) + way)
			if s.Key == *k && (k.Kind&uint32(tcKindKIND_IPV6) == 0 || s.In6 == *w) {
				yield(s)
			}
		}
	}
}

// keyed tells whether the key of a tuple's flow follows from the tuple. What tells flows of
// GRE and ESP apart is more than conntrack knows.
func keyed(proto uint8) bool { return proto != unix.IPPROTO_GRE && proto != unix.IPPROTO_ESP }

// ended calls yield with the slots of a tuple's flow, on any of the ports.
func (p *placing) ended(t *table, c *Scope, ports []int, yield func(*tcSlot)) {
	var k tcFlowKey
	var w tcFlowWords
	v := wireOf(c.Tuple, c.Proto)
	k.Saddr = wireWords(v.source.Addr(), &w.Saddr)
	k.Daddr = wireWords(v.destination.Addr(), &w.Daddr)
	k.Sport, k.Dport = hostOrder(v.source.Port()), hostOrder(v.destination.Port())
	kind := uint32(c.Proto)
	if v.source.Addr().Is6() {
		kind |= uint32(tcKindKIND_IPV6)
	}
	for _, port := range ports {
		k.Kind = uint32(port)<<uint32(tcKindKIND_PORT) | kind
		switch c.Proto {
		case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
			for _, k.Dport = range echoTypes[c.Proto] {
				p.find(t, &k, &w, yield)
			}
		default:
			p.find(t, &k, &w, yield)
		}
	}
}

// echoTypes are request and reply, as they stand in front of a code of 0 on the wire.
var echoTypes = map[uint8][2]uint16{unix.IPPROTO_ICMP: {8, 0}, unix.IPPROTO_ICMPV6: {128, 129}}

// wireWords returns the last word of an address, and puts the three before it into head if
// it is one of IPv6.
func wireWords(a netip.Addr, head *[3]uint32) (last uint32) {
	b := a.AsSlice()
	words := unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
	if len(words) == 0 {
		return 0
	}
	copy(head[:], words[:len(words)-1])
	return words[len(words)-1]
}
