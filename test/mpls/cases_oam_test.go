// SPDX-License-Identifier: Apache-2.0

package mpls

import "net/netip"

var loopback4 = netip.MustParseAddr("127.0.0.1")

// lspPing is an MPLS echo request (RFC 8029 §4.3): to 127/8, UDP port 3503, IP TTL 1.
func lspPing() packet { return v4(1).to(loopback4).ports(3503, 3503) }

// sizes are seven frames of different sizes for one label.
func sizes() []frame {
	return each(7, func(i int) frame { return on(a, l(100, 0, 64), v4(64).long(60+100*i)) })
}

func octets(frames []frame) (n int) {
	for _, f := range frames {
		n += f.octets()
	}
	return n
}

// switched is what a frame for label 100 becomes by plainSwap.
func switched(frames []frame) []frame {
	return each(len(frames), func(i int) frame { return on(b, l(200, 0, 63), frames[i].load) })
}

// oam: O1 to O3.
var oam = []trial{
	{
		rule: "O1", clause: "RFC 1122 §3.2.1.3 (g), RFC 8029 §2.1", name: "what is delivered and goes to 127/8 is not routed on",
		config: lsp(100, "pop deliver"), kernel: []string{route(100, "dev lo")},
		in: []frame{on(a, l(100, 0, 64), lspPing()), on(a, l(0, 0, 64), lspPing()), on(a, l(100, 0, 64), v4(64).to(netip.MustParseAddr("127.255.0.9")))},
	},
	{
		rule: "O1", clause: "RFC 8029 §4.4", name: "an echo request passes where its LSP is switched, or popped at the penultimate hop",
		config: lines(lsp(100, "swap 200 "+toB), lsp(101, "ttl short-pipe pop "+toB)), kernel: []string{route(100, "as 200 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), lspPing())},
		out: []frame{on(b, l(200, 0, 63), lspPing())},
	},
	{
		rule: "O1", clause: "RFC 8029 §4.4, RFC 3443 §3.3", name: "with short pipe its TTL of 1 is not looked at",
		config: lsp(100, "ttl short-pipe pop "+toB),
		in:     []frame{on(a, l(100, 0, 64), lspPing())},
		out:    []frame{on(b, lspPing())},
	},
	{
		rule: "O1", clause: "RFC 3032 §2.1, RFC 5586 §4.2", name: "what is for OAM is counted by itself",
		config: lsp(50, "pop peek"),
		in:     []frame{on(a, l(13, 0, 1), achannel()), on(a, l(50, 0, 64), l(13, 0, 64), achannel())},
		counts: map[string]int{dropped(whyOAM): 2, ofPort(a, "InLabelLookupFailures"): 0, inSegment(0, 50, "Packets"): 1},
	},
	{
		rule: "O2", clause: "RFC 3813 §5", name: "packets and octets of segments, in and out",
		config: lsp(100, "swap 200 "+toB), kernel: kernelSwap,
		in:  sizes(),
		out: switched(sizes()),
		counts: map[string]int{
			inSegment(0, 100, "Packets"): 7, inSegment(0, 100, "HCOctets"): octets(sizes()), inSegment(0, 100, "Octets"): octets(sizes()),
			inSegment(0, 100, "Errors"): 0, inSegment(0, 100, "Discards"): 0,
			outSegment(100, "Packets"): 7, outSegment(100, "HCOctets"): octets(switched(sizes())),
			outSegment(100, "Errors"): 0, outSegment(100, "Discards"): 0,
		},
	},
	{
		rule: "O2", clause: "RFC 3813 §5", name: "octets are those that came and those that went",
		config: lines(lsp(100, "swap 200 push 300 push 400 "+toB), lsp(101, "pop "+toB)),
		in:     []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(101, 0, 64), v4(63))},
		out:    []frame{on(b, l(400, 0, 63), l(300, 0, 63), l(200, 0, 63), v4(64)), on(b, v4(63))},
		counts: map[string]int{
			inSegment(0, 100, "HCOctets"): 64, outSegment(100, "HCOctets"): 72,
			inSegment(0, 101, "HCOctets"): 64, outSegment(101, "HCOctets"): 60,
		},
	},
	{
		rule: "O2", clause: "RFC 3813 §5", name: "labels in use, in and out",
		config: lines(lsp(100, "swap 200 "+toB), lsp(101, "swap 201 "+toB), lsp(102, "swap 300 push 200 "+toB), lsp(103, "swap 200 "+toA)),
		in:     []frame{on(a, l(100, 0, 64), v4(64))},
		out:    []frame{on(b, l(200, 0, 63), v4(64))},
		levels: map[string]int{
			"interface/platform/InLabelsInUse": 5, ofPort(b, "OutLabelsInUse"): 3, ofPort(a, "OutLabelsInUse"): 1,
		},
	},
	{
		rule: "O2", clause: "RFC 3813 §5", name: "look-up failures by interface",
		config: plainSwap,
		in:     []frame{on(a, l(900, 0, 64), v4(64)), on(b, l(900, 0, 64), v4(64)), on(b, l(901, 0, 64), v4(64))},
		counts: map[string]int{ofPort(a, "InLabelLookupFailures"): 1, ofPort(b, "InLabelLookupFailures"): 2},
	},
	{
		rule: "O2", clause: "RFC 3813 §5", name: "a bad packet is an error, a dropped one a discard",
		config: lines(lsp(100, "swap 200 "+toB), lsp(101, "drop"), lsp(102, "pop "+toB)),
		in:     []frame{on(a, l(100, 0, 1), pseudowire()), on(a, l(101, 0, 64), v4(64)), on(a, l(102, 0, 64), pseudowire())},
		counts: map[string]int{
			inSegment(0, 100, "Errors"): 1, inSegment(0, 100, "Discards"): 0,
			inSegment(0, 101, "Errors"): 0, inSegment(0, 101, "Discards"): 1,
			inSegment(0, 102, "Errors"): 1, inSegment(0, 102, "Discards"): 0,
		},
	},
	{
		rule: "O3", clause: "RFC 7325 T#6", name: "ten thousand packets of one LSP",
		config: lsp(100, "swap 200 "+toB), kernel: kernelSwap,
		in:  flows(10000),
		out: switched(flows(10000)),
		counts: map[string]int{
			inSegment(0, 100, "Packets"): 10000, inSegment(0, 100, "HCOctets"): octets(flows(10000)), outSegment(100, "Packets"): 10000,
		},
	},
}
