// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"slices"
	"strings"
	"testing"

	"shunt/internal/kernel"
)

// TestStockCards: for each kind of card as it comes, what the daemon switches off, what becomes of the
// port then, and what doctor says of it beforehand. The features are those that drivers advertise
// without a program (Linux 6.12).
func TestStockCards(t *testing.T) {
	const receive = kernel.XDPBasic | kernel.XDPRedirect
	all := []string{kernel.RxVLAN, kernel.RxLRO, kernel.RxGROHW}
	for _, c := range []struct {
		driver            string
		features          kernel.XDPFeatures
		switches          []string
		receive, transmit bool
		effect            string
	}{
		{"igb", receive, all, true, true, "takes the link down"},
		{"ixgbe", receive, all, true, true, "takes the link down"},
		{"igc", receive, all, true, true, "takes the link down"},
		{"ice", receive | kernel.XDPFrags, all, true, true, "takes the link down"},
		{"mlx5_core", noXDP, all, true, true, "restarts the queues"},
		{"bnxt_en", receive, all, true, true, "restarts the queues"},
		{"vmxnet3", receive | kernel.XDPTransmit, all, true, true, "switches off rx-vlan-hw-parse and rx-lro and rx-gro-hw until it stops, restarts the queues"},
		{"virtio_net", receive | kernel.XDPFrags, []string{kernel.RxVLAN, kernel.RxLRO}, false, true, ""}, // its peer is not known yet
		{"qede", receive | kernel.XDPTransmit, []string{kernel.RxVLAN, kernel.RxLRO}, true, true, "restarts the queues"},
		{"mlx4_en", receive, all, true, false, "takes the link down"},
		{"fec", receive, []string{kernel.RxLRO, kernel.RxGROHW}, true, true, "takes the link down"},
		{"frob", receive, all, true, true, "may take the link down for some seconds (driver frob is unknown)"},
		{"e1000e", noXDP, nil, false, false, ""},
		{"ena", noXDP, nil, false, false, ""},
		{"mtk_soc_eth", receive | kernel.XDPTransmit, nil, false, true, ""},
		{"unheard_of", noXDP, nil, false, false, ""},
	} {
		t.Run(c.driver, func(t *testing.T) {
			p := nic(stock(c.driver, c.features))
			if got := Wants(p, Auto); !slices.Equal(got, c.switches) {
				t.Errorf("switches off %v, want %v", got, c.switches)
			}
			if got := Wants(p, Off); got != nil {
				t.Errorf("xdp = \"off\": switches off %v", got)
			}
			got := Decide(Prepared(p), Auto)
			if got.XDPReceive != c.receive || got.XDPTransmit != c.transmit {
				t.Errorf("prepared: receive, transmit = %v %v, want %v %v (%s)", got.XDPReceive, got.XDPTransmit, c.receive, c.transmit, got.Reason)
			}
			if got := Effect(p, Auto); !strings.Contains(got, c.effect) || c.effect == "" && got != "" {
				t.Errorf("effect %q, want %q", got, c.effect)
			}
			p.Keep = true
			if got := Wants(p, Auto); got != nil {
				t.Errorf("offloads = \"keep\": switches off %v", got)
			}
			if now := Decide(p, Auto); now.XDPTransmit {
				t.Errorf("before it is attached it takes frames: %+v", now)
			}
		})
	}
}

// TestVouched: what an unknown driver does with a program must be seen.
func TestVouched(t *testing.T) {
	for driver, want := range map[string]bool{"vif": false, "frob": false, "": false, "igb": true, "vmxnet3": true} {
		if got := Vouched(kernel.Link{Driver: driver}); got != want {
			t.Errorf("%q: %t, want %t", driver, got, want)
		}
	}
}

// TestLosesMarks: of these drivers no failing call says so.
func TestLosesMarks(t *testing.T) {
	for driver, want := range map[string]bool{"mlx4_en": true, "st_gmac": true, "igb": false, "vmxnet3": false, "frob": false} {
		if got := LosesMarks(kernel.Link{Driver: driver}); got != want {
			t.Errorf("%s: %t, want %t", driver, got, want)
		}
	}
	if LosesMarks(kernel.Link{Kind: "veth", Driver: "veth"}) {
		t.Error("a veth keeps marks")
	}
}

// TestDriverTable: each cause in a row has a cure, which names the interface.
func TestDriverTable(t *testing.T) {
	for name, d := range drivers {
		if (d.lacks == "") != (d.cure == "") {
			t.Errorf("%s: lacks %q, cure %q", name, d.lacks, d.cure)
		}
		l := kernel.Link{Name: "eth0", Type: kernel.Ethernet, Driver: name}
		_, reason, remedy := Receive(Port{Link: l}, Auto)
		if strings.Contains(reason+remedy, "%") || d.cure != "" && !strings.Contains(remedy, "eth0") {
			t.Errorf("%s: %q; %q", name, reason, remedy)
		}
	}
}
