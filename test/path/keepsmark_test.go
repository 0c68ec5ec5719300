// SPDX-License-Identifier: Apache-2.0

package path

import (
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// TestKeepsMark: a flow with a mark goes by TC to a port behind which the mark is seen, also if it gets the
// mark later; one without a mark goes by XDP, and so do all to other ports.
func TestKeepsMark(t *testing.T) {
	b := open(t, exercise.Options{})
	marked := func() { t.Helper(); b.rules(t, postrouting+"meta mark set 0x2a; }") }
	for _, keeps := range []bool{true, false} {
		check(t, b.LAN.NS.Do(func() error {
			for _, err := range b.Apply([]dataplane.Attach{
				{Index: b.LANIndex, XDPReceive: true, XDPTransmit: true},
				{Index: b.WANIndex, XDPReceive: true, XDPTransmit: true, KeepsMark: keeps},
			}) {
				return err
			}
			return nil
		}))
		then := "xdp hit"
		if keeps {
			then = "xdp tc_way, tc-ingress hit, tc-egress unsighted"
		}
		for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
			in, out := p()
			i, o := in.Bytes(), out.Bytes()
			check(t, b.Clear())
			marked()
			b.forth(t, teaches+"learned", i, o)
			b.forth(t, then, i, o)
			if s := b.slotOf(t, in); s.Mark != 0x2a {
				t.Errorf("mark %#x", s.Mark)
			}
			check(t, b.Clear())
			b.rules(t, "")
			b.forth(t, teaches+"learned", i, o)
			b.forth(t, "xdp hit", i, o)
			marked()
			b.endLease(t, in)
			b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress changed", i, o)
			b.forth(t, then, i, o)
			b.rules(t, "")
		}
	}
}
