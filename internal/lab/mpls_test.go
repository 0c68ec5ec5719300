// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os/exec"
	"strings"
	"testing"
)

// Without the modules the error says which one it takes; with them the routes are there.
func TestLabels(t *testing.T) {
	for do, route := range map[MPLS]string{
		MPLSSwap: "100 as to 200 via inet 198.19.0.2 dev wan",
		MPLSPHP:  "100 via inet 198.19.0.2 dev wan",
		MPLSPop:  "100 dev lo",
		MPLSPush: "198.19.0.2 encap mpls 200 via 198.19.0.2 dev wan",
	} {
		f := firewall(t, FirewallOptions{Open: true})
		err := f.Labels(do)
		if exec.Command("modprobe", "-a", "mpls_router", "mpls_iptunnel").Run() != nil {
			if err == nil || !strings.Contains(err.Error(), "mpls_router") {
				t.Errorf("%s: %v: want the module's name", do, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		mpls, err := f.WAN.NS.Run("ip", "-f", "mpls", "route", "show")
		if err != nil {
			t.Error(err)
		}
		plain, err := f.WAN.NS.Run("ip", "route", "show")
		if err != nil || !strings.Contains(strings.Join(strings.Fields(mpls+plain), " "), route) {
			t.Errorf("%s: %v: no %q in\n%s%s", do, err, route, mpls, plain)
		}
	}
	if err := firewall(t, FirewallOptions{Open: true}).Labels("turn"); err == nil {
		t.Error("turned a label")
	}
}

// The flow table stands in the same rules, ahead of the ones that accept.
func TestFlowtable(t *testing.T) {
	top := &Topology{}
	top.place(&NS{}, &NS{}, &NS{})
	with, err := top.ruleset(FirewallOptions{NAT: NATMasquerade, Flowtable: true})
	if err != nil {
		t.Fatal(err)
	}
	without, err := top.ruleset(FirewallOptions{NAT: NATMasquerade})
	if err != nil {
		t.Fatal(err)
	}
	var rest []string
	before, _, _ := strings.Cut(with, "ct state established")
	for line := range strings.Lines(with) {
		if !strings.Contains(without, line) {
			rest = append(rest, strings.TrimSpace(line))
		}
	}
	if !strings.Contains(before, "flow add @fast") || !strings.Contains(before, "devices = { lan, wan }") {
		t.Errorf("not ahead of the accept:\n%s", with)
	}
	if len(rest) != 3 {
		t.Errorf("the rules differ by %q", rest)
	}
}
