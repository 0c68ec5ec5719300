// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"strings"
	"testing"
)

// TestIPTables: single rules in FORWARD, by legacy iptables and by way of nftables, and
// what they could touch; the same in both families where nothing says otherwise.
func TestIPTables(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct{ rules, want string }{
		{"-m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-m hashlimit --hashlimit-above 5/sec --hashlimit-name x -j DROP", "hashlimit: IPv4"},
		{"-m quota --quota 100000 -j ACCEPT", "quota: IPv4"},
		{"-m connbytes --connbytes 100000: --connbytes-dir both --connbytes-mode bytes -j DROP", "ct bytes: IPv4, until 100000 bytes"},
		{"-m statistic --mode nth --every 2 --packet 0 -j DROP", "statistic: IPv4"},
		{"-m length --length 1400: -j DROP", "length: IPv4"},
		{"-m string --algo bm --string GET -j DROP", "string: IPv4"},
		{"-m u32 --u32 0>>22&0x3C@0=1 -j DROP", "u32: IPv4"},
		{"-m time --timestart 08:00 -j ACCEPT", "time: IPv4"},
		{"-m ttl --ttl-lt 5 -j DROP", "TTL: IPv4"},
		{"-m recent --name x --rcheck --hitcount 3 -j DROP", "recent: IPv4"},
		{"-m ecn --ecn-ip-ect 0 -j DROP", "ECN: IPv4"},
		{"-m tos --tos 0x10/0x3f -j DROP", "ECN: IPv4"},
		{"-m cpu --cpu 0 -j DROP", "cpu: IPv4"},
		{"-m conntrack --ctexpire 1:10 -j DROP", "ct expiration: IPv4"},
		{"-p tcp --tcp-flags PSH PSH -j DROP", "TCP flags: IPv4 tcp"},
		{"-p tcp --tcp-option 8 -j DROP", "TCP option: IPv4 tcp"},
		{"-j NFQUEUE --queue-num 1", "queue: IPv4"},
		{"-m limit --limit 5/sec -j MARK --set-mark 1", "limit: IPv4"},
		{"-m limit --limit 5/sec -j acts", "limit: IPv4"},
		{"-m limit --limit 5/sec -g acts", "limit: IPv4"},
		{"-m limit --limit 5/sec -j RETURN", "limit: IPv4"},

		{"-s 192.0.2.0/24 -d 198.51.100.7 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 from 192.0.2.0/24 to 198.51.100.7/32"},
		{"! -s 192.0.2.0/24 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-i lan -o ppp+ -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 in by lan out by ppp*"},
		{"! -i lan -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 not in by lan"},
		{"-p udp --dport 53 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 udp to port 53"},
		{"-p tcp --sport 1024:65535 --dport 80 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 tcp from port 1024-65535 to port 80"},
		{"-p tcp ! --dport 80 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 tcp"},
		{"-p tcp -m multiport --dports 80,443 -m limit --limit 5/sec -j ACCEPT", "limit: IPv4 tcp"},
		{"! -p tcp -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-m conntrack --ctstate NEW -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new"},
		{"-m conntrack ! --ctstate NEW -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, established or untracked"},
		{"-m conntrack --ctstate DNAT -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-m conntrack --ctstate UNTRACKED -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, untracked"},
		{"-m state --state ESTABLISHED -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, established"},
		{"-m state --state INVALID -m limit --limit 5/sec -j ACCEPT", ""},

		{"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new or untracked"},
		{"-m state --state ESTABLISHED -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new or untracked"},
		{"-m comment --comment x -m conntrack --ctstate ESTABLISHED -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new or untracked"},
		{"-m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-i lan -m conntrack --ctstate ESTABLISHED -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new or untracked; IPv4 not in by lan, established"},
		{"-j takes; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4, new or untracked"},
		{"-g takes; -m limit --limit 5/sec -j ACCEPT", ""},
		{"-j ACCEPT; -m limit --limit 5/sec -j ACCEPT", ""},
		{"-m mark --mark 1 -j ACCEPT; -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-p icmp -j limits", "limit: IPv4 icmp"},

		{"-m limit --limit 5/sec -j LOG", ""},
		{"-m limit --limit 5/sec -j logs", ""},
		{"-m limit --limit 5/sec", ""},
		{"-p tcp --syn -m limit --limit 5/sec -j ACCEPT", ""},
		{"-p tcp ! --syn -m conntrack --ctstate NEW -j DROP", ""},
		{"-p tcp --tcp-flags ALL NONE -m limit --limit 5/sec -j DROP", ""},
		{"-p tcp --tcp-flags ALL FIN,URG,PSH -m limit --limit 5/sec -j DROP", ""},
		{"-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu", ""},
		{"-m pkttype --pkt-type broadcast -m limit --limit 5/sec -j ACCEPT", ""},
		{"-m pkttype ! --pkt-type unicast -m limit --limit 5/sec -j ACCEPT", ""},
		{"-m pkttype --pkt-type unicast -m limit --limit 5/sec -j ACCEPT", "limit: IPv4"},
		{"-m connlimit --connlimit-above 20 -j REJECT", "connlimit: IPv4"},
		{"-m dscp --dscp 46 -j DROP", ""},
		{"-m tos --tos 0x10/0xfc -j DROP", ""},
		{"-m mac --mac-source 02:00:00:00:00:01 -j DROP", ""},
		{"-m addrtype --dst-type LOCAL -j DROP", ""},
		{"-m connmark --mark 1 -j CONNMARK --restore-mark", ""},
		{"-j TEE --gateway 192.0.2.1", ""},
	} {
		for _, tool := range []string{"iptables-legacy", "iptables-nft"} {
			t.Run(tool+" "+c.rules, func(t *testing.T) {
				p := place{t, p.ns}
				p.chain(tool, "takes", "-m conntrack --ctstate ESTABLISHED -j ACCEPT")
				p.chain(tool, "acts", "-j LOG", "-j DROP")
				p.chain(tool, "logs", "-j LOG")
				p.chain(tool, "limits", "-m limit --limit 5/sec -j ACCEPT")
				p.chain(tool, "FORWARD", strings.Split(c.rules, "; ")...)
				table := "iptables filter "
				if tool == "iptables-nft" {
					table = "ip filter "
				}
				holdOne(t, p.read(), table, c.want)
				if tool == "iptables-nft" {
					p.nft("")
				} else {
					p.legacyFlush()
				}
			})
		}
	}
}

