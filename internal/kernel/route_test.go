// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

// TestLookup: an entry is found by the tuple of either direction, behind NAT, too.
func TestLookup(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link set lo up
		conntrack -I -p udp -s 10.0.0.2 -d 192.0.2.1 --sport 4000 --dport 80 -r 10.1.0.7 -q 203.0.113.1 --reply-port-src 8080 --reply-port-dst 4001 -t 60 -u SEEN_REPLY,ASSURED
		conntrack -I -p icmp -s 10.0.0.2 -d 192.0.2.1 --icmp-type 8 --icmp-code 0 --icmp-id 77 -t 60
		conntrack -I -p udp -s fd00::2 -d fd01::1 --sport 1 --dport 2 -t 60`)
	ap := netip.MustParseAddrPort
	for _, c := range []struct {
		name  string
		tuple Tuple
		reply string // source of the reply direction; "": not there
	}{
		{"original", Tuple{Proto: unix.IPPROTO_UDP, Source: ap("10.0.0.2:4000"), Destination: ap("192.0.2.1:80")}, "10.1.0.7:8080"},
		{"reply", Tuple{Proto: unix.IPPROTO_UDP, Source: ap("10.1.0.7:8080"), Destination: ap("203.0.113.1:4001")}, "10.1.0.7:8080"},
		{"none", Tuple{Proto: unix.IPPROTO_UDP, Source: ap("10.0.0.2:4001"), Destination: ap("192.0.2.1:80")}, ""},
		{"another protocol", Tuple{Proto: unix.IPPROTO_TCP, Source: ap("10.0.0.2:4000"), Destination: ap("192.0.2.1:80")}, ""},
		{"ping", Tuple{Proto: unix.IPPROTO_ICMP, Source: ap("10.0.0.2:77"), Destination: ap("192.0.2.1:77"), Echo: 77, Type: 8}, "192.0.2.1:0"},
		{"pong", Tuple{Proto: unix.IPPROTO_ICMP, Source: ap("192.0.2.1:77"), Destination: ap("10.0.0.2:77"), Echo: 77}, "192.0.2.1:0"},
		{"IPv6", Tuple{Proto: unix.IPPROTO_UDP, Source: ap("[fd00::2]:1"), Destination: ap("[fd01::1]:2")}, "[fd01::1]:2"},
	} {
		got, err := Lookup(c.tuple)
		switch {
		case c.reply == "":
			if !errors.Is(err, ErrNoConnection) {
				t.Errorf("%s: %+v, %v; want none", c.name, got, err)
			}
		case err != nil || got.Reply.Source.String() != c.reply:
			t.Errorf("%s: %+v, %v; want the reply from %s", c.name, got, err, c.reply)
		}
	}
}

// TestRouteOf: every kind of answer, of both families, and by what a policy rule asks.
func TestRouteOf(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip link add va type veth peer name vb
		ip link add vc type veth peer name vd
		ip link set lo up
		ip link set va up
		ip link set vb up
		ip link set vc up
		ip link set vd up
		ip addr add 10.0.0.1/24 dev va
		ip addr add 10.0.1.1/24 dev vc
		ip -6 addr add fd00::1/64 dev va nodad
		ip -6 addr add fd01::1/64 dev vc nodad
		ip route add 192.0.2.0/24 via 10.0.1.9
		ip route add unreachable 203.0.113.0/25
		ip route add blackhole 203.0.113.128/26
		ip route add prohibit 203.0.113.192/26
		ip -6 route add fd02::/64 via fd01::9
		ip -6 route add unreachable fd03::/64
		ip rule add ipproto udp dport 53 to 198.51.100.0/24 lookup 7
		ip route add 198.51.100.0/24 dev vc table 7`)
	va, vc := links(t)["va"].Index, links(t)["vc"].Index
	for _, c := range []struct {
		proto    uint8
		from, to string
		want     Route
	}{
		{unix.IPPROTO_UDP, "10.0.0.2:1", "10.0.1.2:2", Route{Out: vc}},
		{unix.IPPROTO_TCP, "10.0.0.2:1", "192.0.2.7:2", Route{Out: vc, Via: netip.MustParseAddr("10.0.1.9")}},
		{unix.IPPROTO_ICMP, "10.0.0.2:0", "10.0.0.1:0", Route{Local: true}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "10.0.1.1:2", Route{Local: true}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "203.0.113.1:2", Route{Why: "unreachable"}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "203.0.113.129:2", Route{Why: "blackhole"}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "203.0.113.193:2", Route{Why: "prohibit"}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "8.8.8.8:2", Route{Why: "no route"}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "198.51.100.1:53", Route{Out: vc}},
		{unix.IPPROTO_UDP, "10.0.0.2:1", "198.51.100.1:54", Route{Why: "no route"}},
		{47, "10.0.0.2:0", "10.0.1.2:0", Route{Out: vc}},
		{unix.IPPROTO_UDP, "[fd00::2]:1", "[fd02::7]:2", Route{Out: vc, Via: netip.MustParseAddr("fd01::9")}},
		{unix.IPPROTO_TCP, "[fd00::2]:1", "[fd01::1]:2", Route{Local: true}},
		{unix.IPPROTO_UDP, "[fd00::2]:1", "[fd03::1]:2", Route{Why: "unreachable"}},
		{unix.IPPROTO_ICMPV6, "[fd00::2]:0", "[2001:db8::1]:0", Route{Why: "no route"}},
	} {
		got, err := RouteOf(Packet{Proto: c.proto, Source: netip.MustParseAddrPort(c.from), Destination: netip.MustParseAddrPort(c.to), In: va})
		if err != nil || got != c.want && !(c.want.Why != "" && got.Out == 0 && !got.Local && strings.Contains("unreachable no route", c.want.Why) && strings.Contains("unreachable no route", got.Why)) {
			t.Errorf("%s to %s, protocol %d: %+v, %v; want %+v", c.from, c.to, c.proto, got, err, c.want)
		}
	}
}
