// SPDX-License-Identifier: Apache-2.0

package mpls

// special: the table of special-purpose labels.
var special = []trial{
	{
		rule: "S0", clause: "RFC 3032 §2.1", name: "0 at the bottom is IPv4, 2 is IPv6: delivered, and forwarded as IP",
		config: predefined, kernel: predefined,
		in:  []frame{on(a, l(0, 0, 64), v4(64)), on(a, l(2, 0, 64), v6(64))},
		out: []frame{on(b, v4(63)), on(b, v6(63))},
	},
	{
		rule: "S0", clause: "RFC 3443 §3.1", name: "the TTL of an explicit null at the bottom is that of the packet",
		config: predefined, kernel: predefined,
		in:  []frame{on(a, l(0, 0, 30), v4(64)), on(a, l(2, 0, 30), v6(64))},
		out: []frame{on(b, v4(29)), on(b, v6(29))},
		or:  []outcome{{words: "pipe", out: []frame{on(b, v4(63)), on(b, v6(63))}}},
	},
	{
		rule: "S0", clause: "RFC 4182", name: "above other labels: these are acted on",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(0, 0, 64), l(100, 0, 64), v4(64)), on(a, l(2, 0, 64), l(100, 0, 64), v6(64)), on(a, l(2, 0, 64), l(0, 0, 64), l(100, 0, 64), v4(64))},
		out: []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 63), v6(64)), on(b, l(200, 0, 63), v4(64))},
	},
	{
		rule: "S0", clause: "RFC 4182, RFC 3443 §3.4", name: "and get its TTL and TC: uniform",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(0, 5, 40), l(100, 1, 64), v4(64))},
		out: []frame{on(b, l(200, 5, 39), v4(64))},
	},
	{
		rule: "S0", clause: "RFC 4182", name: "several of them down to the bottom",
		config: predefined, kernel: predefined,
		in:  []frame{on(a, l(0, 0, 64), l(0, 0, 64), l(2, 0, 64), v6(64)), on(a, l(2, 0, 64), l(0, 0, 64), v4(64))},
		out: []frame{on(b, v6(63)), on(b, v4(63))},
	},
	{
		rule: "S0", clause: "RFC 3032 §2.1", name: "at the bottom over the other version: discarded",
		config: predefined, kernel: predefined,
		in:     []frame{on(a, l(0, 0, 64), v6(64)), on(a, l(2, 0, 64), v4(64)), on(a, l(0, 0, 64), pseudowire())},
		counts: map[string]int{dropped(whyPayload): 3},
	},
	{
		rule: "S0", clause: "RFC 3032 §2.1", name: "as an outgoing label",
		config: lines(lsp(100, "swap 0 "+toB), lsp(101, "swap 2 "+toB), lsp(102, "swap 200 push 0 "+toB)),
		kernel: []string{route(100, "as 0 "+viaB), route(101, "as 2 "+viaB), route(102, "as 0/200 "+viaB)},
		in:     []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(101, 0, 64), v6(64)), on(a, l(102, 0, 64), v4(64))},
		out:    []frame{on(b, l(0, 0, 63), v4(64)), on(b, l(2, 0, 63), v6(64)), on(b, l(0, 0, 63), l(200, 0, 63), v4(64))},
	},
	{
		rule: "S1", clause: "RFC 3032 §2.1", name: "at the bottom: malformed",
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(1, 0, 64), v4(64)), on(a, l(0, 0, 64), l(1, 0, 64), v4(64))},
		counts: map[string]int{dropped(whyMalformed): 2},
	},
	{
		rule: "S1", clause: "RFC 3032 §2.1", name: "forwarded by the label beneath, with router alert back on top", needs: "alert",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(1, 0, 64), l(100, 0, 64), v4(64))},
		out: []frame{on(b, l(1, 0, 63), l(200, 0, 63), v4(64))},
	},
	{
		rule: "S3", clause: "RFC 3032 §2.1", name: "on the wire: dropped",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, l(3, 0, 64), v4(64)), on(a, l(3, 0, 64), l(100, 0, 64), v4(64)), on(a, l(50, 0, 64), l(3, 0, 64), v4(64))},
		counts: map[string]int{dropped(whySpecial): 3},
	},
	{
		rule: "S3", clause: "RFC 3032 §2.1", name: "as an outgoing label: a pop instead of a swap, nothing instead of a push",
		config: lines(lsp(100, "swap 3 "+toB), lsp(101, "swap 200 push 3 "+toB)),
		in:     []frame{on(a, l(100, 0, 64), l(300, 0, 64), v4(64)), on(a, l(100, 0, 64), v4(64)), on(a, l(101, 0, 64), v4(64))},
		out:    []frame{on(b, l(300, 0, 63), v4(64)), on(b, v4(63)), on(b, l(200, 0, 63), v4(64))},
	},
	{
		rule: "S4", clause: "RFC 3031 §3.18", name: "4 to 6 and 8 to 12 on top are dropped",
		config: plainSwap, kernel: kernelSwap,
		in:     each(8, func(i int) frame { return on(a, l(unassigned[i], 0, 64), l(100, 0, 64), v4(64)) }),
		counts: map[string]int{dropped(whySpecial): 8},
	},
	{
		rule: "S4", clause: "RFC 3031 §3.18", name: "and beneath a label that was popped",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     each(8, func(i int) frame { return on(a, l(50, 0, 64), l(unassigned[i], 0, 64), v4(64)) }),
		counts: map[string]int{dropped(whySpecial): 8},
	},
	{
		rule: "S4", clause: "RFC 7274 §3.1.1", name: "beneath a label that is swapped nobody looks: 0 to 15 pass",
		config: plainSwap, kernel: kernelSwap,
		in:  each(16, func(i int) frame { return on(a, l(100, 0, 64), l(uint32(i), 2, 9), v4(64)) }),
		out: each(16, func(i int) frame { return on(b, l(200, 0, 63), l(uint32(i), 2, 9), v4(64)) }),
	},
	{
		rule: "S7", clause: "RFC 6790 §4.3", name: "on top on arrival: dropped",
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(7, 0, 64), l(5000, 0, 0), v4(64)), on(a, l(7, 0, 64), l(100, 0, 64), v4(64)), on(a, l(7, 0, 64), v4(64))},
		counts: map[string]int{dropped(whySpecial): 3},
	},
	{
		rule: "S13", clause: "RFC 5586 §4.2", name: "the associated channel of a section or an LSP is not forwarded",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, l(13, 0, 1), achannel()), on(a, l(50, 0, 64), l(13, 0, 1), achannel())},
		counts: map[string]int{dropped(whyOAM): 2},
	},
	{
		rule: "S14", clause: "RFC 7325 §2.1.1", name: "on top: dropped",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, l(14, 0, 64), v4(64)), on(a, l(14, 0, 64), l(100, 0, 64), v4(64)), on(a, l(50, 0, 64), l(14, 0, 64), v4(64))},
		counts: map[string]int{dropped(whySpecial): 3},
	},
	{
		rule: "S15", clause: "RFC 9017 §4", name: "before 0 to 15: dropped",
		config: plainSwap, kernel: kernelSwap,
		in:     each(16, func(i int) frame { return on(a, l(15, 0, 64), l(uint32(i), 0, 64), v4(64)) }),
		counts: map[string]int{dropped(whySpecial): 16},
	},
	{
		rule: "S15", clause: "RFC 7274 §3.1", name: "at the bottom, or before a label that nobody knows: dropped",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in: []frame{
			on(a, l(15, 0, 64), v4(64)), on(a, l(15, 0, 64), l(100, 0, 64), v4(64)),
			on(a, l(15, 0, 64), l(5000, 0, 64), l(100, 0, 64), v4(64)), on(a, l(50, 0, 64), l(15, 0, 64), l(5000, 0, 64), v4(64)),
		},
		counts: map[string]int{dropped(whySpecial): 4},
	},
}

