// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/lfib"
)

// beyond is a frame that the kernel has let out to the server's side.
func (s *switcher) beyond(ip []byte) []byte {
	kind := uint16(lfib.EtherIPv4)
	if ip[0]>>4 == 6 {
		kind = lfib.EtherIPv6
	}
	return s.sent(kind, ip)
}

// impose puts such a frame through the program in which it gets labels.
func (s *switcher) impose(t *testing.T, frame []byte) exercise.Outcome {
	t.Helper()
	o, err := s.XDPBy(s.labels.Imposition(), s.LANIndex, frame, 0)
	check(t, err)
	return o
}

// TestImposition: of each family one packet, its bytes, and what is counted.
func TestImposition(t *testing.T) {
	const send = " send dev wan via inet 198.19.0.2"
	s := openSwitcher(t, open(t, exercise.Options{}), false, "nhlfe add 7 push 200 push 300 tc 2 ttl 9"+send, "ftn add 198.19.0.0/24 nhlfe 7",
		"nhlfe add 8 ttl pipe push 201"+send, "ftn add 2001:2:0:19::2/128 nhlfe 8", "nhlfe add 9 mtu 68 push 202"+send, "ftn add 198.19.0.7/32 nhlfe 9",
		"nhlfe add 10 push 203 send dev wan via inet 198.19.0.99", "ftn add 198.19.0.8/32 nhlfe 10", "nhlfe add 11 drop", "ftn add 198.19.0.9/32 nhlfe 11")
	u4, _ := s.udp4()
	u6, _ := s.udp6()
	u4.TTL, u4.TOS, u6.TTL, u6.TOS = 1, 0xb9, 64, 0x48
	four, six := u4.Bytes()[14:], u6.Bytes()[14:]
	to := func(last byte) []byte {
		p := u4
		b := p.Dst.Addr().As4()
		b[3] = last
		p.Dst = addr(fmt.Sprintf("%d.%d.%d.%d:2000", b[0], b[1], b[2], b[3]))
		return p.Bytes()[14:]
	}
	zero := bytes.Clone(four)
	zero[8] = 0
	stranger := bytes.Clone(four)
	stranger[16] = 9
	const drop, pass, redirect = 1, 2, 4
	for _, c := range []struct {
		word    string
		frame   []byte
		verdict uint32
		out     []byte // nil: as it came
	}{
		{"mpls_imposed", s.beyond(four), redirect, s.sent(0x8847, append(append(lse(300, 2, 0, 9), lse(200, 5, 1, 1)...), four...))},
		{"mpls_imposed", s.beyond(six), redirect, s.sent(0x8847, append(lse(201, 2, 1, 255), six...))},
		{"mpls_over_mtu", s.beyond(append(to(7), make([]byte, 40)...)), pass, nil},
		{"mpls_no_adjacency", s.beyond(to(8)), drop, nil},
		{"mpls_discard", s.beyond(to(9)), drop, nil},
		{"mpls_no_label", s.beyond(stranger), drop, nil},
		{"mpls_ttl_zero", s.beyond(zero), drop, nil},
		{"mpls_payload", s.sent(0x86dd, four), drop, nil},
		{"mpls_payload", s.sent(0x0800, four[:19]), drop, nil},
	} {
		s.counts(t, "mpls "+c.word, func() {
			o := s.impose(t, c.frame)
			if c.out == nil {
				c.out = c.frame
			}
			if o.Verdict != c.verdict || !bytes.Equal(o.Frame, c.out) {
				t.Errorf("%s: verdict %d, frame % x\nwant %d, % x", c.word, o.Verdict, o.Frame, c.verdict, c.out)
			}
		})
	}
	s.counted(t, "mpls_imposed", "mpls", "lan", s.LANIndex)
	stats, err := s.labels.LabelStats()
	check(t, err)
	for id, octets := range map[uint32]int{7: len(four) + 8, 8: len(six) + 4, 9: 0, 10: 0} {
		got := stats.Out[id]
		got.Since = time.Time{}
		want := dataplane.Segment{}
		if octets > 0 {
			want = dataplane.Segment{Packets: 1, Octets: uint64(octets)}
		}
		if got != want {
			t.Errorf("out-segment %d: %+v, want %+v", id, got, want)
		}
	}
}

// TestImpositionAtRandom compares what random packets get, by random tables, with what internal/lfib
// says step by step; and the hash with that of internal/dataplane.
func TestImpositionAtRandom(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	b := open(t, exercise.Options{})
	imposed := 0
	for range 10 {
		t.Run("", func(t *testing.T) {
			s := openSwitcher(t, b, true, randomImposition(random)...)
			for range 600 {
				if s.compareImposed(t, random, seed) {
					imposed++
				}
			}
		})
	}
	if imposed < 500 {
		t.Errorf("seed %d: %d packets of 6000 got labels", seed, imposed)
	}
}

