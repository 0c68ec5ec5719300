// SPDX-License-Identifier: Apache-2.0

package path

import (
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/dataplane/foreign"
	"shunt/internal/lab"
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

// lives lets the data path take a daemon for alive, as it must where others stand at a port.
func (b *bench) lives(t *testing.T) {
	t.Helper()
	now, err := b.Now()
	check(t, err)
	b.Edit(func(c *exercise.Control) { c.Beat = now + 60*b.HZ })
}

// TestUnwatched: without a daemon nobody reads what others have put at a port, so nothing is learned that passes
// it: a repeated packet would bypass it. The kernel's own qdiscs, and clsact without a filter, are nobody's.
func TestUnwatched(t *testing.T) {
	const (
		in, out = "tc-ingress unwatched, tc-egress unsighted", "tc-ingress learning, tc-egress unwatched"
		neither = "tc-ingress learning, tc-egress learned"
		filter  = " protocol all pref 7 u32 match u32 0 0 flowid 1:3"
	)
	b := open(t, exercise.Options{})
	program := func(attach func(*lab.NS, string) (*foreign.Program, error), device string) func() func() {
		return func() func() {
			p, err := attach(b.LAN.NS, device)
			check(t, err)
			return func() { check(t, p.Close()) }
		}
	}
	run := func(add, remove string) func() func() {
		return func() func() {
			_, err := b.LAN.NS.Run("sh", "-ec", add)
			check(t, err)
			return func() {
				_, err := b.LAN.NS.Run("sh", "-ec", remove)
				check(t, err)
			}
		}
	}
	for _, c := range []struct {
		name string
		add  func() (remove func())
		want string
	}{
		{"nothing", run(":", ":"), neither},
		{"qdisc", run("tc qdisc add dev wan root handle 1: bfifo limit 100000", "tc qdisc del dev wan root"), out},
		{"qdisc where it comes in", run("tc qdisc add dev lan root handle 1: bfifo limit 100000", "tc qdisc del dev lan root"), neither},
		{"clsact alone", run("tc qdisc add dev wan clsact; tc qdisc add dev lan clsact", "tc qdisc del dev wan clsact; tc qdisc del dev lan clsact"), neither},
		{"egress filter", run("tc qdisc add dev wan clsact; tc filter add dev wan egress"+filter, "tc qdisc del dev wan clsact"), out},
		{"ingress filter", run("tc qdisc add dev lan ingress; tc filter add dev lan ingress"+filter, "tc qdisc del dev lan ingress"), in},
		{"egress chain", run("nft 'table netdev t { chain c { type filter hook egress device wan priority 0; }; }'", "nft delete table netdev t"), out},
		{"ingress chain", run("nft 'table netdev t { chain c { type filter hook ingress device lan priority 0; }; }'", "nft delete table netdev t"), in},
		{"egress program", program(foreign.TCXEgress, "wan"), out},
		{"ingress program", program(foreign.TCX, "lan"), in},
	} {
		t.Run(c.name, func(t *testing.T) {
			remove := c.add()
			defer remove()
			for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
				for _, beats := range []bool{false, true} {
					check(t, b.Clear())
					want := c.want
					b.lives(t)
					if beats {
						want = neither
					} else {
						b.Edit(func(c *exercise.Control) { c.Beat -= 120 * b.HZ })
					}
					in, out := p()
					b.forth(t, "xdp learning, "+want, in.Bytes(), out.Bytes())
					if want != neither {
						b.answers(t, queryOf(in), "unwatched")
					}
				}
			}
		})
	}
}
