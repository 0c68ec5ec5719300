// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// router is what is under test, behind its two ports. A driver configures one in the way
// that it takes.
type router interface {
	name() string
	// offers says in words why a case cannot be asked of it; "" if it can.
	offers(c trial) string
	// configure makes it, from nothing, what a case wants, and a fence beside it.
	configure(c trial) error
	// refuse gives it a line that it must not take, and returns what it says to that.
	refuse(c trial, line string) error
	// refusals are the lines of a case for refuse, in its own language.
	refusals(c trial) []string
	// reset takes away what configure made.
	reset(c trial) error
	// counters are all that it counts, by flat names; nil if it tells none.
	counters() (map[string]uint64, error)
	close() error
}

// rig is a router with taps at both ports.
type rig struct {
	router
	place
	taps   [2]*tap
	came   chan arrival
	serial uint32
	padded bool // a wire pads short frames to 60 bytes (IEEE 802.3 §4.2.3.3)
}

// The fence: a frame that every configured router switches. It goes in behind the frames of
// a case, so when it comes out, what was to come before it has come; and it shows that a
// router which gives nothing out is alive.
const fenceIn, fenceOut = 900000, 900001

// fencePorts are where the fence goes in and out: in at A, unless that is off.
func fencePorts(c trial) (in, out port) {
	if c.spaces[a] == "off" {
		return b, a
	}
	return a, b
}

var fenceLoad = []byte{0, 0, 0, 1, 'f', 'e', 'n', 'c', 'e'}

func fenceFrame(at port, serial uint32) frame {
	return on(at, l(fenceIn, 0, 255), raw(binary.BigEndian.AppendUint32(slices.Clone(fenceLoad), serial)))
}

// isFence finds a fence whatever the router made of its label.
func isFence(b []byte) bool { return bytes.Contains(b, fenceLoad) && len(b) <= 60 }

// quiet is how long nothing more may come before a case is over.
const quiet = 15 * time.Millisecond

// burst is how many frames are sent without a pause: a veth takes 256 (VETH_RING_SIZE).
const burst = 64

// play sends a case's frames and returns what came out of each port.
func (r *rig) play(c trial) (came [2][][]byte, err error) {
	r.drain()
	for i, f := range c.in {
		if err := r.taps[f.at].send(f.sent(r.place)); err != nil {
			return came, err
		}
		if i%burst == burst-1 {
			time.Sleep(time.Millisecond)
		}
	}
	r.serial++
	in, out := fencePorts(c)
	if err := r.taps[in].send(fenceFrame(in, r.serial).sent(r.place)); err != nil {
		return came, err
	}
	want := len(c.out)
	if c.check != nil {
		want = len(c.in)
	}
	fenced := false
	timer := time.NewTimer(*patience)
	defer timer.Stop()
	for {
		if fenced && len(came[a])+len(came[b]) >= want {
			timer.Reset(quiet)
			want = 1 << 30
		}
		select {
		case got := <-r.came:
			if !isFence(got.bytes) {
				came[got.at] = append(came[got.at], got.bytes)
			} else if got.at == out && bytes.Contains(got.bytes, binary.BigEndian.AppendUint32(slices.Clone(fenceLoad), r.serial)) {
				fenced = true
			}
		case <-timer.C:
			if !fenced {
				return came, errors.New("the frame behind all others did not come out: the router is not configured, or dead")
			}
			return came, nil
		}
	}
}

// drain forgets what came late.
func (r *rig) drain() {
	for {
		select {
		case <-r.came:
		default:
			return
		}
	}
}

// verdict is what a case came to.
type verdict string

const (
	passed     verdict = "pass"
	otherwise  verdict = "pass, otherwise" // in another way that the RFCs allow
	failed     verdict = "FAIL"
	notOffered verdict = "not offered"
	leftOut    verdict = "left out"
)

// result is a line of the table.
type result struct {
	Rule, Clause, Name string
	finding
}

// finding is what a case came to: words for who mends the router, brief ones for who wants
// to know it.
type finding struct {
	Verdict      verdict
	Words, Brief string
}

// judge plays a case and says what it came to. The error is of the harness itself.
func (r *rig) judge(c trial, strict bool) (found finding, err error) {
	if words := r.offers(c); words != "" {
		return finding{notOffered, words, ""}, nil
	}
	if err := r.configure(c); err != nil {
		_ = r.reset(c) // of what there is; the rest cannot be taken away
		return failure("configuration: "+err.Error(), "refuses the configuration: "+last(err.Error())), nil
	}
	defer func() { err = errors.Join(err, r.reset(c)) }()
	for _, line := range r.refusals(c) {
		if r.refuse(c, line) == nil {
			return failure("takes: "+line, ""), nil
		}
	}
	before, err := r.counters()
	if err != nil {
		return failure("counters: "+err.Error(), ""), nil
	}
	came, err := r.play(c)
	if err != nil {
		return failure(err.Error(), ""), nil
	}
	found = r.compare(c, came, strict)
	if before == nil {
		return found, nil
	}
	after, err := r.counters()
	if err != nil {
		return failure("counters: "+err.Error(), ""), nil
	}
	if found.Verdict == failed {
		found.Brief += dropsCounted(before, after)
		return found, nil
	}
	for _, wrong := range []string{countersDiffer(c.counts, before, after), countersDiffer(c.levels, nil, after)} {
		if wrong != "" && found.Verdict == passed {
			return failure(wrong, ""), nil
		}
	}
	return found, nil
}

