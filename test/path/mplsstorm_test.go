// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/lfib"
)

// How often each of storms is made while two CPUs send.
const stormChanges = 1000

const (
	toA = " send dev wan via inet 198.19.0.2"
	toB = " send dev wan via inet 198.19.0.3"
)

// storms are changes there and back, of all that a frame with label 100 and some TC meets.
var storms = []struct {
	name string
	made []string
	a, b string
}{
	{"a swap", nil, "nhlfe replace 1 swap 200" + toA, "nhlfe replace 1 swap 1048575" + toB},
	{"many pushes", nil,
		"nhlfe replace 1 swap 200 push 300 tc 1 ttl 10 push 301 tc 2 ttl 20 push 302 tc 3 ttl 30" + toA,
		"nhlfe replace 1 swap 1200 push 1300 tc 6 ttl 110 push 1301 tc 5 ttl 120 push 1302 tc 4 ttl 130" + toB},
	{"pushes or a pop", nil, "nhlfe replace 1 swap 200 push 300 tc 1 ttl 10 push 301 tc 2 ttl 20" + toA, "nhlfe replace 1 ttl pipe pop set-tc 7" + toB},
	{"a choice by TC", []string{"nhlfe add 21 push 601" + toA, "nhlfe add 22 push 602" + toA, "nhlfe add 23 push 603" + toB, "nhlfe add 24 push 604" + toB},
		"nhlfe replace 1 swap 500 push 501 tc 3 ttl 7 by-tc 5:21 default 22", "nhlfe replace 1 swap 510 push 511 tc 4 ttl 9 push 512 by-tc 5:23 default 24"},
	{"what is chosen", []string{"nhlfe add 21 swap 601" + toA, "nhlfe add 22 swap 602" + toA, "nhlfe add 1 by-tc 5:21 default 22"},
		"nhlfe replace 21 swap 601 push 701 ttl 3" + toA, "nhlfe replace 21 swap 603 push 703 ttl 5" + toB},
	{"a choice by hash", []string{"nhlfe add 21 push 601" + toA, "nhlfe add 22 push 602" + toB},
		"nhlfe replace 1 swap 500 push 501 tc 3 ttl 7 by-hash 21*2", "nhlfe replace 1 swap 510 push 511 tc 4 ttl 9 by-hash 22*2"},
	{"through another", []string{"nhlfe add 21 push 601" + toA, "nhlfe add 1 swap 500 forward 21"},
		"nhlfe replace 21 push 601 ttl 3" + toA, "nhlfe replace 21 push 602 ttl 9 push 603" + toB},
	{"a label moves", []string{"nhlfe add 21 swap 200 push 300 ttl 9" + toA, "nhlfe add 22 swap 210 push 310 ttl 19" + toB},
		"ilm replace 100 nhlfe 21", "ilm replace 100 nhlfe 22"},
	{"a label for a TC", []string{"nhlfe add 21 swap 200 push 300 ttl 9" + toA, "nhlfe add 22 swap 210 push 310 ttl 19" + toB, "ilm add 100 nhlfe 21"},
		"ilm replace 100 tc 5 nhlfe 22", "ilm del 100 tc 5"},
}

// TestChangedUnderTwoCPUs: while two CPUs send as fast as they can, a list or a label is changed
// a thousand times. Each frame comes out by all of the old one or all of the new one, none is
// lost, and all counters say as many as were sent.
func TestChangedUnderTwoCPUs(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Fatal("one CPU: changes and frames cannot meet; run on two")
	}
	b := open(t, exercise.Options{})
	for _, c := range storms {
		t.Run(c.name, func(t *testing.T) {
			s := scarce(t, b)
			made := append(slices.Clone(c.made), c.a)
			if !strings.HasPrefix(c.a, "ilm") {
				made = append(made, "ilm replace 100 nhlfe 1")
			}
			s.write(t, false, made...)
			s.storm(t, s.lines(t, c.a, c.b))
		})
	}
}

// sender is what one CPU sends, and how often it came out in each of the two ways.
type sender struct {
	frame []byte
	ways  [2][]byte
	came  [2]uint64
}

