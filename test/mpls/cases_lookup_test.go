// SPDX-License-Identifier: Apache-2.0

package mpls

import "net/netip"

// lookup: L1 and L2.
var lookup = []trial{
	{
		rule: "L1", clause: "RFC 5331 §3", name: "the platform space is one for all ports",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 64), v4(64)), on(b, l(100, 0, 33), v4(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 32), v4(64))},
	},
	{
		rule: "L1", clause: "RFC 3031 §3.14", name: "a space per port: one label, two meanings",
		spaces: [2]string{"1", "2"},
		config: []string{
			nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toA),
			ilm(100, "space 1 nhlfe 1"), ilm(100, "space 2 nhlfe 2"),
		},
		in:  []frame{on(a, l(100, 3, 64), v4(64)), on(b, l(100, 4, 64), v4(64))},
		out: []frame{on(b, l(201, 3, 63), v4(64)), on(a, l(202, 4, 63), v4(64))},
	},
	{
		rule: "L1", clause: "RFC 3031 §3.14", name: "a space for a group of ports",
		spaces: [2]string{"254", "254"},
		config: []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toA), ilm(100, "space 254 nhlfe 1"), ilm(101, "space 254 nhlfe 2"), ilm(100, "nhlfe 2")},
		in:     []frame{on(a, l(100, 3, 64), v4(64)), on(b, l(100, 4, 64), v4(64)), on(b, l(101, 4, 64), v4(64))},
		out:    []frame{on(b, l(201, 3, 63), v4(64)), on(b, l(201, 4, 63), v4(64)), on(a, l(202, 4, 63), v4(64))},
	},
	{
		rule: "L1", clause: "RFC 3031 §3.14", name: "a label of another space is unknown",
		spaces: [2]string{"1", "0"},
		config: lines(plainSwap, nhlfe(2, "swap 202 "+toB), ilm(100, "space 2 nhlfe 2")),
		in:     []frame{on(a, l(100, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyUnknown): 1, ofPort(a, "InLabelLookupFailures"): 1},
	},
	{
		rule: "L1", clause: "RFC 5331 §3", name: "a context label names the space of the next one",
		config: []string{
			nhlfe(50, "pop peek space 7"), ilm(50, "nhlfe 50"),
			nhlfe(1, "swap 201 "+toB), ilm(100, "space 7 nhlfe 1"),
			nhlfe(2, "swap 202 "+toB), ilm(100, "nhlfe 2"),
		},
		in:  []frame{on(a, l(50, 3, 64), l(100, 3, 64), v4(64)), on(a, l(100, 3, 64), v4(64))},
		out: []frame{on(b, l(201, 3, 63), v4(64)), on(b, l(202, 3, 63), v4(64))},
	},
	{
		rule: "L1", clause: "RFC 5331 §3", name: "without a word the next label is looked up in the same space",
		spaces: [2]string{"1", ""},
		config: []string{
			nhlfe(50, "pop peek"), ilm(50, "space 1 nhlfe 50"),
			nhlfe(1, "swap 201 "+toB), ilm(100, "space 1 nhlfe 1"),
			nhlfe(2, "swap 202 "+toB), ilm(100, "nhlfe 2"),
		},
		in:  []frame{on(a, l(50, 3, 64), l(100, 3, 64), v4(64))},
		out: []frame{on(b, l(201, 3, 63), v4(64))},
	},
	{
		rule: "L1", clause: "RFC 5331 §8, RFC 5332 §4", name: "0x8848: a context label of the port, then the neighbour's space", needs: "upstream",
		spaces: [2]string{"0 upstream 9", ""},
		config: lines(nhlfe(50, "pop peek space 7"), ilm(50, "space 9 nhlfe 50"), ilm(50, "space 8 nhlfe 50"),
			nhlfe(1, "swap 200 "+toB), ilm(100, "space 7 nhlfe 1"), nhlfe(2, "swap 202 "+toB), ilm(100, "nhlfe 2"), ilm(100, "space 9 nhlfe 2")),
		in:     []frame{on(a, group, etherType(kindUpstream), l(50, 3, 64), l(100, 3, 64), v4(64)), on(a, l(100, 3, 64), v4(64))},
		out:    []frame{on(b, l(200, 3, 63), v4(64)), on(b, l(202, 3, 63), v4(64))},
		counts: map[string]int{inSegment(9, 50, "Packets"): 1, inSegment(7, 100, "Packets"): 1, inSegment(0, 100, "Packets"): 1},
	},
	{
		rule: "L1", clause: "RFC 5331 §8", name: "0x8848: a label of the port's own space is unknown there", needs: "upstream",
		spaces: [2]string{"0 upstream 9", ""},
		config: plainSwap,
		in:     []frame{on(a, group, etherType(kindUpstream), l(100, 3, 64), v4(64))},
		counts: map[string]int{dropped(whyUnknown): 1, ofPort(a, "InLabelLookupFailures"): 1},
	},
	{
		rule: "L2", clause: "RFC 3031 §3.18", name: "an unknown label is discarded",
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(101, 0, 64), v4(64)), on(a, l(16, 0, 64), v6(64)), on(b, l(1048575, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyUnknown): 3, ofPort(a, "InLabelLookupFailures"): 2, ofPort(b, "InLabelLookupFailures"): 1},
	},
	{
		rule: "L2", clause: "RFC 3031 §3.18", name: "an unknown label beneath one that was popped",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, l(50, 0, 64), l(101, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyUnknown): 1, ofPort(a, "InLabelLookupFailures"): 1, inSegment(0, 50, "Packets"): 1},
	},
	{
		rule: "L2", clause: "RFC 3031 §3.18", name: "16 and 1048575 are labels like others",
		config: lines(lsp(16, "swap 1048575 "+toB), lsp(1048575, "swap 16 "+toB)),
		kernel: []string{route(16, "as 1048575 "+viaB), route(1048575, "as 16 "+viaB)},
		in:     []frame{on(a, l(16, 0, 64), v4(64)), on(a, l(1048575, 0, 64), v4(64))},
		out:    []frame{on(b, l(1048575, 0, 63), v4(64)), on(b, l(16, 0, 63), v4(64))},
	},
	{
		rule: "L2", clause: "RFC 3031 §3.18", name: "a label that is no more",
		config: lines(plainSwap, "ilm del 100"), kernel: lines(kernelSwap, "-f mpls route del 100"),
		in:     []frame{on(a, l(100, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyUnknown): 1},
	},
	{
		rule: "L2", clause: "RFC 3031 §3.22", name: "a label that leads nowhere",
		config: lsp(100, "drop"),
		in:     []frame{on(a, l(100, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyDiscard): 1, inSegment(0, 100, "Discards"): 1, ofPort(a, "InLabelLookupFailures"): 0},
	},
}

// twoWays are two NHLFEs and a label; choose says how one of them is chosen.
func twoWays(choose string) []string {
	return []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toB), nhlfe(3, choose), ilm(100, "nhlfe 3")}
}

