// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"net/netip"
	"strings"
	"testing"

	"shunt/internal/nl/nltest"
)

// TestDrops: the rule that drops a packet, by handle and text, as nft has loaded it into the kernel.
func TestDrops(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add lan type veth peer name lan-peer
		ip link add wan type veth peer name wan-peer`)
	ap := netip.MustParseAddrPort
	udp := Packet{Proto: 17, Source: ap("10.0.0.2:4000"), Destination: ap("198.51.100.9:53"), In: "lan", Out: "wan", InIndex: 3, OutIndex: 5}
	fresh, tcp, ping, six, nat, local := udp, udp, udp, udp, udp, udp
	fresh.New = true
	tcp.Proto = 6
	ping.Proto, ping.ICMPType = protoICMP, 8
	six.Source, six.Destination = ap("[fd00::2]:4000"), ap("[2001:db8::9]:53")
	nat.Destination, nat.NATDest, nat.NATSource = ap("192.0.2.1:80"), ap("10.1.0.7:8080"), ap("10.0.0.2:4000")
	local.Out, local.OutIndex = "", 0
	const forward = "type filter hook forward priority 0;"
	for _, c := range []struct {
		name, rules string
		packet      Packet
		want        string // "": nothing drops it; else the rule's text
		unsure      bool
	}{
		{"no table", ``, udp, "", false},
		{"accepts all", `chain f { ` + forward + ` }`, udp, "", false},
		{"a port", `chain f { ` + forward + ` tcp dport 53 drop; udp dport 54 drop; udp dport 53 drop; }`, udp, "udp dport 53 drop", false},
		{"a protocol", `chain f { ` + forward + ` ip protocol icmp drop; }`, ping, "ip protocol icmp drop", false},
		{"another protocol", `chain f { ` + forward + ` ip protocol icmp drop; }`, udp, "", false},
		{"an ICMP type", `chain f { ` + forward + ` icmp type echo-request drop; }`, ping, "icmp type 8 drop", false},
		{"a prefix", `chain f { ` + forward + ` ip saddr 10.0.0.0/8 ip daddr 198.51.100.0/25 drop; }`, udp, "ip saddr 10.0.0.0/8 ip daddr 198.51.100.0/25 drop", false},
		{"another prefix", `chain f { ` + forward + ` ip saddr != 10.0.0.0/12 drop; ip daddr 198.51.100.128/25 drop; }`, udp, "", false},
		{"IPv6", `chain f { ` + forward + ` ip6 daddr 2001:db8::/32 drop; }`, six, "ip6 daddr 2001:db8::/32 drop", false},
		{"IPv4 rule, IPv6 packet", `chain f { ` + forward + ` ip daddr 0.0.0.0/0 drop; ip saddr 10.0.0.2 drop; }`, six, "", false},
		{"interfaces", `chain f { ` + forward + ` iifname "wan" drop; iifname "la*" oifname "wan" reject; }`, udp, `iifname "la*" oifname "wan" reject`, false},
		{"established first", `chain f { ` + forward + ` ct state established,related accept; drop; }`, udp, "", false},
		{"new", `chain f { ` + forward + ` ct state established,related accept; drop; }`, fresh, "drop", false},
		{"new by name", `chain f { ` + forward + ` ct state new udp dport 53 drop; }`, fresh, "ct state new udp dport 53 drop", false},
		{"the policy", `chain f { ` + forward + ` policy drop; tcp dport 22 accept; }`, udp, "the policy of chain inet t f: drop", false},
		{"the policy, accepted before", `chain f { ` + forward + ` policy drop; udp dport 53 accept; }`, udp, "", false},
		{"a later chain", `chain f { ` + forward + ` accept; } chain g { type filter hook forward priority 10; drop; }`, udp, "drop", false},
		{"postrouting", `chain p { type filter hook postrouting priority 0; oifname "wan" drop; }`, udp, `oifname "wan" drop`, false},
		{"a jump", `chain x { udp dport 53 drop; } chain f { ` + forward + ` ip saddr 10.0.0.2 jump x; }`, udp, "udp dport 53 drop", false},
		{"a jump that returns", `chain x { return; } chain f { ` + forward + ` jump x; drop; }`, udp, "drop", false},
		{"a jump elsewhere", `chain x { drop; } chain f { ` + forward + ` tcp dport 53 jump x; }`, udp, "", false},
		{"a set", `set s { type ipv4_addr; elements = { 10.0.0.1, 10.0.0.2 }; } chain f { ` + forward + ` ip saddr @s drop; }`, udp, "ip saddr @s drop", false},
		{"not in a set", `set s { type ipv4_addr; elements = { 10.0.0.1 }; } chain f { ` + forward + ` ip saddr @s drop; }`, udp, "", false},
		{"intervals", `set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/30, 172.16.0.0/12 }; } chain f { ` + forward + ` ip saddr @s drop; }`, udp, "ip saddr @s drop", false},
		{"between intervals", `set s { type ipv4_addr; flags interval; elements = { 10.0.0.8/30, 9.0.0.0/8 }; } chain f { ` + forward + ` ip saddr @s drop; }`, udp, "", false},
		{"ports in a set", `chain f { ` + forward + ` udp dport { 53, 123 } drop; }`, udp, "udp dport { ... } drop", false},
		{"a verdict map", `chain f { ` + forward + ` udp dport vmap { 53 : drop, 80 : accept }; }`, udp, "udp dport vmap { ... } drop", false},
		{"a map of states", `chain f { ` + forward + ` ct state vmap { established : accept, new : drop }; drop; }`, udp, "", false},
		{"a range", `chain f { ` + forward + ` udp dport 50-60 drop; }`, udp, "", false}, // see below
		{"a mark", `chain f { ` + forward + ` meta mark 7 drop; }`, udp, "drop", true},
		{"a limit", `chain f { ` + forward + ` limit rate over 1/second drop; }`, udp, "limit drop", true},
		{"perhaps accepted before", `chain f { ` + forward + ` meta mark 7 accept; drop; }`, udp, "drop", true},
		{"before NAT", `chain p { type filter hook prerouting priority -150; ip daddr 192.0.2.1 udp dport 80 drop; }`, nat, "udp dport 80 drop", false},
		{"behind NAT", `chain f { ` + forward + ` ip daddr 10.1.0.7 udp dport 8080 drop; }`, nat, "udp dport 8080 drop", false},
		{"for this host", `chain i { type filter hook input priority 0; udp dport 53 drop; }`, local, "udp dport 53 drop", false},
		{"not for this host", `chain i { type filter hook input priority 0; udp dport 53 drop; }`, udp, "", false},
		{"of TCP", `chain f { ` + forward + ` tcp dport 53 counter log reject with tcp reset; }`, tcp, "tcp dport 53 reject", false},
	} {
		nltest.NFT(t, "flush ruleset")
		if c.rules != "" {
			nltest.NFT(t, "table inet t {\n"+strings.ReplaceAll(c.rules, "} chain", "}\nchain")+"\n}")
		}
		if c.name == "a range" {
			c.want = "udp dport >= 50 udp dport <= 60 drop"
		}
		d, err := Drops(c.packet)
		switch {
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case d == nil:
			if c.want != "" {
				t.Errorf("%s: nothing drops it, want %q", c.name, c.want)
			}
		case c.want == "":
			t.Errorf("%s: %+v, want nothing", c.name, *d)
		case !strings.HasSuffix(d.Rule, c.want) || d.Sure == c.unsure:
			t.Errorf("%s: %+v, want %q, unsure %v", c.name, *d, c.want, c.unsure)
		case !strings.HasPrefix(d.Rule, "rule inet t ") && !strings.HasPrefix(d.Rule, "the policy"):
			t.Errorf("%s: %q does not say where it stands", c.name, d.Rule)
		}
	}
}
