// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// What a packet of a flow does on its whole way that is due, and that is not: the first
// one is due, as the threshold is 1.
const (
	teaches = "xdp learning, tc-ingress learning, tc-egress "
	passes  = ", tc-ingress judged, tc-egress unsighted"
)

// patience is the timeout for expected frames. A veth takes microseconds, a busy machine longer.
const patience = 5 * time.Second

// forth sends a frame from the client and says what the server gets: nil for nothing.
func (b *bench) forth(t *testing.T, want string, in, out []byte) {
	t.Helper()
	b.carries(t, want, b.client, b.server, in, out)
}

// back is forth from server to client.
func (b *bench) back(t *testing.T, want string, in, out []byte) {
	t.Helper()
	b.carries(t, want, b.server, b.client, in, out)
}

func (b *bench) carries(t *testing.T, want string, from, to *exercise.Tap, in, out []byte) {
	t.Helper()
	check(t, to.Drain())
	b.counts(t, want, func() {
		check(t, from.Send(in))
		wait := patience
		if out == nil {
			wait = 20 * time.Millisecond
		}
		got, err := to.Receive(wait)
		check(t, err)
		same(t, "at the far end", got, out)
	})
}

// rules replaces the router's rules.
func (b *bench) rules(t *testing.T, text string) {
	t.Helper()
	check(t, b.LAN.NS.NFT("table inet rules\ndelete table inet rules\ntable inet rules {\n"+text+"\n}"))
}

// hooks of rules in the router.
const (
	prerouting  = "chain pre { type filter hook prerouting priority %s; "
	forward     = "chain forth { type filter hook forward priority 0; "
	postrouting = "chain post { type filter hook postrouting priority 300; "
)

// slotOf is what was learned of a packet from the client.
func (b *bench) slotOf(t *testing.T, in exercise.Packet) exercise.Slot {
	t.Helper()
	s, _, found := b.Find(exercise.KeyOf(in, b.LANIndex))
	if !found {
		t.Fatal("no slot")
	}
	return s
}

// learnedLike compares a slot with the one that must have been learned, but for times.
func (b *bench) learnedLike(t *testing.T, in, out exercise.Packet, flags uint8) {
	t.Helper()
	got, want := b.slotOf(t, in), b.Learned(in, out, 0)
	want.Flags |= flags
	if got.Lease == 0 || got.Born == 0 {
		t.Errorf("no lease or no birth in %+v", got)
	}
	want.Seq, want.Lease, want.Seen, want.Born = got.Seq, got.Lease, got.Seen, got.Born
	want.Given, want.Taken = got.Given, got.Given // how many is not this test's; that none is missing is
	want.Count, want.Packets, want.Bytes = got.Count, got.Packets, got.Bytes
	want.TcpSeq, want.TcpAck, want.TcpWnd, want.TcpScale = got.TcpSeq, got.TcpAck, got.TcpWnd, got.TcpScale
	if in.Proto == 6 {
		want.Watch = b.watch() // what was seen of the connection counts
	}
	if got != want {
		t.Errorf("learned (-want +got)\n%s", cmp.Diff(want, got))
	}
}

// TestLearnRouting: plain routing of everything that can be learned, by the kernel and
// then by shunt, with the same bytes; what was learned is what the two packets say.
func TestLearnRouting(t *testing.T) {
	for _, tcOnly := range []bool{false, true} {
		b := open(t, exercise.Options{TCOnly: tcOnly})
		first, then := teaches+"learned", "xdp hit"
		if tcOnly {
			first, then = "tc-ingress learning, tc-egress learned", "tc-ingress hit, tc-egress unsighted"
		}
		for _, r := range b.bases() {
			name := r.name + " in XDP"
			if tcOnly {
				name = r.name + " at TC"
			}
			t.Run(name, func(t *testing.T) {
				check(t, b.Clear())
				r.in.TOS, r.out.TOS = 0x22, 0x22
				r.in.Trailer = []byte("trailer")
				b.forth(t, first, r.in.Bytes(), r.out.Bytes())
				got := b.slotOf(t, r.in)
				if (got.Flags&exercise.FlagXDP == 0) != tcOnly {
					t.Errorf("flags %#x", got.Flags)
				}
				if !tcOnly {
					b.learnedLike(t, r.in, r.out, 0)
				}
				for _, shape := range shapes(r.in, r.out) {
					b.forth(t, then, shape.in.Bytes(), shape.out.Bytes())
				}
			})
		}
	}
}