// unassigned are the special-purpose labels that nobody has given a meaning (IANA).
var unassigned = []uint32{4, 5, 6, 8, 9, 10, 11, 12}

// achannel is an ACH of the channel type of BFD (RFC 5586 §2, RFC 5885).
func achannel() raw { return append(raw{0x10, 0, 0, 7}, filler(40)...) }

// refusals: what the tables do not take, where a rule forbids it on the wire.
var refusals = []trial{
	{
		rule: "S3", clause: "RFC 3032 §2.1", name: "an incoming label 3, 1, or 4 to 15 is refused",
		config: []string{nhlfe(1, "swap 200 "+toB)},
		refused: []string{
			ilm(1, "nhlfe 1"), ilm(3, "nhlfe 1"), ilm(4, "nhlfe 1"), ilm(7, "nhlfe 1"), ilm(12, "nhlfe 1"),
			ilm(13, "nhlfe 1"), ilm(14, "nhlfe 1"), ilm(15, "nhlfe 1"), ilm(1048576, "nhlfe 1"), ilm(-1, "nhlfe 1"),
		},
		kernel:        predefined,
		kernelRefused: []string{route(1, viaB), route(3, viaB), route(7, viaB), route(13, viaB), route(15, viaB), route(1048576, viaB)},
	},
	{
		rule: "S7", clause: "RFC 6790 §3", name: "pushing 7 without an entropy label, or 1, 13, 14 and 15, is refused",
		config: []string{nhlfe(1, "swap 200 "+toB)},
		refused: []string{
			nhlfe(2, "swap 200 push 7 "+toB), nhlfe(2, "swap 200 push 1 "+toB), nhlfe(2, "swap 200 push 13 "+toB),
			nhlfe(2, "swap 200 push 14 "+toB), nhlfe(2, "swap 200 push 15 "+toB), nhlfe(2, "swap 200 push 1048576 "+toB),
			nhlfe(2, "swap 200 entropy "+toB),
		},
		kernel:        predefined,
		kernelRefused: []string{route(100, "as 1048576 "+viaB), route(100, "as 200/7 "+viaB), route(100, "as 200/15 "+viaB)},
	},
}
