// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"time"

	"shunt/internal/api"
	"shunt/internal/reason"
)

// example is a daemon in the middle of its work: a masqueraded TCP connection in both
// directions, a ping, an IPv6 flow at TC, one that is just seen and a GRE tunnel.
func example() *fake {
	ap := netip.MustParseAddrPort
	echo := uint8(8)
	flows := []api.Flow{
		{Port: "lan0", Out: "wan0", Way: api.WayXDP, State: api.FlowArmed, Family: 4, Proto: "tcp",
			Source: ap("10.0.0.2:4000"), Destination: ap("198.51.100.9:443"),
			Rewrite:   &api.Rewrite{Source: ap("192.0.2.1:4000"), Destination: ap("198.51.100.9:443")},
			SourceMAC: "02:00:00:00:00:01", DestMAC: "02:00:00:00:00:02", DSCPIn: 0, DSCPOut: 46, MTU: 1500,
			Generation: 17, Conntrack: true, Renewals: 75, Age: 301.4, Idle: 2.1, LeaseLeft: 1.94,
			Packets: 1234567, Bytes: 87654321, Why: "renewed", Sighted: 12},
		{Port: "wan0", Out: "lan0", Way: api.WayXDP, State: api.FlowExpired, Family: 4, Proto: "tcp",
			Source: ap("198.51.100.9:443"), Destination: ap("192.0.2.1:4000"),
			Rewrite:   &api.Rewrite{Source: ap("198.51.100.9:443"), Destination: ap("10.0.0.2:4000")},
			SourceMAC: "02:00:00:00:00:03", DestMAC: "02:00:00:00:00:04", MTU: 1500,
			Generation: 17, Conntrack: true, Renewals: 75, Age: 301.4, Idle: 4.2,
			Packets: 2345678, Bytes: 3456789012, Why: "lease_ended", Sighted: 11},
		{Port: "lan0", Out: "wan0", Way: api.WayTC, State: api.FlowArmed, Family: 6, Proto: "udp",
			Source: ap("[2001:db8::1]:4000"), Destination: ap("[2001:db8:1::2]:443"),
			SourceMAC: "02:00:00:00:00:01", DestMAC: "02:00:00:00:00:02", MTU: 1492,
			Age: 86400 * 3, LeaseLeft: 29.9, Packets: 999, Bytes: 999000, Why: "learned", Sighted: 10},
		{Port: "lan0", Out: "wan0", Way: api.WayXDP, State: api.FlowOld, Family: 4, Proto: "icmp", ICMPType: &echo,
			Source: ap("10.0.0.2:77"), Destination: ap("198.51.100.9:77"),
			Rewrite: &api.Rewrite{Source: ap("192.0.2.1:78"), Destination: ap("198.51.100.9:78")},
			Age:     42, Packets: 40, Bytes: 3360, Why: "old_generation"},
		{Port: "lan0", State: api.FlowSeen, Family: 4, Proto: "udp",
			Source: ap("10.0.0.3:5353"), Destination: ap("198.51.100.53:53"), Why: "below_threshold", Sighted: 1, Idle: 0.4},
		{Port: "lan0", State: api.FlowSeen, Family: 4, Proto: "gre", Key: 7,
			Source: ap("10.0.0.4:0"), Destination: ap("198.51.100.4:0"), Why: "encapsulated", Sighted: 400},
	}
	return &fake{status: exampleStatus(), flows: flows, ports: examplePorts(),
		explanations: []api.Explanation{
			met(explain(&flows[0], true, "hit"), api.Also{Reason: "renewed", Ago: 2.1},
				api.Also{Reason: "ip_options", Port: "lan0", Proto: "tcp", Packets: 3, Source: flows[0].Source, Destination: flows[0].Destination, Ago: 12}),
			explain(&flows[1], false, "lease_ended"),
			met(explain(nil, false, "fragment"), api.Also{Reason: "fragment", Port: "lan0", Proto: "udp", VLAN: 7, Packets: 1200,
				Source: ap("10.0.0.2:0"), Destination: ap("198.51.100.9:0"), Ago: 0.3}),
			{Reason: "not_seen", Words: "no packet of it was seen lately", Rule: "the first packets of every flow are watched",
				Remedy: "send traffic, then ask again", Counted: []api.Counted{{Port: "wan0", Stage: api.StageXDP, Reason: "not_ip", Packets: 1234}}},
			near(explain(&flows[3], false, "old_generation")),
		},
		differences: exampleDifferences(),
		checks: []api.Check{
			{Name: "kernel", Level: api.LevelOK, Finding: "Linux 6.18.44: all that is needed"},
			{Name: "port lan0", Level: api.LevelWarn, Finding: "veth, and its peer segments in software", Remedy: "ethtool -K lan0 gro on"},
			{Name: "port br0", Level: api.LevelFail, Finding: "a bridge", Remedy: "name its ports instead"},
		}}
}

