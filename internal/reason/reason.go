// SPDX-License-Identifier: Apache-2.0

// Package reason tells people what the reason words mean.
//
// The words are the names of enum reason in bpf/abi.h, in lower case and without
// REASON_: every packet leaves the programs by one of them. They are counted under these
// names, shown by `shunt status`, kept per flow, and explained by `shunt explain`. A test
// reads abi.h and fails if a word is missing here or is not there.
//
// Limits: the table is about packets and flows. Why a whole port is not fast is said by
// package policy, in words of its own.
package reason

import (
	"maps"
	"slices"
)

// The rules that stand behind the reasons, numbered as in ARCHITECTURE.md.
const (
	see       = "the first packets of every flow take the kernel's way, and are watched"
	prove     = "an entry is a lease: when it ends, the kernel proves it again"
	announce  = "what the kernel announces is obeyed at once"
	doubt     = "rule 1: in doubt, the kernel gets the packet, untouched"
	never     = "rule 2: nothing is forwarded that the kernel would not have forwarded"
	same      = "rule 3: a sighting is believed only for the very same packet"
	tracked   = "rule 4: where conntrack is in use, only what it confirms is learned"
	ends      = "rule 5: the kernel sees how every TCP connection opens and ends"
	operator  = "the operator's word goes before all rules"
	liberal   = "rule 6: TCP is repeated only once conntrack no longer checks its window"
	perPacket = "rule 7: what a rule enforces per packet cannot be repeated"
	whole     = "rule 8: no packet is ever made from half of a rewrite"
	sent      = "rule 9: a hit is a frame that really left"
	switched  = "labels are switched by the tables that the operator or a routing daemon gives (RFC 3031)"
	bounded   = "rule 12: memory is bounded; a full table means slow, never wrong"
)

type meaning struct{ words, rule, remedy string }

// Words says what a reason means, which rule stands behind it, and what the operator can
// do: one line each, the last one empty where nothing need be done. All three are empty
// for a word that is no reason.
func Words(name string) (words, rule, remedy string) {
	m := table[name]
	return m.words, m.rule, m.remedy
}

// Names are all reasons, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(table)) }

