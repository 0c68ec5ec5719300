// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"net/netip"
	"slices"
)

// eli is an entropy label indicator, el an entropy label of a value.
func eli(tc, ttl uint8) entry { return l(7, tc, ttl) }
func el(value uint32) entry   { return l(value, 0, 0) }

// entropyLabels: E1, E2, and what E4 says of PHP.
var entropyLabels = []trial{
	{
		rule: "E1", clause: "RFC 6790 §4.2", name: "TL, ELI, EL on a labelled packet: S by position, ELI as TL, EL with TTL 0",
		config: lines(lsp(100, "swap 150 entropy push 200 "+toB), lsp(101, "ttl pipe swap 150 entropy push 200 tc 3 "+toB)),
		in:     []frame{on(a, l(100, 5, 64), v4(64)), on(a, l(100, 5, 64), l(50, 1, 9), v6(64)), on(a, l(101, 5, 64), v4(64))},
		out: []frame{
			on(b, l(200, 5, 63), eli(5, 63), entropy(), l(150, 5, 63), v4(64)),
			on(b, l(200, 5, 63), eli(5, 63), entropy(), l(150, 5, 63), l(50, 1, 9), v6(64)),
			on(b, l(200, 3, 255), eli(3, 255), entropy(), l(150, 5, 63), v4(64)),
		},
	},
	{
		rule: "E1", clause: "RFC 6790 §4.2", name: "over IP: EL is at the bottom", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "entropy push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", "ftn add 2001:db8:51::/48 nhlfe 1"},
		in:     []frame{on(a, v4(64).to(beyond4)), on(a, v6(64).to(beyond6))},
		out:    []frame{on(b, l(200, 0, 63), eli(0, 63), entropy(), v4(63).to(beyond4)), on(b, l(200, 0, 63), eli(0, 63), entropy(), v6(63).to(beyond6))},
	},
	{
		rule: "E1", clause: "RFC 6790 §4.2, §3", name: "EL comes from the flow: one for each, and never 0 to 15",
		config: lsp(100, "swap 150 entropy push 200 "+toB),
		in:     append(flows(256), flows(256)...),
		check:  entropyOfFlows(256),
	},
	{
		rule: "E2", clause: "RFC 6790 §4.1", name: "ELI and EL go with the label above; EL's TTL is nobody's; neither need be there",
		config: lsp(100, "pop deliver"), kernel: []string{route(100, "dev lo")},
		in:  []frame{on(a, l(100, 0, 64), eli(0, 64), el(5000), v4(64)), on(a, l(100, 0, 64), eli(0, 64), l(5000, 3, 77), v6(64)), on(a, l(100, 0, 64), v4(64))},
		out: []frame{on(b, v4(63)), on(b, v6(63)), on(b, v4(63))},
	},
	{
		rule: "E2", clause: "RFC 6790 §4.1", name: "a tunnel in a tunnel, each with its own",
		config: lines(lsp(50, "pop peek"), lsp(51, "ttl pipe pop peek"), plainSwap),
		kernel: lines(route(50, "dev lo"), route(51, "dev lo ttl-propagate disabled"), kernelSwap),
		in: []frame{
			on(a, l(50, 0, 64), eli(0, 64), el(5000), l(100, 0, 64), v4(64)),
			on(a, l(50, 0, 30), eli(0, 64), el(5000), l(51, 0, 64), eli(0, 64), el(6000), l(100, 0, 20), v4(64)),
			on(a, l(50, 0, 30), eli(0, 64), el(5000), l(100, 0, 20), v4(64)),
		},
		out: []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 19), v4(64)), on(b, l(200, 0, 29), v4(64))},
	},
	{
		rule: "E2", clause: "RFC 6790 §4.2", name: "an ELI with S, or with nothing behind it: discarded",
		config: lsp(100, "pop deliver"), kernel: []string{route(100, "dev lo")},
		in:     []frame{on(a, l(100, 0, 64), eli(0, 64), v4(64)), on(a, l(100, 0, 64), eli(0, 64).open()), on(a, l(100, 0, 64), eli(0, 64).open(), raw{0x01, 0x38})},
		counts: map[string]int{dropped(whyMalformed): 3},
	},
}

// span are the numbers from one up to another.
func span(from, to int) (all []int) {
	for i := from; i < to; i++ {
		all = append(all, i)
	}
	return all
}

// pairs say that frame i and frame i+n are of one flow.
func pairs(n int) (all [][]int) {
	for i := range n {
		all = append(all, []int{i, i + n})
	}
	return all
}

// labels is a frame under label 100 whose stack goes on like this.
func labels(i int, s stack, load payload) frame {
	return on(a, append(stack{l(100, 0, 64)}, s...), load)
}

// of is n frames made by number, n copies of one group.
func of(n int, f func(i int) (stack, payload)) []frame {
	return each(n, func(i int) frame {
		s, load := f(i)
		return labels(i, s, load)
	})
}