// kernelTwoWays is the kernel's multipath, which has no weights.
var kernelTwoWays = []string{"-f mpls route add 100 nexthop as 201 " + viaB + " nexthop as 202 " + viaB}

// hosts differ in the source, flows in a port.
func hosts(n int) []frame {
	return each(n, func(i int) frame {
		return on(a, l(100, 0, 64), v4(64).from(netip.AddrFrom4([4]byte{198, 18, 0, byte(10 + i)})))
	})
}

func flows(n int) []frame {
	return each(n, func(i int) frame { return on(a, l(100, 0, 64), v4(64).ports(uint16(10000+i), 9)) })
}

// choosing: L3 and L4.
var choosing = []trial{
	{
		rule: "L3", clause: "RFC 3270 §2.4", name: "by class: the NHLFE that supports it, else the default",
		config: twoWays("by-tc 5:1 6:1 default 2"),
		in:     []frame{on(a, l(100, 5, 64), v4(64)), on(a, l(100, 6, 64), v4(64)), on(a, l(100, 1, 64), v4(64)), on(a, l(100, 0, 64), v4(64))},
		out:    []frame{on(b, l(201, 5, 63), v4(64)), on(b, l(201, 6, 63), v4(64)), on(b, l(202, 1, 63), v4(64)), on(b, l(202, 0, 63), v4(64))},
	},
	{
		rule: "L3", clause: "RFC 3270 §2.4", name: "by class: none supports it, and there is no default",
		config: twoWays("by-tc 5:1"),
		in:     []frame{on(a, l(100, 1, 64), v4(64)), on(a, l(100, 5, 64), v4(64))},
		out:    []frame{on(b, l(201, 5, 63), v4(64))},
		counts: map[string]int{dropped(whyDiscard): 1},
	},
	{
		rule: "L3", clause: "RFC 3270 §2.4", name: "a label with an entry for one class",
		config: []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toB), ilm(100, "tc 5 nhlfe 1"), ilm(100, "nhlfe 2"), ilm(101, "tc 5 nhlfe 1")},
		in:     []frame{on(a, l(100, 5, 64), v4(64)), on(a, l(100, 4, 64), v4(64)), on(a, l(101, 5, 64), v4(64)), on(a, l(101, 4, 64), v4(64))},
		out:    []frame{on(b, l(201, 5, 63), v4(64)), on(b, l(202, 4, 63), v4(64)), on(b, l(201, 5, 63), v4(64))},
	},
	{
		rule: "L3", clause: "RFC 3270 §2.4", name: "by the DSCP of the packet at the bottom",
		config: twoWays("by-dscp 46:1 default 2"),
		in: []frame{
			on(a, l(100, 0, 64), v4(64).ds(46, 1)), on(a, l(100, 0, 64), l(300, 0, 9), v4(64).ds(46, 0)),
			on(a, l(100, 0, 64), v4(64).ds(10, 0)), on(a, l(100, 0, 64), l(300, 0, 9), v6(64).ds(46, 2)),
		},
		out: []frame{
			on(b, l(201, 0, 63), v4(64).ds(46, 1)), on(b, l(201, 0, 63), l(300, 0, 9), v4(64).ds(46, 0)),
			on(b, l(202, 0, 63), v4(64).ds(10, 0)), on(b, l(201, 0, 63), l(300, 0, 9), v6(64).ds(46, 2)),
		},
	},
	{
		rule: "L3", clause: "RFC 3031 §3.11", name: "by hash: exactly one, and a microflow keeps it",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in:    append(hosts(48), hosts(48)...),
		check: choice{same: pairs(48), spread: span(0, 48)}.check,
	},
	{
		rule: "L3", clause: "RFC 3031 §3.11", name: "by hash with weights: three of four",
		config: twoWays("by-hash 1*3 2"),
		in:     flows(2048),
		check:  choice{spread: span(0, 2048), share: [2]float64{0.70, 0.80}}.check,
	},
	{
		rule: "L4", clause: "RFC 6178 §4", name: "IPv4 options, router alert among them, change nothing", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1"},
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 via inet 198.19.0.2 dev @B"},
		in: []frame{
			on(a, v4(64).to(beyond4)), on(a, v4(64).to(beyond4).with(1, 1, 1, 0)), on(a, v4(64).to(beyond4).with(0x94, 4, 0, 0)),
		},
		out: []frame{
			on(b, l(200, 0, 63), v4(63).to(beyond4)), on(b, l(200, 0, 63), v4(63).to(beyond4).with(1, 1, 1, 0)),
			on(b, l(200, 0, 63), v4(63).to(beyond4).with(0x94, 4, 0, 0)),
		},
	},
}

