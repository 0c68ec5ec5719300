// SPDX-License-Identifier: Apache-2.0

package path

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/kernel"
)

// tracked is a rule that asks for conntrack and changes nothing.
const tracked = "chain track { type filter hook prerouting priority 0; ct state new accept; }\n"

// track replaces the router's rules, with conntrack in use and empty.
func (b *bench) track(t *testing.T, rules string) {
	t.Helper()
	check(t, b.Clear())
	b.rules(t, tracked+rules)
	_, err := b.LAN.NS.Run("conntrack", "-F")
	check(t, err)
}

// answer turns a packet around, as it comes to the router or leaves it.
func answer(p exercise.Packet) exercise.Packet {
	p.To, p.From = p.From, p.To
	p.Src, p.Dst = p.Dst, p.Src
	switch p.Type {
	case 8:
		p.Type = 0
	case 128:
		p.Type = 129
	}
	if p.Proto == 1 || p.Proto == 58 { // the id stands in Src
		p.Src, p.Dst = exchange(p.Src, p.Dst), exchange(p.Dst, p.Src)
	}
	p.TCP.Seq, p.TCP.Ack = p.TCP.Ack, p.TCP.Seq
	return p
}

// TestNAT: conntrack's NAT of all kinds, both families and both directions: once through
// the kernel, then repeated.
func TestNAT(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, r := range b.natted() {
		pong := r.in.Proto == 1 && r.in.Type == 0 || r.in.Type == 129
		if pong || !slices.Contains([]uint8{1, 6, 17, 58}, r.in.Proto) {
			continue // conntrack takes no pong for a beginning; others: TestStateless
		}
		t.Run(r.name, func(t *testing.T) {
			in, out := r.in, r.out
			family := "ip6"
			if in.Src.Addr().Is4() {
				family = "ip"
			}
			src, dst := out.Src.String(), out.Dst.String()
			if in.Proto == 1 || in.Proto == 58 {
				src, dst = out.Src.Addr().String(), out.Dst.Addr().String()
				out.Src, out.Dst = exchange(out.Src, in.Src), exchange(out.Dst, in.Dst)
			}
			match := "meta l4proto " + num(uint16(in.Proto))
			rules := ""
			if in.Src != out.Src {
				rules += "chain source { type nat hook postrouting priority 100; oifname wan " + match + " snat " + family + " to " + src + "; }\n"
			}
			if in.Dst != out.Dst {
				rules += "chain dest { type nat hook prerouting priority -100; iifname lan " + match + " dnat " + family + " to " + dst + "; }\n"
			}
			b.track(t, rules)
			check(t, b.LAN.NS.IP("neighbour replace "+out.Dst.Addr().String()+" lladdr "+b.Server.MAC.String()+" dev wan nud permanent",
				"route replace "+out.Dst.Addr().String()+" dev wan"))
			b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
			b.learnedLike(t, in, out, exercise.FlagCT) // TCP was picked up in the middle: not for shunt to judge
			b.forth(t, "xdp hit", in.Bytes(), out.Bytes())
			b.back(t, teaches+"learned", answer(out).Bytes(), with(answer(in), func(p *exercise.Packet) { p.TTL = answer(out).TTL - 1 }))
			for _, shape := range shapes(in, out) {
				b.forth(t, "xdp hit", shape.in.Bytes(), shape.out.Bytes())
				back := answer(shape.in)
				back.TTL, back.Trailer = shape.out.TTL-1, nil
				if shape.out.TTL > 1 {
					b.back(t, "xdp hit", answer(shape.out).Bytes(), back.Bytes())
				}
			}
		})
	}
}

