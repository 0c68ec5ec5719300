package traffic

import (
	"context"
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

// Time sends what it is told, goes on where Run ended, and takes some time for it.
func TestTime(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 1)
	g, err := NewGenerator(between(a, b, false, UDP, 64, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	const n = 5000
	if _, err := g.Run(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	perFrame, err := g.Time(n)
	if err != nil {
		t.Fatal(err)
	}
	if perFrame < 10 || perFrame > 1e6 {
		t.Errorf("%d ns a frame", perFrame)
	}
	if got := wait(t, sink, 2*n); got.Frames != 2*n || got.Lost+got.Duplicates+got.Reordered > 0 {
		t.Errorf("got %+v", got)
	}
}
