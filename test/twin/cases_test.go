// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"net/netip"
	"slices"

	"shunt/internal/lab"
)

// The two hosts.
const client, server = 0, 1

// natPort is a source NAT that gives every connection the port or echo id newPort. The
// lab has none: its other kinds keep ports while they are free.
const natPort lab.NAT = "snat-port"

const newPort = 40000

// trial is one row of the table: a router, and what is said through it.
type trial struct {
	nat      lab.NAT
	families []int   // 4, 6
	only     []uint8 // protocols; nil: all
	rules    string  // beside the firewall's
	open     bool    // no firewall, no conntrack
	burst    bool    // frames are sent in bursts for some leases, not one after the other
}

// trials covers every kind of NAT for the families that it rewrites. Each row is played
// between wires, by XDP and by TC, and between stacks, by TC.
var trials = map[string]trial{
	"plain":      {nat: lab.NATNone, families: []int{4, 6}},
	"masquerade": {nat: lab.NATMasquerade, families: []int{4}},
	"snat":       {nat: lab.NATSource, families: []int{4}},
	"snat-port":  {nat: natPort, families: []int{4, 6}, only: []uint8{protoTCP, protoUDP, protoICMP, protoICMPv6}},
	"dnat":       {nat: lab.NATDest, families: []int{4, 6}},
	"dnat-port":  {nat: lab.NATDestPort, families: []int{4, 6}, only: []uint8{protoTCP, protoUDP}},
	"nat66":      {nat: lab.NAT66, families: []int{6}},
	"hairpin":    {nat: lab.NATHairpin, families: []int{4, 6}, only: []uint8{protoTCP, protoUDP}},
	"untracked":  {nat: lab.NATNone, families: []int{4, 6}, open: true},
	"dscp-set": {nat: lab.NATMasquerade, families: []int{4, 6}, rules: `table inet mangle {
	chain forward {
		type filter hook forward priority mangle;
		iifname "lan" ip dscp set ef
		iifname "lan" ip6 dscp set af21
		oifname "lan" ip dscp set cs1
		oifname "lan" ip6 dscp set cs0
		ct mark set 0x42 meta mark set 0x7
	}
}`},
	"renewals": {nat: lab.NATMasquerade, families: []int{4, 6}, only: []uint8{protoUDP}, burst: true},
}

// script is all that is said in a trial, in the order in which it is sent.
type script struct {
	conversations []*conversation
	warm          []step // handshakes, and enough for every flow to be due
	learn         []step // after be-liberal: all flows are armed by it
	body          []step // what must be repeated
	late          []step // after all leases: the kernel sees each flow once more
	end           []step // FIN and RST
}

// rounds of the body: one packet a flow and round. Misfits and renewals together are few
// enough that nine in ten of a flow's packets are hits.
const rounds = 192

// write composes a trial's script for a lab.
func (t trial) write(l *lab.Topology, stack bool) *script {
	s := &script{}
	for _, family := range t.families {
		s.conversations = append(s.conversations, t.conversations(l, family, stack)...)
	}
	n := 0
	round := func(to *[]step) {
		for i, c := range s.conversations {
			for d := range c.ends {
				*to = append(*to, number(i, c.talk(d, n))...)
			}
		}
		n++
	}
	for i, c := range s.conversations {
		c.dscp, c.stack = uint8(i*5), stack
		s.warm = append(s.warm, number(i, c.opening())...)
	}
	for range threshold + 1 {
		round(&s.warm)
	}
	for range 2 {
		round(&s.learn)
	}
	length := rounds
	if t.burst {
		length = 20 * rounds
	}
	for range length {
		round(&s.body)
	}
	round(&s.late)
	for i, c := range s.conversations {
		s.end = append(s.end, number(i, c.closing())...)
	}
	return s
}

// number gives steps the flow number that is theirs in the script.
func number(conversation int, steps []step) []step {
	for i := range steps {
		steps[i].flow += 2 * conversation
	}
	return steps
}

