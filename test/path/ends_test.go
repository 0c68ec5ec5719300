// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"shunt/internal/dataplane/exercise"
)

// tracked is connection, and conntrack has an entry of it with be-liberal.
func (b *bench) tracked(t *testing.T, v6 bool) (in, out exercise.Packet, there, back exercise.Place) {
	t.Helper()
	in, out, there, back = b.unzoned(t, v6)
	b.untrack(t)
	port := func(a netip.AddrPort) string { return num(a.Port()) }
	_, err := b.LAN.NS.Run("conntrack", "-I", "-p", "tcp", "--state", "ESTABLISHED", "-t", "1000", "-u", "SEEN_REPLY,ASSURED",
		"-s", in.Src.Addr().String(), "-d", in.Dst.Addr().String(), "--sport", port(in.Src), "--dport", port(in.Dst),
		"-r", out.Dst.Addr().String(), "-q", out.Src.Addr().String(), "--reply-port-src", port(out.Dst), "--reply-port-dst", port(out.Src))
	check(t, err) // conntrack(8) sets be-liberal on what it makes
	return in, out, there, back
}

// begun is connection, but conntrack has seen another one begin between the same ports.
func (b *bench) begun(t *testing.T, v6 bool) (in, out exercise.Packet, there, back exercise.Place) {
	t.Helper()
	in, _, _, _ = b.unzoned(t, v6)
	b.track(t, "")
	in.TCP, in.Payload = exercise.TCP{Seq: 77, SYN: true}, nil
	check(t, b.server.Drain())
	check(t, b.client.Send(in.Bytes()))
	if f, err := b.server.Receive(patience); f == nil || err != nil {
		t.Fatalf("the SYN does not arrive: %v", err)
	}
	return b.unzoned(t, v6)
}

// unzoned is connection in conntrack's default zone.
func (b *bench) unzoned(t *testing.T, v6 bool) (in, out exercise.Packet, there, back exercise.Place) {
	t.Helper()
	in, out, there, back = b.connection(t, v6)
	b.alter(t, there, back, func(s, r *exercise.Slot) { s.Zone, r.Zone = 0, 0 })
	return in, out, there, back
}

// untrack empties conntrack.
func (b *bench) untrack(t *testing.T) {
	t.Helper()
	_, err := b.LAN.NS.Run("conntrack", "-F")
	check(t, err)
}

// TestForgedSYN: a SYN in the middle of a connection takes its entries out of use, and nothing else: who cannot
// guess where the connection stands cannot end it behind a SYN either. The refusal of that SYN goes through, as
// with conntrack alone.
func TestForgedSYN(t *testing.T) {
	b := open(t, exercise.Options{})
	const blind = 1 << 31
	for _, v6 := range []bool{false, true} {
		for _, stage := range []string{"xdp", "tc-ingress"} {
			for _, syn := range []exercise.TCP{{Seq: blind, SYN: true}, {Seq: blind, SYN: true, ACK: true, Ack: 5}} {
				for _, c := range []struct {
					name    string
					answers bool // comes from the other side
					tcp     exercise.TCP
					reason  string
					state   uint8
				}{
					{"blind FIN", false, exercise.TCP{Seq: blind + 1, ACK: true, FIN: true}, "tcp_implausible", exercise.Seen},
					{"blind RST", false, exercise.TCP{Seq: blind + 1, RST: true}, "tcp_implausible", exercise.Seen},
					{"blind answer", true, exercise.TCP{Seq: blind, Ack: 7, ACK: true, FIN: true}, "tcp_implausible", exercise.Seen},
					{"blind reset as an answer", true, exercise.TCP{Seq: blind, Ack: 7, ACK: true, RST: true}, "tcp_implausible", exercise.Seen},
					{"genuine FIN", false, exercise.TCP{Seq: 1000, ACK: true, FIN: true}, "tcp_close", exercise.Closed},
					{"genuine answer", true, exercise.TCP{Seq: 2000, ACK: true, FIN: true}, "tcp_close", exercise.Closed},
					{"refusal", true, exercise.TCP{Ack: blind + 1, ACK: true, RST: true}, "tcp_close", exercise.Closed},
				} {
					t.Run(c.name+" at "+stage, func(t *testing.T) {
						in, out, there, back := b.tracked(t, v6)
						in.TCP = syn
						b.closes(t, stage, b.LANIndex, in.Bytes(), "tcp_syn")
						b.in(t, "forth", there, exercise.Seen)
						b.in(t, "back", back, exercise.Seen)
						port := b.LANIndex
						if c.answers {
							in, port = answer(out), b.WANIndex
							in.To, in.From = b.WAN.MAC, b.Server.MAC
						}
						in.TCP = c.tcp
						b.closes(t, stage, port, in.Bytes(), c.reason)
						b.in(t, "forth", there, c.state)
						b.in(t, "back", back, c.state)
					})
				}
			}
		}
	}
}

