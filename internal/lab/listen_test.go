// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"testing"
	"time"
)

// A listener hears the change that was made, by its word, and nothing of what was before.
func TestListen(t *testing.T) {
	f := firewall(t, FirewallOptions{Neighbours: true})
	l, err := f.LAN.NS.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want, change := range map[string]func() error{
		"route":    func() error { return f.LAN.NS.IP("route add 203.0.113.0/24 via 198.19.0.2") },
		"rule":     func() error { return f.LAN.NS.IP("rule add fwmark 9 lookup 9") },
		"nftables": func() error { return f.LAN.NS.NFT("add table inet heard") },
		"netconf":  func() error { return f.LAN.NS.Sysctl("net.ipv4.conf.lan.rp_filter", "1") },
		"neigh": func() error {
			return f.LAN.NS.IP("neigh replace 198.19.0.9 lladdr 02:00:00:00:00:09 dev wan nud permanent")
		},
	} {
		began := time.Now()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		var heard []Announcement
		for deadline := began.Add(2 * time.Second); len(heard) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			heard = l.Since(began)
		}
		if len(heard) == 0 {
			t.Errorf("%s: nothing heard", want)
		}
		for _, a := range heard {
			if a.What != want || a.At.Before(began) {
				t.Errorf("%s: heard %q at %v, the change began at %v", want, a.What, a.At, began)
			}
		}
		time.Sleep(20 * time.Millisecond) // what is late belongs to this change
	}
	if heard := l.Since(time.Now()); len(heard) > 0 {
		t.Errorf("what is past was not forgotten: %v", heard)
	}
}
