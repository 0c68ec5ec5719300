// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net"
	"net/netip"

	"shunt/internal/dataplane/traffic"
)

// The attacker is a host beside the client, on the same port of the router.
var (
	attackerMAC = net.HardwareAddr{2, 0, 0, 0, 18, 66}
	attacker    = netip.MustParseAddr("198.18.0.66")
)

// million is as many keys as a generator has flows.
const million = traffic.MaxFlows

// attack is what one of the table's lines does.
type attack struct {
	name, what string
	frames     func(*rig) traffic.Frames
	behind     bool   // sent from the server's side
	police     string // rates that are tried too; "": none are
	config     string // of the daemon, in this case
	tcp        bool   // at connections instead of flows
}

// attackCases are the lines of the table.
var attackCases = []attack{
	{name: "none", what: "nothing: what honest users have without an attack"},
	{name: "syn", what: "SYN flood: a million connections, from 64 addresses",
		police: "tcp_syn = \"20000/s\"",
		frames: func(r *rig) traffic.Frames {
			f := r.from(traffic.TCP, million)
			f.Flags, f.Sweep = synFlag, true
			return f
		}},
	{name: "spray", what: "UDP, one packet for each of a million keys in turn, from one address",
		frames: func(r *rig) traffic.Frames { return r.scan(million) }},
	{name: "spray-spoofed", what: "UDP, one packet for each of a million keys in turn, from 64 addresses",
		frames: func(r *rig) traffic.Frames { return r.from(traffic.UDP, million) }},
	{name: "ttl", what: "UDP of a thousand flows with TTL 1",
		police: "ttl = \"1000/s\"",
		frames: func(r *rig) traffic.Frames {
			f := r.from(traffic.UDP, 1000)
			f.TTL = 1
			return f
		}},
	{name: "fragments", what: "first fragments of a million datagrams whose rest never comes",
		police: "fragment = \"1000/s\"",
		frames: func(r *rig) traffic.Frames {
			f := r.from(traffic.UDP, million)
			f.Fragment = true
			return f
		}},
	{name: "icmp", what: "ICMP echo with a million ids and sources",
		frames: func(r *rig) traffic.Frames { return r.from(traffic.ICMP, million) }},
	{name: "spoofed-mac", what: "packets of the honest flows, from another MAC on the same port",
		frames: func(r *rig) traffic.Frames {
			f := r.asHonest(traffic.UDP, legitPort, legitService, legitFlows)
			f.SourceMAC = attackerMAC
			return f
		}},
	{name: "spoofed-port", what: "packets of the honest flows, from the server's side", behind: true,
		frames: func(r *rig) traffic.Frames {
			f := r.asHonest(traffic.UDP, legitPort, legitService, legitFlows)
			f.SourceMAC, f.DestMAC = r.top.Server.MAC, r.top.WAN.MAC
			return f
		}},
	{name: "rst", what: "blind RST at honest connections, with the client's MAC, over all sequence numbers", tcp: true,
		frames: func(r *rig) traffic.Frames { return r.closing(rstFlag) }},
	{name: "fin", what: "blind FIN, likewise", tcp: true,
		frames: func(r *rig) traffic.Frames { return r.closing(finFlag | ackFlag) }},
	{name: "gaming", what: "UDP, eleven packets for each of a million keys, from one address: learned, and left",
		frames: func(r *rig) traffic.Frames {
			f := r.scan(million)
			f.Stay = 11
			return f
		}},
	{name: "collisions", what: "32,768 keys alike but for 15 bits in one field, with room for 65,536 and no bound for a source",
		config: "source_flows = 0\n",
		frames: func(r *rig) traffic.Frames { return r.from(traffic.UDP, 1<<15) }},
}

const finFlag, synFlag, rstFlag, ackFlag = 1, 2, 4, 16

// AttackCases are the names that Attacks takes.
func AttackCases() (names []string) {
	for _, a := range attackCases {
		names = append(names, a.name)
	}
	return names
}

// from are frames of the attacker, of so many flows: 16,384 ports or ids, then the next address.
func (r *rig) from(p traffic.Protocol, flows int) traffic.Frames {
	return traffic.Frames{
		SourceMAC: attackerMAC, DestMAC: r.top.LAN.MAC, Protocol: p, Size: 64, Flows: flows,
		Source: netip.AddrPortFrom(attacker, 1024), Dest: netip.AddrPortFrom(r.top.Server.V4.Addr(), 9),
	}
}

// scan are frames from one address and port to so many others.
func (r *rig) scan(flows int) traffic.Frames {
	f := r.from(traffic.UDP, flows)
	f.Reverse = true
	f.Dest = netip.AddrPortFrom(f.Dest.Addr(), 1024)
	return f
}

// asHonest are frames that look like those of honest flows.
func (r *rig) asHonest(p traffic.Protocol, port, service uint16, flows int) traffic.Frames {
	return traffic.Frames{
		SourceMAC: r.top.Client.MAC, DestMAC: r.top.LAN.MAC, Protocol: p, Size: 64, Flows: flows,
		Source: netip.AddrPortFrom(r.top.Client.V4.Addr(), port), Dest: netip.AddrPortFrom(r.top.Server.V4.Addr(), service),
	}
}

// closing are the ends of honest connections, guessed.
func (r *rig) closing(flags uint8) traffic.Frames {
	f := r.asHonest(traffic.TCP, talkPort, talkService, talkers)
	f.Flags, f.Sweep = flags, true
	return f
}
