// SPDX-License-Identifier: Apache-2.0

package path

import (
	"slices"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// connection puts both directions of an armed TCP connection into the table, through
// masquerade, as conntrack with be-liberal on would have it. The answers' sequence
// numbers are around 2000 and acknowledge 1000. Conntrack knows nothing of it, so it is said to be in
// another zone, where nobody looks; tracked is one that conntrack knows.
func (b *bench) connection(t *testing.T, v6 bool) (in, out exercise.Packet, there, back exercise.Place) {
	t.Helper()
	check(t, b.Clear())
	in, out = b.tcp4()
	out.Src = addr("198.19.0.1:50000")
	if v6 {
		in, out = b.tcp6()
		out.Src = addr("[2001:2:0:19::1]:50000")
	}
	s := b.Learned(in, out, b.lease(t))
	s.Flags |= exercise.FlagLiberal | exercise.FlagCT
	s.TcpSeq, s.TcpAck, s.TcpWnd, s.Watch, s.Zone = 1000, 2000, 500, b.watch(), 7

	answer, answered := out, in
	answer.Src, answer.Dst = out.Dst, out.Src
	answered.Src, answered.Dst = in.Dst, in.Src
	r := b.Learned(answer, answered, s.Lease)
	r.Key.Kind, r.Oif = r.Key.Kind%512+uint32(b.WANIndex)*512, uint32(b.LANIndex)
	r.Flags |= exercise.FlagLiberal | exercise.FlagCT
	r.TcpSeq, r.TcpAck, r.TcpWnd, r.TcpScale, r.Watch, r.Zone = 2000, 1000, 600, 2, b.watch(), 7
	var err error
	there, err = b.Put(s)
	check(t, err)
	back, err = b.Put(r)
	check(t, err)
	return in, out, there, back
}

// TestClose: a plausible FIN or RST closes both directions at either stage; a blind one is
// dropped and changes nothing.
func TestClose(t *testing.T) {
	b := open(t, exercise.Options{})
	fin, rst := exercise.TCP{Seq: 1000, ACK: true, FIN: true}, exercise.TCP{Seq: 1000, RST: true}
	seq := func(c exercise.TCP, n int) exercise.TCP { c.Seq = uint32(n); return c }
	for _, c := range []struct {
		name   string
		v6     bool
		tcp    exercise.TCP
		reason string
		state  uint8 // of both directions afterwards
		change func(there, back *exercise.Slot)
	}{
		{"FIN", false, fin, "tcp_close", exercise.Closed, nil},
		{"FIN", true, fin, "tcp_close", exercise.Closed, nil},
		{"RST", false, rst, "tcp_close", exercise.Closed, nil},
		{"RST", true, rst, "tcp_close", exercise.Closed, nil},
		{"RST at the window's end", false, seq(rst, 1000+66000), "tcp_close", exercise.Closed, nil},
		{"RST at its beginning", false, seq(rst, 1000-66000), "tcp_close", exercise.Closed, nil},
		{"RST past the window", false, seq(rst, 1000+66001), "tcp_implausible", exercise.Armed, nil},
		{"RST before it", false, seq(rst, 1000-66001), "tcp_implausible", exercise.Armed, nil},
		{"blind RST", true, seq(rst, 1<<31), "tcp_implausible", exercise.Armed, nil},
		{"blind FIN", false, seq(fin, 1<<31), "tcp_implausible", exercise.Armed, nil},
		{"RST in a scaled window", false, seq(rst, 1000+500000), "tcp_close", exercise.Closed,
			func(_, back *exercise.Slot) { back.TcpWnd, back.TcpScale = 500, 10 }},
		{"the other side's window is closed", false, seq(rst, 1<<31), "tcp_implausible", exercise.Armed,
			func(there, back *exercise.Slot) { there.TcpWnd, back.TcpWnd = 0, 0 }},
		{"nothing heard of the other side", false, seq(rst, 1000+1<<20), "tcp_close", exercise.Closed,
			func(_, back *exercise.Slot) { back.Watch = 0 }},
		{"nor in that megabyte", false, seq(rst, 1001+1<<20), "tcp_close", exercise.Armed,
			func(_, back *exercise.Slot) { back.Watch = 0 }},
		{"no other side", false, seq(rst, 1001+1<<20), "tcp_implausible", exercise.Armed,
			func(there, back *exercise.Slot) { there.Flags &^= exercise.FlagPaired }},
		{"nothing heard at all", false, seq(rst, 1<<31), "tcp_close", exercise.Closed,
			func(there, back *exercise.Slot) { there.Watch, back.Watch = 0, 0 }},
		{"FIN behind the own side's last segment", false, seq(fin, 1<<30), "tcp_close", exercise.Closed,
			func(there, _ *exercise.Slot) { there.TcpSeq = 1 << 30 }},
		{"FIN that the other side's last acknowledgement fits", false, seq(fin, 1<<30), "tcp_close", exercise.Closed,
			func(_, back *exercise.Slot) { back.TcpAck = 1 << 30 }},
		{"blind RST where conntrack judges", false, seq(rst, 1<<31), "tcp_close", exercise.Armed,
			func(there, back *exercise.Slot) {
				there.Flags &^= exercise.FlagLiberal
				back.Flags &^= exercise.FlagLiberal
			}},
		{"blind RST after a change", false, seq(rst, 1<<31), "tcp_implausible", exercise.Armed,
			func(there, back *exercise.Slot) { there.Gen--; back.Gen = 0 }},
		{"blind RST, unwatched for a while", false, seq(rst, 1<<31), "tcp_close", exercise.Armed,
			func(there, _ *exercise.Slot) { there.Watch++ }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, stage := range []string{"xdp", "tc-ingress"} {
				in, _, there, back := b.connection(t, c.v6)
				b.alter(t, there, back, c.change)
				in.TCP = c.tcp
				b.closes(t, stage, b.LANIndex, in.Bytes(), c.reason)
				b.in(t, "forth", there, c.state)
				b.in(t, "back", back, c.state)
			}
		})
	}
}

