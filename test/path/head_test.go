// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"strings"
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// openHead is openSwitcher for the head of LSPs: what is routed gets labels in a pair of interfaces.
func openHead(t *testing.T, b *bench, lines ...string) *switcher {
	t.Helper()
	s := openSwitcher(t, b, false)
	check(t, b.LAN.NS.Do(func() error {
		r, err := kernel.OpenResolver()
		if err != nil {
			return err
		}
		defer r.Close()
		s.pair.Outer, s.pair.Inner, err = r.MakePair()
		return err
	}))
	s.write(t, false, lines...)
	return s
}

// head is what becomes of a packet that the kernel has let out.
func (s *switcher) head(t *testing.T, out exercise.Packet) []byte {
	t.Helper()
	v, ok := s.table.Impose(out.Bytes()[14:], lfib.Env{Hash: s.labels.LabelHash, Adjacency: func(*lfib.Send) (int, bool) { return 1500, true }})
	if !ok || v.Reason != lfib.Switched {
		t.Fatalf("%+v: %v %s", out, ok, v.Reason)
	}
	return s.sent(v.EtherType, v.Packet)
}

// imposed is how many packets got labels at the pair, and how many went no further there.
func (s *switcher) imposed(t *testing.T) (imposed, others uint64) {
	t.Helper()
	c, err := s.Counters(dataplane.StageMPLS, s.pair.Inner)
	check(t, err)
	imposed = c.Of("mpls_imposed")
	return imposed, c.Total() - imposed
}

// TestLearnImposed: what the kernel routes gets the labels that the tables say, is learned, and
// repeated with the same bytes, behind any NAT; another list counts at once, and none, too.
func TestLearnImposed(t *testing.T) {
	const send = " send dev wan via inet 198.19.0.2"
	for _, tcOnly := range []bool{false, true} {
		b := open(t, exercise.Options{})
		check(t, b.LAN.NS.Do(func() error {
			for _, err := range b.Apply([]dataplane.Attach{{Index: b.LANIndex, XDPReceive: !tcOnly}, {Index: b.WANIndex, XDPReceive: true, XDPTransmit: true}}) {
				return err
			}
			return nil
		}))
		first, then := teaches+"learned", "xdp hit"
		if tcOnly { // a hit at TC leaves by the port's egress, and there goes to the pair
			first, then = "tc-ingress learning, tc-egress learned", "tc-ingress hit, tc-egress unsighted"
		}
		s := openHead(t, b, "map add up dscp-to-tc 0:1 10:2", "nhlfe add 7 entropy push 200 push 300 tc-map up"+send,
			"nhlfe add 9 ttl pipe push 400"+send, "nhlfe add 8 by-hash 7 9", "ftn add 0.0.0.0/0 nhlfe 8", "ftn add 2001:2::/32 nhlfe 8")
		u4, _ := b.udp4()
		u6, _ := b.udp6()
		t4, _ := b.tcp4()
		t6, _ := b.tcp6()
		n := uint64(0)
		for i, in := range []exercise.Packet{u4, u6, t4, t6} {
			in.TOS = uint8(i * 41)
			out := b.routed(in)
			b.forth(t, first, in.Bytes(), s.head(t, out))
			if got := b.slotOf(t, in); got.Flags&exercise.FlagLSP == 0 || got.Mtu != 1500-4*4 || got.Oif != uint32(b.WANIndex) {
				t.Errorf("learned %+v", got)
			}
			for range 3 {
				in.Payload = append(bytes.Clone(in.Payload), "more"...)
				b.forth(t, then, in.Bytes(), s.head(t, b.routed(in)))
			}
			n += 4
		}
		if imposed, others := s.imposed(t); imposed != n || others != 0 {
			t.Errorf("%d packets got labels, %d did not, of %d", imposed, others, n)
		}

		// another list: no flow proves itself again, and the next packet has it
		s.alter(t, "nhlfe replace 9 ttl pipe push 401 tc 3"+send)
		b.forth(t, then, u4.Bytes(), s.head(t, b.routed(u4)))
		// a longer stack: it does
		s.alter(t, "nhlfe replace 9 push 402 push 403 push 404 push 405 push 406"+send)
		u4.Payload = append(u4.Payload, "again"...)
		again := teaches + "renewed"
		if tcOnly {
			again = "tc-ingress old_generation, tc-egress renewed"
		} else {
			again = "xdp old_generation, tc-ingress old_generation, tc-egress renewed"
		}
		b.forth(t, again, u4.Bytes(), s.head(t, b.routed(u4)))
		if got := b.slotOf(t, u4); got.Mtu != 1500-5*4 {
			t.Errorf("a longer stack: %+v", got)
		}
		// a list that would deliver some: refused, in one line, and nothing changes
		check(t, s.try(t, "nhlfe add 10 deliver"))
		check(t, s.try(t, "nhlfe add 11 by-tc 0:10 default 7"))
		if err := s.try(t, "ftn add 198.19.0.0/24 nhlfe 11"); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("delivers some: %v", err)
		}
		s.alter(t, "ftn del 198.19.0.0/24")
		b.forth(t, then, u4.Bytes(), s.head(t, b.routed(u4)))
		// none
		s.alter(t, "ftn del 0.0.0.0/0")
		b.forth(t, again, u4.Bytes(), b.routed(u4).Bytes())
		if got := b.slotOf(t, u4); got.Flags&exercise.FlagLSP != 0 || got.Mtu != 1500 {
			t.Errorf("without labels: %+v", got)
		}
	}
}

