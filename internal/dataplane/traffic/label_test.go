// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"testing"
	"time"
)

// A sink takes in frames with the label that it was told, whole, and no others.
func TestLabels(t *testing.T) {
	a, b := pair(t)
	const n = 1000
	for _, wanted := range []uint32{0, 100, MaxLabel} {
		sink, err := AttachLabelSink(b.NS, b.Device, 1, wanted)
		if err != nil {
			t.Fatal(err)
		}
		for _, label := range []uint32{0, 99, 100, MaxLabel} {
			for _, v6 := range []bool{false, true} {
				for _, p := range []Protocol{UDP, TCP, ICMP} {
					c := between(a, b, v6, p, 64, 10)
					c.Label = label
					c.Size = max(c.Size, c.MinSize())
					t.Run(fmt.Sprintf("want-%d-%d-%v-v6=%v", wanted, label, p, v6), func(t *testing.T) {
						if err := sink.Reset(); err != nil {
							t.Fatal(err)
						}
						send(t, c, n)
						want := Stats{Frames: n, Bytes: n * uint64(c.Size), Flows: 10, Verified: n}
						if label != wanted {
							want = Stats{}
							eventually(t, func() bool { s, _ := sink.Stats(); return s.Foreign >= n })
						}
						if got := wait(t, sink, want.Frames); got != want {
							t.Errorf("got %+v, want %+v", got, want)
						}
					})
				}
			}
		}
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	}
}

func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within 5 s")
		}
	}
}

// Burst sends what it is told, more than Run does at a time, goes on where Run ended, and takes some time for it.
func TestBurst(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 1)
	g, err := NewGenerator(between(a, b, false, UDP, 64, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	const n = chunk + 5000
	if _, err := g.Run(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	took, err := g.Burst(n)
	if err != nil {
		t.Fatal(err)
	}
	if took < 10*n || took > n*time.Millisecond {
		t.Errorf("%d frames took %v", n, took)
	}
	if got := wait(t, sink, 2*n); got.Frames != 2*n || got.Lost+got.Duplicates+got.Reordered > 0 {
		t.Errorf("got %+v", got)
	}
}

// Each flow has a label of its own; the sink wants them the other way round.
func TestLabelsOfFlows(t *testing.T) {
	a, b := pair(t)
	const flows, n = 1000, 5000
	for _, c := range []struct {
		first uint32 // that the sink wants
		flows int
		takes uint64
	}{{100, 1, n}, {100 + flows/2, flows, n / flows}, {99, 1, 0}} {
		sink, err := AttachLabelsSink(b.NS, b.Device, 1, c.first)
		if err != nil {
			t.Fatal(err)
		}
		config := between(a, b, false, UDP, 64, c.flows)
		config.Label, config.Labels = 100, true
		send(t, config, n)
		// labels rise with the flow here, and so only one of many is what the sink wants
		eventually(t, func() bool { s, _ := sink.Stats(); return s.Frames+s.Foreign >= n })
		if got, _ := sink.Stats(); got.Frames != c.takes {
			t.Errorf("%+v: %+v", c, got)
		}
		if err := sink.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A label beneath the first one has the bottom bit, which the first one then lacks; a sink that
// wants one label calls such a frame foreign. All else is where two labels put it.
func TestLabelBeneath(t *testing.T) {
	a, b := pair(t)
	c := between(a, b, false, UDP, 68, 1)
	c.Label, c.Beneath, c.TTL = 100, 200, 64
	frame, layout := c.template()
	if got, want := fmt.Sprintf("%x", frame[12:24]), "8847"+"00064040"+"000c8140"+"4500"; got != want {
		t.Errorf("the frame has %s, want %s", got, want)
	}
	if layout.MarkAt != 14+8+20+8 || c.MinSize() != 64 {
		t.Errorf("the mark is at %d, the least size %d", layout.MarkAt, c.MinSize())
	}
	sink, err := AttachLabelSink(b.NS, b.Device, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	const n = 100
	send(t, c, n)
	eventually(t, func() bool { s, _ := sink.Stats(); return s.Foreign >= n })
	if got, _ := sink.Stats(); got.Frames != 0 {
		t.Errorf("%+v", got)
	}
	for _, wrong := range []Frames{{Beneath: 100}, {Label: 1, Beneath: MaxLabel + 1}} {
		f := between(a, b, false, UDP, 68, 1).Frames
		f.Label, f.Beneath = wrong.Label, wrong.Beneath
		if err := f.check(); err == nil {
			t.Errorf("%d beneath %d is taken", wrong.Beneath, wrong.Label)
		}
	}
}
