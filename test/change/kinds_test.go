// SPDX-License-Identifier: Apache-2.0

package change

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// kind is a kind of change. change and undo are made in turn; moves is how many flows the kernel
// must treat otherwise after it, so that nothing is shown by a change that changes nothing.
type kind struct {
	name      string
	router    lab.FirewallOptions
	needs     func() string     // words of what is missing here
	flows     func(*rig) []flow // other ones than the standard
	setup     func(*rig)        // once, before the traffic
	prepare   func(*rig)        // before each change, without changing the outcome
	change    func(*rig)
	undo      func(*rig)
	moves     int
	steps     bool           // it is made in several steps, of which the last one counts
	announced bool           // the kernel tells the daemon; else the lease is the bound
	slow      func(int) bool // streams that are not repeated at all
	slowAfter bool           // after the change none is
	queued    bool           // what is repeated may yet be dropped, by a queue
	deaf      bool           // the daemon is dead or hangs while the change is made
}

// lines makes a step of commands in the router (rig.do). {server}, {server6} and the like stand for
// addresses and MACs of the lab.
func lines(commands ...string) func(*rig) {
	return func(r *rig) {
		r.t.Helper()
		r.do(r.fill(commands)...)
	}
}

func (r *rig) fill(commands []string) (filled []string) {
	names := strings.NewReplacer(
		"{server}", r.Server.V4.Addr().String(), "{server6}", r.Server.V6.Addr().String(), "{servermac}", r.Server.MAC.String(),
		"{spare}", r.spare.V4.Addr().String(), "{spare6}", r.spare.V6.Addr().String(), "{sparemac}", r.spare.MAC.String(),
		"{wan}", r.WAN.V4.String(), "{wan6}", r.WAN.V6.String(), "{wanmac}", r.WAN.MAC.String(),
		"{dmz}", r.third.V4.String(), "{dmz6}", r.third.V6.String(), "{banned}", banned.String())
	for _, c := range commands {
		filled = append(filled, names.Replace(c))
	}
	return filled
}

// needs asks for a program and lets it try something in a namespace that is thrown away.
func needs(what string, try ...string) func() string {
	return func() string {
		if _, err := exec.LookPath(try[0]); err != nil {
			return err.Error() + "; install the package " + what
		}
		out, err := exec.Command("unshare", append([]string{"-n"}, try...)...).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%s: %v: %s", strings.Join(try, " "), err, strings.TrimSpace(string(out)))
		}
		return ""
	}
}

// Rules that changes insert stand in a chain of their own.
const extra = "nft add chain inet filter extra; insert rule inet filter forward jump extra"

var (
	drop   = lines("nft insert rule inet filter extra udp dport 10 drop")
	undrop = lines("nft flush chain inet filter extra")
)

func always(int) bool { return true }

// kinds are all, in the order of the words: what moves flows, what the neighbours and the
// links do, the firewall, and what nobody announces.
var kinds = slices.Concat(routeKinds, linkKinds, ruleKinds, scopeKinds, quietKinds)

