package twin

import (
	"net"
	"net/netip"
	"slices"
	"testing"
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
		if got := j.exception(item{frame: c.frame}, nil, out(c.frame)); got != c.want {
			t.Errorf("a frame %s: %q, want %q", c.what, got, c.want)
		}
	}
}