// TestNewerConnection: what does not fit is not dropped if conntrack judges it itself, since the connection that
// it has is another one than the entry knows, or none.
func TestNewerConnection(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, v6 := range []bool{false, true} {
		for _, stage := range []string{"xdp", "tc-ingress"} {
			for _, c := range []struct {
				name   string
				set    func() (exercise.Packet, exercise.Place, exercise.Place)
				reason string
				state  uint8
			}{
				{"be-liberal", func() (exercise.Packet, exercise.Place, exercise.Place) {
					in, _, there, back := b.tracked(t, v6)
					return in, there, back
				}, "tcp_implausible", exercise.Armed},
				{"conntrack checks windows", func() (exercise.Packet, exercise.Place, exercise.Place) {
					in, _, there, back := b.begun(t, v6)
					return in, there, back
				}, "tcp_close", exercise.Seen},
				{"no connection", func() (exercise.Packet, exercise.Place, exercise.Place) {
					in, _, there, back := b.tracked(t, v6)
					b.untrack(t)
					return in, there, back
				}, "tcp_close", exercise.Seen},
			} {
				t.Run(c.name+" at "+stage, func(t *testing.T) {
					in, there, back := c.set()
					in.TCP = exercise.TCP{Seq: 1 << 31, ACK: true, FIN: true}
					b.closes(t, stage, b.LANIndex, in.Bytes(), c.reason)
					b.in(t, "forth", there, c.state)
					b.in(t, "back", back, c.state)
				})
			}
		}
	}
}

// TestOtherPort: a FIN that comes in by another port than the connection's entries is judged by those, and closes
// them, also where it is the first packet there.
func TestOtherPort(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, v6 := range []bool{false, true} {
		for _, stage := range []string{"xdp", "tc-ingress"} {
			for _, c := range []struct {
				name   string
				seq    uint32
				change func(there, back *exercise.Slot)
				reason string
				state  uint8
			}{
				{"genuine", 1000, nil, "tcp_close", exercise.Closed},
				{"acknowledged already", 1 << 30, func(_, back *exercise.Slot) { back.TcpAck = 1 << 30 }, "tcp_close", exercise.Armed},
				{"blind", 1 << 31, nil, "tcp_implausible", exercise.Armed},
				{"blind, and conntrack judges", 1 << 31, func(there, _ *exercise.Slot) { there.Flags &^= exercise.FlagLiberal }, "tcp_close", exercise.Armed},
				{"blind after a pause", 1 << 31, func(there, back *exercise.Slot) { there.Watch--; back.Watch-- }, "tcp_close", exercise.Armed},
			} {
				t.Run(c.name+" at "+stage, func(t *testing.T) {
					in, _, there, back := b.tracked(t, v6)
					b.alter(t, there, back, c.change)
					in.TCP = exercise.TCP{Seq: c.seq, ACK: true, FIN: true}
					in.To = b.WAN.MAC
					b.closes(t, stage, b.WANIndex, in.Bytes(), c.reason)
					b.in(t, "forth", there, c.state)
					b.in(t, "back", back, c.state)
				})
			}
		}
	}
}

// TestIdleTCPGoesLast: an idle TCP connection's slot is the last that is given to another flow, since a blind end
// of it is told from a genuine one by what the slot knows.
func TestIdleTCPGoesLast(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	key, words := exercise.KeyOf(in, b.LANIndex)
	now, err := b.Now()
	check(t, err)
	for idle := range 4 {
		for tcp := range 4 {
			check(t, b.Clear())
			for i, at := range b.fill(t, in, out) {
				s, err := b.At(at)
				check(t, err)
				if i == idle || i == tcp {
					s.Seen, s.Lease = now-2*b.HZ, now-2*b.HZ
				}
				if i == tcp && idle != tcp {
					s.Flags |= exercise.FlagLiberal
				}
				check(t, b.PutAt(at, s))
			}
			b.meets(t, "xdp", "learning", in, out)
			_, at, found := b.Find(key, words)
			want := exercise.Place{Bucket: b.Hash().Places(key, words)[idle/2], Way: uint32(idle % 2)}
			if !found || at != want {
				t.Errorf("place %d idle, and %d by a TCP connection: claimed %v, %v; want %v", idle, tcp, at, found, want)
			}
		}
	}
}

// TestIdleTCPIsNotSwept: a source at its limit has idle slots emptied, but of TCP connections only its own.
func TestIdleTCPIsNotSwept(t *testing.T) {
	b := open(t, exercise.Options{})
	b.Edit(func(ctl *exercise.Control) { ctl.SourceFlows = 2 })
	in, out := b.udp4()
	packet := func(host, port int) exercise.Packet { return from(in, fmt.Sprintf("198.18.0.%d:%d", host, port)) }
	for _, p := range []exercise.Packet{packet(2, 1), packet(2, 2), packet(3, 1), packet(4, 1)} {
		b.meets(t, "xdp", "learning", p, out)
	}
	liberal := func(p exercise.Packet) {
		b.idle(t, p)
		s, at, _ := b.Find(exercise.KeyOf(p, b.LANIndex))
		s.Flags |= exercise.FlagLiberal
		check(t, b.PutAt(at, s))
	}
	b.idle(t, packet(3, 1))
	liberal(packet(4, 1))
	for range 2 * 2048 / (8 * 16) { // each jiffy a CPU looks at 16 times 8 buckets, from a hand of its own
		for range 16 {
			_, err := b.XDP(b.LANIndex, packet(2, 3).Bytes())
			check(t, err)
		}
		for port := range 2 { // its own flows go on
			_, err := b.XDP(b.LANIndex, packet(2, port+1).Bytes())
			check(t, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for host, want := range map[int]bool{3: false, 4: true} {
		if _, _, found := b.Find(exercise.KeyOf(packet(host, 1), b.LANIndex)); found != want {
			t.Errorf("the slot of host %d is there: %v, want %v", host, found, want)
		}
	}
	liberal(packet(2, 2))
	b.admitted(t, packet(2, 3))
	b.recounted(t)
}
