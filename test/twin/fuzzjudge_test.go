// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// What may differ between the two performances of a fuzz script, beside what compare_test.go
// and fuzzchance_test.go list. Each is counted, and printed.
//
//   - "checksum": conntrack calls a packet with a wrong L4 checksum INVALID, and the rules
//     drop it. shunt repeats it for an armed flow, as wrong as it was (docs/security.md).
//   - "window": conntrack calls a TCP segment outside of its windows INVALID. For an armed
//     connection it does not look any more (be-liberal).
//   - "implausible": a FIN that is behind the window is forwarded by the kernel, and ignored
//     (NFCT_TCP_IGNORE). shunt drops it: conntrack, be-liberal now, would believe it.
//   - "after window": a FIN or RST outside of conntrack's window, but not outside of
//     shunt's, was one of those: the connection's state may differ from then on.
//   - "reset": a RST with a wrong L4 checksum is INVALID too, and dropped by both. shunt does
//     not look at the checksum, and has the daemon end the connection in conntrack.
//   - "ignored": a FIN or RST outside of conntrack's window may go on and change nothing
//     (NFCT_TCP_IGNORE); be-liberal, it changes the connection's state.
//   - "unread": a RST is the kernel's before shunt sees that it is one (a tag, a group's MAC),
//     or it cannot tell whether conntrack will see it (options hop by hop). Conntrack compares it with
//     numbers that are old, and leaves the connection as it is (nf_conntrack_tcp_packet).
//   - "nearly": a RST in the window, but not the next in sequence, leaves a connection open for
//     a challenge. Conntrack forgets the last acknowledgement when be-liberal is set, and with
//     it that rule, until it sees a packet of that direction again.
//
// In all of them the frame that comes out must be exactly what the flow's rewrite makes of the
// one that came in, or the router's answer that it does not fit.
const (
	byChecksum    = "checksum"
	byWindow      = "window"
	byImplausible = "implausible"
	byAfter       = "after window"
	byReset       = "reset"
	byIgnored     = "ignored"
	byUnread      = "unread"
	byNearly      = "nearly"
)

// judgement is a comparison while it is made.
type judgement struct {
	*testing.T
	c        router
	s        *fuzzScript
	examples map[string]example // by the flow's tuple
	void     map[int]bool       // conversations whose state may differ
	drawn    map[string]bool    // by tuple: see fuzzchance_test.go
	want     *record
	got      *record
	failures int
	count    *tally
}

// example is what came out of a frame that its flow's rewrite is told by.
type example struct {
	flow    int
	out     []byte
	mutants bool // alone make up the flow: it is no conversation's
}

func judge(t *testing.T, c router, s *fuzzScript, want, got *record) *tally {
	t.Helper()
	j := &judgement{T: t, c: c, s: s, want: want, got: got, examples: map[string]example{}, void: map[int]bool{}, count: &tally{count: map[string]int{}}}
	for i, x := range s.items {
		j.learn(x, want.seen[i])
	}
	j.drawn = drawn(want, got)
	for i := range s.items {
		j.frame(i, want.seen[i], got.seen[i])
	}
	j.states(want, got)
	j.count.counters(c.way, want, got)
	return j.count
}

// learn keeps a frame that came through as the example of its flow. That is one as it should be,
// or, of a flow that mutants alone make up (two that got the same address are enough), a mutant.
func (j *judgement) learn(x item, out []capture) {
	v := look(untagged(x.frame))
	tuple := v.tuple()
	if tuple == "" || x.flow < 0 || len(out) != 1 || refused(v.frame, out[0].frame) {
		return
	}
	if _, known := j.examples[tuple]; x.kind == nil || !known && !v.wrongSum() {
		j.examples[tuple] = example{x.flow, out[0].frame, x.kind != nil}
	}
}