var table = map[string]meaning{
	"hit": {"repeated by shunt, without the stack", "what the kernel did to this flow is done again", ""},

	// What the packet is.
	"paused": {"shunt is paused: everything takes the kernel's way", operator,
		"shunt resume"},
	"not_ip": {"neither IPv4 nor IPv6: ARP, LLDP and the like belong to the kernel", doubt, ""},
	"vlan_tag": {"the frame carries a VLAN tag", doubt,
		"tagged traffic stays on the kernel's way; untagged traffic of the same port is fast"},
	"not_host": {"broadcast, multicast, or for another machine's MAC address", never, ""},
	"ipsec":    {"came out of an IPsec tunnel; the kernel must check it against its policies", tracked, ""},
	"runt":     {"ends before the 8 bytes behind its IP header, by which flows are told apart", never, ""},
	"malformed": {"cut short, its lengths contradict each other, or GRE of another version than 0", never,
		"if there are many, capture them on this port: some device upstream is broken"},
	"bad_checksum": {"the IPv4 header checksum is wrong; the kernel drops such packets", never,
		"if there are many, look for a bad cable, driver or device upstream"},
	"ip_options":       {"an IPv4 header with options", never, ""},
	"extension_header": {"an IPv6 packet with extension headers", never, ""},
	"fragment": {"a fragment; only the kernel can put the datagram together", never,
		"lower the MTU or the MSS at the senders, so that nothing is fragmented"},
	"ttl":      {"TTL or hop limit is used up; the kernel answers with ICMP", never, "if there are many, look for a routing loop"},
	"not_echo": {"ICMP other than echo: errors and neighbour discovery are the kernel's", doubt, ""},
	"tcp_syn":  {"opens a TCP connection; the kernel decides whether it may", ends, ""},
	"tcp_no_ack": {"TCP without ACK outside of a handshake", ends,
		"if there are many, somebody scans: no sound connection sends it"},
	"tcp_close": {"FIN or RST: both directions were closed and the kernel takes over", ends, ""},
	"tcp_implausible": {"a FIN or RST that does not fit the connection; it was dropped, as conntrack would have", ends,
		"if there are many, somebody tries to reset connections blindly"},

	// What is known of its flow.
	"judged": {"XDP saw it first, and left nothing for TC ingress to do: look there for the reason", doubt, ""},
	"table_full": {"no free slot in the flow table; the flow stays on the kernel's way", bounded,
		"raise flows in the configuration"},
	"below_threshold": {"too few packets without an idle second between them to be worth learning", see,
		"lower threshold if such flows should be fast"},
	"learning": {"due to be learned, but none of its packets came out yet in a way that can be repeated", see,
		"if it stays so, the flow ends here, is dropped by the firewall, or leaves by a port that shunt does not have"},
	"lease_ended": {"its lease is over; the kernel gets its packets until one comes out and proves it again", prove,
		"none, if it lasts milliseconds; if it stays so, the kernel no longer forwards this flow"},
	"old_generation": {"a route, neighbour, rule or link changed since it was learned", announce,
		"none, if it passes; if it comes again and again, see events in shunt status --json for what keeps changing"},
	"closed": {"FIN or RST went by; the kernel sees the rest of the connection", ends, ""},
	"busy":   {"its entry was being rewritten at that very moment", whole, ""},
	"mac_differs": {"other MAC addresses than the learned ones", never,
		"several hosts or routers send this flow; see whether two next hops or a duplicate address are at work"},
	"dscp_differs":  {"another DSCP than the learned one; the kernel may treat it in another way", doubt, ""},
	"label_differs": {"another IPv6 flow label than the learned one", doubt, ""},
	"over_mtu": {"larger than the way out takes; the kernel fragments it, or answers that it is too big", never,
		"raise the MTU of the way out, or clamp the MSS"},
	"tc_way":      {"this flow is repeated at TC ingress, not in XDP", sent, "shunt ports says what would let XDP do it"},
	"egress_gone": {"the port that the flow leaves by went this very moment; the packet was dropped, and the next one is the kernel's", prove, ""},
	"draining":    {"earlier packets of this flow are still on their way to TC ingress; this one goes behind them", prove, ""},

	// What the kernel did to it.
	"learned": {"the kernel forwarded it, and shunt wrote down what it did", see, ""},
	"renewed": {"the kernel did the same again; the lease was renewed", prove, ""},
	"changed": {"the kernel now does something else with this flow; the entry was corrected", prove,
		"shunt status --differences shows what; if there are many, something changes forwarding and does not announce it"},
	"unsighted":    {"leaves a port, but was not watched coming in: local traffic, or not due for learning", same, ""},
	"redirected":   {"another tc program, or the fast path itself, sent it here, not the stack", same, ""},
	"local_socket": {"sent by this machine itself", same, ""},
	"stale_sighting": {"spent more than a millisecond in the kernel, too long to be sure it is the same packet", same,
		"if there are many, the machine is overloaded, or something in the stack queues packets"},
	"other_packet": {"the memory of a watched packet was used again by another one", same, ""},
	"port_unknown": {"came in or leaves by an interface that is not a port, or is refused", doubt,
		"add that interface with --port; shunt ports says why one is refused"},
	"encapsulated": {"another protocol leaves than came in: a tunnel begins or ends here", doubt, ""},
	"no_conntrack": {"conntrack is in use and knows no entry for it: it calls the packet INVALID", tracked,
		"drop INVALID in the forward chain; for traffic that needs no state, use notrack"},
	"ct_unconfirmed": {"its conntrack entry is not confirmed yet", tracked, ""},
	"ct_related":     {"conntrack calls it RELATED to another connection", tracked, ""},
	"ct_helper": {"a conntrack helper (FTP, SIP and the like) reads this connection", tracked,
		"take the helper's rule away if the protocol does not need it"},
	"ct_seqadj": {"conntrack adjusts the sequence numbers of this connection", tracked, ""},
	"ct_tuple_differs": {"it left with other addresses or ports than conntrack says", tracked,
		"look for a stateless rewrite, in nft or tc, behind conntrack's back"},
	"ct_not_established": {"a TCP connection that is opening or closing; or SCTP or DCCP, whose state only conntrack can follow", tracked, ""},
	"ct_not_liberal": {"conntrack still checks the window of this connection; the daemon was asked to end that", liberal,
		"none, if it lasts milliseconds; if it stays so, see that the daemon runs, and read its log"},
	"ct_expiring": {"its conntrack entry is about to expire, too soon for a useful lease", tracked,
		"raise the conntrack timeout of its protocol if the flow has long pauses"},
	"ttl_step": {"the kernel set the TTL, or did not lower it by one", doubt,
		"take rules that set the TTL away if these flows should be fast"},
	"header_changed": {"the kernel changed ECN, DF, the flow label or another header field", doubt,
		"take rules that mangle those fields away if these flows should be fast"},
	"payload_changed": {"more was changed than addresses and ports: the L4 checksum tells", tracked,
		"look for a helper, queue or rule that rewrites the payload"},
	"l4_rewritten": {"ports were rewritten in a protocol whose checksum shunt does not edit", doubt, ""},
	"tcp_off":      {"TCP is not repeated: tcp = \"off\"", operator, `tcp = "on" in the configuration`},
	"slot_lost": {"its slot was given to another flow while the packet was in the kernel", bounded,
		"if there are many, raise flows in the configuration"},

	// What policy says to it.
	"not_marked": {"policy = \"mark\", and its connection has not the mark that makes it fast", operator,
		"have the ruleset set it: ct mark set 0x1 (nftables), or -j CONNMARK --set-mark 0x1"},
	"excluded": {"the configuration says that it stays with the kernel", operator,
		"see [[exclude]] and [[include]] in the configuration"},
	"per_packet_rule": {"a rule of the firewall that it can reach looks at each packet", perPacket,
		"accept established connections ahead of that rule, or mark what may be fast and set policy = \"mark\""},
	"queue_looks_deeper": {"a qdisc or filter of its way out reads more than the packet: its conntrack entry, route or socket", tracked,
		"shunt ports names the qdisc or filter; take it away, or let it go by addresses, mark and priority alone"},
	"route_program": {"its route has a program or a lightweight tunnel (ip route ... encap), which decides on each packet", doubt,
		"ip route get shows the route; take encap away if these flows should be fast"},
	"ipvs": {"IPVS balances it, by a table, timeouts and schedulers of its own", doubt,
		"balance with nftables (dnat to numgen or jhash) if these flows should be fast"},
	"group_neighbour": {"its next hop has a broadcast or multicast MAC address", never, ""},
	"unwatched": {"a qdisc, filter, program or nftables chain of others stands at its way in or out, and no daemon reads what it asks for", doubt,
		"start the daemon"},
	// What keeps one sender from harming the others.
	"source_full": {"its source holds as many slots of the flow table as one may; the flow stays on the kernel's way", bounded,
		"see whether that host scans or floods; if it is a large server or a NAT, raise source_flows in the configuration"},
	"policed": {"more packets of one reason than [police] allows; dropped instead of given to the kernel", operator,
		"shunt status says of which reason; find who sends them, or raise its rate in [police]"},

	// What becomes of a labelled frame.
	"mpls_switched":  {"its labels were changed as the label tables say, and it was sent on", switched, ""},
	"mpls_delivered": {"its labels ended here; the packet below goes on as if it had come without them", switched, ""},
	"mpls_off": {"came with labels by a port that has no label space for them: the kernel's", operator,
		"shunt mpls space set PORT 0"},
	"mpls_malformed": {"ends before the bottom of its label stack, or a label stands where it must not", never,
		"look at who sends it"},
	"mpls_no_label": {"nobody has given out its label in the label space of this port; dropped (RFC 3031 3.18)", switched,
		"shunt mpls ilm show; compare with what the neighbour sends"},
	"mpls_ttl": {"its TTL ends here: the daemon answers (RFC 3032 2.3)", never, ""},
	"mpls_ttl_zero": {"came in with a TTL of 0, which nobody may send; dropped", never,
		"look at who sends it"},
	"mpls_special": {"a special-purpose label that means nothing here; dropped (RFC 7274, 9017)", switched,
		"look at who sends it"},
	"mpls_alert": {"a router alert label: the daemon forwards it", switched, ""},
	"mpls_oam":   {"a generic associated channel: for this router's software (RFC 5586)", switched, ""},
	"mpls_payload": {"below the labels is not what they say, or not told by its first four bits; dropped", switched,
		"a label that ends here must carry IPv4 or IPv6"},
	"mpls_over_mtu": {"with its labels larger than the MTU of its way out: the daemon answers, or cuts it", never,
		"raise the port's MTU by 4 bytes for each label"},
	"mpls_depth": {"over 16 label look-ups for one packet; dropped", bounded,
		"pop several labels in one NHLFE"},
	"mpls_discard": {"dropped by an NHLFE that says so, or that has none for this TC or DSCP", operator,
		"shunt mpls nhlfe show; give by-tc or by-dscp a default"},
	"mpls_no_adjacency": {"the neighbour that its NHLFE names is not there, or the port is down; dropped", switched,
		"ip neigh show; look why the neighbour does not answer"},
	"mpls_orphaned": {"the daemon is dead for longer than labels may live without it; dropped", prove,
		"start shunt; label_hold in the configuration says how long"},
	"mpls_egress_gone": {"its way out went this very moment; dropped", sent, ""},
	"mpls_no_room":     {"the driver leaves no room in front of the frame for more labels; dropped", never, ""},
	"mpls_imposed":     {"an IP packet that got labels, as an FTN says of its destination", switched, ""},
}
