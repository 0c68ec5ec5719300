// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"bytes"
	"net/netip"
)

// The words for what becomes of a packet.
const (
	Switched    = "mpls_switched"
	Delivered   = "mpls_delivered"
	NoLabel     = "mpls_no_label"     // no entry for the label: RFC 3031 §3.18
	Malformed   = "mpls_malformed"    // the stack ends too early, or not where the list wants it
	Expired     = "mpls_ttl"          // the outgoing TTL would be 0: RFC 3032 §2.4.2
	TTLZero     = "mpls_ttl_zero"     // it came in with 0
	Special     = "mpls_special"      // a special-purpose label that must not be there
	Alert       = "mpls_alert"        // router alert: to local software, RFC 3032 §2.1
	OAM         = "mpls_oam"          // GAL: to local software, RFC 5586 §4
	Payload     = "mpls_payload"      // the payload is not IP, or not the one that the label says
	OverMTU     = "mpls_over_mtu"     //
	TooDeep     = "mpls_depth"        // it would enter more than MaxDepth NHLFEs
	Discarded   = "mpls_discard"      // the list says drop, or a choice has no target for it
	NoAdjacency = "mpls_no_adjacency" // port or next hop is not there
)

// Verdict is what becomes of a packet.
type Verdict struct {
	Reason    string
	Packet    []byte // what is Switched or Delivered, or OverMTU, behind its Ethernet header
	EtherType uint16 // of that
	Send      *Send  // where it is Switched to, or would be
	NHLFE     uint32 // by which one: whose list ends in that send
	MTU       int    // that Packet is over
	Labels    []ILM  // the entries that it was looked up in, in order; TC is its own
}

// Env is what a verdict depends on besides the Table and the packet. The zero value hashes by
// FNV-1a, and has all adjacencies without a limit to their size.
type Env struct {
	// Hash is that of a packet as it came in: see Bucket and EntropyLabel for its use.
	Hash func(packet []byte, labelled bool) uint32
	// Adjacency tells whether port and next hop are there, and the port's MTU in bytes.
	Adjacency func(*Send) (mtu int, ok bool)
	// Alerted says that local software has seen the packet: a router alert label is popped, and
	// pushed back on top of what goes out with labels (RFC 3032 §2.1).
	Alerted bool
}

// Switch carries out the Table on a labelled packet that came in by a port of a space: the bytes
// behind its Ethernet header. It goes by the lists themselves, one instruction after
// the other. It is the judge of data paths, not one itself.
func (t *Table) Switch(space Space, packet []byte, env Env) Verdict {
	w := &walk{t: t, env: env, packet: packet, labelled: true, wire: bytes.Clone(packet), space: space, ceiling: none}
	return w.verdict(w.lookUp())
}

// Impose carries out the Table on an IP packet that leaves the kernel, after its TTL step. It
// goes on as it is, false, if no FTN matches.
func (t *Table) Impose(packet []byte, env Env) (Verdict, bool) {
	id := t.longest(packet)
	if id == 0 {
		return Verdict{}, false
	}
	w := &walk{t: t, env: env, packet: packet, wire: bytes.Clone(packet), bare: true, stepped: true, ceiling: none}
	w.class = dscp(packet) >> 3
	w.entered = 1
	return w.verdict(w.nhlfe(id)), true
}

// longest is the NHLFE of the longest prefix that an IP packet's destination has, 0 if none.
func (t *Table) longest(packet []byte) uint32 {
	var to netip.Addr
	switch version(packet) {
	case 4:
		to, _ = netip.AddrFromSlice(packet[16:20])
	case 6:
		to, _ = netip.AddrFromSlice(packet[24:40])
	}
	for bits := to.BitLen(); bits >= 0 && to.IsValid(); bits-- {
		prefix, _ := to.Prefix(bits)
		if id, ok := t.ftn.get(prefix); ok {
			return id
		}
	}
	return 0
}