// recursion: L5.
var recursion = []trial{
	{
		rule: "L5", clause: "RFC 7325 §2.5", name: "fifteen pops and a swap: sixteen look-ups, each counted",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, repeat(15, l(50, 0, 64), l(100, 0, 64)), v4(64))},
		out:    []frame{on(b, l(200, 0, 63), v4(64))},
		counts: map[string]int{inSegment(0, 50, "Packets"): 15, inSegment(0, 100, "Packets"): 1},
	},
	{
		rule: "L5", clause: "RFC 7325 §2.5", name: "one more is too many",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, repeat(16, l(50, 0, 64), l(100, 0, 64)), v4(64))},
		or:     []outcome{{words: "has a higher bound, or none", out: []frame{on(b, l(200, 0, 63), v4(64))}}},
		counts: map[string]int{dropped(whyDeep): 1},
	},
	{
		rule: "L5", clause: "RFC 3031 §3.10", name: "an NHLFE that goes on with another",
		config: []string{nhlfe(2, "push 300 "+toB), nhlfe(1, "swap 200 forward 2"), ilm(100, "nhlfe 1")},
		kernel: []string{route(100, "as 300/200 "+viaB)},
		in:     []frame{on(a, l(100, 0, 64), v4(64))},
		out:    []frame{on(b, l(300, 0, 63), l(200, 0, 63), v4(64))},
	},
	{
		rule: "L5", clause: "RFC 3031 §3.10", name: "a loop of them is refused, and so is a way into nothing",
		config: []string{nhlfe(2, "push 300 "+toB), nhlfe(1, "swap 200 forward 2")},
		refused: []string{
			"nhlfe replace 2 push 300 forward 1", "nhlfe add 4 forward 4", "nhlfe add 4 forward 5",
			"ilm add 100 nhlfe 9", "nhlfe del 2", "nhlfe add 4 pop", "nhlfe add 4 pop send dev nosuchport via inet 198.19.0.2",
		},
	},
}
