// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"

	"shunt/internal/nl"
)

// Parts of what lies between TC egress and a driver.
const (
	partQdisc  = "qdisc"
	partFilter = "filter"
	partAction = "action"
	partEmatch = "ematch"
)

// QueueKind is a qdisc, filter, action or ematch, and what it reads of a packet.
//
// A repeated packet carries its bytes, mark, priority, hash and device in, as the kernel's packet
// does (repeat() in bpf/tc.bpf.c). It carries no conntrack entry and no route: skb_do_redirect() goes
// straight to dev_queue_xmit(). Neither has a socket, a time stamp (skb_clear_tstamp() in
// ip_forward() and __bpf_tx_skb()) or a VLAN tag beside the frame.
type QueueKind struct {
	Part     string // "qdisc", "filter", "action" or "ematch"
	Kind     string
	Reads    string // what it reads of a packet
	Function string // where the kernel does
	Deeper   bool   // it may read more than a repeated packet carries, whatever its options
	Options  string // the options by which it does, if Deeper is false; empty if none

	options func([]byte) string // returns such an option of these, in words
}

// QueueKinds returns all kinds that are known. A kind that is not among them counts as Deeper.
func QueueKinds() []QueueKind { return slices.Clone(queueKinds) }

var queueKinds = []QueueKind{
	{partQdisc, "noqueue", "nothing", "__dev_queue_xmit()", false, "", nil},
	{partQdisc, "mq", "priority, hash, receive queue", "netdev_pick_tx()", false, "", nil},
	{partQdisc, "mqprio", "priority, hash, receive queue", "netdev_pick_tx()", false, "", nil},
	{partQdisc, "pfifo", "nothing", "pfifo_enqueue()", false, "", nil},
	{partQdisc, "bfifo", "length", "bfifo_enqueue()", false, "", nil},
	{partQdisc, "pfifo_head_drop", "nothing", "pfifo_tail_enqueue()", false, "", nil},
	{partQdisc, "pfifo_fast", "priority", "pfifo_fast_enqueue()", false, "", nil},
	{partQdisc, "tbf", "length", "tbf_enqueue()", false, "", nil},
	{partQdisc, "htb", "priority, length", "htb_classify()", false, "", nil},
	{partQdisc, "hfsc", "priority, length", "hfsc_classify()", false, "", nil},
	{partQdisc, "prio", "priority", "prio_classify()", false, "", nil},
	{partQdisc, "drr", "priority, length", "drr_classify()", false, "", nil},
	{partQdisc, "qfq", "priority, length", "qfq_classify()", false, "", nil},
	{partQdisc, "ets", "priority, length", "ets_qdisc_classify()", false, "", nil},
	{partQdisc, "sfq", "priority, bytes", "sfq_classify()", false, "", nil},
	{partQdisc, "fq_codel", "priority, hash, bytes (ECN)", "fq_codel_classify()", false, "", nil},
	{partQdisc, "fq_pie", "priority, hash, bytes (ECN)", "fq_pie_classify()", false, "", nil},
	{partQdisc, "fq", "priority, hash; socket and time stamp, which no forwarded packet has", "fq_classify()", false, "", nil},
	{partQdisc, "codel", "bytes (ECN)", "codel_qdisc_enqueue()", false, "", nil},
	{partQdisc, "pie", "bytes (ECN)", "pie_qdisc_enqueue()", false, "", nil},
	{partQdisc, "red", "bytes (ECN)", "red_enqueue()", false, "qevents", redOptions},
	{partQdisc, "choke", "bytes", "choke_enqueue()", false, "", nil},
	{partQdisc, "sfb", "bytes", "sfb_enqueue()", false, "", nil},
	{partQdisc, "hhf", "bytes", "hhf_classify()", false, "", nil},
	{partQdisc, "cake", "priority, mark, hash, bytes", "cake_hash(); cake_update_flowkeys()", false, "`nat`", cakeOptions},
	{partQdisc, "netem", "length", "netem_enqueue()", false, "", nil},
	{partQdisc, "cbs", "length", "cbs_enqueue()", false, "", nil},
	{partQdisc, "plug", "length", "plug_enqueue()", false, "", nil},
	{partQdisc, "skbprio", "priority", "skbprio_enqueue()", false, "", nil},
	{partQdisc, "blackhole", "nothing", "blackhole_enqueue()", false, "", nil},
	{partQdisc, "clsact", "what its filters at egress read", "sch_handle_egress()", false, "", nil},
	{partQdisc, "gred", "tc_index", "gred_enqueue()", true, "", nil},
	{partQdisc, "multiq", "the transmit queue that was chosen before", "multiq_classify()", true, "", nil},
	{partQdisc, "etf", "socket, time stamp", "is_packet_valid()", true, "", nil},
	{partQdisc, "taprio", "socket, time stamp", "taprio_enqueue_one()", true, "", nil},
	{partQdisc, "teql", "route, neighbour", "__teql_resolve()", true, "", nil},

	{partFilter, "u32", "bytes, mark, device in", "u32_classify()", false, "", nil},
	{partFilter, "fw", "mark, device in", "fw_classify()", false, "", nil},
	{partFilter, "matchall", "nothing", "mall_classify()", false, "", nil},
	{partFilter, "flower", "bytes, device in", "skb_flow_dissect(); skb_flow_dissect_ct(), skb_flow_dissect_tunnel_info()", false,
		"`ct_*`, `enc_*`, `hash`, and what came after Linux 6.1", flowerOptions},
	{partFilter, "flow", "bytes, mark, priority, hash, device in", "flow_key_get()", false,
		"`nfct*`, `rt-classid`, `sk-uid`, `sk-gid`, `proto-dst` (of a protocol without ports: the route)", flowOptions},
	{partFilter, "basic", "what its ematches read", "basic_classify()", false, "", nil},
	{partFilter, "bpf", "what its program reads", "cls_bpf_classify()", true, "", nil},
	{partFilter, "route", "the route's realm", "route4_classify()", true, "", nil},
	{partFilter, "cgroup", "socket, task", "task_get_classid()", true, "", nil},

	{partAction, "gact", "nothing", "tcf_gact_act()", false, "", nil},
	{partAction, "police", "length", "tcf_police_act()", false, "", nil},
	{partAction, "skbedit", "bytes, hash", "tcf_skbedit_act()", false, "", nil},
	{partAction, "pedit", "bytes", "tcf_pedit_act()", false, "", nil},
	{partAction, "csum", "bytes", "tcf_csum_act()", false, "", nil},
	{partAction, "nat", "bytes", "tcf_nat_act()", false, "", nil},
	{partAction, "vlan", "bytes", "tcf_vlan_act()", false, "", nil},
	{partAction, "skbmod", "bytes", "tcf_skbmod_act()", false, "", nil},
	{partAction, "mpls", "bytes", "tcf_mpls_act()", false, "", nil},
	{partAction, "tunnel_key", "nothing", "tunnel_key_act()", false, "", nil},
	{partAction, "gate", "length", "tcf_gate_act()", false, "", nil},
	{partAction, "simple", "nothing", "tcf_simp_act()", false, "", nil},
	{partAction, "connmark", "conntrack entry", "tcf_connmark_act()", true, "", nil},
	{partAction, "ctinfo", "conntrack entry", "tcf_ctinfo_act()", true, "", nil},
	{partAction, "ct", "conntrack entry", "tcf_ct_act()", true, "", nil},
	{partAction, "bpf", "what its program reads", "tcf_bpf_act()", true, "", nil},
	{partAction, "mirred", "everything, where the other device's way asks for it", "tcf_mirred_act()", true, "", nil},
	{partAction, "ife", "tc_index", "tcf_ife_encode()", true, "", nil},
	{partAction, "sample", "tunnel information", "psample_sample_packet()", true, "", nil},

	{partEmatch, "cmp", "bytes", "em_cmp_match()", false, "`layer transport` (offset of the L4 header)", cmpOptions},
	{partEmatch, "nbyte", "bytes", "em_nbyte_match()", false, "`layer transport`", nbyteOptions},
	{partEmatch, "text", "bytes", "em_text_match()", false, "`layer transport`", textOptions},
	{partEmatch, "u32", "bytes", "em_u32_match()", false, "", nil},
	{partEmatch, "container", "what its ematches read", "tcf_em_tree_match()", false, "", nil},
	{partEmatch, "meta", "what it is asked for", "meta_get()", false,
		"all but `random`, `loadavg_*`, `priority`, `protocol`, `pkt_len` and `nf_mark`", metaOptions},
	{partEmatch, "canid", "bytes of a CAN frame", "em_canid_match()", true, "", nil},
	{partEmatch, "ipset", "what its set asks for", "em_ipset_match()", true, "", nil},
	{partEmatch, "ipt", "what its match asks for", "em_ipt_match()", true, "", nil},
}

