// SPDX-License-Identifier: Apache-2.0

package path

import (
	"testing"

	"shunt/internal/dataplane/exercise"
)

// TestJudged: behind XDP, TC ingress leaves what has no mark at once, and neither uses
// nor touches its entry; unless the driver keeps no marks.
func TestJudged(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	at := b.arm(t, in, out)
	before, err := b.At(at)
	check(t, err)
	after := func(want string, verdict uint32, frame []byte) {
		t.Helper()
		b.counts(t, "tc-ingress "+want, func() {
			o, err := b.AfterXDP(b.LANIndex, in.Bytes(), exercise.Buffer{})
			check(t, err)
			same(t, "after TC ingress", o.Frame, frame)
			if o.Verdict != verdict {
				t.Errorf("%s: verdict %#x, want %#x", want, o.Verdict, verdict)
			}
		})
	}
	after("judged", exercise.TCNext, in.Bytes())
	if s, err := b.At(at); err != nil || s != before {
		t.Errorf("slot\n%+v, was\n%+v; %v", s, before, err)
	}
	b.Edit(func(c *exercise.Control) { c.Paused = 1 })
	after("paused", exercise.TCNext, in.Bytes())
	b.Edit(func(c *exercise.Control) { c.Paused, c.NoMarks = 0, 1 })
	after("hit", exercise.TCRedirect, out.Bytes())
}

// TestNoRoomForMarks: the first packet that cannot be marked tells TC ingress to judge
// for itself; one that needs no mark does not.
func TestNoRoomForMarks(t *testing.T) {
	b := open(t, exercise.Options{})
	in, _ := b.udp4()
	for _, c := range []struct {
		threshold uint32
		reason    string
	}{{2, "below_threshold"}, {1, "learning"}} {
		check(t, b.Clear())
		b.Edit(func(ctl *exercise.Control) { ctl.Threshold = c.threshold })
		b.counts(t, "xdp "+c.reason, func() {
			o, err := b.XDPUnmarkable(b.LANIndex, in.Bytes())
			check(t, err)
			if o.Verdict != exercise.XDPPass || o.Marked {
				t.Errorf("verdict %d, marked %v", o.Verdict, o.Marked)
			}
			same(t, "after XDP", o.Frame, in.Bytes())
		})
		if got, want := b.Control().NoMarks, 2-c.threshold; got != want {
			t.Errorf("%s: no_marks %d, want %d", c.reason, got, want)
		}
	}
}

// TestMarkedOnTheWire: a flow from its first packet on, by marks and without them. A
// packet is counted once for its flow, whoever looks at it.
func TestMarkedOnTheWire(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.tcp4()
	i, o := in.Bytes(), out.Bytes()
	b.Edit(func(c *exercise.Control) { c.Threshold = 3 })
	b.forth(t, "xdp below_threshold"+passes, i, o)
	b.forth(t, "xdp below_threshold"+passes, i, o)
	if s := b.slotOf(t, in); s.Count != 2 {
		t.Errorf("2 packets were counted as %d", s.Count)
	}
	b.forth(t, teaches+"learned", i, o)
	b.forth(t, "xdp hit", i, o)

	odd, oddOut := in, out
	odd.TOS, oddOut.TOS = 4, 4
	b.forth(t, "xdp dscp_differs"+passes, odd.Bytes(), oddOut.Bytes())
	b.Edit(func(c *exercise.Control) { c.NoMarks = 1 })
	b.forth(t, "xdp dscp_differs, tc-ingress dscp_differs, tc-egress unsighted", odd.Bytes(), oddOut.Bytes())
	b.forth(t, "xdp hit", i, o)
	in.TCP.FIN, out.TCP.FIN = true, true
	b.forth(t, "xdp tcp_close, tc-ingress tcp_close, tc-egress unsighted", in.Bytes(), out.Bytes())
	b.forth(t, "xdp closed, tc-ingress closed, tc-egress unsighted", i, o)
}

// TestTCWay: what XDP cannot send, TC ingress repeats: flows that were learned so.
func TestTCWay(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
		in, out := p()
		s := b.Learned(in, out, b.lease(t))
		s.Flags &^= exercise.FlagXDP
		check(t, b.Clear())
		_, err := b.Put(s)
		check(t, err)
		b.meets(t, "xdp", "tc_way", in, out)
		b.forth(t, "xdp tc_way, tc-ingress hit, tc-egress unsighted", in.Bytes(), out.Bytes())
		if got := b.slotOf(t, in); got.Packets != 1 {
			t.Errorf("%d packets counted, want the one that TC repeated", got.Packets)
		}
	}
}

// TestEgressGone: an entry names a port that is no longer in the redirect map, as when its
// interface went this moment. One packet is lost, and then the flow is the kernel's.
func TestEgressGone(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
		in, out := p()
		s := b.Learned(in, out, b.lease(t))
		check(t, b.Clear())
		_, err := b.Put(s)
		check(t, err)
		var device uint32
		check(t, b.Map("tx").Lookup(uint32(s.Tx), &device))
		check(t, b.Map("tx").Delete(uint32(s.Tx)))
		b.counts(t, "xdp egress_gone", func() {
			o, err := b.XDP(b.LANIndex, in.Bytes())
			check(t, err)
			if o.Verdict != exercise.XDPDrop {
				t.Errorf("XDP verdict %d, want a drop", o.Verdict)
			}
		})
		b.meets(t, "xdp", "learning", in, out)
		check(t, b.Map("tx").Put(uint32(s.Tx), device))
	}
}

// TestJumboTrailer: a packet that ends in the linear part of a frame whose trailer goes on in
// fragments leaves without all of it.
func TestJumboTrailer(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	b.arm(t, in, out)
	in.Trailer = make([]byte, 8000)
	b.counts(t, "xdp hit", func() { b.repeated(t, in, out) })
}

// TestJumbo: a frame in fragments is for TC from its flow's first packet on.
func TestJumbo(t *testing.T) {
	b := open(t, exercise.Options{})
	check(t, b.Client.NS.IP("link set "+b.Client.Device+" mtu 9000"))
	check(t, b.Server.NS.IP("link set "+b.Server.Device+" mtu 9000"))
	check(t, b.LAN.NS.IP("link set "+b.LAN.Device+" mtu 9000", "link set "+b.WAN.Device+" mtu 9000"))
	in, out := b.udp4()
	in.Payload = make([]byte, 6000)
	out.Payload = in.Payload
	b.forth(t, "xdp tc_way, tc-ingress learning, tc-egress learned", in.Bytes(), out.Bytes())
	b.forth(t, "xdp tc_way, tc-ingress hit, tc-egress unsighted", in.Bytes(), out.Bytes())
}
