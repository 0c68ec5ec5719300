// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/lfib"
)

// switcher is a bench whose ports have label tables, with internal/lfib's own beside them: it
// follows the lists instruction by instruction, and so judges what was made of them.
type switcher struct {
	*bench
	table  *lfib.Table
	labels *dataplane.Labels
	server [6]byte // MAC that is not the server's own, if any
	pair   dataplane.Imposer
}

// openSwitcher gives the port to the client label space 0, and writes tables from lines.
func openSwitcher(t *testing.T, b *bench, random bool, lines ...string) *switcher {
	t.Helper()
	s := &switcher{bench: b, table: lfib.New()}
	s.labels = b.Plane.Labels(dataplane.LabelSizes{Labels: 1024, NHLFEs: 1024})
	t.Cleanup(func() {
		check(t, s.labels.UpdateLabels(&dataplane.LabelUpdate{Whole: true}))
		check(t, s.labels.Close())
	})
	s.write(t, random, lines...)
	return s
}

// Adjacencies of the lists of these tests: the server and its neighbour are there, and nobody else.
const (
	toServer = 1
	toNobody = 2
	toOther  = 3
)

var otherMAC = [6]byte{0x66, 0x11, 0x22, 0x33, 0x44, 0x55}

func (s *switcher) adjacencyOf(to *lfib.Send) uint32 {
	switch to.Via {
	case s.Server.V4.Addr():
		return toServer
	case s.Server.V4.Addr().Next():
		return toOther
	}
	return toNobody
}

// write applies lines to both tables. Of random ones some are refused, as two models in one list.
func (s *switcher) write(t *testing.T, random bool, lines ...string) {
	t.Helper()
	for _, line := range lines {
		changes, err := lfib.Parse(line)
		check(t, err)
		_, err = s.table.Apply("test", changes)
		if !random {
			check(t, err)
		}
	}
	u := dataplane.LabelUpdate{Whole: true, AdjacencyOf: s.adjacencyOf,
		Adjacencies: []dataplane.Adjacency{
			{ID: toServer, Index: s.WANIndex, Source: [6]byte(s.WAN.MAC), Destination: [6]byte(s.Server.MAC), MTU: 1500},
			{ID: toOther, Index: s.WANIndex, Source: [6]byte(s.WAN.MAC), Destination: otherMAC, MTU: 1500},
		},
		Ports: []dataplane.LabelPort{{Index: s.LANIndex, Upstream: -1, MAC: [6]byte(s.LAN.MAC)}}}
	for _, m := range s.table.Maps() {
		var to [64]uint8
		for from, n := range m.To {
			to[from] = uint8(n)
		}
		u.Maps = append(u.Maps, dataplane.LabelMap{Name: m.Name, To: &to})
	}
	for _, n := range s.table.NHLFEs() {
		f, err := s.table.Form(n.ID)
		check(t, err)
		u.NHLFEs = append(u.NHLFEs, dataplane.NHLFE{ID: n.ID, Form: f})
	}
	all := map[dataplane.LabelKey]*[8]uint32{}
	for pass := range 2 { // what is for one TC goes before what is for any
		for _, i := range s.table.ILMs() {
			k := dataplane.LabelKey{Space: i.Space, Label: i.Label}
			if all[k] == nil {
				all[k] = &[8]uint32{}
			}
			switch {
			case pass == 0 && i.TC < 0:
				*all[k] = [8]uint32{i.NHLFE, i.NHLFE, i.NHLFE, i.NHLFE, i.NHLFE, i.NHLFE, i.NHLFE, i.NHLFE}
			case pass == 1 && i.TC >= 0:
				all[k][i.TC] = i.NHLFE
			}
		}
	}
	for _, f := range s.table.FTNs() {
		u.FTN = append(u.FTN, dataplane.FTN{Prefix: f.Prefix, NHLFE: f.NHLFE})
	}
	for k, ids := range all {
		u.ILM = append(u.ILM, dataplane.ILM{Space: k.Space, Label: k.Label, NHLFE: *ids})
	}
	u.Imposer = s.pair
	check(t, s.LAN.NS.Do(func() error { return s.labels.UpdateLabels(&u) }))
}

// in puts a frame through the program of a port with a label space.
func (s *switcher) in(index int, frame []byte) (exercise.Outcome, error) {
	return s.XDPBy(s.labels.Program(), index, frame, 0)
}