// frame compares what came out behind one frame.
func (j *judgement) frame(i int, want, got []capture) {
	x := j.s.items[i]
	j.count.item(x)
	if why := j.doubtful(x); why != "" {
		j.count.count[why]++
		j.void[x.flow/2] = true
	}
	same := len(want) == len(got)
	for n := 0; same && n < len(want); n++ {
		w, g := j.normal(x, want[n].frame), j.normal(x, got[n].frame)
		same = want[n].offload == got[n].offload
		if same && !bytes.Equal(w, g) {
			why := j.chance(x, w, g)
			if same = why != ""; same {
				j.count.count[why]++
			}
		}
	}
	if same {
		return
	}
	in := j.datagram(i)
	if why := j.exception(x, in, want, got); why != "" {
		j.count.count[why]++
		if e := j.examples[look(in).tuple()]; !e.mutants && (x.control || why == byAfter) {
			j.void[e.flow/2] = true
		}
		return
	}
	if j.failures++; j.failures > 5 {
		j.Fail()
		return
	}
	j.Errorf("frame %d of %d differs:\n%s%skernel: %sshunt: %s", i, len(j.s.items), j.history(x.flow/2, i), dump(x.frame), dumps(want), dumps(got))
}

// history tells what a conversation said up to a frame, in lines.
func (j *judgement) history(conversation, until int) string {
	var lines []string
	for i, x := range j.s.items[:until+1] {
		if x.flow/2 != conversation && i < until {
			continue
		}
		line := fmt.Sprintf("%d %s: kernel %d, shunt %d", i, strings.Join(x.kind, "+"), len(j.want.seen[i]), len(j.got.seen[i]))
		if x.flow >= 0 {
			line += fmt.Sprintf(", %s direction %d", j.s.conversations[x.flow/2].name, x.flow%2)
		}
		if v := look(untagged(x.frame)); v.ok && v.proto == protoTCP && v.l4+20 <= v.end {
			l4 := v.frame[v.l4:]
			line += fmt.Sprintf(", %x to %x, seq %x+%d ack %x flags %02x, wrong sum %v", l4[:2], l4[2:4], l4[4:8], v.end-v.l4-20, l4[8:12], l4[13], v.wrongSum())
		}
		lines = append(lines, line)
	}
	return strings.Join(lines[max(0, len(lines)-12):], "\n") + "\n"
}

func dumps(all []capture) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d frames\n", len(all))
	for _, c := range all {
		b.WriteString(dump(c.frame))
	}
	return b.String()
}

// doubtful says why a SYN, FIN or RST may leave another state behind, though the same comes
// out of both routers; "" if it may not.
func (j *judgement) doubtful(x item) string {
	v := look(untagged(x.frame))
	if !x.control || j.c.open || !v.ok || v.proto != protoTCP || v.l4+20 > v.end {
		return ""
	}
	if v.wrongSum() && v.frame[v.l4+13]&rst != 0 {
		return byReset
	}
	if v.far(4, x.seq) || v.far(8, x.ack) {
		return byIgnored
	}
	if v.frame[v.l4+13]&rst != 0 && binary.BigEndian.Uint32(v.frame[v.l4+4:]) != x.seq {
		return byNearly
	}
	if v.frame[v.l4+13]&rst != 0 && (x.frame[0]&1 != 0 || len(v.frame) != len(x.frame) || v.family == 6 && v.frame[20] == 0) {
		return byUnread
	}
	return ""
}

// datagram returns the frame of an item or, if the item is the fragment that completes a
// datagram, that datagram: conntrack judges it whole (nf_ct_defrag).
func (j *judgement) datagram(i int) []byte {
	last := untagged(j.s.items[i].frame)
	v := look(last)
	if !v.fragment {
		return last
	}
	parts := []capture{{frame: last}}
	for n := i - 1; n >= 0 && j.s.items[n].flow == j.s.items[i].flow; n-- {
		part := untagged(j.s.items[n].frame)
		if w := look(part); !w.fragment || w.id() != v.id() {
			break
		}
		parts = append(parts, capture{frame: part})
	}
	slices.SortFunc(parts, func(a, b capture) int { return look(a.frame).offset() - look(b.frame).offset() })
	if whole := joined(parts); len(parts) > 1 && whole != nil {
		return whole
	}
	return last
}

