// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net"
	"testing"
	"unsafe"

	"shunt/internal/dataplane/exercise"
)

// mangle is something that the kernel is told to do to packets, without conntrack, and
// what TC egress says of it.
type mangle struct {
	name   string
	rule   string // in postrouting
	in     exercise.Packet
	out    []byte
	reason string
}

// unlearnable are changes that shunt does not repeat.
func (b *bench) unlearnable() []mangle {
	u4, r4 := b.udp4()
	u6, r6 := b.udp6()
	change := func(p exercise.Packet, f func(*exercise.Packet)) []byte { return with(p, f) }
	raw := func(p exercise.Packet, proto uint8, payload string) exercise.Packet {
		p.Proto, p.Payload = proto, []byte(payload)
		return p
	}
	moved := func(p *exercise.Packet) { p.Src = addr("198.19.0.9:1000") }
	odd, ping, sctp := raw(u4, 200, "anything"), u4, raw(u4, 132, "\x10\x00\x20\x00tag!crc!chunks")
	ping.Proto, ping.Type = 1, 8
	ping.Payload = []byte("even")
	lite, dccp := raw(u4, 136, "\x10\x00\x20\x00\x00\x00\x00\x00payload"), raw(u4, 33, "\x10\x00\x20\x00\x03\x00\x00\x00payload")
	r := b.routed
	return []mangle{
		{"TTL set", "ip ttl set 33", u4, change(r4, func(p *exercise.Packet) { p.TTL = 33 }), "ttl_step"},
		{"TTL set to 1", "ip ttl set 1", u4, change(r4, func(p *exercise.Packet) { p.TTL = 1 }), "ttl_step"},
		{"TTL not lowered", "ip ttl set 64", u4, change(r4, func(p *exercise.Packet) { p.TTL = 64 }), "ttl_step"},
		{"hop limit set", "ip6 hoplimit set 33", u6, change(r6, func(p *exercise.Packet) { p.TTL = 33 }), "ttl_step"},
		{"ECN", "ip ecn set ce", u4, change(r4, func(p *exercise.Packet) { p.TOS = 3 }), "header_changed"},
		{"ECN of IPv6", "ip6 ecn set ce", u6, change(r6, func(p *exercise.Packet) { p.TOS = 3 }), "header_changed"},
		{"flow label", "ip6 flowlabel set 7", u6, change(r6, func(p *exercise.Packet) { p.Label = 7 }), "header_changed"},
		{"don't fragment", "ip frag-off set 0x4000", u4, change(r4, func(p *exercise.Packet) { p.Flags = 0x4000 }), "header_changed"},
		{"IP id", "ip id set 7", u4, change(r4, func(p *exercise.Packet) { p.ID = 7 }), "other_packet"},
		{"protocol", "ip protocol set 201", odd, sealed(put8(r(odd).Bytes(), 23, 201)), "encapsulated"},
		{"UDP checksum", "udp checksum set 0x1234", u4, put16(r4.Bytes(), 40, 0x1234), "payload_changed"},
		{"UDP checksum taken away", "udp checksum set 0", u4, put16(r4.Bytes(), 40, 0), "payload_changed"},
		{"SCTP port", "@th,0,16 set 9", sctp, put16(r(sctp).Bytes(), 34, 9), "l4_rewritten"},
		{"ping to pong", "@th,0,8 set 0", ping, put8(r(ping).Bytes(), 34, 0), "l4_rewritten"},
		{"UDP-Lite address", "ip saddr set 198.19.0.9", lite, nil, "l4_rewritten"},
		{"DCCP address", "ip saddr set 198.19.0.9", dccp, change(r(dccp), moved), "l4_rewritten"},
	}
}

// TestUnlearnable: the kernel goes on doing it, every time, and says why.
func TestUnlearnable(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range b.unlearnable() {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			b.rules(t, postrouting+c.rule+"; }")
			if c.out == nil { // whether the kernel mends a checksum is not the question
				b.counts(t, teaches+c.reason, func() { check(t, b.client.Send(c.in.Bytes())) })
				return
			}
			b.forth(t, teaches+c.reason, c.in.Bytes(), c.out)
			b.forth(t, teaches+c.reason, c.in.Bytes(), c.out)
			if s := b.slotOf(t, c.in); s.State != exercise.Seen || s.Count != 2 {
				t.Errorf("state %d, %d packets", s.State, s.Count)
			} else {
				because(t, s, c.reason)
			}
		})
	}
}

// TestStateless: rewrites without conntrack are learned from the packets alone, in the
// original direction and for every kind of packet that NAT can be repeated for.
func TestStateless(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, r := range b.natted() {
		ported := r.in.Proto == 6 || r.in.Proto == 17
		t.Run(r.name, func(t *testing.T) {
			family := "ip6"
			if r.in.Src.Addr().Is4() {
				family = "ip"
			}
			rule := ""
			if r.in.Src.Addr() != r.out.Src.Addr() {
				rule += family + " saddr set " + r.out.Src.Addr().String() + "; "
			}
			if r.in.Dst.Addr() != r.out.Dst.Addr() {
				rule += family + " daddr set " + r.out.Dst.Addr().String() + "; "
			}
			if r.in.NoSum || !ported { // nft mends no checksum for ports of its own accord
				r.out.Src, r.out.Dst = exchange(r.out.Src, r.in.Src), exchange(r.out.Dst, r.in.Dst)
			} else {
				rule += map[uint8]string{6: "tcp", 17: "udp"}[r.in.Proto] + " sport set " + num(r.out.Src.Port()) + "; "
				rule += map[uint8]string{6: "tcp", 17: "udp"}[r.in.Proto] + " dport set " + num(r.out.Dst.Port()) + "; "
			}
			check(t, b.Clear())
			b.rules(t, postrouting+rule+"}")
			// the neighbour is looked for by the address that the packet has then
			check(t, b.LAN.NS.IP("neighbour replace "+r.out.Dst.Addr().String()+" lladdr "+b.Server.MAC.String()+" dev wan nud permanent"))
			b.forth(t, teaches+"learned", r.in.Bytes(), r.out.Bytes())
			b.learnedLike(t, r.in, r.out, 0)
			for _, shape := range shapes(r.in, r.out) {
				b.forth(t, "xdp hit", shape.in.Bytes(), shape.out.Bytes())
			}
		})
	}
}