// lse is a label stack entry.
func lse(label, tc, bottom, ttl int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(label<<12|tc<<9|bottom<<8|ttl))
}

// labelled is a frame from the client with these labels; the last one has S.
func (s *switcher) labelled(payload []byte, labels ...[]byte) []byte {
	f := append(bytes.Clone(s.LAN.MAC), s.Client.MAC...)
	f = append(f, 0x88, 0x47)
	for _, l := range labels {
		f = append(f, l...)
	}
	return append(f, payload...)
}

// etherType and the rest of a frame that goes out to the server.
func (s *switcher) sent(kind uint16, rest []byte) []byte {
	f := append(bytes.Clone(s.Server.MAC), s.WAN.MAC...)
	return append(binary.BigEndian.AppendUint16(f, kind), rest...)
}

func TestSwap(t *testing.T) {
	s := openSwitcher(t, open(t, exercise.Options{}), false, "nhlfe add 7 swap 200 send dev wan via inet 198.19.0.2", "ilm add 100 nhlfe 7")
	in := s.labelled([]byte("anything"), lse(100, 5, 0, 64), lse(17, 2, 1, 9))
	var o exercise.Outcome
	s.counts(t, "mpls mpls_switched", func() {
		var err error
		o, err = s.in(s.LANIndex, in)
		check(t, err)
	})
	want := s.sent(0x8847, append(append(lse(200, 5, 0, 63), lse(17, 2, 1, 9)...), "anything"...))
	if o.Verdict != 4 || !bytes.Equal(o.Frame, want) {
		t.Errorf("verdict %d, frame % x\nwant 4, % x", o.Verdict, o.Frame, want)
	}
	octets := uint64(len(in) - 14)
	stats, err := s.labels.LabelStats()
	check(t, err)
	for what, got := range map[string]dataplane.Segment{"in": stats.In[dataplane.LabelKey{Label: 100}], "out": stats.Out[7]} {
		got.Since = time.Time{}
		if want := (dataplane.Segment{Packets: 1, Octets: octets}); got != want {
			t.Errorf("%s-segment: %+v, want %+v", what, got, want)
		}
	}
}

// TestSwapWays: what is a swap and nothing else goes a way of its own, what is a little more does
// not, and both come to the same.
func TestSwapWays(t *testing.T) {
	s := openSwitcher(t, open(t, exercise.Options{}), false)
	for _, c := range []struct {
		list  string
		space int
		mtu   int // of the way out
		size  int // of the payload
	}{
		{"swap 200", 0, 1500, 40}, {"swap 200", 0, 1500, 1492}, {"swap 200", 5, 1500, 40}, {"swap 200", 254, 1500, 40},
		{"ttl pipe swap 200", 0, 1500, 40}, {"ttl short-pipe swap 200", 0, 1500, 40}, {"mtu 1400 swap 200", 0, 1500, 40}, {"swap 200 set-tc 5", 0, 1500, 40},
		{"swap 200", 0, 9000, 8000}, // in fragments: no page holds it
	} {
		check(t, s.labels.UpdateLabels(&dataplane.LabelUpdate{Whole: true})) // counters begin anew
		form := func(id uint32) *lfib.Form {
			table := lfib.New()
			changes, err := lfib.Parse(fmt.Sprintf("nhlfe add %d %s send dev wan via inet 198.19.0.2", id, c.list))
			check(t, err)
			_, err = table.Apply("test", changes)
			check(t, err)
			f, err := table.Form(id)
			check(t, err)
			return f
		}
		check(t, s.labels.UpdateLabels(&dataplane.LabelUpdate{
			Adjacencies: []dataplane.Adjacency{{ID: toServer, Index: s.WANIndex, Source: [6]byte(s.WAN.MAC), Destination: [6]byte(s.Server.MAC), MTU: c.mtu}},
			NHLFEs:      []dataplane.NHLFE{{ID: 7, Form: form(7)}}, AdjacencyOf: s.adjacencyOf,
			ILM:   []dataplane.ILM{{Space: lfib.Space(c.space), Label: 100, NHLFE: [8]uint32{7, 7, 7, 7, 7, 7, 7, 7}}},
			Ports: []dataplane.LabelPort{{Index: s.LANIndex, MAC: [6]byte(s.LAN.MAC), Space: c.space, Upstream: -1}}}))
		rest := append(lse(17, 2, 1, 9), bytes.Repeat([]byte("payload "), c.size/8)...)
		var o exercise.Outcome
		s.counts(t, "mpls mpls_switched", func() {
			var err error
			o, err = s.in(s.LANIndex, s.labelled(rest, lse(100, 5, 0, 64)))
			check(t, err)
		})
		if want := s.sent(0x8847, append(lse(200, 5, 0, 63), rest...)); o.Verdict != 4 || !bytes.Equal(o.Frame, want) {
			t.Errorf("%+v: verdict %d, frame % .40x\nwant 4, % .40x", c, o.Verdict, o.Frame, want)
		}
		stats, err := s.labels.LabelStats()
		check(t, err)
		in := stats.In[dataplane.LabelKey{Space: lfib.Space(c.space), Label: 100}]
		for what, got := range map[string]dataplane.Segment{"in": in, "out": stats.Out[7]} {
			got.Since = time.Time{}
			if want := (dataplane.Segment{Packets: 1, Octets: uint64(len(rest) + 4)}); got != want {
				t.Errorf("%+v: %s-segment: %+v, want %+v", c, what, got, want)
			}
		}
	}
}