// ematchNames are the kinds of ematches by their number, TCF_EM_* in include/uapi/linux/pkt_cls.h.
var ematchNames = []string{"container", "cmp", "nbyte", "u32", "meta", "text", "vlan", "canid", "ipset", "ipt"}

// looksDeeper returns why a part may read more of a packet than a repeated one carries, in words that go
// in brackets; ok is false if it reads no more.
func looksDeeper(part, kind string, options []byte) (why string, ok bool) {
	at := slices.IndexFunc(queueKinds, func(k QueueKind) bool {
		return k.Part == part && (k.Kind == kind || k.Kind == "teql" && strings.HasPrefix(kind, "teql"))
	})
	switch {
	case at < 0:
		return "not known to shunt", true
	case queueKinds[at].Deeper:
		return "reads " + queueKinds[at].Reads, true
	case queueKinds[at].options == nil:
		return "", false
	}
	why = queueKinds[at].options(options)
	return why, why != ""
}

const unread = "options that shunt cannot read"

// firstOption returns what option says of the first attribute that it has a word for.
func firstOption(options []byte, option func(*netlink.AttributeDecoder) string) string {
	var found string
	err := nl.Nested(options, func(ad *netlink.AttributeDecoder) {
		if found == "" {
			found = option(ad)
		}
	})
	if err != nil {
		return unread
	}
	return found
}

