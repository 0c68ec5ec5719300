// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"slices"
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// state is what the table and the settings hold when a packet comes, and what becomes
// of it, at XDP and at TC ingress without XDP alike. Reason: "" where it is repeated.
type state struct {
	name    string
	v6      bool
	slot    func(*exercise.Slot)
	control func(*exercise.Control)
	packet  func(*exercise.Packet)
	reason  string
	after   func(*testing.T, exercise.Slot)
}

func stateCases(now, hz uint32) []state {
	counted := func(n uint32) func(*testing.T, exercise.Slot) {
		return func(t *testing.T, s exercise.Slot) {
			if s.Count != n {
				t.Errorf("counted %d packets, want %d", s.Count, n)
			}
		}
	}
	return []state{
		{name: "paused", control: func(c *exercise.Control) { c.Paused, c.Gen = 1, c.Gen+1 }, reason: "paused"},
		{name: "below the threshold", slot: func(s *exercise.Slot) { s.State, s.Count = exercise.Seen, 3 },
			control: func(c *exercise.Control) { c.Threshold = 5 }, reason: "below_threshold", after: counted(4)},
		{name: "at the threshold", slot: func(s *exercise.Slot) { s.State, s.Count = exercise.Seen, 4 },
			control: func(c *exercise.Control) { c.Threshold = 5 }, reason: "learning", after: counted(5)},
		{name: "over the threshold", slot: func(s *exercise.Slot) { s.State, s.Count = exercise.Seen, 5 },
			control: func(c *exercise.Control) { c.Threshold = 5 }, reason: "learning", after: counted(6)},
		{name: "after an idle second", slot: func(s *exercise.Slot) { s.State, s.Count, s.Seen = exercise.Seen, 4, now-hz-hz/2 },
			control: func(c *exercise.Control) { c.Threshold = 5 }, reason: "below_threshold", after: counted(1)},
		{name: "lease ended", slot: func(s *exercise.Slot) { s.Lease = now - hz }, reason: "lease_ended", after: counted(0)},
		{name: "lease ended before half a turn of the jiffies", slot: func(s *exercise.Slot) { s.Lease = now - hz - 1<<31 },
			reason: "lease_ended", after: counted(0)},
		{name: "old generation", slot: func(s *exercise.Slot) { s.Gen-- }, reason: "old_generation"},
		{name: "newer generation", slot: func(s *exercise.Slot) { s.Gen++ }, reason: "old_generation"},
		{name: "closed", slot: func(s *exercise.Slot) { s.State = exercise.Closed }, reason: "closed", after: isIn(exercise.Closed)},
		{name: "closed long ago", slot: func(s *exercise.Slot) { s.State, s.Lease = exercise.Closed, now-1 },
			reason: "closed", after: isIn(exercise.Seen)},
		{name: "being written", slot: func(s *exercise.Slot) { s.Seq = 7 }, reason: "busy"},
		{name: "other source MAC", packet: func(p *exercise.Packet) { p.From = other(p.From) }, reason: "mac_differs", after: counted(0)},
		{name: "other destination MAC", slot: func(s *exercise.Slot) { s.DmacIn[0] ^= 4 }, reason: "mac_differs"},
		{name: "other DSCP", packet: func(p *exercise.Packet) { p.TOS = 4 }, reason: "dscp_differs", after: counted(0)},
		{name: "other DSCP", v6: true, packet: func(p *exercise.Packet) { p.TOS = 0x80 }, reason: "dscp_differs"},
		{name: "other label", v6: true, packet: func(p *exercise.Packet) { p.Label ^= 0x80000 }, reason: "label_differs"},
		{name: "label of zero", v6: true, packet: func(p *exercise.Packet) { p.Label = 0 }, reason: "label_differs"},
		{name: "over the MTU", slot: func(s *exercise.Slot) { s.Mtu = 45 }, reason: "over_mtu"},
		{name: "over the MTU", v6: true, slot: func(s *exercise.Slot) { s.Mtu = 65 }, reason: "over_mtu"},
		{name: "as long as the MTU", slot: func(s *exercise.Slot) { s.Mtu = 46 }},
		{name: "another flow", packet: func(p *exercise.Packet) { p.Src = netip.AddrPortFrom(p.Src.Addr(), 1001) }, reason: "learning"},
		{name: "same last words", v6: true, packet: func(p *exercise.Packet) { p.Src = addr("[2001:2:0:19::2]:1000") }, reason: "learning"},
	}
}

func isIn(state uint8) func(*testing.T, exercise.Slot) {
	return func(t *testing.T, s exercise.Slot) {
		if s.State != state {
			t.Errorf("state %d, want %d", s.State, state)
		}
	}
}