// alter makes a change as the daemon would: what is new, and nothing else.
func (s *switcher) alter(t *testing.T, line string) { t.Helper(); check(t, s.try(t, line)) }

// try is alter that may be refused by the data path.
func (s *switcher) try(t *testing.T, line string) error {
	t.Helper()
	changes, err := lfib.Parse(line)
	check(t, err)
	_, err = s.table.Apply("test", changes)
	check(t, err)
	u := dataplane.LabelUpdate{AdjacencyOf: s.adjacencyOf, Imposer: s.pair}
	switch o := changes[0].Object.(type) {
	case lfib.NHLFE:
		f, err := s.table.Form(o.ID)
		check(t, err)
		u.NHLFEs = []dataplane.NHLFE{{ID: o.ID, Form: f}}
	case lfib.FTN:
		id, _ := s.table.FTN(o.Prefix)
		u.FTN = []dataplane.FTN{{Prefix: o.Prefix, NHLFE: id}}
	}
	return s.LAN.NS.Do(func() error { return s.labels.UpdateLabels(&u) })
}

// TestWhatGetsLabels: frames that leave by a port, and which of them go to the pair.
func TestWhatGetsLabels(t *testing.T) {
	const send = " send dev wan via inet 198.19.0.2"
	b := open(t, exercise.Options{})
	s := openHead(t, b, "nhlfe add 7 push 200"+send, "nhlfe add 8 deliver", "ftn add 0.0.0.0/0 nhlfe 7", "ftn add ::/0 nhlfe 7", "ftn add 198.19.7.0/24 nhlfe 8")
	const next, redirect = 1<<32 - 1, 7
	to := func(dst string, edit ...func(*exercise.Packet)) []byte {
		p, _ := b.udp4()
		if netip := addr(dst); netip.Addr().Is6() {
			p, _ = b.udp6()
			p.Dst = netip
		} else {
			p.Dst = netip
		}
		p = b.routed(p)
		for _, f := range edit {
			f(&p)
		}
		return p.Bytes()
	}
	icmp := func(kind uint8) func(*exercise.Packet) {
		return func(p *exercise.Packet) { p.Proto, p.Type = 58, kind }
	}
	tagged := to("198.19.0.2:1")
	tagged = append(append(bytes.Clone(tagged[:12]), 0x81, 0, 0, 5), tagged[12:]...)
	for _, c := range []struct {
		name  string
		frame []byte
		want  uint32
	}{
		{"IPv4", to("198.19.0.2:1"), redirect},
		{"IPv6", to("[2001:db8::1]:1"), redirect},
		{"a prefix that delivers", to("198.19.7.2:1"), next},
		{"bridged: another source", to("198.19.0.2:1", func(p *exercise.Packet) { p.From = b.Client.MAC }), next},
		{"to a group", to("224.0.0.5:1", func(p *exercise.Packet) { p.To = []byte{1, 0, 0x5e, 0, 0, 5} }), next},
		{"IPv4 link-local", to("169.254.1.1:1"), next},
		{"IPv6 link-local", to("[fe80::1]:1"), next},
		{"and what only looks like it", to("[fec0::1]:1"), redirect},
		{"neighbour solicitation", to("[2001:db8::1]:1", icmp(135)), next},
		{"neighbour advertisement", to("[2001:db8::1]:1", icmp(136)), next},
		{"echo", to("[2001:db8::1]:1", icmp(128)), redirect},
		{"tagged", tagged, next},
		{"ARP", append(append(bytes.Clone(b.Server.MAC), b.WAN.MAC...), append([]byte{8, 6}, make([]byte, 46)...)...), next},
		{"labelled", s.sent(0x8847, append(lse(100, 0, 1, 64), to("198.19.0.2:1")[14:]...)), next},
	} {
		_, o, err := b.Through(b.LANIndex, b.WANIndex, c.frame, c.frame)
		check(t, err)
		if o.Verdict != c.want {
			t.Errorf("%s: verdict %d, want %d", c.name, int32(o.Verdict), int32(c.want))
		}
		if !bytes.Equal(o.Frame, c.frame) {
			t.Errorf("%s: % x became % x", c.name, c.frame, o.Frame)
		}
	}
	// with the daemon dead for long, IP is the kernel's
	frame := to("198.19.0.2:1")
	now, err := b.Now()
	check(t, err)
	for _, hold := range []uint32{10 * b.HZ, 0} {
		b.SetLabelHold(hold)
		b.Edit(func(c *exercise.Control) { c.Beat = now - 11*b.HZ })
		want := uint32(redirect)
		if hold != 0 {
			want = next
		}
		if _, o, err := b.Through(b.LANIndex, b.WANIndex, frame, frame); err != nil || o.Verdict != want {
			t.Errorf("daemon dead, labels held for %d jiffies: verdict %d, %v", hold, int32(o.Verdict), err)
		}
	}
}
