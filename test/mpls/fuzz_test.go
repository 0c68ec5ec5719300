// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"shunt/internal/lfib"
)

// fuzzed has an entry for every kind of instruction and end, so that random stacks get
// everywhere; labels of it follow one another in them.
var fuzzed = trial{
	name: "fuzz",
	config: lines(
		"map add down tc-to-dscp 0:0 1:10 5:46", "map add up dscp-to-tc 10:1 46:5",
		lsp(100, "swap 200 "+toB), lsp(101, "pop "+toB), lsp(102, "ttl pipe pop "+toB), lsp(103, "ttl short-pipe pop "+toB),
		lsp(104, "push 300 "+toB), lsp(105, sixteenLabels()+toB), lsp(106, "ttl pipe swap 200 push 300 tc-map up "+toB),
		lsp(107, "pop peek"), lsp(108, "ttl pipe pop peek"), lsp(109, "ttl short-pipe pop peek space 7"), lsp(110, "pop pop pop "+toB),
		lsp(111, "pop deliver"), lsp(112, "ttl pipe pop deliver"), lsp(113, "drop"), lsp(114, "by-tc 0:100 1:101 2:104 default 113"),
		lsp(115, "by-dscp 46:100 10:101 default 102"), lsp(116, "by-hash 100*3 101 104"), lsp(117, "pop by-hash 100 104"),
		lsp(118, "swap 150 entropy push 200 "+toB), lsp(119, "pop dscp-map down "+toB), lsp(120, "ttl pipe pop set-dscp 21 "+toB),
		lsp(121, "swap 200 tc-map up "+toB), lsp(122, "swap 3 "+toB), lsp(123, "swap 200 forward 104"), lsp(124, "pop pop pop pop pop pop pop pop peek"),
		inMTU(125, 100, "swap 200 "+toB), ilm(130, "space 7 nhlfe 100"), ilm(131, "tc 3 nhlfe 100"),
	),
	kernel: lines(
		route(100, "as 200 "+viaB), route(101, viaB), route(102, viaB+" ttl-propagate disabled"), route(104, "as 300/104 "+viaB),
		route(107, "dev lo"), route(108, "dev lo ttl-propagate disabled"), route(116, kernelTwoWays[0][len("-f mpls route add 100 "):]),
	),
}

// randomFrame is a stack of random depth and contents over a random payload, cut off at a
// random place now and then.
func randomFrame(rng *rand.Rand) frame {
	s := stack{}
	for range rng.IntN([]int{2, 5, 20, 40}[rng.IntN(4)]) {
		e := l(randomLabel(rng), uint8(rng.IntN(8)), []uint8{0, 1, 2, 64, 255}[min(rng.IntN(10), 4)])
		switch rng.IntN(30) {
		case 0:
			e = e.s()
		case 1:
			e = e.open()
		}
		s = append(s, e)
	}
	parts := []any{s, randomLoad(rng)}
	if rng.IntN(40) == 0 {
		parts = append(parts, etherType(kindUpstream))
	} else {
		parts = append(parts, etherType(kindMPLS))
	}
	f := on(port(rng.IntN(2)), parts...)
	if rng.IntN(4) > 0 {
		return f
	}
	whole := f.expected(p0, nil)[ethernetBytes:]
	return on(f.at, etherType(f.ether), raw(whole[:rng.IntN(len(whole)+1)]))
}

func randomLabel(rng *rand.Rand) uint32 {
	switch n := rng.IntN(20); {
	case n < 4:
		return rng.Uint32N(16)
	case n < 18:
		return 100 + rng.Uint32N(26)
	case n < 19:
		return 130 + rng.Uint32N(2)
	}
	return rng.Uint32N(1 << 20)
}

