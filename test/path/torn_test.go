// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// TestTornRewrites: one CPU changes an entry from one rewrite to another and back, as
// fast as it can, while another repeats from it. Every frame must be wholly one rewrite
// or wholly the other, or untouched; and some must have met the writer, or nothing was
// tested.
func TestTornRewrites(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Fatal("one CPU: rewrites and hits cannot meet; run on two")
	}
	b := open(t, exercise.Options{})
	const n = 1000000
	for _, c := range []struct {
		name         string
		packet       func() (in, out exercise.Packet)
		first, other string
	}{
		{"IPv4", b.udp4, "198.19.0.1:11111", "203.0.113.77:52222"},
		{"IPv6", b.udp6, "[2001:2:0:19::1]:11111", "[fd00:aaaa:bbbb:cccc:1:2:3:4]:52222"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, a := c.packet()
			a.Src = addr(c.first)
			z := a
			z.Src, z.TOS = addr(c.other), 0xb8
			z.Dst = exchange(z.Dst, z.Src)
			z.To, z.From = []byte{0x66, 0x11, 0x22, 0x33, 0x44, 0x55}, []byte{0x76, 0xaa, 0xbb, 0xcc, 0xdd, 0xee}
			lease := b.lease(t)
			at := b.arm(t, in, a)
			w, err := b.StartRewriter(1, at, b.Learned(in, a, lease), b.Learned(in, z, lease))
			check(t, err)
			before, err := b.Count()
			check(t, err)
			seen, err := b.meetWriter(in, a, z, n)
			runs, stopped := w.Stop()
			check(t, err)
			check(t, stopped)
			now, err := b.Count()
			check(t, err)
			d := now.Minus(before)
			t.Logf("%d rewrites, %d frames: %+v", 2*runs, n, seen)
			if d["xdp busy"] == 0 || seen.first == 0 || seen.second == 0 {
				t.Errorf("writer and reader did not meet: %+v, %v", seen, d)
			}
			if d["xdp hit"]+d["xdp busy"] != n || d["xdp busy"] != seen.busy {
				t.Errorf("%d frames, %+v, but counted %v", n, seen, d)
			}
		})
	}
}

// met is what became of the frames.
type met struct{ first, second, busy uint64 }

func (b *bench) meetWriter(in, a, z exercise.Packet, n int) (seen met, err error) {
	untouched, first, second := in.Bytes(), a.Bytes(), z.Bytes()
	programs, _ := b.Objects()
	err = b.XDPLoop(programs["shunt_xdp"], 0, b.LANIndex, untouched, n, func(o exercise.Outcome) error {
		switch {
		case o.Verdict == exercise.XDPRedirect && bytes.Equal(o.Frame, first):
			seen.first++
		case o.Verdict == exercise.XDPRedirect && bytes.Equal(o.Frame, second):
			seen.second++
		case o.Verdict == exercise.XDPPass && bytes.Equal(o.Frame, untouched):
			seen.busy++
		default:
			return fmt.Errorf("after %+v: verdict %d and neither rewrite:\ngot    %x\nfirst  %x\nsecond %x",
				seen, o.Verdict, o.Frame, first, second)
		}
		return nil
	})
	return seen, err
}