// TestEveryWordOfLabels has one frame for each way that a labelled frame can end.
func TestEveryWordOfLabels(t *testing.T) {
	b := open(t, exercise.Options{})
	const send = "send dev wan via inet 198.19.0.2"
	s := openSwitcher(t, b, false,
		"nhlfe add 1 swap 200 "+send, "nhlfe add 2 pop deliver", "nhlfe add 3 drop", "nhlfe add 4 pop peek", "nhlfe add 5 mtu 68 swap 200 "+send,
		"nhlfe add 6 swap 200 send dev wan via inet 198.19.0.99", "nhlfe add 7 pop "+send, "nhlfe add 8 push 200 "+send,
		"ilm add 101 nhlfe 1", "ilm add 102 nhlfe 2", "ilm add 103 nhlfe 3", "ilm add 104 nhlfe 4", "ilm add 105 nhlfe 5", "ilm add 106 nhlfe 6",
		"ilm add 107 nhlfe 7", "ilm add 108 nhlfe 8")
	u4, _ := b.udp4()
	ip := u4.Bytes()[14:]
	one := func(label, ttl int) []byte { return s.labelled(ip, lse(label, 0, 1, ttl)) }
	var steps [][]byte
	for range lfib.MaxDepth {
		steps = append(steps, lse(104, 0, 0, 64))
	}
	foreign := one(101, 64)
	foreign[5] ^= 1
	const pass, drop = 2, 1
	for _, c := range []struct {
		word    string
		frame   []byte
		verdict uint32
		counts  string
	}{
		{"mpls_switched", one(101, 64), 4, ""},
		{"mpls_delivered", one(102, 64), pass, ", xdp learning"},
		{"mpls_malformed", one(101, 64)[:16], drop, ""},
		{"mpls_malformed", s.labelled(ip, lse(104, 0, 0, 64))[:20], drop, ""},
		{"mpls_malformed", one(1, 64), drop, ""}, // router alert at the bottom
		{"mpls_no_label", one(999, 64), drop, ""},
		{"mpls_ttl", one(101, 1), pass, ""},
		{"mpls_ttl", one(107, 1), pass, ""},
		{"mpls_ttl_zero", one(101, 0), drop, ""},
		{"mpls_special", one(3, 64), drop, ""},
		{"mpls_special", one(15, 64), drop, ""},
		{"mpls_alert", s.labelled(ip, lse(1, 0, 0, 64), lse(101, 0, 1, 64)), pass, ""},
		{"mpls_oam", one(13, 64), pass, ""},
		{"mpls_payload", s.labelled([]byte("\x00 no IP, which begins otherwise, but long enough"), lse(102, 0, 1, 64)), drop, ""},
		{"mpls_payload", one(2, 64), drop, ""}, // IPv4 below IPv6 explicit null
		{"mpls_over_mtu", s.labelled(make([]byte, 65), lse(105, 0, 1, 64)), pass, ""},
		{"mpls_depth", s.labelled(ip, append(steps, lse(101, 0, 1, 64))...), drop, ""},
		{"mpls_discard", one(103, 64), drop, ""},
		{"mpls_no_adjacency", one(106, 64), drop, ""},
		{"not_host", foreign, pass, ""},
	} {
		s.counts(t, "mpls "+c.word+c.counts, func() {
			o, err := s.in(s.LANIndex, c.frame)
			check(t, err)
			if o.Verdict != c.verdict {
				t.Errorf("%s: verdict %d, want %d", c.word, o.Verdict, c.verdict)
			}
			if c.verdict == pass && c.word != "mpls_delivered" && !bytes.Equal(o.Frame, c.frame) {
				t.Errorf("%s: was changed on its way up: % x", c.word, o.Frame)
			}
		})
		s.counted(t, c.word, "mpls", "lan", s.LANIndex)
	}

	s.counts(t, "mpls mpls_no_room", func() {
		_, err := s.XDPBy(s.labels.Program(), s.LANIndex, one(108, 64), exercise.MetaMax)
		check(t, err)
	})
	s.counted(t, "mpls_no_room", "mpls", "lan", s.LANIndex)

	s.counts(t, "mpls mpls_off", func() {
		o, err := s.in(s.WANIndex, one(101, 64))
		check(t, err)
		if o.Verdict != pass {
			t.Errorf("a port without a label space: verdict %d", o.Verdict)
		}
	})
	s.counted(t, "mpls_off", "mpls", "wan", s.WANIndex)

	beat := s.Control().Beat
	now, err := s.Now()
	check(t, err)
	s.SetLabelHold(10 * s.HZ)
	s.Edit(func(c *exercise.Control) { c.Beat = now - 11*s.HZ })
	s.counts(t, "mpls mpls_orphaned", func() {
		_, err := s.in(s.LANIndex, one(101, 64))
		check(t, err)
	})
	s.counted(t, "mpls_orphaned", "mpls", "lan", s.LANIndex)
	for _, hold := range []uint32{12 * s.HZ, 86400 * s.HZ, 0} { // long enough, a day, for ever
		s.SetLabelHold(hold)
		s.counts(t, "mpls mpls_switched", func() {
			_, err := s.in(s.LANIndex, one(101, 64))
			check(t, err)
		})
	}
	s.Edit(func(c *exercise.Control) { c.Beat = beat })

	var port struct{ Flags, Tx uint32 }
	check(t, s.Map("ports").Lookup(uint32(s.WANIndex), &port))
	check(t, s.Map("tx").Delete(port.Tx))
	for _, label := range []int{101, 107} {
		s.counts(t, "mpls mpls_egress_gone", func() {
			_, err := s.in(s.LANIndex, one(label, 64))
			check(t, err)
		})
	}
	s.counted(t, "mpls_egress_gone", "mpls", "lan", s.LANIndex)
	stats, err := s.labels.LabelStats()
	check(t, err)
	for id, sent := range map[uint32]uint64{1: 4, 7: 0} { // what was not sent is no out-segment's
		got, octets := stats.Out[id], uint64(len(ip)+4)
		got.Since = time.Time{}
		if want := (dataplane.Segment{Packets: sent, Octets: sent * octets}); got != want {
			t.Errorf("out-segment of NHLFE %d: %+v, want %+v", id, got, want)
		}
	}
	in107 := stats.In[dataplane.LabelKey{Label: 107}]
	in107.Since = time.Time{}
	if got, want := in107, (dataplane.Segment{Packets: 2, Octets: 2 * uint64(len(ip)+4), Errors: 1, Discards: 1}); got != want {
		t.Errorf("in-segment of label 107: %+v, want %+v", got, want)
	}
}

