// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"strings"
	"testing"

	"shunt/internal/nft"
	"shunt/internal/nl/nltest"
)

const setsAndRules = `
table inet t {
	set bans { type ipv4_addr; }
	set nets { type ipv4_addr; flags interval; }
	set bans6 { type ipv6_addr; flags interval, timeout; }
	set pairs { type ifname . ipv4_addr . inet_service; flags interval; }
	set triples { typeof ip saddr . meta mark . ip daddr; }
	set services { type inet_service; }
	set original { type ipv4_addr; }
	set masked { type ipv4_addr; }
	set hops { type ipv4_addr; }
	map verdicts { type ipv4_addr : verdict; }
	map targets { type inet_service : ipv4_addr; }
	set counted { type ipv4_addr; flags dynamic; }
	chain f {
		type filter hook forward priority 0;
		ip saddr @bans drop
		ip daddr @bans drop
		ip saddr @nets drop
		ip6 saddr @bans6 drop
		iifname . ip saddr . tcp dport @pairs drop
		ip saddr . meta mark . ip daddr @triples drop
		tcp dport @services drop
		ct original ip saddr @original drop
		ip saddr & 255.255.255.0 @masked drop
		rt ip nexthop @hops drop
		ip saddr vmap @verdicts
		update @counted { ip saddr limit rate 10/second }
	}
}`

// TestWatchNftables: a transaction of nothing but addresses says which ones.
func TestWatchNftables(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.NFT(t, setsAndRules)
	known := listen(t) // what was there is read
	fresh := listen(t) // what comes is heard
	for _, c := range []struct {
		name, rules string
		want        string // "": anything
	}{
		{"an address", "add element inet t bans { 192.0.2.1 }", "192.0.2.1/32"},
		{"another one goes", "delete element inet t bans { 192.0.2.1 }", "192.0.2.1/32"},
		{"several, in two sets", "add element inet t bans { 192.0.2.1, 192.0.2.2 }; add element inet t nets { 10.0.0.0/8 }",
			"10.0.0.0/8 192.0.2.1/32 192.0.2.2/32"},
		{"flush set", "flush set inet t bans", "192.0.2.1/32 192.0.2.2/32"},
		{"networks side by side", "add element inet t nets { 198.51.100.0/25, 198.51.100.128/26 }", "198.51.100.0/25 198.51.100.128/26"},
		{"a range", "add element inet t nets { 203.0.113.5-203.0.113.6 }", "203.0.113.4/30"},
		{"up to the end", "add element inet t nets { 240.0.0.0/4 }", "240.0.0.0/4"},
		{"networks go", "delete element inet t nets { 10.0.0.0/8, 203.0.113.5-203.0.113.6 }", "10.0.0.0/8 203.0.113.4/30"},
		{"IPv6", "add element inet t bans6 { 2001:db8::/32, 2001:db9::1 timeout 1h }", "2001:db8::/32 2001:db9::1/128"},
		{"in the middle", `add element inet t pairs { "eth0" . 192.0.2.0/24 . 80-90 }`, "192.0.2.0/24"},
		{"the first of two", "add element inet t triples { 192.0.2.1 . 7 . 192.0.2.2 }", "192.0.2.1/32"},
		{"of the connection", "add element inet t original { 192.0.2.9 }", "192.0.2.9/32"},
		{"verdict map", "add element inet t verdicts { 192.0.2.3 : drop }", "192.0.2.3/32"},
		{"counted by packets", "add element inet t counted { 192.0.2.3 limit rate 1/second }", ""},
		{"no address", "add element inet t services { 80 }", ""},
		{"address as a value", "add element inet t targets { 80 : 192.0.2.1 }", ""},
		{"part of an address", "add element inet t masked { 192.0.2.0 }", ""},
		{"not the packet's", "add element inet t hops { 192.0.2.1 }", ""},
		{"with a rule", "add element inet t bans { 192.0.2.7 }; add rule inet t f counter", ""},
		{"a rule", "add rule inet t f counter", ""},
		{"a rule that masks", "add rule inet t f ip daddr & 255.255.255.0 @bans drop", ""},
		{"masked from now on", "add element inet t bans { 192.0.2.8 }", ""},
		{"the other one is not", "add element inet t nets { 192.0.2.0/24 }", "192.0.2.0/24"},
		{"flush ruleset", "flush ruleset", ""},
		{"a set of before, elsewhere", "table ip t { set bans { type ipv4_addr; }; }", ""},
		{"asked by nobody", "add element ip t bans { 192.0.2.8 }", "192.0.2.8/32"},
	} {
		nltest.NFT(t, c.rules)
		for i, events := range []<-chan Event{known, fresh} {
			e := await(t, events, EventNftables)
			if got := nltest.Prefixes(e.Elements); got != c.want || (e.Elements == nil) != (c.want == "") || e.Name != "nft" {
				t.Errorf("%s: watcher %d: %q by %q, want %q", c.name, i, got, e.Name, c.want)
			}
		}
	}
}

// TestWatchManyElements: what one transaction can list is bounded.
func TestWatchManyElements(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.NFT(t, "table inet t { set bans { type ipv4_addr; }; }")
	events := listen(t)
	for _, n := range []int{nft.MostElements, nft.MostElements + 1} {
		var list []string
		for i := range n {
			list = append(list, netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)}).String())
		}
		nltest.NFT(t, "add element inet t bans { "+strings.Join(list, ", ")+" }")
		want := n
		if n > nft.MostElements {
			want = 0
		}
		if e := await(t, events, EventNftables); len(e.Elements) != want {
			t.Errorf("%d elements: told of %d, want %d", n, len(e.Elements), want)
		}
	}
}
