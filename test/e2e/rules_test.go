// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

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
		r.slow(c.slow, "per_packet_rule", c.detail)
		table(c.fast)
		r.becomesFast(c.fast)
	}
}