var routeKinds = []*kind{
	{name: "route replaced", announced: true, moves: 5,
		setup:  lines("ip route add {server}/32 dev wan", "ip route add {server6}/128 dev wan"),
		change: lines("ip route replace {server}/32 via {spare} dev dmz", "ip route replace {server6}/128 via inet6 {spare6} dev dmz"),
		undo:   lines("ip route replace {server}/32 dev wan", "ip route replace {server6}/128 dev wan")},
	{name: "route unreachable", announced: true, moves: 5,
		change: lines("ip route replace unreachable {server}/32", "ip route replace unreachable {server6}/128"),
		undo:   lines("ip route del unreachable {server}/32", "ip route del unreachable {server6}/128")},
	{name: "rule for a mark", announced: true, moves: 2,
		setup: lines("nft table inet marks { chain in { type filter hook prerouting priority mangle; udp dport 9 meta mark set 7; }; }",
			"ip route add default via {spare} dev dmz table 7"),
		change: lines("ip rule add pref 100 fwmark 7 lookup 7"),
		undo:   lines("ip rule del pref 100")},
	{name: "multipath", announced: true, moves: 4,
		setup: lines("sysctl net.ipv4.fib_multipath_hash_policy=1",
			"ip neigh replace 198.19.0.3 lladdr 02:00:00:00:13:03 dev wan nud permanent", "ip neigh replace 192.0.2.3 lladdr 02:00:00:00:14:03 dev dmz nud permanent",
			"ip route add {server}/32 nexthop via {server} dev wan nexthop via 198.19.0.3 dev wan"),
		change: lines("ip route replace {server}/32 nexthop via {spare} dev dmz nexthop via 192.0.2.3 dev dmz"),
		undo:   lines("ip route replace {server}/32 nexthop via {server} dev wan nexthop via 198.19.0.3 dev wan")},
	{name: "next hop object", announced: true, moves: 5,
		setup: lines("ip nexthop add id 1 via {server} dev wan", "ip nexthop add id 2 via {server6} dev wan",
			"ip route add {server}/32 nhid 1", "ip route add {server6}/128 nhid 2"),
		change: lines("ip nexthop replace id 1 via {spare} dev dmz", "ip nexthop replace id 2 via {spare6} dev dmz"),
		undo:   lines("ip nexthop replace id 1 via {server} dev wan", "ip nexthop replace id 2 via {server6} dev wan")},
	{name: "neighbour's MAC", announced: true, moves: 5,
		change: lines("ip neigh replace {server} lladdr 02:00:00:00:13:99 dev wan nud permanent", "ip neigh replace {server6} lladdr 02:00:00:00:13:99 dev wan nud permanent"),
		undo:   lines("ip neigh replace {server} lladdr {servermac} dev wan nud permanent", "ip neigh replace {server6} lladdr {servermac} dev wan nud permanent")},
	{name: "neighbour's MAC, by ARP", announced: true, moves: 4,
		setup:  lines("ip neigh replace {server} lladdr {servermac} dev wan nud reachable"),
		change: func(r *rig) { r.claim([]byte{2, 0, 0, 0, 19, 0x99}) },
		undo:   lines("ip neigh replace {server} lladdr {servermac} dev wan nud reachable")},
	{name: "neighbour failed", announced: true, moves: 5,
		setup:  lines("server: ip link set eth0 arp off"),
		change: lines("ip neigh change {server} dev wan nud failed", "ip neigh change {server6} dev wan nud failed"),
		undo:   lines("ip neigh replace {server} lladdr {servermac} dev wan nud permanent", "ip neigh replace {server6} lladdr {servermac} dev wan nud permanent")},
	{name: "address under masquerade", announced: true, moves: 3, router: lab.FirewallOptions{NAT: lab.NATMasquerade}, flows: (*rig).unanswered,
		setup:  lines("sysctl net.ipv4.conf.all.promote_secondaries=1", "ip address add 198.19.0.77/24 dev wan"),
		change: (*rig).loseAddress, undo: swapAddresses},
	{name: "IPsec policy", announced: true, moves: 5,
		change: lines("ip xfrm policy add dst {server}/32 dir out action block", "ip xfrm policy add dst {server6}/128 dir out action block"),
		undo:   lines("ip xfrm policy deleteall")},
	{name: "rp_filter", announced: true, moves: 1, flows: (*rig).withSpoofed,
		change: lines("sysctl net.ipv4.conf.lan.rp_filter=1"),
		undo:   lines("sysctl net.ipv4.conf.lan.rp_filter=0")},
	{name: "ip_forward off", announced: true, moves: 6,
		change: lines("sysctl net.ipv4.ip_forward=0"),
		undo:   lines("sysctl net.ipv4.ip_forward=1")},
	{name: "IPv6 forwarding off", announced: true, moves: 2,
		change: lines("sysctl net.ipv6.conf.all.forwarding=0"),
		undo:   lines("sysctl net.ipv6.conf.all.forwarding=1")},
}

var linkKinds = []*kind{
	{name: "link down", announced: true, moves: 8,
		change: lines("ip link set wan down"),
		undo: undoing(lines("ip link set wan up", "ip address replace {wan6} dev wan"),
			func(r *rig) { r.must(r.WAN.Know(r.Server)) }, afresh)},
	{name: "carrier lost", announced: true, moves: 5, queued: true, // by TC they end in a device without carrier
		change: lines("server: ip link set eth0 down"),
		undo:   undoing(lines("server: ip link set eth0 up"), afresh)},
	{name: "MTU lowered", announced: true, moves: 1,
		change: lines("ip link set wan mtu 1300"),
		undo:   undoing(lines("ip link set wan mtu 1500"), afresh)},
	{name: "interface renamed", announced: true, moves: 5, slowAfter: true,
		setup:  lines(`nft insert rule inet filter forward oifname "wan9" drop`),
		change: lines("ip link set wan name wan9"),
		undo:   lines("ip link set wan9 name wan")},
	{name: "interface made anew, same index", announced: true, moves: 8, steps: true,
		change: func(r *rig) { r.rewire([]byte{2, 0, 0, 0, 19, 0x77}) },
		undo:   undoing(func(r *rig) { r.rewire(r.WAN.MAC) }, afresh)},
	{name: "qdisc added", announced: true, moves: 1, queued: true, // one that has no room for large packets
		change: lines("tc qdisc add dev wan root bfifo limit 1000"),
		undo:   lines("tc qdisc del dev wan root")},
	{name: "foreign tc filter added", announced: true, moves: 1, slowAfter: true, steps: true, // drops UDP to port 10
		change: lines("tc qdisc add dev lan clsact", "tc filter add dev lan ingress prio 1 protocol ip bpf da bytecode '4,40 0 0 36,21 0 1 10,6 0 0 2,6 0 0 0'"),
		undo:   lines("tc qdisc del dev lan clsact")},
	{name: "bridge's FDB entry moved", announced: true, moves: 5, slow: always, setup: (*rig).bridge,
		change: lines("bridge fdb replace {servermac} dev dmz master static sticky"),
		undo:   lines("bridge fdb replace {servermac} dev wan master static sticky")},
	{name: "bridge port isolated", announced: true, moves: 1, slow: always, setup: (*rig).bridge, flows: (*rig).withBridged,
		change: lines("bridge link set dev wan isolated on"),
		undo:   lines("bridge link set dev wan isolated off")},
}