// TestMarks: DSCP on the wire; mark and priority on the skb, for the qdiscs of the TC way.
func TestMarks(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
		in, out := p()
		in.TOS, out.TOS = 0x21, 0xb9
		check(t, b.Clear())
		b.rules(t, postrouting+"meta mark set 0x2a; meta priority set 0x10002; ip dscp set ef; ip6 dscp set ef; }")
		b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
		b.forth(t, "xdp hit", in.Bytes(), out.Bytes())
		if s := b.slotOf(t, in); s.Mark != 0x2a || s.Priority != 0x10002 || s.DscpIn != 0x20 || s.DscpOut != 0xb8 {
			t.Errorf("learned %+v", s)
		}
	}
}

// TestMeanwhile: what other CPUs do between the two ends of a packet.
func TestMeanwhile(t *testing.T) {
	b := open(t, exercise.Options{})
	b.lives(t)
	in, out := b.udp4()
	key, words := exercise.KeyOf(in, b.LANIndex)
	at := func(field uintptr) int64 {
		return b.Offset(exercise.Place{Bucket: b.Hash().Places(key, words)[0]}) + int64(field)
	}
	var slot exercise.Slot
	var control exercise.Control
	for _, c := range []struct {
		name, inMap string
		at          int64
		size        int
		value       uint32
		reason      string
	}{
		{"closed", exercise.Flows, at(unsafe.Offsetof(slot.State)), 1, exercise.Closed, "slot_lost"},
		{"emptied", exercise.Flows, at(unsafe.Offsetof(slot.State)), 1, 0, "slot_lost"},
		{"given to another", exercise.Flows, at(unsafe.Offsetof(slot.Key)), 4, 0x01020304, "slot_lost"},
		{"being written", exercise.Flows, at(unsafe.Offsetof(slot.Seq)), 4, 7, "busy"},
		{"a pause began", ".data.control", int64(unsafe.Offsetof(control.Paused)), 4, 1, "old_generation"},
		{"a change was announced", ".data.control", int64(unsafe.Offsetof(control.Gen)), 4, b.Generation() + 1, "old_generation"},
		{"a change of some flows was announced", ".data.control", int64(unsafe.Offsetof(control.Clock)), 4, b.Control().Clock + 1, "old_generation"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			undo, err := b.SetBefore(b.WANIndex, c.inMap, c.at, c.size, c.value)
			check(t, err)
			defer undo()
			defer b.Edit(func(c *exercise.Control) { c.Paused = 0 })
			b.forth(t, teaches+c.reason, in.Bytes(), out.Bytes())
			if s, _, found := b.Find(key, words); found && s.State == exercise.Armed {
				t.Errorf("armed all the same: %+v", s)
			}
		})
	}
	t.Run("tagged", func(t *testing.T) {
		check(t, b.Clear())
		undo, err := b.TagBefore(b.WANIndex, 5)
		check(t, err)
		defer undo()
		b.forth(t, teaches+"encapsulated", in.Bytes(), out.Bytes()) // the tag is beside the frame
	})
}

// TestElsewhere: packets that leave by other ways than the kernel's forwarding.
func TestElsewhere(t *testing.T) {
	b := open(t, exercise.Options{})
	b.lives(t)
	in, out := b.udp4()
	t.Run("redirected by nft", func(t *testing.T) {
		check(t, b.LAN.NS.NFT(`table netdev away { chain in { type filter hook ingress device "lan" priority 0; fwd to "wan"; }; }`))
		b.forth(t, teaches+"redirected", in.Bytes(), in.Bytes())
		check(t, b.LAN.NS.NFT("delete table netdev away"))
	})
	t.Run("dropped", func(t *testing.T) {
		b.rules(t, forward+"drop; }")
		b.forth(t, "xdp learning, tc-ingress learning", in.Bytes(), nil)
		b.rules(t, "")
	})
	t.Run("to a port that is not fast", func(t *testing.T) {
		check(t, b.Clear())
		var port struct{ Flags, Tx uint32 }
		check(t, b.Map("ports").Lookup(uint32(b.WANIndex), &port))
		check(t, b.Map("ports").Delete(uint32(b.WANIndex)))
		b.forth(t, teaches+"port_unknown", in.Bytes(), out.Bytes())
		check(t, b.Map("ports").Put(uint32(b.WANIndex), port))
	})
	t.Run("hairpin", func(t *testing.T) {
		check(t, b.Clear())
		turned := in
		turned.Dst = addr("198.18.0.100:2000")
		after := turned
		after.To, after.From, after.TTL = net.HardwareAddr{2, 0, 0, 0, 18, 100}, b.LAN.MAC, 63
		check(t, b.LAN.NS.IP("neighbour replace 198.18.0.100 lladdr 02:00:00:00:12:64 dev lan nud permanent"))
		b.carries(t, teaches+"learned", b.client, b.client, turned.Bytes(), after.Bytes())
		b.carries(t, "xdp hit", b.client, b.client, turned.Bytes(), after.Bytes())
	})
}