// TestLabelsAtRandom compares what the programs make of random packets, by random tables, with
// what internal/lfib says step by step.
func TestLabelsAtRandom(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	b := open(t, exercise.Options{})
	for range 20 {
		t.Run("", func(t *testing.T) {
			s := openSwitcher(t, b, true, randomTables(random)...)
			for range 500 {
				s.compare(t, random, seed)
			}
		})
	}
}

// randomTables are lines of lists over a few labels, each of which may be looked up again.
func randomTables(random *rand.Rand) []string {
	lines := []string{
		"map add up dscp-to-tc 0:0 10:1 18:2 26:3 34:4 46:5 48:6 56:7",
		"map add down tc-to-dscp 0:0 1:10 2:18 3:26 4:34 5:46 6:48 7:56",
	}
	model := func() string { return []string{"", " ttl pipe", " ttl short-pipe"}[random.IntN(3)] }
	tail := func() string {
		return []string{"", "", " set-tc 3", " tc-map up", " set-dscp 20", " dscp-map down"}[random.IntN(6)]
	}
	const send = " send dev wan via inet 198.19.0.2"
	for id := 1; id <= 24; id++ {
		list := ""
		for range random.IntN(4) {
			list += " pop"
		}
		switch random.IntN(8) {
		case 0:
			list += fmt.Sprintf(" swap %d", 16+random.IntN(16))
			fallthrough
		case 1, 2:
			for range random.IntN(4) {
				list += fmt.Sprintf(" push %d", 16+random.IntN(16)) + []string{"", " tc 6", " tc-map up", " ttl 9"}[random.IntN(4)]
			}
			list += send
		case 3:
			list += tail() + send
		case 4:
			list += " pop peek"
		case 5:
			list += " pop deliver"
		case 6:
			if id < 6 {
				list += " drop"
				break
			}
			list += fmt.Sprintf(" %s", []string{
				fmt.Sprintf("by-tc 1:%d 4:%d default %d", 1+random.IntN(id-1), 1+random.IntN(id-1), 1+random.IntN(id-1)),
				fmt.Sprintf("by-dscp 0:%d 46:%d", 1+random.IntN(id-1), 1+random.IntN(id-1)),
				fmt.Sprintf("forward %d", 1+random.IntN(id-1)),
			}[random.IntN(3)])
		default:
			list += send
		}
		lines = append(lines, fmt.Sprintf("nhlfe add %d%s%s", id, model(), list))
	}
	for label := 16; label < 32; label++ {
		lines = append(lines, fmt.Sprintf("ilm add %d nhlfe %d", label, 1+random.IntN(24)))
		if random.IntN(3) == 0 {
			lines = append(lines, fmt.Sprintf("ilm add %d tc %d nhlfe %d", label, random.IntN(8), 1+random.IntN(24)))
		}
	}
	return lines
}

