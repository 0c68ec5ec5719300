// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"strings"
	"testing"
)

// TestWholeForm: a rule ends a chain only for the packets of which its whole form says so, and what
// is not understood looks at each packet.
func TestWholeForm(t *testing.T) {
	p := newPlace(t)
	const all, limit = "limit: everything", "; limit rate 5/second accept"
	for _, c := range []struct{ rules, want string }{
		// concatenations, which say no more than all of their parts
		{`ct state . iifname vmap { established . "lo" : accept }` + limit, all},
		{`ct state . iifname vmap { established . "lan" : accept }` + limit, "limit: everything, new or untracked; not in by lan, established"},
		{`iifname . ct state vmap { "lan" . established : accept, "wan" . established : accept }` + limit,
			"limit: everything, new or untracked; not in by lan or wan, established"},
		{"ct state . ip saddr { established . 192.0.2.1 } accept" + limit, all},
		{"ct state . tcp dport vmap { established . 22 : accept }" + limit, all},
		{"ct state . ct mark vmap { established . 1 : accept }" + limit, all},
		{"meta l4proto . ct state { udp . established } accept" + limit, all},
		{"ct state . meta l4proto vmap { established . udp : jump limits }", "limit: udp, established"},
		{"ip saddr . ip ttl { 192.0.2.1 . 5 } drop", "TTL: IPv4"},
		{"ip saddr . tcp dport . meta length { 192.0.2.1 . 80 . 100 } drop", "length: IPv4 tcp"},
		{"ip saddr . tcp dport { 192.0.2.1 . 80-90 } drop", ""},
		{"ct state . iifname @statemap2 accept" + limit, all},

		// sets
		{"ct state established iifname { lan, wan } accept" + limit, "limit: everything, new or untracked; not in by lan or wan, established"},
		{"iifname { lan, wan } ct state established accept" + limit, "limit: everything, new or untracked; not in by lan or wan, established"},
		{"iifname != { lan, wan } ct state established accept; iifname lan limit rate 5/second accept", "limit: in by lan"},
		{"oifname { lan, wan } ct state established accept; iifname lan limit rate 5/second accept",
			"limit: in by lan, new or untracked; in by lan not out by lan or wan, established"},
		{"iifname \"la*\" ct state established accept; iifname lan limit rate 5/second accept", "limit: in by lan, new or untracked"},
		{"iifname @lans ct state established accept" + limit, "limit: everything, new or untracked; not in by lan or wan, established"},
		{"iifname @moving ct state established accept" + limit + "; add @moving { iifname }", all},
		{"ct state vmap @states" + limit, "limit: everything, new or untracked"},
		{"ct state vmap @states2" + limit, "limit: everything, new or untracked"},
		{"ct state != { established, new } limit rate 5/second accept", "limit: everything, untracked"},
		{"ip protocol { tcp, udp } th dport 53 drop", ""},
		{"meta l4proto { tcp, udp } th dport 53 limit rate 5/second drop", "limit: to port 53"},
		{"meta l4proto { icmp, udp } th dport 53 drop", "ICMP header: everything"},
		{"meta l4proto . th dport { tcp . 22, udp . 53 } drop", ""},
		{"meta l4proto . th dport != { tcp . 22, udp . 53 } drop", ""},
		{"meta l4proto . th dport vmap { tcp . 22 : drop, udp . 53 : accept }", ""},
		{"meta l4proto . th dport { tcp . 22, icmp . 53 } drop", "ICMP header: everything"},
		{"meta l4proto . th dport @services drop", ""},
		{"meta l4proto != tcp th dport 53 drop", "payload: everything"},
		{"ip saddr 192.0.2.0-192.0.2.9 accept" + limit, all},
		{"ip saddr { 192.0.2.1 limit rate over 5/second, 192.0.2.2 limit rate over 5/second } drop", "limit in a set: IPv4"},
		{"ip saddr @limited drop", "limit in set limited: IPv4"},
		{"ip saddr @grown drop; add @grown { ip saddr limit rate over 5/second }", "limit in set grown: IPv4 | limit in set grown: IPv4"},

		// flags: what no repeated packet has, whichever way it is asked for
		{"tcp flags { 0x0, fin|psh|urg, syn } drop", ""},
		{"tcp flags { 0x0, psh|ack } drop", "TCP flags: tcp"},
		{"tcp flags & (fin|syn|rst|ack) { syn, fin|ack } limit rate 5/second drop", ""},
		{"tcp flags & (fin|syn|rst|ack) { ack, fin|ack } limit rate 5/second drop", "limit: tcp"},
		{"tcp flags & (fin|syn|rst|ack) vmap { syn : jump limits, ack : accept }" + limit, all},
		{"tcp flags vmap { 0x0 : drop, fin|psh|urg : drop }", ""},
		{"tcp flags vmap { psh|ack : drop }", "TCP flags: tcp"},
		{"tcp flags != { syn } drop", ""},

		// parts of protocols that are not in a flow's key
		{"icmp type echo-request icmp code 0 limit rate 5/second drop", "limit: IPv4 icmp"},
		{"icmpv6 type echo-request icmpv6 code 0 limit rate 5/second drop", "limit: IPv6 icmpv6"},
		{"@th,0,16 2048 limit rate 5/second drop", "payload: everything"},
		{"icmp checksum 5 drop", "ICMP header: IPv4 icmp"},
		{"ah spi 5 drop", "payload: protocol 51"},
		{"esp spi 5 drop", ""},
		{"esp sequence 5 drop", "payload: esp"},
		{"comp cpi 5 drop", "payload: protocol 108"},
		{"sctp dport 5 drop", ""},
		{"sctp vtag 5 drop", "payload: sctp"},
		{"sctp chunk data exists drop", "chunk or header: everything"},
		{"dccp type request drop", "payload: protocol 33"},
		{"@nh,64,8 5 drop", "TTL: everything"},
		{"@ll,112,16 5 drop", "link layer: everything"},

		{"symhash mod 2 == 0 ip length < 200 drop", "length: IPv4"},
		{"symhash mod 2 == 0 limit rate 5/second accept", "limit: everything"},
		{"meta l4proto gre symhash mod 2 == 0 drop", "hash of what is in a tunnel: gre"},
		{"meta l4proto udp symhash mod 2 == 0 drop", ""},
		{"symhash mod 2 == 0 udp dport 53 drop", ""},

		// the order in which a rule asks
		{"limit rate 5/second ct state new accept", all},
		{"ct state new limit rate 5/second accept", "limit: everything, new"},
		{"limit rate 5/second tcp flags syn accept", all},
		{"limit rate 5/second tcp flags syn log", ""},
		{"iifname lan quota over 5 mbytes oifname wan drop", "quota: in by lan"},
		{"iifname lan meta length > 100 oifname wan drop", "length: in by lan out by wan"},

		// what is written into packets
		{"ip dscp set cs1", ""},
		{"ip6 dscp set cs1", ""},
		{"ip ecn set not-ect", "ECN: IPv4"},
		{"ip6 hoplimit set 9", "hop limit: IPv6"},
		{"udp checksum set 0", "UDP header: udp"},
		{"tcp dport set 80", ""},
		{"ct mark set ct mark xor 1", "ct mark of itself: everything"},
		{"ct mark set ct mark or 1", ""},
		{"ct mark set mark and 0xff", ""},
		{"meta mark set ct mark", ""},
		{"meta mark set mark xor 1", ""},
		{"meta mark set mark xor 1; ct mark set mark", "packet marks, which a rule asks: everything"},

		// verdicts that are none
		{"tcp dport 80 tproxy ip to :1; ip protocol tcp limit rate 5/second accept", "limit: IPv4 tcp"},
		{"ct state vmap { established : continue, new : accept }" + limit, "limit: everything, established or untracked"},
		{"reject" + limit, ""},
		{"exthdr frag missing accept; meta nfproto ipv6 limit rate 5/second accept", ""},
		{"ip frag-off & 0x1fff == 0 accept; meta nfproto ipv4 limit rate 5/second accept", ""},
	} {
		t.Run(c.rules, func(t *testing.T) {
			p.nft(`table inet t {
				set lans { type ifname; elements = { "lan", "wan" }; }
				set services { type inet_proto . inet_service; elements = { tcp . 22, udp . 53 }; }
				set moving { type ifname; size 9; flags dynamic; }
				set limited { type ipv4_addr; limit rate over 5/second; elements = { 192.0.2.1 }; }
				set grown { type ipv4_addr; size 9; flags dynamic; }
				set statemap2 { type ct_state . ifname; elements = { established . "lo" }; }
				map states { type ct_state : verdict; elements = { established : accept, related : accept, invalid : drop }; }
				map states2 { type ct_state : verdict; elements = { established : jump takes }; }
				chain takes { accept; }
				chain limits { limit rate 5/second accept; }
				chain f { type filter hook ` + hookOf(c.rules) + `; ` + c.rules + `; }
			}`)
			holdOne(t, p.read(), "inet t ", c.want)
		})
	}
	p.nft("")
}