// other is another unicast MAC.
func other(mac []byte) []byte {
	m := append([]byte(nil), mac...)
	m[0] ^= 4
	return m
}

// TestState: whether an entry may be used now, and what its slot keeps of the packet.
func TestState(t *testing.T) {
	b := open(t, exercise.Options{})
	defaults := b.Control()
	now, err := b.Now()
	check(t, err)
	for _, c := range stateCases(now, b.HZ) {
		for _, stage := range []string{"xdp", "tc-ingress"} {
			t.Run(c.name+" at "+stage, func(t *testing.T) {
				check(t, b.Clear())
				in, out := b.udp4()
				if c.v6 {
					in, out = b.udp6()
				}
				s := b.Learned(in, out, b.lease(t))
				s.Seen = now
				if c.slot != nil {
					c.slot(&s)
				}
				at, err := b.Put(s)
				check(t, err)
				if c.packet != nil {
					c.packet(&in)
					out = b.routed(in)
				}
				if c.control != nil {
					b.Edit(c.control)
					defer b.Edit(func(ctl *exercise.Control) { *ctl = defaults })
				}
				b.meets(t, stage, c.reason, in, out)
				s, err = b.At(at)
				check(t, err)
				if c.after != nil {
					c.after(t, s)
				}
				if key, _ := exercise.KeyOf(in, b.LANIndex); s.Key == key && !slices.Contains(silent, c.reason) {
					because(t, s, c.reason)
				}
			})
		}
	}
}

// silent are reasons that a slot does not keep: of no flow, of an instant, or (learning)
// less than what TC egress may say.
var silent = []string{"", "paused", "busy", "learning"}

// because checks the reason that a slot keeps for `shunt explain`.
func because(t *testing.T, s exercise.Slot, reason string) {
	t.Helper()
	if got := dataplane.Reasons[s.Why]; got != reason {
		t.Errorf("the slot says %s, want %s", got, reason)
	}
}

// TestLeaseEndsBetweenPolls: hits of the NAPI poll in which the lease ends may still wait
// in the bulk queue, so the flow stays fast until that poll has ended.
func TestLeaseEndsBetweenPolls(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	odd := in
	odd.TOS = 4
	for _, c := range []struct {
		name   string
		packet exercise.Packet
		polls  []uint32 // that have ended before each packet
		want   string
	}{
		{"one poll", in, []uint32{7, 7, 7}, "xdp hit 3"},
		{"another one", in, []uint32{7, 7, 8}, "xdp hit 2, xdp lease_ended"},
		{"the count turns over", in, []uint32{0xffffffff, 0, 0}, "xdp hit, xdp lease_ended 2"},
		{"another DSCP", odd, []uint32{7}, "xdp lease_ended"},
	} {
		t.Run(c.name, func(t *testing.T) { b.outlasts(t, c.packet, b.Learned(in, out, 0), b.WANIndex, c.polls, c.want) })
		t.Run(c.name+", to get labels", func(t *testing.T) {
			const imposer = 100000
			b.Edit(func(c *exercise.Control) { c.Imposer = imposer })
			s := b.Learned(in, out, 0)
			s.Flags |= exercise.FlagLSP
			b.outlasts(t, c.packet, s, imposer, c.polls, c.want)
		})
	}
}

// outlasts sends packets to a slot whose lease ends now, and whose hits go to a device: each after so
// many polls that sent to it have ended.
func (b *bench) outlasts(t *testing.T, packet exercise.Packet, s exercise.Slot, to int, polls []uint32, want string) {
	t.Helper()
	for try := 0; ; try++ {
		check(t, b.Clear())
		now, err := b.Now()
		check(t, err)
		s.Lease, s.Seen, s.Count = now, now, 0
		_, err = b.Put(s)
		check(t, err)
		before, err := b.Count()
		check(t, err)
		for _, ended := range polls {
			check(t, b.Polls(to, ended))
			_, err := b.XDP(b.LANIndex, packet.Bytes())
			check(t, err)
		}
		after, err := b.Count()
		check(t, err)
		if then, _ := b.Now(); then-now > b.HZ/50 && try < 20 {
			continue // this machine was busy for longer than the grace lasts
		}
		if got := after.Minus(before).String(); got != want {
			t.Errorf("counted %q, want %q", got, want)
		}
		return
	}
}