// number is the attribute's value, which the kernel writes as u32; of another size it is not 0 either.
func number(ad *netlink.AttributeDecoder) uint32 {
	if b := ad.Bytes(); len(b) == 4 {
		return binary.NativeEndian.Uint32(b)
	}
	return ^uint32(0)
}

func cakeOptions(options []byte) string {
	const tcaCakeNAT, tcaCakeFwmark = 11, 18 // the last one known
	return firstOption(options, func(ad *netlink.AttributeDecoder) string {
		switch {
		case ad.Type() == tcaCakeNAT && number(ad) != 0:
			return "nat"
		case ad.Type() > tcaCakeFwmark:
			return fmt.Sprintf("option %d, not known to shunt", ad.Type())
		}
		return ""
	})
}

func redOptions(options []byte) string {
	const earlyDrop, mark = 5, 6 // TCA_RED_EARLY_DROP_BLOCK, TCA_RED_MARK_BLOCK
	return firstOption(options, func(ad *netlink.AttributeDecoder) string {
		switch {
		case (ad.Type() == earlyDrop || ad.Type() == mark) && number(ad) != 0:
			return fmt.Sprintf("qevent with the filters of block %d", number(ad))
		case ad.Type() > mark:
			return fmt.Sprintf("option %d, not known to shunt", ad.Type())
		}
		return ""
	})
}