// scarce is a switcher with as few rows as there can be: they are used again and again.
func scarce(t *testing.T, b *bench) *switcher {
	s := &switcher{bench: b, table: lfib.New(), labels: b.Plane.Labels(dataplane.LabelSizes{Labels: 1, NHLFEs: 1})}
	t.Cleanup(func() {
		check(t, s.labels.UpdateLabels(&dataplane.LabelUpdate{Whole: true}))
		check(t, s.labels.Close())
	})
	return s
}

// TestNeighbourMovesUnderTwoCPUs is the same for the MAC of a neighbour.
func TestNeighbourMovesUnderTwoCPUs(t *testing.T) {
	s := scarce(t, open(t, exercise.Options{}))
	s.write(t, false, "nhlfe add 1 swap 200"+toA, "nhlfe add 2 push 201 push 202"+toA, "ilm add 100 nhlfe 1", "ilm add 100 tc 2 nhlfe 2")
	macs := [2][6]byte{[6]byte(s.Server.MAC), otherMAC}
	s.storm(t, func(way int) error {
		s.server = macs[way]
		return s.labels.UpdateLabels(&dataplane.LabelUpdate{Adjacencies: []dataplane.Adjacency{
			{ID: toServer, Index: s.WANIndex, Source: [6]byte(s.WAN.MAC), Destination: macs[way], MTU: 1500}}})
	})
}

// TestAdjacencyGivenAgainUnderTwoCPUs: a list goes from neighbour to neighbour, and the third one
// has the ID of the first.
func TestAdjacencyGivenAgainUnderTwoCPUs(t *testing.T) {
	s := scarce(t, open(t, exercise.Options{}))
	s.write(t, false, "nhlfe add 1 swap 200"+toA, "ilm add 100 nhlfe 1")
	form, err := s.table.Form(1)
	check(t, err)
	macs := [2][6]byte{otherMAC, [6]byte(s.Server.MAC)}
	const first, ids = 10, 2
	last, ended := uint32(0), []uint32(nil)
	s.storm(t, func(way int) error {
		s.server = macs[way]
		id := first + (last+1-first)%ids
		u := dataplane.LabelUpdate{Ended: ended, AdjacencyOf: func(*lfib.Send) uint32 { return id }, NHLFEs: []dataplane.NHLFE{{ID: 1, Form: form}},
			Adjacencies: []dataplane.Adjacency{{ID: id, Index: s.WANIndex, Source: [6]byte(s.WAN.MAC), Destination: macs[way], MTU: 1500}}}
		ended, last = []uint32{last}, id
		return s.labels.UpdateLabels(&u)
	})
}

// lines makes one change or the other.
func (s *switcher) lines(t *testing.T, a, b string) (turn func(way int) error) {
	changes := [2][]lfib.Change{parsed(t, a), parsed(t, b)}
	return func(way int) error { return s.change(changes[way]) }
}

// storm changes between two ways, which turn puts in force.
func (s *switcher) storm(t *testing.T, turn func(way int) error) {
	u4, _ := s.udp4()
	ip := u4.Bytes()[14:]
	senders := []*sender{{frame: s.labelled(ip, lse(100, 5, 0, 64), lse(17, 2, 1, 9))}, {frame: s.labelled(ip, lse(100, 2, 0, 33), lse(18, 1, 1, 200))}}
	for _, way := range []int{1, 0} {
		check(t, turn(way))
		for _, one := range senders {
			one.ways[way] = s.comesOut(t, one.frame)
		}
	}
	before, err := s.Count()
	check(t, err)
	began, err := s.labels.LabelStats()
	check(t, err)

	var over atomic.Bool
	ends := make(chan error, len(senders))
	for cpu, one := range senders {
		go func() { ends <- s.send(cpu, one, &over) }()
	}
	var failed error
	for i := 1; i <= stormChanges && failed == nil; i++ {
		failed = turn(i % 2)
		if i%3 == 0 {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		}
	}
	over.Store(true)
	for range senders {
		failed = errors.Join(failed, <-ends)
	}
	check(t, failed)

	var sent, octets uint64
	for _, one := range senders {
		n := one.came[0] + one.came[1]
		sent += n
		octets += n * uint64(len(one.frame)-14)
	}
	t.Logf("%d frames: %v and %v", sent, senders[0].came, senders[1].came)
	if differ := senders[0]; differ.came[0] == 0 || differ.came[1] == 0 {
		t.Errorf("changes and frames did not meet: %v", differ.came)
	}
	now, err := s.Count()
	check(t, err)
	d := now.Minus(before)
	leaveOut(d, exercise.Tally{})
	if want := (exercise.Tally{"mpls mpls_switched": sent}); d.String() != want.String() {
		t.Errorf("counted %q, want %q", d, want)
	}
	s.segments(t, began, sent, octets)
}