// randomImposition are lines of lists for what has no label, and prefixes that lie in one another.
func randomImposition(random *rand.Rand) []string {
	lines := []string{"map add up dscp-to-tc 0:0 10:1 18:2 26:3 34:4 46:5 48:6 56:7"}
	model := func() string { return []string{"", " ttl pipe", " ttl short-pipe"}[random.IntN(3)] }
	for id := 1; id <= 16; id++ {
		list := ""
		if random.IntN(4) == 0 {
			list += " set-dscp 20"
		}
		for range random.IntN(5) {
			if random.IntN(4) == 0 {
				list += " entropy"
			}
			list += fmt.Sprintf(" push %d", 16+random.IntN(16)) + []string{"", " tc 6", " tc-map up", " ttl 9"}[random.IntN(4)]
		}
		other := func() int { return 1 + random.IntN(max(id-1, 1)) }
		switch {
		case id > 4 && random.IntN(2) == 0:
			list = fmt.Sprintf(" %s", []string{
				fmt.Sprintf("by-tc 1:%d 4:%d default %d", other(), other(), other()),
				fmt.Sprintf("by-dscp 0:%d 46:%d", other(), other()),
				fmt.Sprintf("by-hash %d %d*3", id-1, id-2),
				fmt.Sprintf("push 77 by-tc 0:%d default %d", other(), other()),
				fmt.Sprintf("forward %d", other()),
			}[random.IntN(5)])
		case random.IntN(12) == 0:
			list = " drop"
		default:
			list += []string{" send dev wan via inet 198.19.0.2", " send dev wan via inet 198.19.0.3"}[random.IntN(2)]
		}
		mtu := ""
		if list != " drop" && random.IntN(5) == 0 {
			mtu = " mtu 80"
		}
		lines = append(lines, fmt.Sprintf("nhlfe add %d%s%s%s", id, mtu, model(), list))
	}
	for _, prefix := range []string{"198.19.0.0/24", "198.19.0.2/32", "198.16.0.0/12", "2001:2:0:19::/64", "2001:2:0:19::2/128", "2001:2::/32"} {
		if random.IntN(2) == 0 {
			lines = append(lines, fmt.Sprintf("ftn add %s nhlfe %d", prefix, 1+random.IntN(16)))
		}
	}
	return lines
}

// compareImposed puts a random packet through both, and tells whether it got labels.
func (s *switcher) compareImposed(t *testing.T, random *rand.Rand, seed uint64) bool {
	t.Helper()
	u4, _ := s.udp4()
	u6, _ := s.udp6()
	p := []exercise.Packet{u4, u6}[random.IntN(2)]
	p.TTL = []uint8{0, 1, 2, 64, 255}[random.IntN(5)]
	p.TOS = uint8(random.IntN(256))
	p.Payload = make([]byte, random.IntN(40))
	p.Src = addr(strings.Replace(p.Src.String(), ":1000", fmt.Sprint(":", 1+random.IntN(60000)), 1))
	ip := p.Bytes()[14:]
	if random.IntN(12) == 0 {
		ip[random.IntN(len(ip))] ^= 1 << random.IntN(8)
	}
	in := s.beyond(ip)
	want, found := s.table.Impose(ip, lfib.Env{Hash: s.labels.LabelHash, Adjacency: func(*lfib.Send) (int, bool) { return 1500, true }})
	switch {
	case ip[0]>>4 != 4 && ip[0]>>4 != 6 || ip[0]>>4 == 6 && len(ip) < 40:
		want.Reason = "mpls_payload"
	case !found:
		want.Reason = "mpls_no_label"
	}
	before, err := s.Count()
	check(t, err)
	o := s.impose(t, in)
	after, err := s.Count()
	check(t, err)
	diff := after.Minus(before)
	for k, n := range diff {
		reached[k] += n
	}
	if want.Reason == lfib.Switched { // bare, if the list pushes nothing
		want.Reason = "mpls_imposed"
	}
	if diff.String() != "mpls "+want.Reason {
		t.Fatalf("seed %d: % x: counted %v, want %s\n%s", seed, in, diff, want.Reason, strings.Join(s.table.Save(), "\n"))
	}
	if want.Reason != "mpls_imposed" {
		return false
	}
	frame := s.sent(want.EtherType, want.Packet)
	if want.Send.Via == s.Server.V4.Addr().Next() {
		copy(frame, otherMAC[:])
	}
	if !bytes.Equal(o.Frame, frame) {
		t.Fatalf("seed %d:\nin   % x\nout  % x\nwant % x\n%s", seed, in, o.Frame, frame, strings.Join(s.table.Save(), "\n"))
	}
	return true
}
