// SPDX-License-Identifier: Apache-2.0

package change

import "shunt/internal/lab"

// scopeKinds are changes that concern some flows, which are not found by looking at the obvious:
// by a part of the prefix, another table, the address behind NAT, the way back, or a set's key of
// another shape.
var scopeKinds = []*kind{
	{name: "longer route", announced: true, moves: 5,
		change: lines("ip route add unreachable 198.19.0.0/30", "ip route add unreachable 2001:2:0:19::/126"),
		undo:   lines("ip route del unreachable 198.19.0.0/30", "ip route del unreachable 2001:2:0:19::/126")},
	{name: "route of another table", announced: true, moves: 2,
		setup: lines("nft table inet marks { chain in { type filter hook prerouting priority mangle; udp dport 9 meta mark set 7; }; }",
			"ip route add 198.19.0.0/24 dev wan table 7", "ip rule add pref 100 fwmark 7 lookup 7"),
		change: lines("ip route replace 198.19.0.0/24 via {spare} dev dmz table 7"),
		undo:   lines("ip route replace 198.19.0.0/24 dev wan table 7")},
	{name: "rule by source", announced: true, moves: 1,
		setup:  lines("ip route add default via {spare} dev dmz table 8"),
		change: lines("ip rule add pref 90 from {banned} lookup 8"),
		undo:   lines("ip rule del pref 90")},
	{name: "route behind DNAT", announced: true, moves: 3, router: lab.FirewallOptions{NAT: lab.NATDestPort}, flows: (*rig).withPublished,
		change: lines("ip route add unreachable 198.18.0.2/32"),
		undo:   lines("ip route del unreachable 198.18.0.2/32")},
	{name: "route back, under rp_filter", announced: true, moves: 2,
		setup:  lines("sysctl net.ipv4.conf.lan.rp_filter=1"),
		change: lines("ip route replace 198.18.0.128/25 via {spare} dev dmz"),
		undo:   lines("ip route replace 198.18.0.128/25 via 198.18.0.2 dev lan")},
	{name: "route's MTU", announced: true, moves: 1,
		setup:  lines("ip route add {server}/32 dev wan"),
		change: lines("ip route replace {server}/32 dev wan mtu 1300"),
		undo:   lines("ip route replace {server}/32 dev wan")},
	{name: "next hop group", announced: true, moves: 4,
		setup: lines("ip nexthop add id 11 via {server} dev wan", "ip nexthop add id 12 via {spare} dev dmz", "ip nexthop add id 20 group 11",
			"ip route add {server}/32 nhid 20"),
		change: lines("ip nexthop replace id 20 group 12"),
		undo:   lines("ip nexthop replace id 20 group 11")},
	{name: "neighbour gone, and back elsewhere", announced: true, moves: 4, steps: true,
		change: lines("ip neigh del {server} dev wan", "ip neigh replace {server} lladdr 02:00:00:00:13:99 dev wan nud permanent"),
		undo:   lines("ip neigh replace {server} lladdr {servermac} dev wan nud permanent")},
	{name: "nft set of networks", announced: true, moves: 1,
		setup:  lines("nft add set inet filter nets { type ipv4_addr; flags interval; }; insert rule inet filter forward ip saddr @nets drop"),
		change: lines("nft add element inet filter nets { 198.18.0.128/28 }"),
		undo:   lines("nft delete element inet filter nets { 198.18.0.128/28 }")},
	{name: "nft verdict map", announced: true, moves: 1,
		setup: lines("nft add map inet filter verdicts { type ipv4_addr . inet_service : verdict; }; " +
			"insert rule inet filter forward ip saddr . udp dport vmap @verdicts"),
		change: lines("nft add element inet filter verdicts { {banned} . 10 : drop }"),
		undo:   lines("nft delete element inet filter verdicts { {banned} . 10 : drop }")},
	{name: "nft list of who may", announced: true, moves: 1,
		setup: lines(extra, "nft add set inet filter guests { type ipv4_addr; }; add element inet filter guests { {banned} };"+
			"add rule inet filter extra iifname lan udp dport 10 ip saddr != @guests drop"),
		change: lines("nft delete element inet filter guests { {banned} }"),
		undo:   lines("nft add element inet filter guests { {banned} }")},
	{name: "nft set asked with a mask", announced: true, moves: 4,
		setup:  lines("nft add set inet filter nets { type ipv4_addr; }; insert rule inet filter forward ip saddr and 255.255.255.0 @nets drop"),
		change: lines("nft add element inet filter nets { 198.18.0.0 }"),
		undo:   lines("nft delete element inet filter nets { 198.18.0.0 }")},
	{name: "nft set of MACs", announced: true, moves: 5,
		setup:  lines("nft add set inet filter macs { type ether_addr; }; insert rule inet filter forward ether saddr @macs drop"),
		change: lines("nft add element inet filter macs { 02:00:00:00:12:02 }"),
		undo:   lines("nft delete element inet filter macs { 02:00:00:00:12:02 }")},
	{name: "nft set element behind DNAT", announced: true, moves: 3, router: lab.FirewallOptions{NAT: lab.NATDestPort}, flows: (*rig).withPublished,
		setup:  lines("nft add set inet filter inside { type ipv4_addr; }; insert rule inet filter forward ip daddr @inside drop"),
		change: lines("nft add element inet filter inside { 198.18.0.2 }"),
		undo:   lines("nft delete element inet filter inside { 198.18.0.2 }")},
	{name: "nft set element behind masquerade", announced: true, moves: 4, router: lab.FirewallOptions{NAT: lab.NATMasquerade},
		setup: lines("nft add set inet filter outside { type ipv4_addr; }; " +
			"add chain inet filter last { type filter hook postrouting priority 300; }; add rule inet filter last ip saddr @outside drop"),
		change: lines("nft add element inet filter outside { 198.19.0.1 }"),
		undo:   lines("nft delete element inet filter outside { 198.19.0.1 }")},
}

// withPublished adds a flow from the server to what the router publishes of the client.
func (r *rig) withPublished() []flow {
	published := r.standard()[0]
	published.name, published.from, published.smac, published.dmac = "published UDP", server, r.Server.MAC, r.WAN.MAC
	published.source, published.dest = addrPort("198.19.0.2:6000"), addrPort("198.19.0.1:8080")
	return append(r.standard(), published)
}
