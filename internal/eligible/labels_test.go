// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"testing"

	"shunt/internal/kernel"
)

// TestLabels: a port that lacks XDP for labels has a reason and a remedy, for each end of the way.
func TestLabels(t *testing.T) {
	type words struct{ reason, remedy string }
	none := words{}
	for _, c := range []struct {
		name    string
		port    Port
		mode    Mode
		in, out words // parts of them
	}{
		{"physical", nic(), Auto, none, none},
		{"off", nic(bare), Off, words{`xdp = "off"`, `set xdp = "on" for eth0`}, words{`xdp = "off"`, `set xdp = "on" for eth0`}},
		{"not proven", nic(func(p *Port) { p.Proven = false }), Auto, none, words{"no packet has shown yet", "another port"}},
		{"veth, unknown", nic(veth), Auto, words{"not yet known", `set xdp = "on" for eth0`}, none},
		{"veth, partial", nic(veth, partial), Auto, words{"unfinished checksums", `xdp = "on" for eth0`}, none},
		{"tags stripped for good", nic(func(p *Port) { p.Link.Offloads = kernel.Offloads{RxVLAN: true, RxVLANFixed: true} }), On,
			words{"strips VLAN tags", "another port"}, none},
		{"takes no frames", nic(func(p *Port) { p.Link.Features &^= kernel.XDPTransmit }), Auto,
			none, words{"takes no redirected frames", "another port"}},
		{"no XDP", nic(func(p *Port) { p.Link.Driver, p.Link.Features = "e1000e", noXDP }), On,
			words{"cannot redirect in XDP", "another port"}, words{"takes no redirected frames", "another port"}},
		{"queueing", nic(func(p *Port) { p.Link.Queueing = "cake" }), Auto, none, words{"queueing policy cake", "another port"}},
		{"peer does not poll", nic(veth, wire, func(p *Port) { p.Link.Features &^= kernel.XDPTransmit }), Auto,
			none, words{"does not poll", "gro on"}},
		{"bridge", nic(func(p *Port) { p.Link.Name, p.Link.Kind = "br0", "bridge" }), On,
			words{"br0 is a bridge", "do not belong to br0"}, words{"br0 is a bridge", "do not belong to br0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.port, c.mode)
			reason, remedy := LabelsIn(c.port.Link, got)
			part(t, "reason in", reason, c.in.reason)
			part(t, "remedy in", remedy, c.in.remedy)
			reason, remedy = LabelsOut(c.port.Link, got)
			part(t, "reason out", reason, c.out.reason)
			part(t, "remedy out", remedy, c.out.remedy)
		})
	}
	lost := Decision{Attach: true, XDPReceive: true, Reason: "eth0 lost redirected frames"}
	if reason, _ := LabelsOut(nic().Link, lost); reason != lost.Reason {
		t.Errorf("one that is held off: %q", reason)
	}
}