// chain fills a chain, which it makes if it is not built in.
func (p place) chain(tool, name string, rules ...string) {
	p.t.Helper()
	if name != "FORWARD" {
		p.must(p.ns.Run(tool, "-N", name))
	}
	for _, r := range rules {
		p.must(p.ns.Run(append([]string{tool, "-A", name}, strings.Fields(r)...)...))
	}
}

// TestHooks: which chains forwarded packets pass, and what is known of state there.
func TestHooks(t *testing.T) {
	p := newPlace(t)
	const limit = "limit rate 5/second accept"
	for _, c := range []struct{ name, rules, want string }{
		{"prerouting", "chain c { type filter hook prerouting priority 0; " + limit + "; }", "limit: everything"},
		{"postrouting", "chain c { type filter hook postrouting priority 0; " + limit + "; }", "limit: everything"},
		{"input and output", "chain c { type filter hook input priority 0; " + limit + "; }\nchain o { type route hook output priority 0; " + limit + "; }", ""},
		{"nat", "chain c { type nat hook postrouting priority 100; " + limit + "; }", ""},
		{"no hook", "chain c { " + limit + "; }", ""},
		{"before conntrack", "chain c { type filter hook prerouting priority -300; ct state established accept; " + limit + "; }", "limit: everything"},
		{"before conntrack, no state", "chain c { type filter hook prerouting priority -300; ct state invalid " + limit + "; }", "limit: everything"},
		{"behind conntrack", "chain c { type filter hook prerouting priority -150; ct state established accept; " + limit + "; }", "limit: everything, new or untracked"},
		{"accepted by another chain", "chain a { type filter hook forward priority 0; accept; }\nchain c { type filter hook forward priority 5; " + limit + "; }", "limit: everything"},
		{"dormant", "flags dormant\nchain c { type filter hook forward priority 0; " + limit + "; }", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.nft("table inet t {\n" + c.rules + "\n}")
			holdOne(t, p.read(), "inet t ", c.want)
		})
	}
	p.nft("table bridge b { chain c { type filter hook forward priority 0; limit rate 5/second accept; }; }\ntable ip6 t { chain c { type filter hook forward priority 0; limit rate 5/second accept; }; }")
	holdOne(t, p.read(), "ip6 t ", "limit: IPv6")
	p.nft("")
	p.must(p.ns.Run("ip6tables-legacy", "-A", "FORWARD", "-s", "2001:db8::/32", "-m", "hl", "--hl-lt", "5", "-j", "DROP"))
	p.must(p.ns.Run("ip6tables-legacy", "-t", "raw", "-A", "PREROUTING", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-m", "limit", "-j", "DROP"))
	r := p.read()
	p.legacyFlush()
	if got, want := strings.Join(told(r), "\n"), "ip6tables raw PREROUTING rule 1: limit: IPv6\nip6tables filter FORWARD rule 1: hop limit: IPv6 from 2001:db8::/32"; got != want {
		t.Errorf("found  %q\nwanted %q", got, want)
	}
}