func (t trial) conversations(l *lab.Topology, family int, stack bool) []*conversation {
	var all []*conversation
	add := func(name string, c conversation) {
		if t.only != nil && !slices.Contains(t.only, c.proto) {
			return
		}
		source := uint16(20000 + len(all))
		c.name, c.ends = fmt.Sprintf("%s/%d", name, family), t.ends(l, family, source)
		all = append(all, &c)
	}
	icmp, unnamed := uint8(protoICMP), uint8(protoUnnamed4)
	if family == 6 {
		icmp, unnamed = protoICMPv6, protoUnnamed6
	}
	add("udp", conversation{proto: protoUDP})
	add("tcp-fin", conversation{proto: protoTCP, finish: endsByFIN})
	if t.nat == natPort { // one port for all: one connection of a kind
		add("icmp", conversation{proto: icmp})
		return all
	}
	add("udp-padded", conversation{proto: protoUDP, padded: true})
	if !t.burst { // the lease may end at a misfit, which then is what fits
		add("udp-misfits", conversation{proto: protoUDP, misfit: true})
	}
	if family == 4 {
		add("udp-no-sum", conversation{proto: protoUDP, noSum: true})
	}
	add("tcp-rst", conversation{proto: protoTCP, finish: endsByRST})
	add("tcp-open", conversation{proto: protoTCP})
	add("icmp", conversation{proto: icmp})
	add("gre", conversation{proto: protoGRE})
	add("gre-key", conversation{proto: protoGRE, key: 0xfeed0001})
	add("sctp", conversation{proto: protoSCTP, slow: !t.open})
	add("unnamed", conversation{proto: unnamed})
	return all
}

// ends says what the two hosts of a conversation send, and so what NAT makes of it.
func (t trial) ends(l *lab.Topology, family int, port uint16) [2]leg {
	address := func(e lab.End) netip.Addr {
		if family == 4 {
			return e.V4.Addr()
		}
		return e.V6.Addr()
	}
	c := func(source, dest netip.AddrPort) leg { return leg{client, l.Client.MAC, l.LAN.MAC, source, dest} }
	s := func(source, dest netip.AddrPort) leg { return leg{server, l.Server.MAC, l.WAN.MAC, source, dest} }
	at := netip.AddrPortFrom
	clientIP, serverIP, lanIP, wanIP := address(l.Client), address(l.Server), address(l.LAN), address(l.WAN)
	service := at(serverIP, 7000)

	switch t.nat {
	case lab.NATMasquerade:
		if family == 4 {
			return [2]leg{c(at(clientIP, port), service), s(service, at(wanIP, port))}
		}
	case lab.NAT66:
		return [2]leg{c(at(clientIP, port), service), s(service, at(wanIP, port))}
	case lab.NATSource:
		return [2]leg{c(at(clientIP, port), service), s(service, at(lab.SNATAddress, port))}
	case natPort:
		return [2]leg{c(at(clientIP, port), service), s(service, at(wanIP, newPort))}
	case lab.NATDest:
		return [2]leg{s(at(serverIP, port), at(wanIP, 7000)), c(at(clientIP, 7000), at(serverIP, port))}
	case lab.NATDestPort:
		return [2]leg{s(at(serverIP, port), at(wanIP, lab.PublicPort)), c(at(clientIP, lab.ServicePort), at(serverIP, port))}
	case lab.NATHairpin:
		second := lab.Second4
		if family == 6 {
			second = lab.Second6
		}
		return [2]leg{c(at(clientIP, port), at(wanIP, lab.PublicPort)), c(at(second, lab.ServicePort), at(lanIP, port))}
	}
	return [2]leg{c(at(clientIP, port), service), s(service, at(clientIP, port))}
}

// options is the lab that a trial needs. It differs in nothing between two calls.
func (t trial) options(name string, stack bool) lab.FirewallOptions {
	o := lab.FirewallOptions{Name: "twin-" + name, NAT: t.nat, Open: t.open, Neighbours: true}
	if t.nat == natPort {
		o.NAT = lab.NATNone
	}
	if stack {
		o.Offloads = lab.Stack
	}
	return o
}

// addition is what a trial's router has beside its firewall.
func (t trial) addition(l *lab.Topology) string {
	if t.nat != natPort {
		return t.rules
	}
	return fmt.Sprintf(`table inet snat-port {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		oifname "wan" meta l4proto { tcp, udp, icmp } snat ip to %[1]s:%[3]d
		oifname "wan" meta l4proto { tcp, udp, ipv6-icmp } snat ip6 to [%[2]s]:%[3]d
	}
}`, l.WAN.V4.Addr(), l.WAN.V6.Addr(), newPort)
}
