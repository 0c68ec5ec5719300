// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"shunt/internal/kernel"
)

// TestFuzzJudge: what a frame with a wrong checksum that only shunt forwarded is called, by what came
// through of its flow before. A flow that mutants alone make up is no conversation's: it has that
// exception, and no other.
func TestFuzzJudge(t *testing.T) {
	l := leg{
		mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, via: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		source: netip.MustParseAddrPort("198.18.0.2:1000"), dest: netip.MustParseAddrPort("198.19.0.2:2000"),
	}
	frame := func(wrong bool) []byte {
		f := l.packet(header{ttl: 64}, protoUDP, udp(1000, 2000, []byte{1, 2, 3, 4}))
		f[41] = 1 // there is a checksum
		look(f).seal()
		if wrong {
			f[len(f)-1] ^= 1
		}
		return f
	}
	out := func(f []byte) []capture {
		f = slices.Clone(f)
		copy(f, []byte{2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 3})
		f[22]--
		clear(f[24:26])
		sum := ^fold(sum(f[14:34]))
		f[24], f[25] = byte(sum>>8), byte(sum)
		return []capture{{frame: f}}
	}
	good, bad := frame(false), frame(true)
	mutant := []string{"ip-dest"}
	for _, c := range []struct {
		what   string
		before item
		frame  []byte
		void   bool // is the conversation
		want   string
	}{
		{"of a conversation", item{frame: good}, bad, false, byChecksum},
		{"of a conversation that may differ", item{frame: good}, bad, true, byAfter},
		{"of a flow of mutants", item{frame: good, kind: mutant}, bad, false, byChecksum},
		{"of a flow of mutants of a conversation that may differ", item{frame: good, kind: mutant}, bad, true, byChecksum},
		{"right, of a flow of mutants", item{frame: good, kind: mutant}, good, true, ""},
		{"of a flow that no example is known of", item{frame: bad, kind: mutant}, bad, false, ""},
		{"of a stranger", item{frame: good, kind: mutant, flow: -1}, bad, false, ""},
	} {
		j := &judgement{T: t, examples: map[string]example{}, void: map[int]bool{0: c.void}}
		j.learn(c.before, out(c.before.frame))
		if got := j.exception(item{frame: c.frame}, c.frame, nil, out(c.frame)); got != c.want {
			t.Errorf("a frame %s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestFuzzDatagram: conntrack judges a datagram that comes in fragments by its TCP header,
// which may be in two of them, in any order.
func TestFuzzDatagram(t *testing.T) {
	for _, six := range []bool{false, true} {
		l := leg{
			mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, via: net.HardwareAddr{2, 0, 0, 0, 0, 2},
			source: netip.MustParseAddrPort("198.18.0.2:1000"), dest: netip.MustParseAddrPort("198.19.0.2:2000"),
		}
		if six {
			l.source, l.dest = netip.MustParseAddrPort("[2001:2:0:18::2]:1000"), netip.MustParseAddrPort("[2001:2:0:19::2]:2000")
		}
		c := &conversation{name: "tcp", proto: protoTCP, ends: [2]leg{l, l}}
		frame := number(0, c.talk(0, 1))[0].frame
		m := &mutant{Rand: rand.New(rand.NewPCG(1, 0)), conversation: c, frame: slices.Clone(frame)}
		if !fragmented(m) || len(m.more) != 1 {
			t.Fatal("no fragments were drawn")
		}
		parts := [][]byte{m.frame, m.more[0]}
		for range 2 {
			j := &judgement{T: t, s: &fuzzScript{items: []item{{frame: frame}, {frame: parts[0]}, {frame: parts[1]}}}}
			for i, want := range [][]byte{frame, parts[0], frame} {
				if got := j.datagram(i); want != nil && !bytes.Equal(got[14:], want[14:]) {
					t.Errorf("IPv6 %t, item %d: got % x, want % x", six, i, got, want)
				}
			}
			slices.Reverse(parts)
		}
		j := &judgement{T: t, s: &fuzzScript{items: []item{{frame: parts[1]}}}}
		if got := j.datagram(0); !bytes.Equal(got, parts[1]) {
			t.Errorf("IPv6 %t: a fragment alone became % x", six, got)
		}
	}
}

// TestFuzzChance: what of two frames, or of two connections, may differ by chance, and what may not.
func TestFuzzChance(t *testing.T) {
	out := func(port uint16, data, kind byte) []byte {
		l := leg{
			mac: net.HardwareAddr{2, 0, 0, 0, 0, 3}, via: net.HardwareAddr{2, 0, 0, 0, 0, 4},
			source: netip.AddrPortFrom(netip.MustParseAddr("198.19.0.1"), port), dest: netip.MustParseAddrPort("198.19.0.2:2000"),
		}
		f := l.packet(header{ttl: 63, tos: kind}, protoUDP, udp(port, 2000, []byte{1, 2, 3, data}))
		f[41] = 1
		look(f).seal()
		return f
	}
	zero := func(sum byte) []byte { // only what is in it counts here
		f := out(1000, 4, 0)
		f[24], f[25] = sum, sum
		return f
	}
	in := leg{
		mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, via: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		source: netip.MustParseAddrPort("198.18.0.2:1000"), dest: netip.MustParseAddrPort("198.19.0.2:2000"),
	}
	x := item{frame: in.packet(header{ttl: 64}, protoUDP, udp(1000, 2000, []byte{1, 2, 3, 4}))}
	line := func(from string, port uint16) string {
		server := netip.MustParseAddrPort("198.19.0.2:2000")
		return trackedLine(kernel.Connection{
			Original: kernel.Tuple{Proto: protoUDP, Source: netip.MustParseAddrPort(from), Destination: server},
			Reply:    kernel.Tuple{Proto: protoUDP, Source: server, Destination: netip.AddrPortFrom(netip.MustParseAddr("198.19.0.1"), port)},
			Status:   0x188,
		})
	}
	wrong := out(7000, 4, 0)
	wrong[len(wrong)-1] ^= 1
	for _, c := range []struct {
		what       string
		ours       uint16 // shunt's port behind the NAT, where the kernel's is 8000
		want, got  []byte
		result     string
		conntracks int // lines that are left to compare
	}{
		{"two drawn ports", 7000, out(8000, 4, 0), out(7000, 4, 0), byDrawnPort, 1},
		{"drawn by the kernel alone", 1000, out(8000, 4, 0), out(1000, 4, 0), "", 2},
		{"two drawn ports, other data", 7000, out(8000, 4, 0), out(7000, 5, 0), "", 1},
		{"two drawn ports, a wrong checksum", 7000, out(8000, 4, 0), wrong, "", 1},
		{"two drawn ports, another DSCP", 7000, out(8000, 4, 0), out(7000, 4, 0x20), "", 1},
		{"negative zero of the kernel", 8000, zero(0xff), zero(0), byNegativeZero, 2},
		{"negative zero of shunt", 8000, zero(0), zero(0xff), "", 2},
		{"another checksum", 8000, zero(0xff), zero(1), "", 2},
	} {
		want := &record{conntrack: []string{line("198.18.0.2:1000", 8000), line("198.18.0.2:3000", 3000)}}
		got := &record{conntrack: []string{line("198.18.0.2:1000", c.ours), line("198.18.0.2:3000", 3000)}}
		j := &judgement{T: t, drawn: drawn(want, got)}
		if result := j.chance(x, c.want, c.got); result != c.result || len(want.conntrack) != c.conntracks || len(got.conntrack) != c.conntracks {
			t.Errorf("%s: %q, want %q; left of conntrack: %q and %q", c.what, result, c.result, want.conntrack, got.conntrack)
		}
	}
}