// exception says which of the exceptions a difference is, "" if none. in is what conntrack
// judged when the item came in.
func (j *judgement) exception(x item, in []byte, want, got []capture) string {
	v := look(in)
	e, ok := j.examples[v.tuple()]
	if !ok || j.c.open {
		return ""
	}
	forwarded := func(all []capture) bool {
		out := joined(all)
		return out != nil && (repeats(in, out, e.out, e.out) || repeats(in, out, e.out, in) || refused(in, out))
	}
	if e.mutants {
		if len(want) == 0 && forwarded(got) && v.wrongSum() {
			return byChecksum
		}
		return ""
	}
	if j.void[e.flow/2] && (len(want) == 0 || forwarded(want)) && (len(got) == 0 || forwarded(got)) {
		return byAfter
	}
	if x.control && forwarded(want) && len(got) == 0 && v.far(4, x.seq) {
		return byImplausible
	}
	if len(want) != 0 || !forwarded(got) {
		return ""
	}
	if v.wrongSum() {
		return byChecksum
	}
	if v.proto != protoTCP {
		return ""
	}
	l4 := in[v.l4:v.end]
	if e.flow == x.flow && binary.BigEndian.Uint32(l4[4:]) == x.seq && binary.BigEndian.Uint32(l4[8:]) == x.ack && l4[12]>>4 == 5 {
		return "" // conntrack has nothing against these
	}
	return byWindow
}

// joined is the one frame that came out, put together again if it is in fragments; nil if
// they are not all of one datagram.
func joined(all []capture) []byte {
	if len(all) == 0 {
		return nil
	}
	out := slices.Clone(all[0].frame)
	if len(all) == 1 {
		return out
	}
	first := look(out)
	length := 0
	for _, c := range all {
		v := look(c.frame)
		if !v.ok || !v.fragment || v.id() != first.id() || v.offset() != length {
			return nil
		}
		length += v.end - v.l4
	}
	out = out[:14+first.header]
	for _, c := range all {
		v := look(c.frame)
		out = append(out, c.frame[v.l4:v.end]...)
	}
	if first.family == 6 {
		out[20] = first.proto
		binary.BigEndian.PutUint16(out[18:], uint16(length))
		return out
	}
	binary.BigEndian.PutUint16(out[16:], uint16(first.header+length))
	clear(out[20:22])
	clear(out[24:26])
	binary.BigEndian.PutUint16(out[24:], ^fold(sum(out[14:first.l4])))
	return out
}

// refused reports that a frame is the router's word that another one cannot get on: it is
// too long, or at the end of its TTL.
func refused(in, out []byte) bool {
	v, w := look(in), look(out)
	if !v.ok || v.l4+8 > v.end || !w.ok || w.proto != protoICMP && w.proto != protoICMPv6 || w.end < w.l4+8+v.l4-14+8 {
		return false
	}
	at, size := 14+12, 8
	if v.family == 6 {
		at, size = 14+8, 32
	}
	quoted := out[w.l4+8-14:]
	return bytes.Equal(quoted[at:at+size], in[at:at+size]) && bytes.Equal(quoted[v.l4:v.l4+8], in[v.l4:v.l4+8])
}