// TestTracked: what conntrack says against learning.
func TestTracked(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	t.Run("no objection", func(t *testing.T) {
		b.track(t, "")
		b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
		b.learnedLike(t, in, out, exercise.FlagCT)
	})
	t.Run("INVALID, unnatted past masquerade", func(t *testing.T) {
		b.track(t, "chain leave { type nat hook postrouting priority 100; masquerade; }")
		bad, badOut := in.Bytes(), out.Bytes()
		for range 3 {
			b.forth(t, teaches+"no_conntrack", put16(bad, 40, 0xdead), put16(badOut, 40, 0xdead))
		}
		b.answers(t, queryOf(in), "no_conntrack")
	})
	t.Run("not tracked by rule", func(t *testing.T) {
		b.track(t, "chain early { type filter hook prerouting priority -300; notrack; }")
		b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
		b.learnedLike(t, in, out, 0)
		b.forth(t, "xdp hit", in.Bytes(), out.Bytes())
	})
	t.Run("rewritten behind its back", func(t *testing.T) {
		b.track(t, postrouting+"ip saddr set 198.19.0.9; }")
		b.forth(t, teaches+"ct_tuple_differs", in.Bytes(), with(out, func(p *exercise.Packet) { p.Src = addr("198.19.0.9:1000") }))
		b.answers(t, queryOf(in), "ct_tuple_differs")
	})
	t.Run("rewritten before it looks", func(t *testing.T) {
		b.track(t, "chain early { type filter hook prerouting priority -300; ip saddr set 198.18.0.9; }")
		b.forth(t, teaches+"ct_tuple_differs", in.Bytes(), with(out, func(p *exercise.Packet) { p.Src = addr("198.18.0.9:1000") }))
	})
	t.Run("helper, then what it expected", func(t *testing.T) {
		b.track(t, `ct helper tftp { type "tftp" protocol udp; }
			chain help { type filter hook prerouting priority 0; udp dport 69 ct helper set "tftp"; }`)
		ask, asked := in, out
		ask.Dst, asked.Dst = addr("198.19.0.2:69"), addr("198.19.0.2:69")
		ask.Payload, asked.Payload = []byte("\x00\x01file\x00octet\x00"), []byte("\x00\x01file\x00octet\x00")
		b.forth(t, teaches+"ct_helper", ask.Bytes(), asked.Bytes())
		b.answers(t, queryOf(ask), "ct_helper")
		data := answer(out)
		data.Src = addr("198.19.0.2:4444")
		arrived := answer(in)
		arrived.Src, arrived.TTL = data.Src, data.TTL-1
		b.back(t, teaches+"ct_related", data.Bytes(), arrived.Bytes())
		b.answers(t, queryOf(data), "ct_related")
	})
	t.Run("SCTP, whose chunks it follows", func(t *testing.T) {
		b.track(t, "")
		init, sent := in, out
		init.Proto, sent.Proto = 132, 132
		init.Payload = sctpInit()
		sent.Payload = init.Payload
		b.forth(t, teaches+"ct_not_established", init.Bytes(), sent.Bytes())
		b.forth(t, teaches+"ct_not_established", init.Bytes(), sent.Bytes())
		b.answers(t, queryOf(init), "ct_not_established")
	})
	t.Run("about to expire", func(t *testing.T) {
		check(t, b.LAN.NS.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "0"))
		b.track(t, "")
		b.forth(t, teaches+"ct_expiring", in.Bytes(), out.Bytes())
		b.answers(t, queryOf(in), "ct_expiring")
	})
	t.Run("lease of half the timeout", func(t *testing.T) {
		check(t, b.LAN.NS.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "4"))
		b.track(t, "")
		b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
		if s := b.slotOf(t, in); s.Lease-s.Born > 2*b.HZ || s.Lease-s.Born < 2*b.HZ-b.HZ/10 {
			t.Errorf("lease of %d jiffies for a timeout of 4 s (%d to the second)", s.Lease-s.Born, b.HZ)
		}
		check(t, b.LAN.NS.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "30"))
	})
}