// TestDraining: an entry that was armed while more packets of its flow were between XDP
// and TC ingress waits for them, so that no hit overtakes them.
func TestDraining(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	for _, c := range []struct {
		name         string
		given, taken uint8
		ago          uint32 // jiffies since the last one
		reason       string
	}{
		{"one is on its way", 3, 2, 0, "draining"},
		{"the count went round", 0, 255, 0, "draining"},
		{"all came", 3, 3, 0, ""},
		{"one got lost", 3, 2, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			now, err := b.Now()
			check(t, err)
			s := b.Learned(in, out, b.lease(t))
			s.Flags |= exercise.FlagDrain
			s.Given, s.Taken, s.Seen = c.given, c.taken, now-c.ago
			if c.ago == 0 {
				s.Seen += b.HZ // as if it were always now
			}
			at, err := b.Put(s)
			check(t, err)
			b.meets(t, "xdp", c.reason, in, out)
			if s, err = b.At(at); err != nil {
				t.Fatal(err)
			}
			if c.reason != "" && (s.Flags&exercise.FlagDrain == 0 || s.Given != c.given+1) {
				t.Errorf("flags %#x, given %d; want it to wait for one more", s.Flags, s.Given)
			}
			if c.reason == "" && (s.Flags&exercise.FlagDrain != 0 || s.Given != s.Taken) {
				t.Errorf("flags %#x, given %d, taken %d; want it to wait no more", s.Flags, s.Given, s.Taken)
			}
			b.meets(t, "xdp", c.reason, in, out)
		})
	}
	t.Run("armed meanwhile", func(t *testing.T) {
		check(t, b.Clear())
		b.meets(t, "xdp", "learning", in, out) // given, and lost behind XDP
		b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
		s := b.slotOf(t, in)
		s.Seen += b.HZ
		_, err := b.Put(s)
		check(t, err)
		b.forth(t, "xdp draining, tc-ingress hit, tc-egress unsighted", in.Bytes(), out.Bytes())
		if s = b.slotOf(t, in); s.Flags&exercise.FlagDrain == 0 || s.Given-s.Taken != 1 {
			t.Errorf("flags %#x, given %d, taken %d", s.Flags, s.Given, s.Taken)
		}
	})
}

// meets puts a packet through one stage. No reason: it comes out as `out`.
func (b *bench) meets(t *testing.T, stage, reason string, in, out exercise.Packet) {
	t.Helper()
	switch {
	case stage == "xdp" && reason == "":
		b.counts(t, "xdp hit", func() { b.repeated(t, in, out) })
	case stage == "xdp":
		b.counts(t, "xdp "+reason, func() { b.punted(t, reason, in.Bytes()) })
	case reason == "":
		b.counts(t, "tc-ingress hit", func() { b.repeatedTC(t, in, out) })
	default:
		b.counts(t, "tc-ingress "+reason, func() { b.next(t, in.Bytes()) })
	}
}

// meetsBoth is meets at XDP, then at TC ingress.
func (b *bench) meetsBoth(t *testing.T, reason string, in, out exercise.Packet) {
	t.Helper()
	b.meets(t, "xdp", reason, in, out)
	b.meets(t, "tc-ingress", reason, in, out)
}

// punted says that XDP leaves a frame to the kernel as it came, and marks it if TC
// ingress has anything to do with it.
func (b *bench) punted(t *testing.T, reason string, frame []byte) {
	t.Helper()
	o, err := b.XDP(b.LANIndex, frame)
	check(t, err)
	if o.Verdict != exercise.XDPPass {
		t.Errorf("XDP verdict %d", o.Verdict)
	}
	same(t, "after XDP", o.Frame, frame)
	due := slices.Contains([]string{"learning", "lease_ended", "old_generation", "tc_way", "draining"}, reason)
	if o.Marked != due {
		t.Errorf("%s: marked %v", reason, o.Marked)
	}
}

// repeated says that XDP makes `out` of `in` and redirects it.
func (b *bench) repeated(t *testing.T, in, out exercise.Packet) {
	t.Helper()
	o, err := b.XDP(b.LANIndex, in.Bytes())
	check(t, err)
	same(t, "after XDP", o.Frame, out.Bytes())
	if o.Verdict != exercise.XDPRedirect {
		t.Errorf("XDP verdict %d, want a redirect", o.Verdict)
	}
}

// repeatedTC says so of TC ingress, where mark and priority are the entry's.
func (b *bench) repeatedTC(t *testing.T, in, out exercise.Packet) {
	t.Helper()
	o, err := b.Ingress(b.LANIndex, in.Bytes(), exercise.Buffer{Mark: 99, Priority: 98})
	check(t, err)
	same(t, "after TC ingress", o.Frame, out.Bytes())
	if o.Verdict != exercise.TCRedirect || o.Buffer.Mark != 0 || o.Buffer.Priority != 0 {
		t.Errorf("TC verdict %#x, %+v; want a redirect and the entry's mark and priority", o.Verdict, o.Buffer)
	}
}

