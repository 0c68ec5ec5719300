// SPDX-License-Identifier: Apache-2.0

package path

import (
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// TestQueueLooksDeeper: nothing is learned towards a port whose queue reads more than a repeated packet
// carries; what comes in by that port is.
func TestQueueLooksDeeper(t *testing.T) {
	for _, tcOnly := range []bool{false, true} {
		b := open(t, exercise.Options{TCOnly: tcOnly})
		first, then := teaches, "xdp hit"
		if tcOnly {
			first, then = "tc-ingress learning, tc-egress ", "tc-ingress hit, tc-egress unsighted"
		}
		deeper := func(index int) {
			t.Helper()
			check(t, b.LAN.NS.Do(func() error {
				for _, err := range b.Apply([]dataplane.Attach{
					{Index: b.LANIndex, XDPReceive: !tcOnly, XDPTransmit: !tcOnly, LooksDeeper: index == b.LANIndex},
					{Index: b.WANIndex, XDPReceive: !tcOnly, XDPTransmit: !tcOnly, LooksDeeper: index == b.WANIndex},
				}) {
					return err
				}
				return nil
			}))
		}
		for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
			in, out := p()
			check(t, b.Clear())
			deeper(0)
			b.forth(t, first+"learned", in.Bytes(), out.Bytes())
			b.forth(t, then, in.Bytes(), out.Bytes())
			deeper(b.WANIndex) // under traffic: what was learned is not used
			was := "xdp old_generation, tc-ingress old_generation, tc-egress "
			if tcOnly {
				was = "tc-ingress old_generation, tc-egress "
			}
			b.forth(t, was+"queue_looks_deeper", in.Bytes(), out.Bytes())
			b.forth(t, was+"queue_looks_deeper", in.Bytes(), out.Bytes())
			b.answers(t, queryOf(in), "queue_looks_deeper")
			check(t, b.Clear())
			b.forth(t, first+"queue_looks_deeper", in.Bytes(), out.Bytes())
			deeper(b.LANIndex) // which only answers leave by
			check(t, b.Clear())
			b.forth(t, first+"learned", in.Bytes(), out.Bytes())
		}
	}
}

// TestQueueUnwatched: without a daemon nobody tells whether a qdisc that an administrator set looks
// deeper, so nothing is learned towards it; the kernel's own do not.
func TestQueueUnwatched(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
		in, out := p()
		for _, c := range []struct {
			qdisc string
			beats bool
			want  string
		}{
			{"", false, "learned"},
			{"handle 1: bfifo limit 100000", false, "queue_looks_deeper"},
			{"handle 1: bfifo limit 100000", true, "learned"},
		} {
			check(t, b.Clear())
			if c.qdisc != "" {
				_, err := b.LAN.NS.Run("sh", "-c", "tc qdisc replace dev wan root "+c.qdisc)
				check(t, err)
			}
			now, err := b.Now()
			check(t, err)
			b.Edit(func(ctl *exercise.Control) {
				ctl.Beat = now - b.HZ*60
				if c.beats {
					ctl.Beat = now + b.HZ*60
				}
			})
			b.forth(t, teaches+c.want, in.Bytes(), out.Bytes())
			if c.qdisc != "" {
				_, err := b.LAN.NS.Run("sh", "-c", "tc qdisc del dev wan root")
				check(t, err)
			}
		}
	}
}