func randomLoad(rng *rand.Rand) payload {
	ds, ecn := uint8(rng.IntN(64)), uint8(rng.IntN(4))
	ttl := []uint8{0, 1, 2, 64, 255}[min(rng.IntN(10), 4)]
	switch rng.IntN(8) {
	case 0:
		return pseudowire()
	case 1:
		b := make(raw, rng.IntN(100))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	case 2:
		return v4(ttl).ds(ds, ecn).with(1, 1, 1, 0)
	case 3:
		return v4(ttl).ds(ds, ecn).spoiled(uint16(rng.Uint32()))
	case 4, 5:
		return v6(ttl).ds(ds, ecn).long(80 + rng.IntN(1200)) // and 40 labels: 1440
	}
	return v4(ttl).ds(ds, ecn).long(60 + rng.IntN(1200))
}

// chunk is how many frames are counted together: a router's counters take a while to read.
const chunk = 256

// TestFuzz: whatever comes, the router lives, what it sends is whole, and where it counts
// by reason each frame is counted once.
func TestFuzz(t *testing.T) {
	r := asked(t)
	rng := rand.New(rand.NewPCG(*seed, 0))
	reasons := map[string]uint64{}
	t.Run("all", func(t *testing.T) { r.fuzz(t, fuzzed, rng, reasons) })
	t.Run("foretold", func(t *testing.T) { r.fuzz(t, fuzzed.decided(), rng, reasons) })
	if len(reasons) > 0 {
		t.Logf("%d frames: %s", *frames, tally(reasons))
	}
}

// decided is a case without what goes by a hash, and so of a kind that can be foretold.
func (c trial) decided() trial {
	c.config = slices.DeleteFunc(slices.Clone(c.config), func(line string) bool {
		return strings.Contains(line, "by-hash") || strings.Contains(line, "entropy") ||
			line == ilm(116, "nhlfe 116") || line == ilm(117, "nhlfe 117") || line == ilm(118, "nhlfe 118")
	})
	return c
}

// fuzz sends half of the frames.
func (r *rig) fuzz(t *testing.T, c trial, rng *rand.Rand, reasons map[string]uint64) {
	if words := r.offers(c); words != "" {
		t.Skip(words)
	}
	if err := r.configure(c); err != nil {
		t.Fatal(err)
	}
	for sent := 0; sent < *frames/2 && !t.Failed(); sent += chunk {
		c.in = each(chunk, func(int) frame { return randomFrame(rng) })
		if wrong := r.chunk(c, reasons); wrong != "" {
			t.Errorf("-seed %d, from frame %d on: %s", *seed, sent, wrong)
			r.narrow(t, c)
		}
	}
	if err := r.reset(c); err != nil {
		t.Error(err)
	}
}

// chunk sends frames and says what is wrong with what became of them.
func (r *rig) chunk(c trial, reasons map[string]uint64) string {
	counts, _ := r.router.(interface {
		stages() (map[string]uint64, error)
	})
	stages := func() (map[string]uint64, error) { return nil, nil }
	if counts != nil {
		stages = counts.stages
	}
	before, err := stages()
	if err != nil {
		return err.Error()
	}
	came, err := r.play(c)
	if err != nil {
		return err.Error()
	}
	after, err := stages()
	if err != nil {
		return err.Error()
	}
	var sum uint64
	rose := map[string]uint64{}
	for why, n := range after {
		if n -= before[why]; n > 0 {
			rose[why] = n
			reasons[why] += n
			sum += n
		}
	}
	if want := uint64(len(c.in) + 1); counts != nil && sum != want { // the fence too
		return fmt.Sprintf("%d frames went in and %d were counted: %s", want, sum, tally(rose))
	}
	for _, at := range []port{a, b} {
		for _, got := range came[at] {
			if wrong := r.unsound(at, got); wrong != "" {
				return fmt.Sprintf("%s: %s", wrong, describe(got))
			}
		}
	}
	return r.unlike(c, came, rose)
}