// source is an IPv4 packet from one of many hosts, flow one of many ports.
func source(i int) packet {
	return v4(64).from(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
}
func flow(i int) packet { return v4(64).ports(uint16(20000+i), 80) }

// balance: E3 and E4.
var balance = []trial{
	{
		rule: "E3", clause: "RFC 7325 §2.4.5", name: "where there is an entropy label, it alone",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			of(32, func(i int) (stack, payload) { return stack{eli(0, 64), el(5000)}, source(i) }),
			of(32, func(i int) (stack, payload) { return stack{eli(0, 64), el(5000), l(uint32(300+i), 0, 9)}, v4(64) }),
			of(64, func(i int) (stack, payload) { return stack{eli(0, 64), el(uint32(6000 + i))}, v4(64) })),
		check: choice{same: [][]int{span(0, 64)}, spread: span(64, 128)}.check,
	},
	{
		rule: "E3", clause: "RFC 6790 §4.3, RFC 7325 §2.4.5", name: "else the labels: their values, not TTL and not TC",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			each(64, func(i int) frame {
				return on(a, l(100, uint8(i%8), uint8(2+i)), l(300, uint8(i/8), uint8(i)), pseudowire())
			}),
			of(64, func(i int) (stack, payload) { return stack{l(uint32(300+i), 0, 9)}, pseudowire() })),
		check: choice{same: [][]int{span(0, 64)}, spread: span(64, 128)}.check,
	},
	{
		rule: "E3", clause: "RFC 7274 §3.1, RFC 6790 §4.3", name: "no special-purpose label, nor what follows label 15",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			of(14, func(i int) (stack, payload) { return stack{l(notELI(i), 0, 9), l(300, 0, 9)}, v4(64) }),
			of(32, func(i int) (stack, payload) { return stack{l(15, 0, 9), l(uint32(400+i), 0, 9), l(300, 0, 9)}, v4(64) })),
		check: choice{same: [][]int{span(0, 14), span(14, 46)}}.check,
	},
	{
		rule: "E3", clause: "RFC 7325 §2.4.5.2", name: "the addresses beneath",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			of(64, func(i int) (stack, payload) { return nil, source(i) }),
			of(64, func(i int) (stack, payload) {
				return stack{l(300, 0, 9)}, v6(64).to(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)}))
			})),
		check: choice{spread: span(0, 64), andSpread: span(64, 128)}.check,
	},
	{
		rule: "E3", clause: "RFC 7325 §2.4.5.2", name: "and the ports",
		config: twoWays("by-hash 1 2"),
		in: slices.Concat(
			of(64, func(i int) (stack, payload) { return nil, flow(i) }),
			of(64, func(i int) (stack, payload) { return stack{l(300, 0, 9)}, v6(64).ports(uint16(20000+i), 80) })),
		check: choice{spread: span(0, 64), andSpread: span(64, 128)}.check,
	},
	{
		rule: "E3", clause: "RFC 7325 §2.4.5.2", name: "but not DSCP, ECN, TTL, length or identification",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			of(64, func(i int) (stack, payload) {
				p := v4(uint8(2+i)).ds(uint8(i), uint8(i%4)).long(60 + i)
				p.id = uint16(i)
				return nil, p
			}),
			of(64, func(i int) (stack, payload) { return nil, v6(uint8(2+i)).ds(uint8(i), uint8(i%4)).long(80 + i) })),
		check: choice{same: [][]int{span(0, 64), span(64, 128)}}.check,
	},
	{
		rule: "E3", clause: "RFC 7325 §2.4.5.2", name: "nor what would be ports but for options, extension headers, fragments",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: slices.Concat(
			of(32, func(i int) (stack, payload) { return nil, v4(64).with(1, 1, byte(1), 0).ports(uint16(20000+i), 80) }),
			of(32, func(i int) (stack, payload) {
				p := v6(64).with(protoUDP, 0, 1, 4, 0, 0, 0, 0).ports(uint16(20000+i), 80)
				p.next = 60 // destination options
				return nil, p
			}),
			of(32, func(i int) (stack, payload) {
				return nil, v4(64).ports(uint16(20000+i), 80).long(1000).fragments(600)[i%2]
			})),
		check: choice{same: [][]int{span(0, 32), span(32, 64), span(64, 96)}}.check,
	},
	{
		rule: "E3", clause: "RFC 7325 T#11", name: "nothing of a payload that is no IP",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in: of(64, func(i int) (stack, payload) {
			b := pseudowire()
			for j := 4; j < len(b); j++ {
				b[j] = byte(i * j)
			}
			return stack{l(300, 0, 9)}, b
		}),
		check: choice{same: [][]int{span(0, 64)}}.check,
	},
	{
		rule: "E4", clause: "RFC 6790 §4.4", name: "PHP strips ELI and EL with the label",
		config: plainPop,
		in:     []frame{on(a, l(100, 0, 64), eli(0, 64), el(5000), l(300, 0, 63), v4(64)), on(a, l(100, 0, 64), eli(0, 64), el(5000), v4(63)), on(a, l(100, 0, 64), eli(0, 64), el(5000), v6(63))},
		out:    []frame{on(b, l(300, 0, 63), v4(64)), on(b, v4(63)), on(b, v6(63))},
	},
	{
		rule: "E4", clause: "RFC 7325 §2.1.8.1", name: "the same flows go the same ways again",
		config: twoWays("by-hash 1 2"), kernel: kernelTwoWays,
		in:    slices.Concat(hosts(100), hosts(100), hosts(100)),
		check: choice{same: append(pairs(100), laterPairs(100)...), spread: span(0, 100)}.check,
	},
}

// notELI are the special-purpose labels but for 7 and 15, which change what follows.
func notELI(i int) uint32 {
	if i >= 7 {
		i++
	}
	return uint32(i)
}

func laterPairs(n int) (all [][]int) {
	for _, p := range pairs(n) {
		all = append(all, []int{p[0], p[1] + n})
	}
	return all
}