func hookOf(rules string) string {
	if strings.Contains(rules, "tproxy") {
		return "prerouting priority -150"
	}
	return "forward priority 0"
}

// TestNamedState: what moves state that a rule with a verdict asks looks at each packet, wherever
// the two stand; what nobody asks only counts.
func TestNamedState(t *testing.T) {
	p := newPlace(t)
	const established = "ct state established "
	for _, c := range []struct{ name, feeds, asks, want string }{
		{"quota", established + `quota name "cap"`, `udp dport 7000 ct state new quota name "cap" drop`,
			"quota: everything, established | quota: udp to port 7000, new"},
		{"quota that nobody asks", established + `quota name "cap"`, `udp dport 7000 ct state new quota name "other" drop`,
			"quota: udp to port 7000, new"},
		{"quota by a map", established + `quota name ip saddr map @caps`, `udp dport 7000 ct state new quota name "cap" drop`,
			"quota: IPv4, established | quota: udp to port 7000, new"},
		{"limit", established + `limit name "lim"`, `ct state new limit name "lim" drop`, "limit: everything, established | limit: everything, new"},
		{"counter", established + `counter name "cnt"`, `ct state new accept`, ""},
		{"ban by rate", `update @ban { ip saddr limit rate over 5/second }`, `ip saddr @ban drop`, "limit in set ban: IPv4 | limit in set ban: IPv4"},
		{"ban by rate, and a rule that counts", `update @ban { ip saddr limit rate over 5/second }; update @ban { ip daddr counter }`, `ip saddr @ban drop`,
			"limit in set ban: IPv4 | limit in set ban: IPv4 | limit in set ban: IPv4"},
		{"ban by rate behind a jump", `jump bans`, `ip saddr @ban drop`, "limit in set ban: IPv4 | limit in set ban: IPv4"},
		{"ban of a port", `update @keep { ip saddr timeout 5s }`, `ip saddr @keep drop`, ""}, // within the clock
		{"ban that ends under traffic", `add @keep { ip saddr timeout 5s }`, `ip saddr @keep drop`, "set keep in table inet t, which a rule asks: IPv4"},
		{"a map", `update @keepmap { ip saddr timeout 5s : 1 }`, `meta mark set ip saddr map @keepmap`, ""},
		{"a map that ends under traffic", `add @keepmap { ip saddr timeout 5s : 1 }`, `meta mark set ip saddr map @keepmap`, "set keepmap in table inet t, which a rule asks: IPv4"},
		{"what is added once", `add @once { ip saddr }`, `ip saddr @once drop`, ""},
		{"what another rule takes out", `add @once { ip saddr }; udp dport 9 delete @once { ip saddr }`, `ip saddr @once drop`,
			"set once in table inet t, which a rule asks: IPv4 | set once in table inet t, which a rule asks: IPv4 udp to port 9"},
		{"what differs from packet to packet", `add @ttls { ip ttl }`, `ip daddr 192.0.2.1 ip ttl @ttls drop`, "TTL: IPv4 | TTL: IPv4 to 192.0.2.1/32"},
		{"a set that nobody asks", `update @keep { ip saddr timeout 5s }`, `ip saddr @once drop`, ""},
		{"a set that a log asks", `update @keep { ip saddr timeout 5s }`, `ip saddr @keep log`, ""},
		{"a set that a jump to a log asks", `update @keep { ip saddr timeout 5s }`, `ip saddr @keep jump logs`, ""},
		{"a set that another one is fed by", `add @keep { ip saddr timeout 5s }`, `ip saddr @keep add @keep2 { ip daddr timeout 5s }; ip daddr @keep2 drop`,
			"set keep in table inet t, which a rule asks: IPv4 | set keep2 in table inet t, which a rule asks: IPv4"},
		{"fed by a rule that asks a limit", `limit rate 5/second update @keep { ip saddr timeout 5s }`, `ip saddr @keep drop`, "limit: everything"},
		{"asked at another hook", `add @keep { ip saddr timeout 5s }`, `accept; }; chain i { type filter hook input priority 0; ip saddr @keep drop`,
			"set keep in table inet t, which a rule asks: IPv4"},
		{"asked by first packets", `add @keep { ip saddr timeout 5s }`, `accept; }; chain n { type nat hook prerouting priority -100; ip saddr @keep redirect`,
			"set keep in table inet t, which a rule asks: IPv4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.nft(`table inet t {
				quota cap { over 300 kbytes; }
				quota other { over 300 kbytes; }
				limit lim { rate over 5/second; }
				counter cnt { packets 0 bytes 0; }
				map caps { type ipv4_addr : quota; }
				set ban { type ipv4_addr; size 100; flags dynamic; }
				set keep { type ipv4_addr; size 100; flags dynamic,timeout; }
				set keep2 { type ipv4_addr; size 100; flags dynamic,timeout; }
				set once { type ipv4_addr; size 100; flags dynamic; }
				set ttls { typeof ip ttl; size 100; flags dynamic; }
				map keepmap { type ipv4_addr : mark; size 100; flags dynamic,timeout; }
				chain bans { update @ban { ip saddr limit rate over 5/second }; }
				chain logs { log; }
				chain f { type filter hook forward priority 0; ` + c.feeds + "; " + c.asks + `; }
			}`)
			holdOne(t, p.read(), "inet t ", c.want)
		})
	}
	p.nft("")
}

// TestExtensions: extensions of iptables go by their arguments.
func TestExtensions(t *testing.T) {
	p := newPlace(t)
	p.must(p.ns.Run("ipset", "create", "s", "hash:ip", "counters"))
	const limit = "; -m limit --limit 5/sec -j ACCEPT"
	for _, c := range []struct{ rules, want string }{
		{"-m set --match-set s src -j DROP", ""},
		{"-m set --match-set s src --packets-gt 60 -j DROP", "counters of an ipset: IPv4"},
		{"-m set --match-set s src --packets-lt 60 -j ACCEPT", "counters of an ipset: IPv4"},
		{"-m set --match-set s src --bytes-gt 60 -j DROP", "counters of an ipset: IPv4"},
		{"-m set ! --match-set s src ! --bytes-eq 60 -j DROP", "counters of an ipset: IPv4"},
		{"-p udp -m set --match-set s src; -p tcp -m set --match-set s src --packets-gt 60 -j DROP",
			"counters of an ipset, which a rule asks: IPv4 udp | counters of an ipset: IPv4 tcp"},
		{"-p udp -j SET --add-set s src; -p tcp -m set --match-set s src -j DROP", "ipset, which a rule asks: IPv4 udp"},
		{"-m hashlimit --hashlimit-above 5/sec --hashlimit-name x -j SET --add-set s src; -m set --match-set s src -j DROP", "hashlimit: IPv4"},
		{"-p udp -m hashlimit --hashlimit-upto 5/sec --hashlimit-name x; -p tcp -m hashlimit --hashlimit-upto 5/sec --hashlimit-name x -j ACCEPT",
			"hashlimit: IPv4 udp | hashlimit: IPv4 tcp"},
		{"-p udp -m hashlimit --hashlimit-upto 5/sec --hashlimit-name x; -p tcp -m hashlimit --hashlimit-upto 5/sec --hashlimit-name y -j ACCEPT",
			"hashlimit: IPv4 tcp"},
		{"-p udp -m recent --name a --set; -p tcp -m recent --name a --rcheck --seconds 5 -j DROP",
			"recent a, which a rule asks: IPv4 udp | recent: IPv4 tcp"},
		{"-p udp -m recent --name a --set; -p tcp -m recent --name b --rcheck --seconds 5 -j DROP", "recent: IPv4 tcp"},
		{"-p udp -m recent --name a --set -j ACCEPT", ""},
		{"-p udp -m recent --name a --update --seconds 5 -j DROP", "recent: IPv4 udp"},
		{"-p udp -j RATEEST --rateest-name e --rateest-interval 250ms --rateest-ewma 500ms; -p tcp -m rateest --rateest e --rateest-gt --rateest-bps 1mbit -j DROP",
			"rateest e, which a rule asks: IPv4 udp | rateest: IPv4 tcp"},
		{"-m limit --limit 5/sec -m conntrack --ctstate NEW -j ACCEPT", "limit: IPv4"},
		{"-m conntrack --ctstate NEW -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new"},
		{"-m connbytes --connbytes 0:5 --connbytes-dir original --connbytes-mode packets -j ACCEPT", "ct packets: IPv4, until 5 original packets"},
		{"-m connbytes ! --connbytes 7: --connbytes-dir reply --connbytes-mode packets -j ACCEPT", "ct packets: IPv4, until 7 reply packets"},
		{"-m connbytes --connbytes 100: --connbytes-dir both --connbytes-mode avgpkt -j ACCEPT", "connbytes: IPv4"},
		{"-f -j ACCEPT" + limit, "limit: IPv4"},
		{"! -f -j ACCEPT" + limit, ""},
		{"-f" + limit, "limit: IPv4"},
		{"-s 0.0.0.7/0.0.0.255 -j ACCEPT" + limit, "limit: IPv4"},
		{"! -s 192.0.2.1 -j ACCEPT" + limit, "limit: IPv4"},
		{"! -p tcp -j ACCEPT" + limit, "limit: IPv4"},
		{"-m conntrack --ctstate ESTABLISHED --ctproto 17 -j ACCEPT" + limit, "limit: IPv4"},
		{"-p tcp --sport 1:65535 -m conntrack --ctstate ESTABLISHED -j ACCEPT" + limit, "limit: IPv4"},
		{"-m ttl --ttl-lt 5", ""},
		{"-p sctp --dport 7 -j DROP", ""},
		{"-p sctp --chunk-types any DATA -j DROP", "SCTP chunks: IPv4 sctp"},
		{"-p dccp --dport 7 -j DROP", ""},
		{"-p dccp --dccp-types REQUEST -j DROP", "DCCP type or option: IPv4 protocol 33"},
		{"-p ah -m ah --ahspi 5 -j DROP", "AH's SPI: IPv4 protocol 51"},
		{"-p esp -m esp --espspi 5 -j DROP", ""},
		{"-t mangle -j TTL --ttl-set 64", "TTL: IPv4"},
		{"-t mangle -j TOS --set-tos 0x10", "ECN: IPv4"},
		{"-t mangle -j TOS --set-tos 0x10/0xfc", ""},
		{"-t mangle -j DSCP --set-dscp 7", ""},
		{"-t mangle -p tcp -j ECN --ecn-tcp-remove", "ECN: IPv4 tcp"},
		{"-t mangle -j MARK --set-mark 1", ""},
		{"-t mangle -j CONNMARK --set-mark 1", ""},
		{"-t mangle -j CONNMARK --xor-mark 1", "ct mark of itself: IPv4"},
		{"-t mangle -j CONNMARK --save-mark", ""},
		{"-t mangle -j CONNMARK --restore-mark --mask 0xff", ""},
		{"-t mangle -j MARK --xor-mark 1; -t mangle -j CONNMARK --save-mark", "packet marks, which a rule asks: IPv4"},
	} {
		for _, tool := range []string{"iptables-legacy", "iptables-nft"} {
			t.Run(tool+" "+c.rules, func(t *testing.T) {
				p := place{t, p.ns}
				defer p.legacyFlush()
				defer p.nft("")
				table := "filter"
				for _, r := range strings.Split(c.rules, "; ") {
					args := strings.Fields(r)
					if args[0] == "-t" {
						table, args = args[1], args[2:]
					}
					p.must(p.ns.Run(append([]string{tool, "-t", table, "-A", "FORWARD"}, args...)...))
				}
				holdOne(t, p.read(), fmt.Sprintf("%s %s ", map[string]string{"iptables-legacy": "iptables", "iptables-nft": "ip"}[tool], table), c.want)
			})
		}
	}
}

// TestAccounting: nfacct objects have a name, and a quota if they have one is asked with each count.
func TestAccounting(t *testing.T) {
	r := newRule("")
	if r.xMatch("nfacct", 0, append([]byte("web"), make([]byte, 37)...)) {
		t.Error("exact")
	}
	if r.varies != "nfacct" || !r.drained || len(r.feeds) != 1 || r.feeds[0] != "nfacct web" || len(r.asks) != 1 || r.asks[0] != r.feeds[0] {
		t.Errorf("%+v", r)
	}
}

// TestNamedStateTogether: legacy iptables and nftables share lists, sets and limits that have a name.
func TestNamedStateTogether(t *testing.T) {
	p := newPlace(t)
	p.must(p.ns.Run("iptables-legacy", "-A", "FORWARD", "-p", "udp", "-m", "recent", "--name", "a", "--set"))
	p.must(p.ns.Run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-m", "recent", "--name", "a", "--rcheck", "-j", "ACCEPT"))
	if got := strings.Join(told(p.read()), "\n"); got != "iptables filter FORWARD rule 1: recent a, which a rule asks: IPv4 udp" {
		t.Errorf("found %q", got)
	}
	p.legacyFlush()
}