func explain(f *api.Flow, fast bool, name string) api.Explanation {
	words, rule, remedy := reason.Words(name)
	return api.Explanation{Flow: f, Fast: fast, Reason: name, Words: words, Rule: rule, Remedy: remedy}
}

// met adds what packets met besides.
func met(x api.Explanation, also ...api.Also) api.Explanation {
	for i := range also {
		also[i].Words, _, also[i].Remedy = reason.Words(also[i].Reason)
	}
	x.Also = also
	return x
}

func near(x api.Explanation) api.Explanation {
	x.Near = true
	return x
}

// exampleReason is what there is to say about a word.
func exampleReason() []api.Explanation {
	ap := netip.MustParseAddrPort
	x := met(explain(nil, false, "ip_options"),
		api.Also{Reason: "ip_options", Port: "lan0", Proto: "udp", Packets: 3, Source: ap("10.0.0.2:4000"), Destination: ap("198.51.100.9:443"), Ago: 12},
		api.Also{Reason: "ip_options", Port: "wan0", Proto: "89", Packets: 1, Source: ap("10.0.0.9:0"), Destination: ap("198.51.100.9:0"), Ago: 60})
	x.Counted = []api.Counted{
		{Port: "lan0", Stage: api.StageXDP, Reason: "ip_options", Packets: 1234}, {Port: "wan0", Stage: api.StageTCIngress, Reason: "ip_options", Packets: 1},
	}
	return []api.Explanation{x}
}

// exampleDifferences are one of a plain flow, and one in which all is another.
func exampleDifferences() []api.Difference {
	ap := netip.MustParseAddrPort
	a := api.Form{Out: "wan0", Source: ap("192.0.2.1:4000"), Destination: ap("198.51.100.9:443"),
		SourceMAC: "02:00:00:00:00:01", DestMAC: "02:00:00:00:00:02", DSCP: 10, MTU: 1500}
	b := a
	b.DSCP = 46
	c := api.Form{Out: "wan1", Source: ap("192.0.2.3:5000"), Destination: ap("198.51.100.10:80"),
		SourceMAC: "02:00:00:00:00:03", DestMAC: "02:00:00:00:00:04", DSCP: 0, MTU: 1492, Mark: 1, Priority: 0x10002}
	return []api.Difference{
		{At: noon.Add(-3 * time.Second), Port: "lan0", Proto: "tcp", Source: ap("10.0.0.2:4000"), Destination: ap("198.51.100.9:443"),
			Packets: 1234567, Before: a, After: b},
		{At: noon.Add(-3 * time.Hour), Port: "lan0", Proto: "icmp", Source: ap("10.0.0.2:77"), Destination: ap("198.51.100.9:77"),
			Packets: 12, Before: a, After: c},
	}
}

func exampleStatus() api.Status {
	return api.Status{
		Version: "0.1.0", State: api.StateRunning, Problems: []api.Check{}, ABI: 1, PID: 1234, Started: noon.Add(-2*time.Hour - 3*time.Minute), Kernel: "6.18.44",
		Generation: 17, Flows: api.FlowCount{Slots: 262144, Armed: 1204, Seen: 33, Closed: 12, Idle: 4021},
		LeaseSeconds: 4, LeaseLiveSeconds: 30, Threshold: 10, Hits: 12345678, Punts: 223456,
		Counters: map[string]map[string]uint64{
			api.StageXDP:       {"hit": 12345000, "tcp_syn": 200, "tc_way": 678, "below_threshold": 222578},
			api.StageTCIngress: {"hit": 678, "judged": 222778},
			api.StageTCEgress:  {"learned": 1300, "renewed": 90210, "unsighted": 131768},
		},
		Differences: 2,
		Events:      map[string]uint64{"route": 12, "neighbour": 4, "nftables": 1},
		Policed:     map[string]uint64{"ttl": 1234, "fragment": 7},
	}
}

func examplePorts() []api.Port {
	return []api.Port{
		{Name: "lan0", Index: 3, State: api.PortXDPAndTC, Driver: "veth", MTU: 1500, Qdisc: "noqueue",
			XDPReceive: true, XDPTransmit: true, Hits: 12000000, Punts: 200000, Sent: 345678},
		{Name: "wan0", Index: 4, State: api.PortTC, Driver: "virtio_net", MTU: 1500, Qdisc: "htb",
			Reason: "the root qdisc htb is a queueing policy", Remedy: "none needed: flows out of it are repeated at TC",
			Hits: 345678, Punts: 23456, Sent: 12000000, Drops: 3, Errors: 1,
			Labels: "labels do not leave by it: wan0 has the queueing policy htb; let labels go by another port"},
		{Name: "br0", Index: 5, State: api.PortRefused, Driver: "bridge", MTU: 1500, Qdisc: "noqueue",
			Reason: "a bridge is not understood yet", Remedy: "name its physical ports"},
		{Name: "lan9", State: api.PortAbsent},
		{Name: "bad\x1b[31m", Index: 6, State: api.PortTC, Driver: "veth", MTU: 1500, Qdisc: "noqueue"},
	}
}
