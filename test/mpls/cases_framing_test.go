// SPDX-License-Identifier: Apache-2.0

package mpls

import "net"

// Stations that are not the router: another one, and the group of MPLS frames with an
// upstream-assigned label (RFC 5332 §8).
var (
	stranger = net.HardwareAddr{2, 0, 0, 0, 0x99, 0x99}
	group    = net.HardwareAddr{1, 0, 0x5e, 0x80, 0, 0x64}
	// lastGroup is the last of them, ipGroup one of IPv4's.
	lastGroup = net.HardwareAddr{1, 0, 0x5e, 0x8f, 0xff, 0xff}
	ipGroup   = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
)

// plainSwap is what most cases of framing do: 100 comes in, 200 goes out by B.
var (
	plainSwap       = lsp(100, "swap 200 "+toB)
	kernelSwap      = []string{route(100, "as 200 "+viaB)}
	plainPop        = lsp(100, "pop "+toB)
	kernelPop       = []string{route(100, viaB)}
	beyondB         = []string{"route add 198.51.100.0/24 via 198.19.0.2 dev @B", "route add 2001:db8:51::/48 via 2001:2:0:19::2 dev @B"}
	kernelTaggedA   = []string{"link add link @A name @A.10 type vlan id 10", "link set @A.10 up"}
	kernelTaggedOn  = "sysctl net/mpls/conf/@A.10/input=1"
	noWords         []string // the grammar has none for it
	predefined      = []string{}
	kernelPushThree = []string{
		"route add 198.51.100.0/24 encap mpls 400/300/200 via inet 198.19.0.2 dev @B",
		"route add 2001:db8:51::/48 encap mpls 400/300/200 via inet6 2001:2:0:19::2 dev @B",
	}
)

// framing: P1.
var framing = []trial{
	{
		rule: "P1", clause: "RFC 3032 §5", name: "0x8847 in, 0x8847 out",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(100, 0, 64), v6(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 63), v6(64))},
	},
	{
		rule: "P1", clause: "RFC 3032 §5", name: "frames to another station's MAC are not ours",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{on(a, stranger, l(100, 0, 64), v4(64))},
	},
	{
		rule: "P1", clause: "RFC 5332 §3", name: "0x8848 is not looked up where 0x8847 is",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{on(a, etherType(kindUpstream), l(100, 0, 64), v4(64)), on(a, group, etherType(kindUpstream), l(100, 0, 64), v4(64))},
	},
	{
		rule: "P1", clause: "RFC 5332 §4, §8", name: "0x8848 goes to an MPLS group, or is nobody's", needs: "upstream",
		spaces: [2]string{"0 upstream 9", ""},
		config: lines(plainSwap, ilm(100, "space 9 nhlfe 100")),
		in: []frame{
			on(a, etherType(kindUpstream), l(100, 0, 64), v4(64)), on(a, stranger, etherType(kindUpstream), l(100, 0, 64), v4(64)),
			on(a, ipGroup, etherType(kindUpstream), l(100, 0, 64), v4(64)), on(a, lastGroup, etherType(kindUpstream), l(100, 0, 64), v4(64)),
			on(a, group, etherType(kindUpstream), raw{0, 6, 0x41}), on(a, ipGroup, l(100, 0, 64), v4(64)),
		},
		out:    []frame{on(b, l(200, 0, 63), v4(64))},
		counts: map[string]int{inSegment(9, 100, "Packets"): 1, dropped(whySpaceOff): 3, dropped(whyMalformed): 1},
	},
	{
		rule: "P1", clause: "RFC 5332 §4", name: "0x8848 out, where the list says that the label is upstream-assigned", needs: "upstream",
		config: lines(lsp(100, "swap 200 push 300 send dev @B lladdr "+lastGroup.String()+" upstream"), lsp(101, "swap 201 send dev @B lladdr "+group.String()+" upstream"),
			lsp(102, "swap 202 send dev @B lladdr "+group.String())),
		in: []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(101, 5, 64), v6(64)), on(a, l(102, 0, 64), v4(64))},
		out: []frame{
			on(b, lastGroup, etherType(kindUpstream), l(300, 0, 63), l(200, 0, 63), v4(64)),
			on(b, group, etherType(kindUpstream), l(201, 5, 63), v6(64)), on(b, group, l(202, 0, 63), v4(64)),
		},
	},
	{
		rule: "P1", clause: "RFC 5332 §4", name: "0x8847 to a group MAC: the top label is downstream-assigned", needs: "multicast",
		spaces: [2]string{"0 upstream 9", ""},
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, group, l(100, 0, 64), v4(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64))},
	},
	{
		rule: "P1", clause: "RFC 3032 §5", name: "a tagged frame is not the untagged port's",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{on(a, vlan(10), l(100, 0, 64), v4(64))},
	},
	{
		rule: "P1", clause: "RFC 3032 §5", name: "802.1Q before the stack", needs: "vlan",
		setup:  kernelTaggedA,
		config: lines(plainSwap, "space set @A.10 0"), kernel: lines(kernelTaggedA, kernelTaggedOn, kernelSwap),
		in:  []frame{on(a, vlan(10), l(100, 0, 64), v4(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64))},
	},
}