// segments asserts that in- and out-segments have counted as many frames as were sent.
func (s *switcher) segments(t *testing.T, began dataplane.LabelStats, sent, octets uint64) {
	t.Helper()
	stats, err := s.labels.LabelStats()
	check(t, err)
	key := dataplane.LabelKey{Label: 100}
	in, was := stats.In[key], began.In[key]
	if in.Packets-was.Packets != sent || in.Octets-was.Octets != octets || in.Errors+in.Discards != was.Errors+was.Discards {
		t.Errorf("in-segment from %+v to %+v, want %d packets more and %d octets", was, in, sent, octets)
	}
	var out uint64
	for id, o := range stats.Out {
		out += o.Packets - began.Out[id].Packets
	}
	if out != sent {
		t.Errorf("out-segments: %d packets of %d", out, sent)
	}
}

// send puts a frame through the programs on a CPU until it is over.
func (s *switcher) send(cpu int, one *sender, over *atomic.Bool) error {
	done := errors.New("done")
	err := s.XDPLoop(s.labels.Program(), cpu, s.LANIndex, one.frame, 1<<40, func(o exercise.Outcome) error {
		switch {
		case o.Verdict != exercise.XDPRedirect:
			return fmt.Errorf("after %v: verdict %d", one.came, o.Verdict)
		case bytes.Equal(o.Frame, one.ways[0]):
			one.came[0]++
		case bytes.Equal(o.Frame, one.ways[1]):
			one.came[1]++
		default:
			return fmt.Errorf("after %v: neither list:\ngot   % x\none   % x\nother % x", one.came, o.Frame, one.ways[0], one.ways[1])
		}
		if over.Load() {
			return done
		}
		return nil
	})
	if err == done {
		return nil
	}
	return err
}

// comesOut is what the lists make of a frame, step by step.
func (s *switcher) comesOut(t *testing.T, frame []byte) []byte {
	t.Helper()
	v := s.table.Switch(0, frame[14:], lfib.Env{})
	if v.Reason != lfib.Switched {
		t.Fatalf("% x: %s", frame, v.Reason)
	}
	out := s.sent(v.EtherType, v.Packet)
	switch {
	case s.adjacencyOf(v.Send) == toOther:
		copy(out, otherMAC[:])
	case s.server != [6]byte{}:
		copy(out, s.server[:])
	}
	return out
}

func parsed(t *testing.T, line string) []lfib.Change {
	t.Helper()
	changes, err := lfib.Parse(line)
	check(t, err)
	return changes
}

// change makes changes to both tables, of NHLFEs and labels, as one transaction.
func (s *switcher) change(changes []lfib.Change) error {
	commit, err := s.table.Apply("test", changes)
	if err != nil {
		return err
	}
	u := dataplane.LabelUpdate{AdjacencyOf: s.adjacencyOf}
	for _, id := range commit.Touched.NHLFEs {
		f, err := s.table.Form(id)
		if err != nil {
			return err
		}
		u.NHLFEs = append(u.NHLFEs, dataplane.NHLFE{ID: id, Form: f})
	}
	for _, key := range commit.Touched.ILMs {
		to := dataplane.ILM{Space: key.Space, Label: key.Label}
		for tc := range to.NHLFE {
			key.TC = int8(tc)
			id, ok := s.table.ILM(key)
			if !ok {
				key.TC = -1
				id, _ = s.table.ILM(key)
			}
			to.NHLFE[tc] = id
		}
		u.ILM = append(u.ILM, to)
	}
	return s.labels.UpdateLabels(&u)
}