// unlike says what is not as the slow reading of the tables has it. What was delivered is
// the kernel's to forward, and to what was dropped there may be an answer: those frames
// are not known. Neither is where a hash leads; a case without one is held against this.
func (r *rig) unlike(c trial, came [2][][]byte, rose map[string]uint64) string {
	if slices.ContainsFunc(c.config, func(line string) bool { return strings.Contains(line, "by-hash") || strings.Contains(line, "entropy") }) {
		return ""
	}
	n := &network{}
	for i := range 2 {
		n.hosts[i].MAC, n.ports[i].MAC = r.host[i], r.place.router[i]
	}
	o := &oracle{network: n, table: lfib.New(), reasons: map[string]uint64{}}
	if err := o.configure(c); err != nil {
		return err.Error()
	}
	for _, f := range c.in {
		before := o.reasons[lfib.Switched]
		at, kind, packet := o.forward(arrival{f.at, f.sent(r.place)})
		if o.reasons[lfib.Switched] == before {
			continue
		}
		want := o.framed(at, kind, packet)
		i := slices.IndexFunc(came[at], func(got []byte) bool { return bytes.Equal(got, want) })
		if i < 0 {
			return fmt.Sprintf("%s should have come out of %s as %s", describe(f.sent(r.place)), at, describe(want))
		}
		came[at] = slices.Delete(came[at], i, i+1)
	}
	if o.reasons[lfib.Switched]++; len(rose) > 0 && !maps.Equal(rose, o.reasons) { // the fence
		return fmt.Sprintf("counted: %s; should have been: %s", tally(rose), tally(o.reasons))
	}
	unknown := o.reasons[lfib.Delivered] + o.reasons[lfib.Expired] + o.reasons[lfib.TTLZero] + o.reasons[lfib.Alert] + mostParts*o.reasons[lfib.OverMTU]
	if more := uint64(len(came[a]) + len(came[b])); more > unknown {
		return fmt.Sprintf("%d frames came that nobody sent, among them %s", more, describe(append(came[a], came[b]...)[0]))
	}
	return ""
}

// mostParts is how many parts a random packet can be cut to.
const mostParts = 24

// narrow plays the frames one by one, to name those that are to blame.
func (r *rig) narrow(t *testing.T, c trial) {
	for _, f := range c.in {
		c.in = []frame{f}
		if wrong := r.chunk(c, map[string]uint64{}); wrong != "" {
			t.Errorf("%x (%s): %s", f.sent(r.place), describe(f.sent(r.place)), wrong)
		}
	}
}

// unsound says what no router may send, whatever it was sent.
func (r *rig) unsound(at port, got []byte) string {
	if len(got) < ethernetBytes || !slices.Equal(got[:6], r.host[at]) || !slices.Equal(got[6:12], r.place.router[at]) {
		return "wrong MACs"
	}
	rest := got[ethernetBytes:]
	switch kind := binary.BigEndian.Uint16(got[12:]); {
	case kind == kindMPLS && len(rest) < entryBytes:
		return "no whole entry"
	case kind == kindMPLS:
		// What a short pipe's PHP exposes may have any TTL (RFC 3443 §3.3); what was put there may not.
		if top, bottom := parseEntry(rest); top.ttl == 0 && top.label >= 200 && top.label <= 300 && !(bottom && leftZero(rest[entryBytes:])) {
			return "TTL 0" // RFC 3032 §2.4.2
		}
	case kind == kindIPv4 && (len(rest) < 20 || rest[0]>>4 != 4), kind == kindIPv6 && (len(rest) < 40 || rest[0]>>4 != 6):
		return "not the payload that the EtherType says"
	case kind != kindIPv4 && kind != kindIPv6:
		return "of an EtherType that it has no reason to send"
	}
	return ""
}

// leftZero is an IP packet whose TTL came as 0, in a run that leaves these out.
func leftZero(ip []byte) bool {
	zero := len(ip) >= 20 && (ip[0]>>4 == 4 && ip[8] == 0 || ip[0]>>4 == 6 && ip[7] == 0)
	return zero && len(needed(trial{needs: "zero"}, *without)) > 0
}

func tally(reasons map[string]uint64) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		if reasons[why] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", why, reasons[why]))
		}
	}
	return strings.Join(parts, ", ")
}