// stacks: P2.
var stacks = []trial{
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "swap copies S, set and clear",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{
			on(a, l(100, 0, 64), v4(64)),
			on(a, l(100, 0, 64), l(300, 0, 9), v4(64)),
			on(a, l(100, 0, 64), l(300, 0, 9), l(301, 0, 8), v6(64)),
		},
		out: []frame{
			on(b, l(200, 0, 63), v4(64)),
			on(b, l(200, 0, 63), l(300, 0, 9), v4(64)),
			on(b, l(200, 0, 63), l(300, 0, 9), l(301, 0, 8), v6(64)),
		},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "push on a labelled packet",
		config: lsp(100, "push 300 "+toB), kernel: []string{route(100, "as 300/100 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(100, 0, 64), l(50, 0, 7), v4(64))},
		out: []frame{on(b, l(300, 0, 63), l(100, 0, 63), v4(64)), on(b, l(300, 0, 63), l(100, 0, 63), l(50, 0, 7), v4(64))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "swap and push two",
		config: lsp(100, "swap 200 push 300 push 400 "+toB), kernel: []string{route(100, "as 400/300/200 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(100, 0, 64), l(50, 0, 7), v6(64))},
		out: []frame{on(b, l(400, 0, 63), l(300, 0, 63), l(200, 0, 63), v4(64)), on(b, l(400, 0, 63), l(300, 0, 63), l(200, 0, 63), l(50, 0, 7), v6(64))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "swap and push fifteen: sixteen labels",
		config: lsp(100, sixteenLabels()+toB), kernel: []string{route(100, "as 215/214/213/212/211/210/209/208/207/206/205/204/203/202/201/200 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), v4(64))},
		out: []frame{on(b, sixteenEntries(63), v4(64))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "pop of an entry without S stays 0x8847",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 64), l(200, 0, 63), v4(64)), on(a, l(100, 0, 64), l(200, 0, 63), l(300, 0, 5), v6(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 63), l(300, 0, 5), v6(64))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "pop of the last entry becomes 0x0800 or 0x86dd",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 64), v4(63)), on(a, l(100, 0, 64), v6(63))},
		out: []frame{on(b, v4(63)), on(b, v6(63))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "two pops and a push are a pop and a swap",
		config: lsp(100, "pop pop push 300 "+toB),
		in:     []frame{on(a, l(100, 0, 64), l(200, 0, 64), v4(64)), on(a, l(100, 0, 64), l(200, 0, 64), l(50, 0, 7), v4(64))},
		out:    []frame{on(b, l(300, 0, 63), v4(64)), on(b, l(300, 0, 63), l(50, 0, 7), v4(64))},
	},
	{
		rule: "P2", clause: "RFC 3032 §2.1", name: "three labels pushed over IP: S in the innermost alone", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "push 200 push 300 push 400 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", "ftn add 2001:db8:51::/48 nhlfe 1"},
		kernel: kernelPushThree,
		in:     []frame{on(a, v4(64).to(beyond4)), on(a, v6(64).to(beyond6))},
		out: []frame{
			on(b, l(400, 0, 63), l(300, 0, 63), l(200, 0, 63), v4(63).to(beyond4)),
			on(b, l(400, 0, 63), l(300, 0, 63), l(200, 0, 63), v6(63).to(beyond6)),
		},
	},
}

// payloads: P3.
var payloads = []trial{
	{
		rule: "P3", clause: "RFC 3032 §2.2", name: "IPv6 goes to a next hop that has an IPv4 address (6PE)",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 64), v6(63))},
		out: []frame{on(b, v6(63))},
	},
	{
		rule: "P3", clause: "RFC 3032 §2.2", name: "what is neither IPv4 nor IPv6 is discarded in silence",
		config: plainPop, kernel: kernelPop,
		in:     []frame{on(a, l(100, 0, 64), raw(append([]byte{0x55}, filler(40)...))), on(a, l(100, 0, 64), raw(append([]byte{0xf5}, filler(40)...)))},
		counts: map[string]int{dropped(whyPayload): 2},
	},
	{
		rule: "P3", clause: "RFC 4385 §3, §5", name: "a control word (nibble 0) and an associated channel (nibble 1) are no IP",
		config: plainPop, kernel: kernelPop,
		in:     []frame{on(a, l(100, 0, 64), pseudowire()), on(a, l(100, 0, 64), raw(append([]byte{0x10, 0, 0, 0x21}, filler(40)...)))},
		counts: map[string]int{dropped(whyPayload): 2},
	},
	{
		rule: "P3", clause: "RFC 4385 §3", name: "nor is it delivered",
		config: lsp(100, "pop deliver"), kernel: []string{route(100, "dev lo")},
		in:     []frame{on(a, l(100, 0, 64), pseudowire())},
		counts: map[string]int{dropped(whyPayload): 1},
	},
	{
		rule: "P3", clause: "RFC 3032 §2.2", name: "nothing beneath the stack",
		config: plainPop, kernel: kernelPop,
		in: []frame{on(a, l(100, 0, 64))},
	},
	{
		rule: "P3", clause: "RFC 3032 §2.2", name: "an IP header that is cut short",
		config: plainPop, kernel: kernelPop,
		in: []frame{on(a, l(100, 0, 64), raw(v4(63).bytes(usual)[:12])), on(a, l(100, 0, 64), raw(v6(63).bytes(usual)[:24]))},
	},
	{
		rule: "P3", clause: "IEEE 802.3 §4.2.3.3", name: "a short packet in a frame that was padded: swapped",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 64), v4(64).long(40).padded(2))},
		out: []frame{on(b, l(200, 0, 63), v4(64).long(40).padded(2))},
	},
	{
		rule: "P3", clause: "IEEE 802.3 §4.2.3.3", name: "popped: nobody minds what follows",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 64), v4(63).long(28).padded(14))},
		out: []frame{on(b, v4(63).long(28).padded(14))},
		or:  []outcome{{words: "without what followed", ours: true, out: []frame{on(b, v4(63).long(28))}}},
	},
	{
		rule: "P3", clause: "IEEE 802.3 §4.2.3.3", name: "and delivered, so that it is forwarded without",
		config: predefined, kernel: predefined,
		in:  []frame{on(a, l(0, 0, 64), v4(64).long(40).padded(2)), on(a, l(2, 0, 64), v6(64).long(50).padded(1))},
		out: []frame{on(b, v4(63).long(40)), on(b, v6(63).long(50))},
	},
	{
		rule: "P3", clause: "RFC 1624 §3", name: "a wrong IPv4 checksum is not made right", // by summing the header anew
		config: lsp(100, "ttl short-pipe pop "+toB),
		in:     []frame{on(a, l(100, 0, 64), v4(64).spoiled(0x0110))},
		out:    []frame{on(b, v4(64).spoiled(0x0110))},
		or:     []outcome{{words: "discarded", ours: true}},
	},
}