// TestCloseOdd: conntrack sees a SYN, FIN or RST, and has its window check off, whatever else
// the packet's IP header makes it leave for: so it is judged, and closes, as any other.
func TestCloseOdd(t *testing.T) {
	b := open(t, exercise.Options{})
	check(t, b.ForgetSamples())
	for _, c := range []struct {
		name   string
		v6     bool
		reason string
		odd    func(frame []byte) []byte
	}{
		{"TTL 1", false, "ttl", func(f []byte) []byte { return sealed(put8(f, 22, 1)) }},
		{"reserved bit", false, "fragment", func(f []byte) []byte { return sealed(put16(f, 20, 0x8000)) }},
		{"first fragment", false, "fragment", func(f []byte) []byte { return sealed(put16(f, 20, 0x2000)) }},
		{"options", false, "ip_options", func(f []byte) []byte {
			return sealed(put8(put16(slices.Insert(slices.Clone(f), 34, 1, 1, 1, 0), 16, uint16(len(f)-14+4)), 14, 0x46))
		}},
		{"hop limit 1", true, "ttl", func(f []byte) []byte { return put8(f, 21, 1) }},
		{"hop-by-hop", true, "extension_header", func(f []byte) []byte { return behind(f, 0, 6, 0, 1, 4, 0, 0, 0, 0) }},
		{"atomic fragment", true, "fragment", func(f []byte) []byte { return behind(f, 44, 6, 0, 0, 0, 0, 0, 0, 1) }},
		{"two headers", true, "extension_header", func(f []byte) []byte {
			return behind(behind(f, 60, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 43, 60, 0, 4, 0, 0, 0, 0, 0)
		}},
		{"authentication", true, "extension_header", func(f []byte) []byte { // RFC 4302 2: in words of 4 bytes, less 2
			return behind(f, 51, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, stage := range []string{"xdp", "tc-ingress"} {
				for _, p := range []struct {
					tcp    exercise.TCP
					reason string
					state  uint8 // of both directions afterwards
				}{
					{exercise.TCP{Seq: 1000, RST: true}, c.reason, exercise.Closed},
					{exercise.TCP{Seq: 1000, ACK: true, FIN: true}, c.reason, exercise.Closed},
					{exercise.TCP{Seq: 1 << 31, SYN: true}, c.reason, exercise.Seen},
					{exercise.TCP{Seq: 1 << 31, ACK: true}, c.reason, exercise.Armed},
					{exercise.TCP{Seq: 1 << 31, RST: true}, "tcp_implausible", exercise.Armed},
					{exercise.TCP{Seq: 1 << 31, ACK: true, FIN: true}, "tcp_implausible", exercise.Armed},
				} {
					in, _, there, back := b.connection(t, c.v6)
					in.TCP = p.tcp
					b.closes(t, stage, b.LANIndex, c.odd(in.Bytes()), p.reason)
					b.remembers(t, p.reason)
					b.in(t, "forth", there, p.state)
					b.in(t, "back", back, p.state)
					check(t, b.Clear())
					if p.reason == c.reason {
						b.closes(t, stage, b.LANIndex, c.odd(in.Bytes()), p.reason)
						b.remembers(t, p.reason)
					}
				}
			}
		})
	}
}

// remembers checks that of the packets since the last time one was kept for `shunt explain`.
func (b *bench) remembers(t *testing.T, reason string) {
	t.Helper()
	kept, err := b.Samples()
	check(t, err)
	if len(kept) != 1 || kept[0].Packets != 1 || kept[0].Reason != reason || kept[0].Portless && reason == "tcp_implausible" {
		t.Errorf("remembered %+v, want one of %s", kept, reason)
	}
	check(t, b.ForgetSamples())
}

// TestCloseNothing: what looks like a RST there, and is none to conntrack, closes nothing.
func TestCloseNothing(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range []struct {
		name   string
		v6     bool
		reason string
		odd    func(frame []byte) []byte
	}{
		{"data of another fragment", false, "fragment", func(f []byte) []byte { return sealed(put16(f, 20, 1)) }},
		{"data offset 4", false, "ttl", func(f []byte) []byte { return put8(sealed(put8(f, 22, 1)), 46, 0x40) }},
		{"data offset beyond the packet", false, "ttl", func(f []byte) []byte { return put8(sealed(put8(f, 22, 1)), 46, 0xf0) }},
		{"data offset 4, IPv6", true, "ttl", func(f []byte) []byte { return put8(put8(f, 21, 1), 66, 0x40) }},
		{"in the trailer", true, "extension_header", func(f []byte) []byte {
			return put16(behind(f, 60, 6, 0, 1, 4, 0, 0, 0, 0), 18, 8) // the header alone is the packet
		}},
		{"partly in the trailer", true, "extension_header", func(f []byte) []byte {
			return put16(behind(f, 60, 6, 0, 1, 4, 0, 0, 0, 0), 18, 8+19)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, stage := range []string{"xdp", "tc-ingress"} {
				in, _, there, back := b.connection(t, c.v6)
				in.TCP, in.Payload = exercise.TCP{Seq: 1000, RST: true}, nil
				b.closes(t, stage, b.LANIndex, c.odd(in.Bytes()), c.reason)
				b.in(t, "forth", there, exercise.Armed)
				b.in(t, "back", back, exercise.Armed)
			}
		})
	}
}

// TestCloseJumbo: a frame in fragments is TC's to judge, which has all of it: XDP cannot tell
// what its header is good for.
func TestCloseJumbo(t *testing.T) {
	b := open(t, exercise.Options{})
	check(t, b.Client.NS.IP("link set "+b.Client.Device+" mtu 9000"))
	check(t, b.LAN.NS.IP("link set "+b.LAN.Device+" mtu 9000"))
	for _, c := range []struct {
		tcp    exercise.TCP
		ttl    byte
		reason string
		state  uint8
	}{
		{exercise.TCP{Seq: 1 << 31, ACK: true, FIN: true}, 64, "tcp_implausible", exercise.Armed},
		{exercise.TCP{Seq: 1 << 31, ACK: true, FIN: true}, 1, "tcp_implausible", exercise.Armed},
		{exercise.TCP{Seq: 1000, ACK: true, FIN: true}, 1, "ttl", exercise.Closed},
	} {
		in, _, there, back := b.connection(t, false)
		in.TCP, in.TTL, in.Payload = c.tcp, c.ttl, make([]byte, 6000)
		b.forth(t, "xdp tc_way, tc-ingress "+c.reason, in.Bytes(), nil)
		b.in(t, "forth", there, c.state)
		b.in(t, "back", back, c.state)
	}
}

// behind puts an extension header behind the one of IPv6: its number, and it.
func behind(f []byte, number byte, header ...byte) []byte {
	header[0] = f[20]
	f = put8(slices.Insert(slices.Clone(f), 54, header...), 20, number)
	return put16(f, 18, uint16(len(f)-54))
}

// TestSYN: what is known is of an older connection. Both directions are counted from
// nothing, and the refusal of the new one (RST, ACK, sequence number 0: RFC 9293 3.5.2)
// is not measured by the old one's numbers.
func TestSYN(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, stage := range []string{"xdp", "tc-ingress"} {
		in, out, there, back := b.connection(t, false)
		in.TCP = exercise.TCP{Seq: 1 << 31, SYN: true}
		b.closes(t, stage, b.LANIndex, in.Bytes(), "tcp_syn")
		for _, at := range []exercise.Place{there, back} {
			s, err := b.At(at)
			check(t, err)
			if s.State != exercise.Seen || s.Flags != 0 || s.TcpWnd != 0 || s.Count != 0 || s.Seq%2 != 0 {
				t.Errorf("after a SYN at %s: %+v", stage, s)
			}
		}
		refusal := answer(out)
		refusal.To, refusal.From = b.WAN.MAC, b.Server.MAC
		refusal.TCP = exercise.TCP{RST: true, ACK: true, Ack: 1<<31 + 1}
		b.closes(t, stage, b.WANIndex, refusal.Bytes(), "tcp_close")
		b.in(t, "back", back, exercise.Closed)
	}
}

// TestResetIsTold: the daemon hears of a reset that is the very next in sequence, once,
// and of no other: none that conntrack would call INVALID for its flags (tcp_valid_flags), none that
// is for another machine, and none that may never come to conntrack.
func TestResetIsTold(t *testing.T) {
	b := open(t, exercise.Options{})
	told := make(chan dataplane.Request, 10)
	read, stop, err := b.Events()
	check(t, err)
	go read(dataplane.Listener{Request: func(r dataplane.Request) { told <- r }})
	defer stop()
	unsure := map[bool]struct {
		odd    func(frame []byte) []byte
		reason string
	}{
		false: {func(f []byte) []byte { return sealed(put16(f, 20, 0x2000)) }, "fragment"},
		true:  {func(f []byte) []byte { return behind(f, 0, 6, 0, 1, 4, 0, 0, 0, 0) }, "extension_header"},
	}
	last := map[bool]func(frame []byte) []byte{
		false: func(f []byte) []byte { return sealed(put8(f, 22, 1)) },
		true:  func(f []byte) []byte { return put8(f, 21, 1) },
	}
	for _, v6 := range []bool{false, true} {
		for _, c := range []struct {
			tcp    exercise.TCP
			to     bool // another machine
			odd    func(frame []byte) []byte
			reason string
			told   bool
		}{
			{tcp: exercise.TCP{Seq: 1001, RST: true}, reason: "tcp_close"},
			{tcp: exercise.TCP{Seq: 1000, FIN: true, ACK: true}, reason: "tcp_close"},
			{tcp: exercise.TCP{Seq: 1000, FIN: true, RST: true}, reason: "tcp_close"},
			{tcp: exercise.TCP{Seq: 1000, RST: true}, to: true, reason: "tcp_close"},
			{tcp: exercise.TCP{Seq: 1 << 31, RST: true}, reason: "tcp_implausible"},
			{tcp: exercise.TCP{Seq: 1000, RST: true}, odd: unsure[v6].odd, reason: unsure[v6].reason},
			{tcp: exercise.TCP{Seq: 1000, RST: true}, reason: "tcp_close", told: true}, // what the ring has next is its
			{tcp: exercise.TCP{Seq: 1000, RST: true}, odd: last[v6], reason: "ttl", told: true},
		} {
			in, _, _, _ := b.connection(t, v6)
			in.TCP = c.tcp
			if c.to {
				in.To = other(in.To)
			}
			frame := in.Bytes()
			if c.odd != nil {
				frame = c.odd(frame)
			}
			b.closes(t, "xdp", b.LANIndex, frame, c.reason)
			if !c.told {
				continue
			}
			b.closes(t, "tc-ingress", b.LANIndex, frame, c.reason)
			want := dataplane.Request{Reset: true, Zone: 7, Tuple: dataplane.Tuple{Source: in.Src, Destination: in.Dst}}
			select {
			case got := <-told:
				if got != want {
					t.Errorf("told %+v, want %+v", got, want)
				}
			case <-time.After(patience):
				t.Fatalf("nobody was told of %v", want)
			}
		}
	}
	time.Sleep(10 * time.Millisecond)
	if len(told) > 0 {
		t.Errorf("told too much: %+v", <-told)
	}
}

func (b *bench) alter(t *testing.T, there, back exercise.Place, change func(there, back *exercise.Slot)) {
	t.Helper()
	if change == nil {
		return
	}
	s, err := b.At(there)
	check(t, err)
	r, err := b.At(back)
	check(t, err)
	change(&s, &r)
	check(t, b.PutAt(there, s))
	check(t, b.PutAt(back, r))
}

// closes puts a SYN, FIN or RST through one stage of a port: never changed, never marked,
// passed on or dropped.
func (b *bench) closes(t *testing.T, stage string, port int, frame []byte, reason string) {
	t.Helper()
	var o exercise.Outcome
	var err error
	pass, drop := uint32(exercise.XDPPass), uint32(exercise.XDPDrop)
	run := func() { o, err = b.XDP(port, frame) }
	if stage == "tc-ingress" {
		pass, drop = exercise.TCNext, exercise.TCDrop
		run = func() { o, err = b.Ingress(port, frame, exercise.Buffer{}) }
	}
	b.counts(t, stage+" "+reason, func() {
		run()
		check(t, err)
	})
	same(t, "after "+stage, o.Frame, frame)
	want := pass
	if reason == "tcp_implausible" {
		want = drop
	}
	if o.Verdict != want || o.Marked {
		t.Errorf("%s: verdict %#x, want %#x; marked %v", stage, o.Verdict, want, o.Marked)
	}
}

func (b *bench) in(t *testing.T, which string, at exercise.Place, state uint8) {
	t.Helper()
	s, err := b.At(at)
	check(t, err)
	if s.State != state {
		t.Errorf("%s: state %d, want %d", which, s.State, state)
	}
	if s.Seq%2 != 0 {
		t.Errorf("%s: slot left locked", which)
	}
}

// TestSightings: what TC egress says of packets that nobody sighted, and of one whose
// memory was another's: PROG_RUN gives its packets a socket, as local traffic has one.
func TestSightings(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()

	frame := put16(in.Bytes(), 12, 0x0806)
	b.counts(t, "tc-ingress not_ip, tc-egress unsighted", func() {
		_, _, err := b.Through(b.LANIndex, b.WANIndex, frame, out.Bytes())
		check(t, err)
	})
	// the second skb has the memory of the first unless an interrupt takes it meanwhile
	for try := 0; reached["tc-egress local_socket"] == 0; try++ {
		if try == 100 {
			t.Fatal("100 times the second packet did not get the memory of the first")
		}
		before, err := b.Count()
		check(t, err)
		_, o, err := b.Through(b.LANIndex, b.WANIndex, in.Bytes(), out.Bytes())
		check(t, err)
		if o.Verdict != exercise.TCNext {
			t.Fatalf("TC egress verdict %#x", o.Verdict)
		}
		same(t, "after TC egress", o.Frame, out.Bytes())
		now, err := b.Count()
		check(t, err)
		if d := now.Minus(before).String(); d == "tc-egress local_socket, tc-ingress learning" {
			reached["tc-egress local_socket"]++
			reached["tc-ingress learning"]++
			b.answers(t, queryOf(in), "local_socket")
		} else if d != "tc-egress unsighted, tc-ingress learning" {
			t.Fatalf("counted %q", d)
		}
	}
	s, _, found := b.Find(exercise.KeyOf(in, b.LANIndex))
	if !found || s.State != exercise.Seen {
		t.Errorf("slot %+v, %v: something was learned", s, found)
	}
}

// watch is what slots have whose evidence counts.
func (b *bench) watch() uint16 { return uint16(b.Control().Watch) }
