// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestConnectionDeleted: a connection that is taken out of conntrack proves itself again at
// once, however long its lease is, and no other one does.
func TestConnectionDeleted(t *testing.T) {
	const deleted, spared, service = 41000, 41001, 7000
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
			r.start(program, with("--lease", "60s", "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
			at := netip.AddrPortFrom(r.Server.V4.Addr(), service)
			r.serveUDP(at, true)
			clients := map[uint16]*net.UDPConn{}
			for _, port := range []uint16{deleted, spared} {
				clients[port] = r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), port), at)
			}
			speak := func() {
				for _, c := range clients {
					_, err := c.Write([]byte("again"))
					r.must(err)
				}
			}
			r.eventually("both connections are armed both ways", patience, func() bool { speak(); return len(r.armed()) == 4 })
			hits := r.status().Hits
			speak()
			r.eventually("they are repeated", patience, func() bool { return r.status().Hits >= hits+4 })

			_, errs, code := r.exec("conntrack", "-D", "-p", "udp", "--orig-port-src", strconv.Itoa(deleted))
			if code != 0 {
				t.Fatal(errs)
			}
			gone := time.Now()
			r.eventually("conntrack knows the connection again", patience, func() bool { speak(); return r.mapped(deleted) })
			t.Logf("%v after conntrack -D", time.Since(gone))
			r.eventually("it is repeated again", patience, func() bool {
				speak()
				return r.renewals(deleted) > 0 && len(r.armed()) == 4
			})
			if n := r.renewals(spared); n != 0 {
				t.Errorf("the other connection was proved again %d times", n)
			}
		})
	}
}

// TestChangesElsewhere: what the kernel announces about others leaves a flow alone, what it
// announces about this one does not; the lease plays no part.
func TestChangesElsewhere(t *testing.T) {
	const port, service = 42000, 7000
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	server := r.Server.V4.Addr().String()
	r.nft("table inet lists { set bans { type ipv4_addr; flags interval; }; chain c { type filter hook forward priority 5; ip daddr @bans counter; }; }")
	r.ip("neigh replace 198.19.0.77 lladdr 02:00:00:00:00:77 nud permanent dev wan")
	r.start(program, with("--lease", "60s", "--xdp", "on")...)
	at := netip.AddrPortFrom(r.Server.V4.Addr(), service)
	r.serveUDP(at, true)
	client := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), port), at)
	speak := func() {
		_, err := client.Write([]byte("again"))
		r.must(err)
	}
	r.eventually("it is armed both ways", patience, func() bool { speak(); return len(r.armed()) == 2 })
	ip := func(line string) func() { return func() { r.ip(line) } }
	for _, c := range []struct {
		what   string
		change func()
		meant  bool
	}{
		{"a route elsewhere", ip("route add blackhole 10.99.0.0/16"), false},
		{"a neighbour elsewhere", ip("neigh replace 198.19.0.77 lladdr 02:00:00:00:00:78 nud permanent dev wan"), false},
		{"a ban elsewhere", func() { r.nft("add element inet lists bans { 10.99.0.0/16 }") }, false},
		{"a next hop", ip("nexthop add id 7 dev wan"), false},
		{"an alias", ip("link set wan alias uplink"), false},
		{"a new link", ip("link add name other type veth peer name another"), false},
		{"its route", ip("route add " + server + "/32 dev wan"), true},
		{"its route goes", ip("route del " + server + "/32 dev wan"), true},
		{"its neighbour", ip("neigh replace " + server + " lladdr 02:00:00:00:00:99 nud permanent dev wan"), true},
		{"its neighbour again", ip("neigh replace " + server + " lladdr " + r.Server.MAC.String() + " nud permanent dev wan"), true},
		{"its MTU", ip("link set wan mtu 1400"), true},
		{"a list with it", func() { r.nft("add element inet lists bans { 198.19.0.0/24 }") }, true},
		{"a rule", ip("rule add pref 4711 to 10.99.0.0/16 lookup main"), true},
		{"a chain", func() { r.nft("add rule inet lists c counter") }, true},
	} {
		before := r.renewals(port)
		c.change()
		if c.meant {
			r.eventually(c.what, patience, func() bool { speak(); return r.renewals(port) > before })
			r.eventually("it is armed again", patience, func() bool { speak(); return len(r.armed()) == 2 })
			continue
		}
		for range 10 { // of the daemon's windows
			time.Sleep(10 * time.Millisecond)
			speak()
		}
		if n := r.renewals(port) - before; n != 0 {
			t.Errorf("%s: proved again %d times", c.what, n)
		}
	}
}

// renewals are those of a client port's flow.
func (r *rig) renewals(port uint16) (n uint32) {
	for _, f := range r.flows() {
		if f.Source.Port() == port && f.State == api.FlowArmed {
			n += f.Renewals
		}
	}
	return n
}
