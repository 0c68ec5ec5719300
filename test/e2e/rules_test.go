// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestRulesReadWhole: rules that say less than they seem to, and what a rule feeds that another
// one asks. Each keeps the flow with the kernel; without the last of its rules, or with the part
// that it lacks, the flow is fast.
func TestRulesReadWhole(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, with("--xdp", "off")...)
	r.becomesFast("before")
	const limit = "; limit rate 1000000/second accept"
	for _, c := range []struct{ slow, detail, fast string }{
		{`ct state . iifname vmap { new . "wan" : accept }` + limit, "(limit)", `ct state . iifname vmap { new . "lan" : accept }` + limit},
		{`ip saddr & 0.0.0.255 == 0.0.0.7 accept` + limit, "(limit)", `ct state new iifname { lan, wan } accept` + limit},
		{`udp dport 9 quota name "cap"; udp dport 7000 quota name "cap" drop`, "(quota)", `udp dport 9 quota name "cap"; udp dport 7000 quota name "other" drop`},
		{`update @ban { ip saddr limit rate over 1000000/second }; udp dport 7 ip saddr @ban drop`, "(limit in set ban)",
			`update @ban { ip saddr limit rate over 1000000/second }; ip saddr @ban counter`},
		{`limit rate over 1000000/second ct state established drop`, "(limit)", `ct state established limit rate over 1000000/second drop`},
		{`ct state vmap @states; ct state untracked accept` + limit, "(limit)", `ct state vmap @states2` + limit},
		{`ct original packets > 1000000 drop`, "(ct packets)", `ct original packets < 30 meta mark set 7`},
		{`meta l4proto { udp, icmp } th dport 7 drop`, "(ICMP header)", `meta l4proto { udp, tcp } th dport 7 drop`},
	} {
		table := func(rules string) {
			r.nft(`table inet guard { }; delete table inet guard; table inet guard {
				quota cap { over 300000 mbytes; }
				quota other { over 300000 mbytes; }
				set ban { type ipv4_addr; size 100; flags dynamic; }
				map states { type ct_state : verdict; elements = { established : accept }; }
				map states2 { type ct_state : verdict; elements = { new : accept }; }
				chain f { type filter hook forward priority 10; ` + rules + `; }; }`)
		}
		table(c.slow)
		_, err := r.LAN.NS.Run("conntrack", "-F") // a connection counts only if it began while that was on
		r.must(err)
		r.slow(c.slow, "per_packet_rule", c.detail)
		table(c.fast)
		r.becomesFast(c.fast)
	}
}

// TestInspectThenFast: a condition on a connection's counters holds for as many packets as with the
// kernel alone. Once it is spent the flow is fast.
func TestInspectThenFast(t *testing.T) {
	for _, c := range []struct {
		rule string
		fast bool
	}{
		{"ct original packets > 300 drop", false},
		{"ct bytes > 15000 drop", false},
		{"ct packets { 7, 9 } drop", false},
		{"ct reply packets < 1 accept", false},
		{"ct original packets 100-199 drop", true},
		{"ct original packets < 101 meta mark set 7", true},
		{"ct bytes 5000-9999 drop", true},
		{"iifname lan ct packets != 50 accept", true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{})
			r.nft("table inet guard { chain f { type filter hook forward priority 10; " + c.rule + "; }; }")
			r.start(program, with("--xdp", "on")...)
			r.ping()
			sink := r.sink(r.Server, 1)
			defer sink.Close()
			g := r.generator(1, 4000)
			defer g.Close()
			arrives := func() uint64 {
				r.must(sink.Reset())
				_, err := r.LAN.NS.Run("conntrack", "-F")
				r.must(err)
				r.send(g, 2000)
				got, err := sink.Wait(2001, 200*time.Millisecond)
				r.must(err)
				return got.Frames
			}
			r.must(r.api.Pause(context.Background()))
			want := arrives()
			r.must(r.api.Resume(context.Background()))
			before := r.status().Hits
			const inParallel = 12 // packets that two CPUs count before either judges its own
			if got := arrives(); got > want+inParallel || got+inParallel < want {
				t.Errorf("%d frames arrived of 2000, with the kernel alone %d", got, want)
			}
			if hits := r.status().Hits - before; (hits > 1000) != c.fast || !c.fast && hits > 0 {
				t.Errorf("%d hits", hits)
			}
		})
	}
}

// TestUnreadRuleset: from a change of the ruleset until it was read nothing is learned, however long
// the reading takes, and another change in the middle of it begins that anew.
func TestUnreadRuleset(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	var big strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&big, "ip saddr 10.%d.%d.%d tcp dport %d counter\n", i>>16, i>>8&255, i&255, 1+i%60000)
	}
	r.nft("table inet guard { chain big {\n" + big.String() + "}\nchain f { type filter hook forward priority 10; ip saddr 10.0.0.0/8 jump big; }; }")
	r.start(program, with("--xdp", "on")...)
	r.eventually("fast, once all rules were read", time.Minute, func() bool {
		g := r.generator(1, 5000)
		defer g.Close()
		r.send(g, 20)
		return r.why().Fast
	})
	r.nft("add rule inet guard f counter")
	time.Sleep(50 * time.Millisecond)
	r.nft("insert rule inet guard f udp dport 9 limit rate over 10/second burst 5 packets drop")
	time.Sleep(30 * time.Millisecond)
	sink := r.sink(r.Server, 1)
	defer sink.Close()
	g := r.generator(1, 500)
	defer g.Close()
	before, begin := r.status().Hits, time.Now()
	r.send(g, 2000)
	got, err := sink.Wait(2000, 100*time.Millisecond)
	r.must(err)
	allowed := 6 + uint64(10*time.Since(begin).Seconds())
	if hits := r.status().Hits - before; hits > 0 || got.Frames > allowed {
		t.Errorf("%d hits, %d frames arrived; the rule allows %d", hits, got.Frames, allowed)
	}
}

// TestStackedDevice: what goes out by a device above the port passes that device's queue and filters,
// so it stays with the kernel. Once the route names the port it is fast.
func TestStackedDevice(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.ip("link add link wan name above type macvlan mode private", "address add 203.0.113.1/24 dev above", "link set above up",
		"route add 198.19.0.2/32 dev above src 203.0.113.1")
	r.must(r.Server.NS.IP("address add 203.0.113.2/24 dev eth0"))
	r.start(program, with("--xdp", "off")...)
	r.slow("by a macvlan", "port_unknown", "")
	r.ip("route del 198.19.0.2/32 dev above")
	r.becomesFast("by the port")
}