// repeats reports that a frame became what its flow's rewrite makes of it; the rewrite is
// taken from an example, a frame of the flow as it went in and came out.
func repeats(in, out, example, dscp []byte) bool {
	v, w, e := look(in), look(out), look(example)
	if !v.ok || !w.ok || len(out) != v.end || v.l4 != w.l4 {
		return false
	}
	want := slices.Clone(in[:v.end])
	copy(want, example[:12])
	if v.family == 4 {
		want[15] = dscp[15]&0xfc | in[15]&3
		want[22]--
		copy(want[26:34], example[26:34])
		copy(want[34:v.l4], out[34:]) // the router fills in its part of options
		clear(want[24:26])
		binary.BigEndian.PutUint16(want[24:], ^fold(sum(want[14:v.l4])))
	} else {
		want[14] = dscp[14]
		want[15] = dscp[15]&0xc0 | in[15]&0x3f
		want[21]--
		copy(want[22:54], example[22:54])
	}
	switch v.proto {
	case protoTCP, protoUDP:
		copy(want[v.l4:v.l4+4], example[e.l4:])
	case protoICMP, protoICMPv6:
		copy(want[v.l4+4:v.l4+6], example[e.l4+4:])
	}
	if at := v.sum(); at >= 0 && (v.proto != protoUDP || binary.BigEndian.Uint16(in[at:]) != 0) {
		if v.total()%0xffff != w.total()%0xffff {
			return false
		}
		copy(want[at:at+2], out[at:])
	}
	return bytes.Equal(want, out)
}

// normal is a frame without what no two performances have in common: see compare_test.go,
// and the IPv4 id and the time of day of what the router says itself.
func (j *judgement) normal(x item, frame []byte) []byte {
	frame = normal(slices.Clone(frame))
	v := look(frame)
	for at := 34; v.family == 4 && at+2 <= min(v.l4, len(frame)); at++ {
		if frame[at] == timestamp && at+int(frame[at+1]) <= min(v.l4, len(frame)) && frame[at+1] > 4 {
			clear(frame[at+2 : at+int(frame[at+1])])
			clear(frame[24:26])
		}
	}
	if v.family != 4 {
		return frame
	}
	source, dest := v.addresses()
	if in := look(x.frame); in.family == 4 && bytes.Equal(frame[18:20], x.frame[18:20]) && v.proto == in.proto && !refused(x.frame, frame) {
		if from, to := in.addresses(); from != dest || to != source { // an answer, and what refused() finds, has that id by chance
			return frame
		}
	}
	for _, own := range []string{"198.18.0.1", "198.19.0.1", "198.19.0.100"} {
		if source.String() == own {
			clear(frame[18:20])
			clear(frame[24:26])
			if v.proto == protoICMP && v.l4+20 <= len(frame) && frame[v.l4] == timestampReply {
				clear(frame[v.l4+2 : v.l4+4])
				clear(frame[v.l4+12 : v.l4+20])
			}
		}
	}
	return frame
}

// states compares what is left behind.
func (j *judgement) states(want, got *record) {
	for _, c := range slices.Sorted(maps.Keys(j.void)) {
		ours := j.s.conversations[c].is
		want.conntrack, got.conntrack = slices.DeleteFunc(want.conntrack, ours), slices.DeleteFunc(got.conntrack, ours)
	}
	j.count.count["connections"] += len(want.conntrack)
	j.count.count["neighbours"] += len(want.neighbours)
	j.count.count["switch entries"] += len(want.switches)
	j.count.count["connections left out"] += len(j.void)
	for _, x := range []struct {
		name      string
		want, got []string
	}{{"conntrack", want.conntrack, got.conntrack}, {"neighbours", want.neighbours, got.neighbours}, {"switches", want.switches, got.switches}} {
		if missing, extra := difference(x.want, x.got), difference(x.got, x.want); missing != nil || extra != nil {
			j.Errorf("%s differ\nkernel only:\n\t%s\nshunt only:\n\t%s\n%s", x.name, strings.Join(missing, "\n\t"), strings.Join(extra, "\n\t"), j.whose(missing))
		}
	}
}

// whose tells the history of the conversations that lines of conntrack are about.
func (j *judgement) whose(lines []string) (all string) {
	for i, c := range j.s.conversations {
		if slices.ContainsFunc(lines, c.is) {
			all += j.history(i, len(j.s.items)-1)
		}
	}
	return all
}

// is reports that a line of conntrack is this conversation.
func (c *conversation) is(line string) bool {
	original, _, _ := strings.Cut(line, " reply ")
	l := c.ends[0]
	return strings.Contains(original, " "+l.source.String()+" ") && strings.Contains(original, " "+l.dest.String()+" ")
}
