// SPDX-License-Identifier: Apache-2.0

package mpls

import "fmt"

// classes: Q1 to Q3.
var classes = []trial{
	{
		rule: "Q1", clause: "RFC 3270 §2.6", name: "a swap keeps the TC in every model",
		config: models("swap 200 " + toB), kernel: kernelModels("as 200 " + viaB),
		in:  inModels(l(100, 5, 64), v4(64).ds(10, 1)),
		out: each(3, func(int) frame { return on(b, l(200, 5, 63), v4(64).ds(10, 1)) }),
	},
	{
		rule: "Q1", clause: "RFC 3270 §2.6", name: "a push has the TC of what is beneath",
		config: lines(lsp(100, "swap 200 push 300 push 400 "+toB), lsp(101, "push 300 "+toB)),
		kernel: []string{route(100, "as 400/300/200 "+viaB), route(101, "as 300/101 "+viaB)},
		in:     []frame{on(a, l(100, 5, 64), v4(64)), on(a, l(101, 6, 64), v4(64))},
		out:    []frame{on(b, l(400, 5, 63), l(300, 5, 63), l(200, 5, 63), v4(64)), on(b, l(300, 6, 63), l(101, 6, 63), v4(64))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.2", name: "a pipe's push: the pushed label has the outgoing class, the one beneath keeps its own",
		config: lsp(100, "ttl pipe swap 200 push 300 tc 3 "+toB),
		in:     []frame{on(a, l(100, 5, 64), v4(64).ds(46, 0))},
		out:    []frame{on(b, l(300, 3, 255), l(200, 5, 63), v4(64).ds(46, 0))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.2", name: "a pipe's push over IP keeps the DSCP", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "ttl pipe push 200 tc 3 "+toB), "ftn add 198.51.100.0/24 nhlfe 1"},
		in:     []frame{on(a, v4(64).to(beyond4).ds(46, 1))},
		out:    []frame{on(b, l(200, 3, 255), v4(63).to(beyond4).ds(46, 1))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.2, §2.6.3", name: "a pop leaves the exposed label as it is",
		config: lines(lsp(100, "ttl pipe pop "+toB), lsp(101, "ttl short-pipe pop "+toB)),
		in:     []frame{on(a, l(100, 5, 64), l(200, 2, 64), v4(64)), on(a, l(101, 5, 64), l(200, 2, 64), v4(64))},
		out:    []frame{on(b, l(200, 2, 63), v4(64)), on(b, l(200, 2, 64), v4(64))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.2", name: "and so it does the IP header",
		config: lsp(100, "ttl pipe pop "+toB), kernel: []string{route(100, viaB+" ttl-propagate disabled")},
		in:  []frame{on(a, l(100, 5, 64), v4(64).ds(10, 1)), on(a, l(100, 5, 64), v6(64).ds(10, 2))},
		out: []frame{on(b, v4(63).ds(10, 1)), on(b, v6(63).ds(10, 2))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.2", name: "a pipe's egress goes by the class before the pop",
		config: []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toB), nhlfe(3, "ttl pipe pop by-tc 5:1 default 2"), ilm(50, "nhlfe 3")},
		in:     []frame{on(a, l(50, 5, 10), l(100, 1, 64), v4(64)), on(a, l(50, 1, 10), l(100, 5, 64), v4(64))},
		out:    []frame{on(b, l(201, 1, 63), v4(64)), on(b, l(202, 5, 63), v4(64))},
	},
	{
		rule: "Q2", clause: "RFC 3270 §2.6.3", name: "a short pipe's egress goes by the class after it",
		config: []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toB), nhlfe(3, "ttl short-pipe pop by-tc 5:1 default 2"), ilm(50, "nhlfe 3")},
		in:     []frame{on(a, l(50, 5, 10), l(100, 1, 64), v4(64)), on(a, l(50, 1, 10), l(100, 5, 64), v4(64))},
		out:    []frame{on(b, l(202, 1, 63), v4(64)), on(b, l(201, 5, 63), v4(64))},
	},
	{
		rule: "Q3", clause: "RFC 3270 §2.6.4", name: "the exposed label gets the class, over one pop or several",
		config: lines(plainPop, lsp(101, "pop pop "+toB)),
		in:     []frame{on(a, l(100, 5, 64), l(200, 2, 64), v4(64)), on(a, l(101, 5, 64), l(200, 2, 64), l(300, 1, 64), v4(64))},
		out:    []frame{on(b, l(200, 5, 63), v4(64)), on(b, l(300, 5, 63), v4(64))},
	},
	{
		rule: "Q3", clause: "RFC 3270 §2.6.4", name: "the class is that before the pop",
		config: []string{nhlfe(1, "swap 201 "+toB), nhlfe(2, "swap 202 "+toB), nhlfe(3, "pop by-tc 5:1 default 2"), ilm(50, "nhlfe 3")},
		in:     []frame{on(a, l(50, 5, 10), l(100, 1, 64), v4(64)), on(a, l(50, 1, 10), l(100, 5, 64), v4(64))},
		out:    []frame{on(b, l(201, 5, 9), v4(64)), on(b, l(202, 1, 9), v4(64))},
	},
	{
		rule: "Q3", clause: "RFC 3270 §2.6.4", name: "an IP header that was re-marked on the way gets the class as CSn",
		config: plainPop, kernel: kernelPop,
		in: []frame{
			on(a, l(100, 5, 64), v4(64)), on(a, l(100, 5, 64), v6(64)), on(a, l(100, 0, 64), v4(64).ds(10, 0)), on(a, l(100, 7, 64), v6(64).ds(46, 0)),
		},
		out: []frame{on(b, v4(63).ds(40, 0)), on(b, v6(63).ds(40, 0)), on(b, v4(63)), on(b, v6(63).ds(56, 0))},
		or:  []outcome{{words: "pipe", out: []frame{on(b, v4(63)), on(b, v6(63)), on(b, v4(63).ds(10, 0)), on(b, v6(63).ds(46, 0))}}},
	},
	{
		rule: "Q3", clause: "RFC 3270 §2.6.4", name: "one that nobody re-marked comes out as it went in",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 5, 64), v4(64).ds(46, 0)), on(a, l(100, 1, 64), v4(64).ds(10, 0)), on(a, l(100, 4, 64), v6(64).ds(38, 0))},
		out: []frame{on(b, v4(63).ds(46, 0)), on(b, v4(63).ds(10, 0)), on(b, v6(63).ds(38, 0))},
	},
	{
		rule: "Q3", clause: "RFC 3270 §2.6.4", name: "behind an explicit null too",
		config: predefined, kernel: predefined,
		in:  []frame{on(a, l(0, 3, 64), v4(64)), on(a, l(2, 3, 64), v6(64).ds(30, 1))},
		out: []frame{on(b, v4(63).ds(24, 0)), on(b, v6(63).ds(30, 1))},
		or:  []outcome{{words: "pipe", out: []frame{on(b, v4(63)), on(b, v6(63).ds(30, 1))}}},
	},
}