// flowerOptions: TCA_FLOWER_* up to 105 are of Linux 6.1.
func flowerOptions(options []byte) string {
	return firstOption(options, func(ad *netlink.AttributeDecoder) string {
		switch n := ad.Type(); {
		case n >= 26 && n <= 34, n >= 43 && n <= 46, n >= 80 && n <= 85:
			return "enc_*: tunnel information"
		case n >= 91 && n <= 98:
			return "ct_*: conntrack entry"
		case n == 100 || n == 101:
			return "hash"
		case n > 105:
			return fmt.Sprintf("key %d, not known to shunt", n)
		}
		return ""
	})
}

// flowKeys are FLOW_KEY_* by their bit in TCA_FLOW_KEYS, with those empty that read bytes, mark,
// priority, hash and device in.
var flowKeys = []string{4: "proto-dst", 8: "nfct", 9: "nfct-src", 10: "nfct-dst", 11: "nfct-proto-src", 12: "nfct-proto-dst",
	13: "rt-classid", 14: "sk-uid", 15: "sk-gid", 17: ""}

func flowOptions(options []byte) string {
	const tcaFlowKeys = 1
	return firstOption(options, func(ad *netlink.AttributeDecoder) string {
		if ad.Type() != tcaFlowKeys {
			return ""
		}
		for bit := range 32 {
			switch {
			case number(ad)&(1<<bit) == 0:
			case bit >= len(flowKeys):
				return fmt.Sprintf("key %d, not known to shunt", bit)
			case flowKeys[bit] != "":
				return flowKeys[bit]
			}
		}
		return ""
	})
}

// The skb's transport header stands where ip_rcv_core() put it, which a repeated packet has not passed.
const atTransport = "layer transport"

const layerTransport = 2 // TCF_LAYER_TRANSPORT

// cmpOptions reads struct tcf_em_cmp: layer is the low half of its last byte.
func cmpOptions(options []byte) string { return layer(options, 11, low) }

// nbyteOptions reads struct tcf_em_nbyte: layer is the high half of the fourth byte.
func nbyteOptions(options []byte) string { return layer(options, 3, high) }

// textOptions reads struct tcf_em_text: from_layer and to_layer share a byte.
func textOptions(options []byte) string { return layer(options, 22, low, high) }

// low and high are the halves of a byte, as bit fields stand on little-endian machines.
func low(b byte) byte  { return b & 0xf }
func high(b byte) byte { return b >> 4 }

// layer reads one or two layers from the byte at an offset.
func layer(options []byte, at int, halves ...func(byte) byte) string {
	if len(options) <= at {
		return unread
	}
	for _, half := range halves {
		if half(options[at]) >= layerTransport {
			return atTransport
		}
	}
	return ""
}

// metaShallow are the TCF_META_ID_* that read what a repeated packet carries, or nothing of the packet:
// value, random, loadavg_*, priority, protocol, pkt_len and nf_mark.
var metaShallow = []uint16{0, 1, 2, 3, 4, 6, 7, 9, 12}

var metaNames = map[uint16]string{13: "tc_index", 14: "rt_classid", 15: "rt_iif"}

// metaOptions reads TCA_EM_META_HDR: two struct tcf_meta_val.
func metaOptions(options []byte) string {
	const header, idMask = 1, 0x7ff
	seen := false
	found := firstOption(options, func(ad *netlink.AttributeDecoder) string {
		if ad.Type() != header {
			return ""
		}
		b := ad.Bytes()
		if len(b) != 8 {
			return unread
		}
		seen = true
		for _, at := range []int{0, 4} {
			if id := binary.NativeEndian.Uint16(b[at:]) & idMask; !slices.Contains(metaShallow, id) {
				return cmp.Or(metaNames[id], fmt.Sprintf("value %d", id))
			}
		}
		return ""
	})
	if found == "" && !seen {
		return unread
	}
	return found
}