// swapAddresses makes the first address the first one again, and sees to it that all connections
// have it.
func swapAddresses(r *rig) {
	r.t.Helper()
	r.do(r.fill([]string{"ip address del 198.19.0.77/24 dev wan", "ip address add {wan} dev wan", "ip address add 198.19.0.77/24 dev wan"})...)
	_ = r.try("conntrack -D -f ipv4 -p udp") // an error if the kernel has done it already
}

// loseAddress deletes the address that masquerading uses. The kernel forgets the connections then,
// unless it is about to do that for 16 other addresses, in whatever namespace: then it leaves it
// (nf_nat_masq_schedule), and there is no change to be obeyed.
func (r *rig) loseAddress() {
	r.t.Helper()
	for range 5 {
		r.do(r.fill([]string{"ip address del {wan} dev wan"})...)
		for range 20 {
			list, err := r.LAN.NS.Run("conntrack", "-L", "--reply-dst", r.WAN.V4.Addr().String())
			r.must(err)
			if list == "" {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		swapAddresses(r)
		time.Sleep(200 * time.Millisecond)
	}
	r.t.Fatal("the kernel does not forget the connections of an address that is gone")
}

// claim lets the server ask all for its own address, with another MAC (RFC 5227, 3: an
// announcement).
func (r *rig) claim(mac []byte) {
	r.t.Helper()
	address := r.Server.V4.Addr().AsSlice()
	_, err := r.pump.taps[server].send(slices.Concat(
		[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1},
		mac, address, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, address))
	r.must(err)
}

// withSpoofed adds a flow from a source that is routed by another port.
func (r *rig) withSpoofed() []flow {
	all := r.standard()
	spoofed := all[2]
	spoofed.name, spoofed.source = "UDP of a spoofed source", addrPort("192.0.2.77:10004")
	return append(all, spoofed)
}

// unanswered leaves out what answers to IPv4: an answer that comes while its connection is not
// known takes the port that the connection would be given again.
func (r *rig) unanswered() []flow {
	return slices.DeleteFunc(r.standard(), func(f flow) bool {
		return !f.six() && (f.from == server || f.proto == unix.IPPROTO_TCP)
	})
}

// bridge puts wan and dmz into a bridge, which the server's network is moved to.
func (r *rig) bridge() {
	r.t.Helper()
	r.do(r.fill([]string{
		"ip address del {wan} dev wan", "ip address del {wan6} dev wan", "ip address del {dmz} dev dmz", "ip address del {dmz6} dev dmz",
		"ip link add br0 address {wanmac} type bridge forward_delay 0 mcast_snooping 0",
		"ip link set wan master br0", "ip link set dmz master br0", "ip link set br0 up",
		"ip address add {wan} dev br0", "ip address add {wan6} dev br0",
		"ip neigh replace {server} lladdr {servermac} dev br0 nud permanent", "ip neigh replace {server6} lladdr {servermac} dev br0 nud permanent",
		"bridge fdb replace {servermac} dev wan master static sticky", "bridge fdb replace {sparemac} dev dmz master static sticky",
		"bridge link set dev dmz isolated on",
		"nft insert rule inet filter forward ip daddr 198.19.0.5 accept", // bridged, where br_netfilter asks the rules
	})...)
}

// withBridged adds a flow that is bridged: from the server to the spare host.
func (r *rig) withBridged() []flow {
	bridged := r.standard()[0]
	bridged.name, bridged.from, bridged.smac, bridged.dmac = "bridged UDP", server, r.Server.MAC, r.spare.MAC
	bridged.source, bridged.dest = addrPort("198.19.0.2:10005"), addrPort("198.19.0.5:9")
	return append(r.standard(), bridged)
}