// TestRenewal: a lease is renewed by the kernel alone, and what it does now counts.
func TestRenewal(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	i, o := in.Bytes(), out.Bytes()
	b.forth(t, teaches+"learned", i, o)
	b.forth(t, "xdp hit", i, o)

	end := func() { b.endLease(t, in) }
	end()
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress renewed", i, o)
	b.forth(t, "xdp hit", i, o)
	if s := b.slotOf(t, in); s.Renewals != 1 || s.Packets != 2 {
		t.Errorf("%d renewals, %d packets; want 1 and 2", s.Renewals, s.Packets)
	}

	b.Bump()
	b.forth(t, "xdp old_generation, tc-ingress old_generation, tc-egress renewed", i, o)
	b.forth(t, "xdp hit", i, o)

	// nobody announces that the server has another MAC now
	away := out
	away.To = net.HardwareAddr{2, 0, 0, 0, 19, 99}
	check(t, b.WAN.NS.IP("neighbour replace 198.19.0.2 lladdr 02:00:00:00:13:63 dev wan nud permanent"))
	b.forth(t, "xdp hit", i, o)
	end()
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress changed", i, away.Bytes())
	b.forth(t, "xdp hit", i, away.Bytes())
	check(t, b.WAN.Know(b.Server))

	// nor that longer packets than these do not fit any more
	end()
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress changed", i, o)
	check(t, b.WAN.NS.IP("link set wan mtu 1400"))
	end()
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress changed", i, o)
	if s := b.slotOf(t, in); s.Mtu != 1400 {
		t.Errorf("MTU %d, want 1400", s.Mtu)
	}
}

// endLease puts the end of a flow's lease well past the grace of one poll.
func (b *bench) endLease(t *testing.T, in exercise.Packet) {
	t.Helper()
	s, at, found := b.Find(exercise.KeyOf(in, b.LANIndex))
	if !found {
		t.Fatal("no slot")
	}
	s.Lease = s.Seen - b.HZ
	check(t, b.PutAt(at, s))
}

// TestLeaseLength: within 12.5 % of what was set, the longer one only while the daemon beats.
func TestLeaseLength(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	const short, long = 1000, 100000
	b.Edit(func(c *exercise.Control) { c.Lease, c.LeaseLive = short, long })
	for _, live := range []bool{false, true} {
		seen := map[uint32]bool{}
		for range 50 {
			check(t, b.Clear())
			want := uint32(short)
			if live {
				want = long
				_, err := b.Beat()
				check(t, err)
			} else {
				b.Edit(func(c *exercise.Control) { c.Beat -= 10 * b.HZ })
			}
			b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
			s := b.slotOf(t, in)
			length := s.Lease - s.Born
			if length < want-want/8 || length > want+want/8+1 {
				t.Fatalf("beating %v: lease of %d jiffies", live, length)
			}
			seen[length] = true
		}
		if len(seen) < 5 {
			t.Errorf("beating %v: only %d lengths in 50 leases: no jitter", live, len(seen))
		}
	}
}

// TestMTU: the entry takes the smallest of device and route.
func TestMTU(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range []struct {
		name, up, down string
		packet         func() (in, out exercise.Packet)
		mtu            uint16
	}{
		{"device", "link set wan mtu 1400", "link set wan mtu 1500", b.udp4, 1400},
		{"route", "route add 198.19.0.2/32 dev wan mtu lock 1300", "route delete 198.19.0.2/32", b.udp4, 1300},
		{"IPv6 device", "link set wan mtu 1400", "link set wan mtu 1500", b.udp6, 1400},
		{"IPv6 route", "route add 2001:2:0:19::2/128 dev wan mtu lock 1290", "route delete 2001:2:0:19::2/128", b.udp6, 1290},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			check(t, b.WAN.NS.IP(c.up))
			in, out := c.packet()
			b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
			if s := b.slotOf(t, in); s.Mtu != c.mtu {
				t.Errorf("MTU %d, want %d", s.Mtu, c.mtu)
			}
			check(t, b.WAN.NS.IP(c.down))
		})
	}
}

// TestSlowNeighbour: a packet that waits for ARP teaches as long as its sighting is young.
func TestSlowNeighbour(t *testing.T) {
	for _, c := range []struct {
		reason string
		age    time.Duration
	}{{"stale_sighting", dataplane.DefaultSightingAge}, {"learned", 0}} {
		t.Run(c.reason, func(t *testing.T) {
			b := open(t, exercise.Options{SightingAge: c.age})
			in, out := b.udp4()
			in.Dst = addr("198.19.0.77:2000")
			out = b.routed(in)
			out.To = net.HardwareAddr{2, 0, 0, 0, 19, 77}
			ask := b.arp(1, b.WAN.MAC, net.HardwareAddr{255, 255, 255, 255, 255, 255}, b.WAN.MAC, make(net.HardwareAddr, 6), "\xc6\x13\x00\x01", "\xc6\x13\x00\x4d")
			answer := b.arp(2, out.To, b.WAN.MAC, out.To, b.WAN.MAC, "\xc6\x13\x00\x4d", "\xc6\x13\x00\x01")
			b.forth(t, teaches+"unsighted", in.Bytes(), ask)
			time.Sleep(2 * dataplane.DefaultSightingAge)
			check(t, b.server.Drain())
			b.counts(t, "xdp not_ip, tc-ingress judged, tc-egress "+c.reason, func() {
				check(t, b.server.Send(answer))
				got, err := b.server.Receive(patience)
				check(t, err)
				same(t, "after ARP", got, out.Bytes())
			})
			if c.reason == "stale_sighting" {
				b.answers(t, queryOf(in), c.reason)
			}
		})
	}
}

// arp builds RFC 826's packet.
func (b *bench) arp(op byte, from, to, sender, target net.HardwareAddr, senderIP, targetIP string) []byte {
	return slices.Concat(to, from, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, op}, sender, []byte(senderIP), target, []byte(targetIP))
}