// beginLLSPs are lists for EF, AF2 and the default class, as docs/mpls.md has them.
var beginLLSPs = []string{
	"map add af2 dscp-to-tc 18:1 20:2 22:3",
	nhlfe(30, "swap 320 set-tc 0 "+toB), nhlfe(31, "swap 321 tc-map af2 "+toB), nhlfe(32, "swap 322 set-tc 0 "+toB),
}

// classesWritten: Q4 to Q8.
var classesWritten = []trial{
	{
		rule: "Q4", clause: "RFC 3270 §3.2.1", name: "an E-LSP's map; what it does not name is the default PHB",
		config: lines("map add e tc-to-dscp 1:10 5:46", lsp(100, "pop dscp-map e "+toB)),
		in: []frame{
			on(a, l(100, 5, 64), v4(64)), on(a, l(100, 1, 64), v6(64).ds(46, 0)), on(a, l(100, 3, 64), v4(64).ds(26, 1)), on(a, l(100, 0, 64), v4(64).ds(10, 0)),
		},
		out: []frame{on(b, v4(63).ds(46, 0)), on(b, v6(63).ds(10, 0)), on(b, v4(63).ds(0, 1)), on(b, v4(63))},
	},
	{
		rule: "Q4", clause: "RFC 3270 §4.2.1.1", name: "L-LSPs: EF, AF1 with its drop precedences, CS6",
		config: lines(
			"map add ef tc-to-dscp 0:46", "map add af1 tc-to-dscp 1:10 2:12 3:14", "map add cs6 tc-to-dscp 0:48",
			lsp(100, "pop dscp-map ef "+toB), lsp(101, "pop dscp-map af1 "+toB), lsp(102, "pop dscp-map cs6 "+toB)),
		in: []frame{
			on(a, l(100, 0, 64), v4(64)), on(a, l(101, 1, 64), v4(64)), on(a, l(101, 2, 64), v4(64)), on(a, l(101, 3, 64), v4(64)), on(a, l(102, 0, 64), v6(64)),
		},
		out: []frame{on(b, v4(63).ds(46, 0)), on(b, v4(63).ds(10, 0)), on(b, v4(63).ds(12, 0)), on(b, v4(63).ds(14, 0)), on(b, v6(63).ds(48, 0))},
	},
	{
		rule: "Q4", clause: "RFC 3270 §4.2.1.1", name: "L-LSPs begin: the class chooses the label, and the TC is the drop precedence",
		config: lines(beginLLSPs, nhlfe(33, "by-dscp 46:30 18:31 20:31 22:31 default 32"), ilm(510, "nhlfe 33")),
		in: []frame{
			on(a, l(510, 5, 64), v4(64).ds(46, 0)), on(a, l(510, 2, 64), v4(64).ds(18, 1)), on(a, l(510, 2, 64), v6(64).ds(20, 0)),
			on(a, l(510, 2, 64), v6(64).ds(22, 0)), on(a, l(510, 4, 64), v4(64).ds(34, 0)), on(a, l(510, 7, 64), l(600, 1, 9), v4(64).ds(22, 0)),
		},
		out: []frame{
			on(b, l(320, 0, 63), v4(64).ds(46, 0)), on(b, l(321, 1, 63), v4(64).ds(18, 1)), on(b, l(321, 2, 63), v6(64).ds(20, 0)),
			on(b, l(321, 3, 63), v6(64).ds(22, 0)), on(b, l(322, 0, 63), v4(64).ds(34, 0)), on(b, l(321, 3, 63), l(600, 1, 9), v4(64).ds(22, 0)),
		},
	},
	{
		rule: "Q4", clause: "RFC 3270 §4.2.1.1", name: "an E-LSP goes on as L-LSPs, by its TC",
		config: lines(beginLLSPs, nhlfe(40, "by-tc 5:30 2:31 default 32"), ilm(520, "nhlfe 40")),
		in: []frame{
			on(a, l(520, 5, 64), v4(64).ds(46, 0)), on(a, l(520, 2, 64), v4(64).ds(22, 0)), on(a, l(520, 0, 64), v6(64)), on(a, l(520, 6, 64), v6(64)),
		},
		out: []frame{
			on(b, l(320, 0, 63), v4(64).ds(46, 0)), on(b, l(321, 3, 63), v4(64).ds(22, 0)), on(b, l(322, 0, 63), v6(64)), on(b, l(322, 0, 63), v6(64)),
		},
	},
	{
		rule: "Q5", clause: "RFC 7325 §2.1.2", name: "a push maps the DSCP of the packet at the bottom",
		config: lines("map add in dscp-to-tc 46:5 10:1", lsp(100, "swap 200 push 300 tc-map in "+toB)),
		in: []frame{
			on(a, l(100, 2, 64), v4(64).ds(46, 0)), on(a, l(100, 2, 64), v6(64).ds(10, 0)), on(a, l(100, 2, 64), v4(64).ds(26, 0)),
			on(a, l(100, 2, 64), l(50, 3, 9), v4(64).ds(46, 0)),
		},
		out: []frame{
			on(b, l(300, 5, 63), l(200, 2, 63), v4(64).ds(46, 0)), on(b, l(300, 1, 63), l(200, 2, 63), v6(64).ds(10, 0)),
			on(b, l(300, 0, 63), l(200, 2, 63), v4(64).ds(26, 0)), on(b, l(300, 5, 63), l(200, 2, 63), l(50, 3, 9), v4(64).ds(46, 0)),
		},
	},
	{
		rule: "Q5", clause: "RFC 7325 §2.1.2", name: "two LSPs share a map, and another has its own",
		config: lines("map add one dscp-to-tc 46:5", "map add two dscp-to-tc 46:6",
			lsp(100, "swap 200 tc-map one "+toB), lsp(101, "swap 201 tc-map one "+toB), lsp(102, "swap 202 tc-map two "+toB)),
		in:  inModels(l(100, 2, 64), v4(64).ds(46, 0)),
		out: each(3, func(i int) frame { return on(b, l(uint32(200+i), []uint8{5, 5, 6}[i], 63), v4(64).ds(46, 0)) }),
	},
	{
		rule: "Q5", clause: "RFC 7325 §2.1.2", name: "a constant class",
		config: lsp(100, "swap 200 set-tc 4 push 300 "+toB),
		in:     []frame{on(a, l(100, 2, 64), v4(64))},
		out:    []frame{on(b, l(300, 4, 63), l(200, 4, 63), v4(64))},
	},
	{
		rule: "Q5", clause: "RFC 7325 §2.1.2", name: "the head of an LSP maps DSCP to TC", needs: "ftn",
		setup:  beyondB,
		config: []string{"map add in dscp-to-tc 46:5 10:1", nhlfe(1, "push 200 tc-map in "+toB), "ftn add 198.51.100.0/24 nhlfe 1", nhlfe(2, "push 201 "+toB), "ftn add 2001:db8:51::/48 nhlfe 2"},
		in:     []frame{on(a, v4(64).to(beyond4).ds(46, 1)), on(a, v4(64).to(beyond4).ds(10, 2)), on(a, v6(64).to(beyond6).ds(46, 3))},
		out: []frame{
			on(b, l(200, 5, 63), v4(63).to(beyond4).ds(46, 1)), on(b, l(200, 1, 63), v4(63).to(beyond4).ds(10, 2)),
			on(b, l(201, 5, 63), v6(63).to(beyond6).ds(46, 3)), // without a word: DSCP >> 3
		},
	},
	{
		rule: "Q6", clause: "RFC 3168 §5", name: "a pop that writes the class keeps ECN",
		config: plainPop, kernel: kernelPop,
		in: append(each(4, func(i int) frame { return on(a, l(100, 5, 64), v4(64).ds(0, uint8(i))) }),
			each(4, func(i int) frame { return on(a, l(100, 5, 64), v6(64).ds(0, uint8(i))) })...),
		out: append(each(4, func(i int) frame { return on(b, v4(63).ds(40, uint8(i))) }),
			each(4, func(i int) frame { return on(b, v6(63).ds(40, uint8(i))) })...),
		or: []outcome{{words: "pipe: it writes none", out: append(each(4, func(i int) frame { return on(b, v4(63).ds(0, uint8(i))) }),
			each(4, func(i int) frame { return on(b, v6(63).ds(0, uint8(i))) })...)}},
	},
	{
		rule: "Q6", clause: "RFC 2474 §3", name: "so does a DSCP that is set or mapped, in any model",
		config: lines("map add m tc-to-dscp 5:63", lsp(100, "ttl short-pipe pop set-dscp 21 "+toB), lsp(101, "ttl pipe pop dscp-map m "+toB)),
		in: []frame{
			on(a, l(100, 5, 64), v4(64).ds(46, 3)), on(a, l(100, 5, 64), v6(64).ds(46, 1)),
			on(a, l(101, 5, 64), v4(64).ds(0, 2)), on(a, l(101, 5, 64), v6(64).ds(0, 3)),
		},
		out: []frame{on(b, v4(64).ds(21, 3)), on(b, v6(64).ds(21, 1)), on(b, v4(63).ds(63, 2)), on(b, v6(63).ds(63, 3))},
	},
	{
		rule: "Q7", clause: "RFC 5129 §4.3", name: "no code point is assigned: no class touches ECN",
		config: plainPop, kernel: kernelPop,
		in:  each(32, func(i int) frame { return on(a, l(100, uint8(i/4), 64), v4(64).ds(uint8(i/4*8), uint8(i%4))) }),
		out: each(32, func(i int) frame { return on(b, v4(63).ds(uint8(i/4*8), uint8(i%4))) }),
	},
	{
		rule: "Q7", clause: "RFC 5129 §4.1", name: "a push of a label on a label copies the field",
		config: lsp(100, "push 300 "+toB), kernel: []string{route(100, "as 300/100 "+viaB)},
		in:  each(8, func(i int) frame { return on(a, l(100, uint8(i), 64), v4(64)) }),
		out: each(8, func(i int) frame { return on(b, l(300, uint8(i), 63), l(100, uint8(i), 63), v4(64)) }),
	},
	{
		rule: "Q7", clause: "RFC 5129 §4.5, §4.6", name: "TC 1 assigned to CM: a pop makes ECT into CE, and drops what is not ECT",
		config: noWords,
		in:     []frame{on(a, l(100, 1, 64), v4(64).ds(0, 2)), on(a, l(100, 1, 64), v6(64).ds(0, 1)), on(a, l(100, 1, 64), v4(64))},
		out:    []frame{on(b, v4(63).ds(0, 3)), on(b, v6(63).ds(0, 3))},
	},
	{
		rule: "Q8", clause: "RFC 5462 §2", name: "all eight values, in the three bits above S",
		config: plainSwap, kernel: kernelSwap,
		in:  each(8, func(i int) frame { return on(a, l(100, uint8(i), 64), l(300, uint8(7-i), 9), v4(64)) }),
		out: each(8, func(i int) frame { return on(b, l(200, uint8(i), 63), l(300, uint8(7-i), 9), v4(64)) }),
	},
	{
		rule: "Q8", clause: "RFC 5462 §2", name: "a ninth is refused, and so is a 65th DSCP",
		config: []string{nhlfe(1, "swap 200 "+toB)},
		refused: []string{
			nhlfe(2, "swap 200 push 300 tc 8 "+toB), nhlfe(2, "swap 200 set-tc 8 "+toB), nhlfe(2, "pop set-dscp 64 "+toB),
			nhlfe(2, "by-tc 8:1"), nhlfe(2, "by-dscp 64:1"), ilm(100, "tc 8 nhlfe 1"),
			"map add m tc-to-dscp 8:1", "map add m tc-to-dscp 1:64", "map add m dscp-to-tc 64:1", "map add m dscp-to-tc 1:8",
			fmt.Sprintf("nhlfe add 2 swap 200 tc-map nosuchmap %s", toB),
		},
	},
}