// walk is a packet on its way through the Table.
type walk struct {
	t        *Table
	env      Env
	packet   []byte // as it came in
	labelled bool   // and whether it had a label then
	stepped  bool   // the kernel has taken its TTL step

	wire    []byte // what is left of it; uniform pops and writes change it
	bare    bool   // all labels are popped: wire is the payload
	pushed  []Push // on top of wire, innermost first
	swapped bool   // the first of them stands in for the label on top of wire

	space   Space
	entered int     // NHLFEs, and explicit nulls without one
	id      uint32  // the NHLFE it is in
	mtu     int     // the least that the NHLFEs since the last look-up gave; at last that of the way out
	labels  []ILM   // entries that were found
	alerts  []uint8 // TCs of router alert labels that were popped

	pending *Model // a pop is to be done in this model, unless a push makes it a swap
	last    *popped
	popTC   uint8 // TC of the label popped last
	class   uint8 // what by-tc goes by
	exposed bool  // by-tc goes by what is exposed instead: a short pipe pop was last
	ceiling int   // uniform pops: TTL for the IP header that they exposed; else none
}

const none = -1

// popped is a pop since the last look-up or choice.
type popped struct {
	model Model
	ttl   uint8
}

// verdict makes one of a reason.
func (w *walk) verdict(reason string) Verdict {
	v := Verdict{Reason: reason, Labels: w.labels}
	switch reason {
	case Switched, OverMTU:
		v.Packet, v.EtherType = w.wire, EtherMPLS
		list := w.t.nhlfes[w.id].List
		switch {
		case w.bare:
			v.EtherType = etherType(w.wire)
		case list[len(list)-1].Upstream:
			v.EtherType = EtherUpstream
		}
		v.Send, v.NHLFE = w.way(), w.id
		if reason == OverMTU {
			v.MTU = w.mtu
		}
	case Delivered:
		v.Packet, v.EtherType = w.wire, etherType(w.wire)
	}
	return v
}

// enter counts one more NHLFE.
func (w *walk) enter() bool {
	w.entered++
	return w.entered <= MaxDepth
}

// lookUp looks up the label on top, and what that leads to, to the packet's end.
func (w *walk) lookUp() string {
	switch {
	case !w.enter():
		return TooDeep
	case len(w.wire) < lseLen:
		return Malformed
	}
	top := lse(w.wire)
	w.class, w.exposed, w.last, w.mtu = top.tc(), false, nil, 0
	for _, tc := range []int8{int8(top.tc()), -1} {
		if id, ok := w.t.ilm.get(ILMKey{w.space, tc, top.label()}); ok {
			w.labels = append(w.labels, ILM{w.space, top.label(), int(top.tc()), id})
			return w.nhlfe(id)
		}
	}
	switch label := top.label(); {
	case label == ExplicitNull4 || label == ExplicitNull6:
		return w.explicitNull(label)
	case label == RouterAlert && top.bottom():
		return Malformed
	case label == RouterAlert && w.env.Alerted:
		return w.routerAlert()
	case label == RouterAlert:
		return Alert
	case label == GAL:
		return OAM
	case label < firstFree:
		return Special
	}
	return NoLabel
}

// explicitNull pops a label that has no entry: at the bottom it says what the payload is,
// elsewhere nothing (RFC 4182).
func (w *walk) explicitNull(label Label) string {
	if reason := w.pop(Uniform); reason != "" {
		return reason
	}
	switch {
	case !w.bare:
		return w.lookUp()
	case label == ExplicitNull4 && version(w.wire) != 4, label == ExplicitNull6 && version(w.wire) != 6:
		return Payload
	}
	return w.deliver()
}

// routerAlert pops the label, and goes on by the one beneath, which gets its TTL and TC as it
// does from an explicit null.
func (w *walk) routerAlert() string {
	w.alerts = append(w.alerts, lse(w.wire).tc())
	if reason := w.pop(Uniform); reason != "" {
		return reason
	}
	return w.lookUp()
}

// nhlfe enters an NHLFE and goes on to the packet's end.
func (w *walk) nhlfe(id uint32) string {
	if w.t.shut(id) {
		return Discarded
	}
	for {
		w.id = id
		n := &w.t.nhlfes[id].NHLFE
		if n.MTU > 0 && (w.mtu == 0 || n.MTU < w.mtu) {
			w.mtu = n.MTU
		}
		for i := range n.List[:len(n.List)-1] {
			if reason := w.instruction(n, i); reason != "" {
				return reason
			}
		}
		end := &n.List[len(n.List)-1]
		if end.Op != OpForward {
			return w.end(end)
		}
		id = end.ID
	}
}

// shut tells whether an NHLFE ends in drop, at whatever forward: then it does nothing else.
func (t *Table) shut(id uint32) bool {
	for {
		list := t.nhlfes[id].List
		end := &list[len(list)-1]
		if end.Op != OpForward {
			return end.Op == OpDrop
		}
		id = end.ID
	}
}