// TestTCPOff: TCP never gets an entry, and one that is there is not used.
func TestTCPOff(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.tcp4()
	_, err := b.Put(b.Learned(in, out, b.lease(t)))
	check(t, err)
	b.counts(t, "xdp hit", func() { b.repeated(t, in, out) })
	b.Configure(dataplane.Settings{Threshold: 1, Lease: 30 * b.HZ, LeaseLive: 30 * b.HZ, HZ: b.HZ})
	b.meetsBoth(t, "tcp_off", in, out)
	u, routed := b.udp4()
	b.meetsBoth(t, "learning", u, routed)
}

// TestTableFull: a key whose four slots are taken is slow; one that ended gives its slot.
func TestTableFull(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	key, words := exercise.KeyOf(in, b.LANIndex)
	places := b.fill(t, in, out)
	b.meetsBoth(t, "table_full", in, out)
	now, err := b.Now()
	check(t, err)
	idle := now - 2*b.HZ
	for _, c := range []struct {
		name   string
		change func(*exercise.Slot)
		free   bool
	}{
		{"idle, but leased", func(s *exercise.Slot) { s.Seen = idle }, false},
		{"idle, lease over this moment", func(s *exercise.Slot) { s.Seen, s.Lease = idle, now-b.HZ/2 }, false},
		{"lease over, but in use", func(s *exercise.Slot) { s.Lease = idle }, false},
		{"free, but being written", func(s *exercise.Slot) { s.Seen, s.Lease, s.Seq = idle, idle, 1 }, false},
		{"idle and lease over", func(s *exercise.Slot) { s.Seen, s.Lease = idle, idle }, true},
		{"idle for over half a turn of the jiffies", func(s *exercise.Slot) { s.Seen, s.Lease = idle-1<<31, idle-1<<31 }, true},
		{"never learned, and idle as long", func(s *exercise.Slot) { s.Seen, s.State = idle-1<<31, exercise.Seen }, true},
		{"idle and never learned", func(s *exercise.Slot) { s.Seen, s.State = idle, exercise.Seen }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := b.At(places[3])
			check(t, err)
			before := s
			c.change(&s)
			check(t, b.PutAt(places[3], s))
			if !c.free {
				b.meetsBoth(t, "table_full", in, out)
			} else {
				b.meetsBoth(t, "learning", in, out)
				if _, at, found := b.Find(key, words); !found || at != places[3] {
					t.Errorf("claimed %v, %v; want %v", at, found, places[3])
				}
			}
			check(t, b.PutAt(places[3], before))
		})
	}
}

// fill takes the four slots that a packet's flow may have.
func (b *bench) fill(t *testing.T, in, out exercise.Packet) (places []exercise.Place) {
	t.Helper()
	key, words := exercise.KeyOf(in, b.LANIndex)
	for _, bucket := range b.Hash().Places(key, words) {
		for way := range uint32(2) {
			s := b.Learned(in, out, b.lease(t))
			s.Key.Sport ^= uint16(len(places) + 1)
			at := exercise.Place{Bucket: bucket, Way: way}
			check(t, b.PutAt(at, s))
			places = append(places, at)
		}
	}
	return places
}

// TestSegments: what is longer than the MTU by itself goes on if it will be cut into
// pieces that are not, and is counted as that many packets.
func TestSegments(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.tcp4, b.tcp6, b.udp4, b.udp6} {
		in, out := p()
		in.Payload = make([]byte, 1000)
		out.Payload = in.Payload
		s := b.Learned(in, out, b.lease(t))
		headers := uint32(in.L4() - 14 + 8)
		if in.Proto == 6 {
			headers += 12
		}
		s.Mtu = uint16(headers) + 250
		at, err := b.Put(s)
		check(t, err)
		for _, c := range []struct {
			size, verdict uint32
			reason        string
		}{{250, exercise.TCRedirect, "hit"}, {251, exercise.TCNext, "over_mtu"}} {
			b.counts(t, "tc-ingress "+c.reason, func() {
				o, err := b.Ingress(b.LANIndex, in.Bytes(), exercise.Buffer{GSOSegs: 4, GSOSize: c.size})
				check(t, err)
				if o.Verdict != c.verdict {
					t.Errorf("segments of %d: verdict %#x, want %#x", c.size, o.Verdict, c.verdict)
				}
			})
			if s, err := b.At(at); err != nil || s.Packets != 4 {
				t.Errorf("segments of %d: %d packets counted, want 4; %v", c.size, s.Packets, err)
			}
		}
	}
}