// sctpInit is an INIT chunk in its packet (RFC 9260 3.1, 3.3.2) from port 1000 to 2000.
func sctpInit() []byte {
	p := []byte{
		1000 >> 8, 1000 & 255, 2000 >> 8, 2000 & 255, 0, 0, 0, 0, 0, 0, 0, 0, // no tag yet
		1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1,
	}
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// TestHandshake: a connection that conntrack follows from its SYN is learned only once
// it is established and be-liberal is set, and the daemon is asked for that.
func TestHandshake(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range []struct {
		name        string
		there, back uint8 // window scales
	}{{"scaled windows", 5, 7}, {"no options", 0, 0}} {
		t.Run(c.name, func(t *testing.T) { b.handshake(t, c.there, c.back) })
	}
}

func (b *bench) handshake(t *testing.T, scaleThere, scaleBack uint8) {
	b.track(t, "")
	asked := make(chan dataplane.Request, 10)
	read, stop, err := b.Events()
	check(t, err)
	go read(dataplane.Listener{Request: func(c dataplane.Request) { asked <- c }})
	defer stop()

	in, out := b.tcp4()
	in.Payload, out.Payload = nil, nil
	step := func(seq, ack uint32, tcp exercise.TCP) (there, forwarded, back, returned []byte) {
		tcp.Seq, tcp.Ack, tcp.Window = seq, ack, 1000
		i, o := in, out
		i.TCP, o.TCP = tcp, tcp
		r, s := answer(out), answer(in)
		r.TCP, s.TCP = tcp, tcp
		s.TTL = r.TTL - 1
		return i.Bytes(), o.Bytes(), r.Bytes(), s.Bytes()
	}
	i, o, _, _ := step(999, 0, exercise.TCP{SYN: true, Scale: scaleThere})
	b.forth(t, "xdp tcp_syn"+passes, i, o)
	_, _, i, o = step(1999, 1000, exercise.TCP{SYN: true, ACK: true, Scale: scaleBack})
	b.back(t, "xdp tcp_syn"+passes, i, o)
	_, _, i, o = step(2000, 1000, exercise.TCP{ACK: true})
	b.back(t, teaches+"ct_not_established", i, o)
	i, o, _, _ = step(1000, 2000, exercise.TCP{ACK: true})
	b.forth(t, teaches+"ct_not_liberal", i, o)
	b.forth(t, teaches+"ct_not_liberal", i, o)
	b.answers(t, queryOf(in), "ct_not_liberal")

	want := dataplane.Request{Tuple: dataplane.Tuple{Source: in.Src, Destination: in.Dst}}
	select {
	case got := <-asked:
		if got != want {
			t.Errorf("asked for %+v, want %+v", got, want)
		}
	case <-time.After(patience):
		t.Fatal("nobody asked for be-liberal")
	}
	check(t, b.LAN.NS.Do(func() error {
		c, err := kernel.OpenConntrack()
		if err != nil {
			return err
		}
		defer c.Close()
		return c.SetLiberal(kernel.Tuple{Source: in.Src, Destination: in.Dst, Proto: 6})
	}))
	b.forth(t, teaches+"learned", i, o)
	b.learnedLike(t, in, out, exercise.FlagCT|exercise.FlagLiberal)
	s := b.slotOf(t, in)
	r, _, found := b.Find(exercise.KeyOf(answer(out), b.WANIndex))
	if s.TcpScale != scaleThere || !found || r.TcpScale != scaleBack || r.Gen != s.Gen || r.Flags != exercise.FlagPaired|exercise.FlagLiberal {
		t.Errorf("scale %d; other direction %v, %+v", s.TcpScale, found, r)
	}
	b.forth(t, "xdp hit", i, o)
	if len(asked) > 0 {
		t.Errorf("asked again at once: %+v", <-asked)
	}

	// learned again, as after `shunt stop`: be-liberal is older, and conntrack's numbers stand still
	check(t, b.Clear())
	r.State, r.Flags, r.Count, r.TcpWnd, r.Watch = exercise.Seen, 0, 3, 9, b.watch()+1 // from before a pause
	_, err = b.Put(r)
	check(t, err)
	i, o, _, _ = step(201000, 202000, exercise.TCP{ACK: true})
	b.forth(t, teaches+"learned", i, o)
	if s := b.slotOf(t, in); s.TcpSeq != 201000 || s.TcpAck != 202000 || s.Watch != b.watch() {
		t.Errorf("learned again at %d, %d, watch %d", s.TcpSeq, s.TcpAck, s.Watch)
	}
	r, _, _ = b.Find(exercise.KeyOf(answer(out), b.WANIndex))
	if r.TcpSeq != 202000 || r.TcpAck != 201000 || r.Watch != b.watch() || r.TcpWnd != 0 || r.Count != 0 {
		t.Errorf("its other direction, not heard since: %+v", r)
	}

	i, o, _, _ = step(201000, 202000, exercise.TCP{ACK: true, FIN: true})
	b.forth(t, "xdp tcp_close"+passes, i, o)
	i, o, _, _ = step(201001, 202000, exercise.TCP{ACK: true})
	b.forth(t, "xdp closed"+passes, i, o)
}

// TestDying: connections that are deleted while packets of theirs are between the two
// ends. The window is a microsecond, so there are many packets and many deletions; the
// leases are over at once, so that all packets take the kernel's way.
func TestDying(t *testing.T) {
	b := open(t, exercise.Options{TCOnly: true})
	b.track(t, "")
	b.Edit(func(c *exercise.Control) { c.Lease, c.LeaseLive = 0, 0 })
	in, _ := b.udp4()
	g, err := traffic.NewGenerator(traffic.Config{NS: b.Client.NS, Device: b.Client.Device, CPU: 0, Frames: traffic.Frames{
		SourceMAC: in.From, DestMAC: in.To, Source: in.Src, Dest: in.Dst, Protocol: traffic.UDP, Size: 64, Flows: 4,
	}})
	check(t, err)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := g.Run(ctx, 1<<40); done <- err }()
	defer func() { cancel(); <-done }()
	b.eventually(t, "tc-egress ct_unconfirmed", 15*time.Second, func() {
		_, err := b.LAN.NS.Run("conntrack", "-F")
		check(t, err)
	})
	// the flow's next packet, a microsecond later, is confirmed: what is left is the count
	b.counted(t, "ct_unconfirmed", "tc-egress", "wan", b.WANIndex)
}

// eventually does something over and over until a counter has moved, whatever the others do.
func (b *bench) eventually(t *testing.T, pair string, patience time.Duration, f func()) {
	t.Helper()
	before, err := b.Count()
	check(t, err)
	for deadline := time.Now().Add(patience); ; {
		f()
		now, err := b.Count()
		check(t, err)
		if n := now.Minus(before)[pair]; n > 0 {
			reached[pair] += n
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in %v; counted %v", pair, patience, now.Minus(before))
		}
	}
}