// compare puts a random packet through both.
func (s *switcher) compare(t *testing.T, random *rand.Rand, seed uint64) {
	t.Helper()
	u4, _ := s.udp4()
	u6, _ := s.udp6()
	p := []exercise.Packet{u4, u6}[random.IntN(2)]
	p.TTL = []uint8{1, 2, 3, 64, 255}[random.IntN(5)]
	p.TOS = uint8(random.IntN(256))
	payload := p.Bytes()[14:]
	if random.IntN(10) == 0 {
		payload[0] = byte(random.IntN(256))
	}
	var stack [][]byte
	depth := 1 + random.IntN(6)
	for i := range depth {
		label := 16 + random.IntN(16)
		if random.IntN(12) == 0 {
			label = random.IntN(40)
		}
		bottom := 0
		if i == depth-1 && random.IntN(30) > 0 {
			bottom = 1
		}
		stack = append(stack, lse(label, random.IntN(8), bottom, []int{0, 1, 2, 3, 64, 255}[min(random.IntN(30), 5)]))
	}
	in := s.labelled(payload, stack...)
	if random.IntN(20) == 0 {
		in = in[:14+random.IntN(len(in)-14)]
	}
	want := s.table.Switch(0, in[14:], lfib.Env{Adjacency: func(*lfib.Send) (int, bool) { return 1500, true }})
	before, err := s.Count()
	check(t, err)
	o, err := s.in(s.LANIndex, in)
	check(t, err)
	after, err := s.Count()
	check(t, err)
	for k, n := range after.Minus(before) {
		reached[k] += n
	}
	if got := after.Minus(before)["mpls "+want.Reason]; got != 1 {
		t.Fatalf("seed %d: % x: counted %v, want %s\n%s", seed, in, after.Minus(before), want.Reason, strings.Join(s.table.Save(), "\n"))
	}
	frame := in
	switch want.Reason {
	case "mpls_switched":
		frame = s.sent(want.EtherType, want.Packet)
	case "mpls_delivered":
		frame = append(append(bytes.Clone(in[:12]), byte(want.EtherType>>8), byte(want.EtherType)), want.Packet...)
	default:
		return
	}
	if !bytes.Equal(o.Frame, frame) {
		t.Fatalf("seed %d: %s:\nin   % x\nout  % x\nwant % x\n%s", seed, want.Reason, in, o.Frame, frame, strings.Join(s.table.Save(), "\n"))
	}
}