// failure has brief words only where the others are too long.
func failure(words, brief string) finding {
	if brief == "" {
		brief = words
	}
	return finding{failed, words, brief}
}

// last is what an error ends with, which is what a command said.
func last(words string) string {
	parts := strings.Split(strings.TrimSpace(words), ": ")
	return parts[len(parts)-1]
}

// compare holds what came against what was expected.
func (r *rig) compare(c trial, came [2][][]byte, strict bool) finding {
	if c.check != nil {
		at := c.checked()
		if other := came[at.other()]; len(other) > 0 {
			return failure(fmt.Sprintf("came out of %s: %s", at.other(), describe(other[0])), "")
		}
		if err := c.check(c.in, came[at]); err != nil {
			brief, _, _ := strings.Cut(err.Error(), ": ")
			return failure(err.Error(), brief)
		}
		return finding{passed, "", ""}
	}
	differs := r.differs(c.out, came)
	if differs == "" {
		return finding{passed, "", ""}
	}
	for _, o := range c.or {
		if (o.ours || !strict) && r.differs(o.out, came) == "" {
			return finding{otherwise, o.words, o.words}
		}
	}
	return failure(differs, r.brief(c.out, came))
}

// differs says what is missing and what is too much.
func (r *rig) differs(want []frame, came [2][][]byte) string {
	lost, rest := r.unmatched(want, came)
	if len(lost) > 0 {
		return missing(lost[0], r.place, rest[lost[0].at])
	}
	for _, at := range []port{a, b} {
		if len(rest[at]) > 0 {
			return fmt.Sprintf("%d too many at %s: %s", len(rest[at]), at, describe(rest[at][0]))
		}
	}
	return ""
}

// unmatched are the frames that were to come and did not, and those that came and were not
// to. Their order is not asked for: some are forwarded by other parts of a router than others.
func (r *rig) unmatched(want []frame, came [2][][]byte) (lost []frame, rest [2][][]byte) {
	rest = [2][][]byte{slices.Clone(came[a]), slices.Clone(came[b])}
	for _, f := range want {
		i := slices.IndexFunc(rest[f.at], func(got []byte) bool { return r.same(f, got) })
		if i < 0 {
			lost = append(lost, f)
			continue
		}
		rest[f.at] = slices.Delete(rest[f.at], i, i+1)
	}
	return lost, rest
}

// missing says what a frame should have been, beside what came instead.
func missing(f frame, p place, rest [][]byte) string {
	if len(rest) == 0 {
		return fmt.Sprintf("nothing came at %s, want %s", f.at, describe(f.expected(p, nil)))
	}
	want := f.expected(p, rest[0])
	words := fmt.Sprintf("at %s came %s, want %s", f.at, describe(rest[0]), describe(want))
	for i := range min(len(want), len(rest[0])) {
		if want[i] != rest[0][i] {
			return words + fmt.Sprintf("; byte %d is %#02x, want %#02x", i, rest[0][i], want[i])
		}
	}
	return words + fmt.Sprintf("; %d bytes, want %d", len(rest[0]), len(want))
}

// same compares byte for byte. An ICMP error must besides not be too large.
func (r *rig) same(f frame, got []byte) bool {
	want := f.expected(r.place, got)
	if w, ok := f.load.(answer); ok && len(got)-f.ipAt() > w.most() {
		return false
	}
	if r.padded && len(want) < 60 && len(got) == 60 {
		return bytes.Equal(want, got[:len(want)]) && !slices.ContainsFunc(got[len(want):], func(b byte) bool { return b != 0 })
	}
	return bytes.Equal(want, got)
}

// most is how long the whole ICMP message may be (RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c)).
func (w answer) most() int {
	if w.version == 6 {
		return 1280
	}
	return 576
}

// countersDiffer says which counter rose by something else than it should have since before.
// Kinds that a router does not have at all are not asked for.
func countersDiffer(want map[string]int, before, after map[string]uint64) string {
	kinds := map[string]bool{}
	for name := range after {
		kind, _, _ := strings.Cut(name, "/")
		kinds[kind] = true
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if kind, _, _ := strings.Cut(name, "/"); !kinds[kind] {
			continue
		}
		if got := after[name] - before[name]; got != uint64(want[name]) {
			return fmt.Sprintf("counter %s: %d, want %d", name, got, want[name])
		}
	}
	return ""
}

// dropsCounted are the counters of errors and drops that rose, where a router names them so.
func dropsCounted(before, after map[string]uint64) string {
	rose := map[string]uint64{}
	for name, n := range after {
		if counter, ok := strings.CutPrefix(name, "drops/"); ok && n > before[name] {
			rose[counter] += n - before[name]
		}
	}
	if len(rose) == 0 {
		return ""
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(rose)) {
		words = append(words, fmt.Sprintf("%s %d", name, rose[name]))
	}
	return " (counted: " + strings.Join(words, ", ") + ")"
}