// truncated: P4 and P5.
var truncated = []trial{
	{
		rule: "P4", clause: "RFC 3032 §2.1", name: "a frame that ends within its first entry",
		config: plainSwap, kernel: kernelSwap,
		in:     each(4, func(i int) frame { return on(a, etherType(kindMPLS), raw{0, 6, 0x41}[:i]) }),
		counts: map[string]int{dropped(whyMalformed): 4},
	},
	{
		rule: "P4", clause: "RFC 3032 §2.1", name: "a pop that exposes an entry which is not there, or not whole",
		config: plainPop, kernel: kernelPop,
		in: each(4, func(i int) frame { return on(a, l(100, 0, 64).open(), raw{0, 12, 0x81}[:i]) }),
	},
	{
		rule: "P4", clause: "RFC 3032 §2.1", name: "a look-up of an entry which is not there, or not whole",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in: each(4, func(i int) frame { return on(a, l(50, 0, 64).open(), raw{0, 6, 0x41}[:i]) }),
	},
	{
		rule: "P4", clause: "RFC 7274 §3.1.1", name: "a swap does not look for S: none in the frame",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 64).open()), on(a, l(100, 0, 64).open(), raw{0, 12, 0x80}), on(a, l(100, 0, 64), openStack(8))},
		out: []frame{on(b, l(200, 0, 63).open()), on(b, l(200, 0, 63).open(), raw{0, 12, 0x80}), on(b, l(200, 0, 63), openStack(8))},
	},
	{
		rule: "P4", clause: "RFC 7325 T#1", name: "a swap on top of 16, 17, 64 and 200 entries",
		config: plainSwap, kernel: kernelSwap,
		in:  swapDepths(a, l(100, 0, 64)),
		out: swapDepths(b, l(200, 0, 63)),
	},
	{
		rule: "P5", clause: "RFC 3031 §3.14", name: "nothing is taken where input is off",
		spaces: [2]string{"off", ""},
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(0, 0, 64), v4(64))},
		counts: map[string]int{dropped(whySpaceOff): 2},
	},
	{
		rule: "P5", clause: "RFC 3031 §3.14", name: "output needs no input",
		spaces: [2]string{"", "off"},
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 64), v4(64)), on(b, l(100, 0, 64), v4(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64))},
	},
}
