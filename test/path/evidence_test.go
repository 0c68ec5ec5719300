// SPDX-License-Identifier: Apache-2.0

package path

import (
	"slices"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// TestEvidence: which packets say where the connection stands. One that conntrack would have taken does,
// whichever path it takes and whatever it is refused for; a blind one does not, unless the other side has come to
// where it says, or nobody watched before.
func TestEvidence(t *testing.T) {
	b := open(t, exercise.Options{})
	const far = 1 << 30
	for _, c := range []struct {
		reason string
		slow   bool // more is looked at than the packet before
		right  bool // it comes from the station that the entry was learned from
		change func(there *exercise.Slot)
		packet func(*exercise.Packet)
	}{
		{"", false, true, nil, nil},
		{"closed", true, true, func(s *exercise.Slot) { s.State = exercise.Closed }, nil},
		{"dscp_differs", true, true, nil, func(p *exercise.Packet) { p.TOS = 0x20 }},
		{"mac_differs", true, false, nil, func(p *exercise.Packet) { p.From = other(p.From) }},
		{"over_mtu", false, true, func(s *exercise.Slot) { s.Mtu = 40 }, nil},
		{"lease_ended", true, true, func(s *exercise.Slot) { s.Lease -= 120 * b.HZ }, nil},
		{"old_generation", true, true, func(s *exercise.Slot) { s.Gen-- }, nil},
		{"learning", true, true, func(s *exercise.Slot) { s.State = exercise.Seen }, nil},
	} {
		for _, k := range []struct {
			name     string
			seq, ack uint32
			moves    bool
			change   func(there, back *exercise.Slot)
			again    bool // the furthest end stays
		}{
			{"the next", 1000, 2700, true, nil, false},
			{"8 MB ahead", 1000 + 1<<23 - 19, 2000, true, nil, false},
			{"one byte more", 1000 + 1<<23 - 18, 2000, false, func(_, back *exercise.Slot) { back.TcpAck = 0 }, false},
			{"8 MB behind", 1<<32 + 1000 - 1<<23 - 18, 2000, true, nil, false},
			{"one byte less", 1<<32 + 1000 - 1<<23 - 19, 2000, false, nil, false},
			{"sent again", 1000 - 36, 2700, true, nil, true},
			{"a keepalive", 1000 - 19, 2000, true, nil, true},
			{"sent again, 1 MB behind", 1<<32 + 1000 - 1<<20 - 18, 2000, true, nil, true},
			{"a byte more behind", 1<<32 + 1000 - 1<<20 - 19, 2000, true, nil, false},
			{"sent again, after a pause", 1000 - 36, 2700, true, func(there, _ *exercise.Slot) { there.Watch++ }, true},
			{"behind what was never watched", 1000 - 36, 2700, true, func(there, _ *exercise.Slot) { there.Watch = 0 }, !c.slow},
			{"behind, and its acknowledgement is far", 1000 - 36, far, c.slow, func(there, _ *exercise.Slot) { there.Flags &^= exercise.FlagLiberal }, false},
			{"its acknowledgement is far", 1000, far, false, nil, false},
			{"blind", far, far, false, nil, false},
			{"far, as the other side says, too", far, 77, c.slow, func(_, back *exercise.Slot) { back.TcpSeq, back.TcpAck = 77, far }, false},
			{"far, and the other side says half of it", far, far, false, func(_, back *exercise.Slot) { back.TcpAck = far }, false},
			{"far, and the other side was not watched", far, 77, false, func(_, back *exercise.Slot) { back.TcpSeq, back.TcpAck, back.Watch = 77, far, 0 }, false},
			{"the first that is watched", far, 77, c.slow && c.right, func(there, _ *exercise.Slot) { there.Watch-- }, false},
			{"conntrack judges it", far, 77, c.slow, func(there, _ *exercise.Slot) { there.Flags &^= exercise.FlagLiberal }, false},
		} {
			for _, stage := range []string{"xdp", "tc-ingress"} {
				t.Run(c.reason+" at "+stage+": "+k.name, func(t *testing.T) {
					in, out, there, back := b.connection(t, false)
					b.alter(t, there, back, func(s, r *exercise.Slot) {
						if k.change != nil {
							k.change(s, r)
						}
						if c.change != nil {
							c.change(s)
						}
					})
					before, err := b.At(there)
					check(t, err)
					in.TCP.Seq, in.TCP.Ack, in.TCP.Window = k.seq, k.ack, 88
					out.TCP = in.TCP
					if c.packet != nil {
						c.packet(&in)
					}
					b.meets(t, stage, c.reason, in, out)
					s, err := b.At(there)
					check(t, err)
					want := []uint32{before.TcpSeq, before.TcpAck, uint32(before.TcpWnd)}
					if k.moves {
						want = []uint32{k.seq + uint32(len(in.Payload)), k.ack, 88}
					}
					if k.moves && k.again {
						want[0] = before.TcpSeq
					}
					if got := []uint32{s.TcpSeq, s.TcpAck, uint32(s.TcpWnd)}; !slices.Equal(got, want) {
						t.Errorf("evidence %d, want %d", got, want)
					}
					watch := before.Watch
					if k.moves && c.slow {
						watch = b.watch()
					}
					if s.Watch != watch {
						t.Errorf("watch %d, want %d", s.Watch, watch)
					}
				})
			}
		}
	}
}

// TestEvidenceInPause: in a pause the numbers go on for conntrack's timers, by the packets that move them otherwise.
func TestEvidenceInPause(t *testing.T) {
	b := open(t, exercise.Options{})
	const far = 1 << 30
	for _, stage := range []string{"xdp", "tc-ingress"} {
		for _, c := range []struct {
			name             string
			seq, ack         uint32
			wantSeq, wantAck uint32
		}{
			{"the next", 1000, 2700, 1018, 2700},
			{"a keepalive", 1000 - 19, 2000, 1000, 2000},
			{"blind", far, far, 1000, 2000},
		} {
			t.Run(c.name+" at "+stage, func(t *testing.T) {
				in, out, there, _ := b.connection(t, false)
				b.Edit(func(c *exercise.Control) { c.Paused, c.Gen = 1, c.Gen+1 })
				defer b.Edit(func(c *exercise.Control) { c.Paused = 0 })
				in.TCP.Seq, in.TCP.Ack = c.seq, c.ack
				b.meets(t, stage, "paused", in, out)
				s, err := b.At(there)
				check(t, err)
				if s.TcpSeq != c.wantSeq || s.TcpAck != c.wantAck || s.State != exercise.Armed {
					t.Errorf("%d, %d, state %d; want %d, %d", s.TcpSeq, s.TcpAck, s.State, c.wantSeq, c.wantAck)
				}
			})
		}
	}
}
