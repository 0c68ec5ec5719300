// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"shunt/internal/nl/nltest"
)

// TestWatchApart: the event of a deleted interface lists the interfaces around it and the prefixes of
// its routes, of every kind of next hop, whether they are older than the watch or not.
func TestWatchApart(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		sysctl -q net.ipv6.conf.all.disable_ipv6=0
		ip link add name port type ifb
		ip link set port up
		ip link add name old type ifb
		ip link set old up
		ip route add 10.1.0.0/16 dev old
		ip link add name p type veth peer name q
		ip link add name br type bridge
		ip link set q master br
		ip link add name tunnel type vxlan id 7 dstport 4789 local 192.0.2.1`)
	const unknown = "unknown"
	events := listen(t)
	for _, c := range []struct {
		name, setup  string
		near, routes string
	}{
		{"old", "", "old", "10.1.0.0/16"},
		{"quiet", "ip link add name quiet type ifb", "quiet", ""},
		{"routed", `
			ip link add name routed type ifb
			ip link set routed up
			ip route add 10.2.0.0/16 dev routed table 7
			ip route add 10.3.0.0/16 nexthop dev port nexthop dev routed
			ip -6 route add 2001:db8:4::/48 dev routed`, "routed", "10.2.0.0/16 10.3.0.0/16 2001:db8:4::/48"},
		{"object", `
			ip link add name object type ifb
			ip link set object up
			ip nexthop add id 9 dev object`, "object", unknown},
		{"above", "ip link add name above link port type macvlan", "above port", ""},
		{"p", "", "br p q", ""},
		{"tunnel", "", unknown, ""},
	} {
		if c.setup != "" {
			nltest.Run(t, c.setup)
		}
		names := map[int]string{}
		links, err := Links()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			names[l.Index] = l.Name
		}
		nltest.Run(t, "ip link del "+c.name)
		e := awaitThat(t, events, c.name, func(e Event) bool { return e.Kind == EventLink && e.Deleted && e.Name == c.name })
		near, routes := unknown, unknown
		if e.Near != nil {
			var words []string
			for _, index := range e.Near {
				words = append(words, names[index])
			}
			slices.Sort(words)
			near = strings.Join(words, " ")
		}
		if e.Routes != nil {
			var words []string
			for _, p := range e.Routes {
				if !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast() {
					words = append(words, p.String())
				}
			}
			slices.Sort(words)
			routes = strings.Join(words, " ")
		}
		if near != c.near || routes != c.routes {
			t.Errorf("%s: near %q, routes %q; want %q, %q", c.name, near, routes, c.near, c.routes)
		}
	}
}

// TestWatchManyRoutes: of an interface with very many routes it is not known where they lead to.
func TestWatchManyRoutes(t *testing.T) {
	d := newRouteDecoder()
	d.reach[7] = nil
	if d.routesBy(7) != nil {
		t.Error("an interface without a list is known")
	}
	d.reach[7] = map[netip.Prefix]bool{}
	for i := range mostRoutes + 1 {
		d.reaches(7, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i)}), 24))
		if known := d.routesBy(7) != nil; known != (i < mostRoutes) {
			t.Errorf("%d routes: known %t", i+1, known)
		}
	}
}
