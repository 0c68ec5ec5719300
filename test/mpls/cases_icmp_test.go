// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"fmt"
	"net/netip"
)

// inMTU is an LSP whose out-segment takes so many bytes of IP and labels.
func inMTU(label, mtu int, words string) []string {
	return []string{nhlfe(label, fmt.Sprintf("mtu %d %s", mtu, words)), ilm(label, fmt.Sprintf("nhlfe %d", label))}
}

// size is a pseudowire's payload of so many bytes.
func size(n int) raw { return append(raw{0, 0, 0, 1}, filler(n-4)...) }

// Errors about a packet, sent to its source from the port that it came in by (RFC 1812 §4.3.2.4).
func exceeded(p packet, labels ...entry) answer { return about(p, 11, 3, 0, labels) }
func tooBigFor(mtu uint32, p packet, labels ...entry) answer {
	w := about(p, 3, 2, 4, labels)
	w.mtu = mtu
	if p.version == 6 {
		w.code, w.stack = 0, nil // RFC 4884 §4.6: Packet Too Big cannot be extended
	}
	return w
}

func about(p packet, icmp4, icmp6, code uint8, labels []entry) answer {
	w := answer{version: p.version, source: router4[a], dest: p.source, icmp: icmp4, code: code, about: p.bytes(usual), stack: labels}
	if p.version == 6 {
		w.source, w.icmp = router6[a], icmp6
	}
	return w
}

// labelled is an answer that goes down the LSP: other things in front of it.
func (w answer) fromB() answer {
	w.source = router4[b]
	if w.version == 6 {
		w.source = router6[b]
	}
	return w
}

// over6, over4 and df are packets that do not fit.
var (
	over4    = v4(64).long(1000)
	over4df  = v4(64).long(1000).dontFragment()
	over6    = v6(64).long(1500)
	over1280 = v6(64).long(1280)
)

// cut are the fragments of a packet behind a stack.
func cut(limit int, p packet, labels ...entry) []frame {
	parts := p.fragments(limit)
	return each(len(parts), func(i int) frame { return on(b, stack(labels), parts[i]) })
}

// tooBig: M1 to M4. B's MTU is 1500, A's is larger.
var tooBig = []trial{
	{
		rule: "M1", clause: "RFC 3032 §3.3", name: "1500 bytes of IP and labels fit an MTU of 1500: swapped, pushed on, popped",
		config: lines(lsp(100, "swap 200 "+toB), lsp(101, "push 300 "+toB), lsp(102, "pop "+toB)),
		kernel: []string{route(100, "as 200 "+viaB), route(101, "as 300/101 "+viaB), route(102, viaB)},
		in:     []frame{on(a, l(100, 0, 64), v4(64).long(1496).dontFragment()), on(a, l(101, 0, 64), v4(64).long(1492).dontFragment()), on(a, l(102, 0, 64), v4(63).long(1500).dontFragment())},
		out:    []frame{on(b, l(200, 0, 63), v4(64).long(1496).dontFragment()), on(b, l(300, 0, 63), l(101, 0, 63), v4(64).long(1492).dontFragment()), on(b, v4(63).long(1500).dontFragment())},
	},
	{
		rule: "M1", clause: "RFC 3032 §3.3", name: "so do 500 an MTU of 500 that the NHLFE names",
		config: lines(inMTU(100, 500, "swap 200 "+toB), inMTU(101, 500, "swap 200 push 300 "+toB)),
		in:     []frame{on(a, l(100, 0, 64), size(496)), on(a, l(101, 0, 64), size(492)), on(a, l(100, 0, 64), v6(64).long(496))},
		out:    []frame{on(b, l(200, 0, 63), size(496)), on(b, l(300, 0, 63), l(200, 0, 63), size(492)), on(b, l(200, 0, 63), v6(64).long(496))},
	},
	{
		rule: "M1", clause: "RFC 3032 §3.3", name: "one byte more is discarded, where it is no IP without a word",
		config: lines(lsp(100, "swap 200 "+toB), lsp(101, "push 300 "+toB)), kernel: []string{route(100, "as 200 "+viaB), route(101, "as 300/101 "+viaB)},
		in:     []frame{on(a, l(100, 0, 64), size(1497)), on(a, l(101, 0, 64), size(1493))},
		counts: map[string]int{dropped(whyTooBig): 2},
	},
	{
		rule: "M1", clause: "RFC 3032 §3.3", name: "and by the NHLFE's MTU",
		config: lines(inMTU(100, 500, "swap 200 "+toB), inMTU(101, 500, "swap 200 push 300 "+toB), inMTU(102, 500, "pop "+toB)),
		in:     []frame{on(a, l(100, 0, 64), size(497)), on(a, l(101, 0, 64), size(493)), on(a, l(102, 0, 64), l(200, 0, 64), size(497))},
		counts: map[string]int{dropped(whyTooBig): 3},
	},
	{
		rule: "M2", clause: "RFC 3032 §3.4", name: "IPv4 without DF: fragments of the MTU less the stack, the same stack on each", needs: "fragment",
		config: inMTU(100, 500, "swap 200 "+toB),
		in:     []frame{on(a, l(100, 2, 64), over4)},
		out:    cut(496, over4, l(200, 2, 63)),
		or:     []outcome{{words: "discarded, which it may be"}},
		counts: map[string]int{ofPort(b, "OutFragmentedPkts"): 1},
	},
	{
		rule: "M2", clause: "RFC 3032 §3.4", name: "two labels on each, and each label less room", needs: "fragment",
		config: inMTU(100, 500, "swap 200 push 300 "+toB),
		in:     []frame{on(a, l(100, 2, 64), over4)},
		out:    cut(492, over4, l(300, 2, 63), l(200, 2, 63)),
		or:     []outcome{{words: "discarded, which it may be"}},
	},
	{
		rule: "M2", clause: "RFC 791 §3.2", name: "what is a fragment already is cut again", needs: "fragment",
		config: inMTU(100, 300, "swap 200 "+toB),
		in:     []frame{on(a, l(100, 2, 64), over4.fragments(600)[0]), on(a, l(100, 2, 64), over4.fragments(600)[1])},
		out:    append(cutAgain(296, over4.fragments(600)[0], l(200, 2, 63)), cutAgain(296, over4.fragments(600)[1], l(200, 2, 63))...),
		or:     []outcome{{words: "discarded, which it may be"}},
	},
	{
		rule: "M2", clause: "RFC 7325 §2.1.8", name: "what is cut goes the way of its flow", needs: "fragment",
		config: lines(nhlfe(201, "mtu 500 swap 201 "+toB), nhlfe(202, "mtu 500 swap 202 "+toB), nhlfe(100, "by-hash 201 202"), ilm(100, "nhlfe 100")),
		in:     each(40, func(i int) frame { return on(a, l(100, 0, 64), v4(64).from(flowSource(i/2)).long(100+800*(i%2))) }),
		check:  oneWayEach,
	},
	{
		rule: "M2", clause: "RFC 3032 §3.4", name: "IPv4 with DF: an error with the MTU less the stack that would be sent", needs: "icmp",
		config: lines(inMTU(100, 500, "swap 200 "+toB), inMTU(101, 500, "swap 200 push 300 "+toB), inMTU(102, 500, "pop "+toB)),
		in:     []frame{on(a, l(100, 2, 64), over4df), on(a, l(101, 2, 64), over4df), on(a, l(102, 2, 64), over4df)},
		out: []frame{
			on(a, tooBigFor(496, over4df, l(100, 2, 64))), on(a, tooBigFor(492, over4df, l(101, 2, 64))), on(a, tooBigFor(500, over4df, l(102, 2, 64))),
		},
		counts: map[string]int{dropped(whyTooBig): 3},
	},
	{
		rule: "M2", clause: "RFC 3032 §3.5", name: "IPv6 over 1280 bytes, or without a fragment header: Packet Too Big", needs: "icmp",
		config: lines(inMTU(100, 1400, "swap 200 "+toB), inMTU(101, 1280, "swap 200 "+toB)),
		in:     []frame{on(a, l(100, 0, 64), over6), on(a, l(101, 0, 64), over1280)},
		out:    []frame{on(a, tooBigFor(1396, over6)), on(a, tooBigFor(1276, over1280))},
	},
	{
		rule: "M2", clause: "RFC 3032 §3.5", name: "IPv6 up to 1280 bytes with a fragment header is cut", needs: "fragment",
		config: inMTU(100, 600, "swap 200 "+toB),
		in:     []frame{on(a, l(100, 0, 64), fragment6(64, 1000, 2000)[0])},
		out:    each(2, func(i int) frame { return on(b, l(200, 0, 63), fragment6(64, 1000, 596)[i]) }),
	},
	{
		rule: "M2", clause: "RFC 3032 §3.4", name: "by the port's MTU: IPv4 without DF", needs: "fragment",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 2, 64), v4(64).long(1600))},
		out: cut(1496, v4(64).long(1600), l(200, 2, 63)),
		or:  []outcome{{words: "discarded, which it may be"}},
	},
	{
		rule: "M2", clause: "RFC 3032 §3.4, §3.5", name: "by the port's MTU: IPv4 with DF, IPv6", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 2, 64), v4(64).long(1600).dontFragment()), on(a, l(100, 2, 64), v6(64).long(1497))},
		out: []frame{on(a, tooBigFor(1496, v4(64).long(1600).dontFragment(), l(100, 2, 64))), on(a, tooBigFor(1496, v6(64).long(1497)))},
	},
	{
		rule: "M3", clause: "RFC 3032 §3.2", name: "datagrams over a configured size are cut before they are labelled", needs: "ftn fragment",
		setup:  beyondB,
		config: []string{nhlfe(1, "mtu 1000 push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1"},
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 via inet 198.19.0.2 dev @B mtu 1000"},
		in:     []frame{on(a, v4(64).to(beyond4).long(1200)), on(a, v4(64).to(beyond4).long(996))},
		out:    append(cut(996, v4(63).to(beyond4).long(1200), l(200, 0, 63)), on(b, l(200, 0, 63), v4(63).to(beyond4).long(996))),
	},
	{
		rule: "M4", clause: "RFC 3032 §3.6", name: "the head of an LSP answers: the MTU less the stack", needs: "ftn icmp",
		setup:  beyondB,
		config: []string{nhlfe(1, "push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", "ftn add 2001:db8:51::/48 nhlfe 1"},
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 via inet 198.19.0.2 dev @B", "route add 2001:db8:51::/48 encap mpls 200 via inet6 2001:2:0:19::2 dev @B"},
		in: []frame{
			on(a, v4(64).to(beyond4).long(1500).dontFragment()), on(a, v6(64).to(beyond6).long(1500)),
			on(a, v4(64).to(beyond4).long(1496).dontFragment()),
		},
		out: []frame{
			on(a, tooBigFor(1496, v4(64).to(beyond4).long(1500).dontFragment())), on(a, tooBigFor(1496, v6(64).to(beyond6).long(1500))),
			on(b, l(200, 0, 63), v4(63).to(beyond4).long(1496).dontFragment()),
		},
		or: []outcome{{words: "quotes the packet as it was to leave", ours: true, out: []frame{
			on(a, tooBigFor(1496, v4(63).to(beyond4).long(1500).dontFragment())), on(a, tooBigFor(1496, v6(63).to(beyond6).long(1500))),
			on(b, l(200, 0, 63), v4(63).to(beyond4).long(1496).dontFragment()),
		}}},
	},
}

// cutAgain are the fragments of a fragment: the last one says that more follow if it did.
func cutAgain(limit int, p packet, labels ...entry) []frame {
	whole := p.more
	frames := cut(limit, p, labels...)
	last := frames[len(frames)-1].load.(packet)
	last.more = whole
	frames[len(frames)-1].load = last
	return frames
}

// expired: M5 and M6.
var expired = []trial{
	{
		rule: "M5", clause: "RFC 3032 §2.3.2", name: "no way back: down the LSP, with the stack, each TTL that of the ICMP packet", needs: "icmp",
		config: lines(plainSwap, lsp(101, "swap 201 "+toB)), kernel: lines(kernelSwap, route(101, "as 201 "+viaB)),
		in:  []frame{on(a, l(100, 3, 1), v4(64).from(unknown4)), on(a, l(101, 3, 1), v6(64).from(unknown6))},
		out: downTheLSP(answer.itself),
		or:  []outcome{{words: "from the address of the way out", ours: true, out: downTheLSP(answer.fromB)}},
	},
	{
		rule: "M5", clause: "RFC 1122 §3.2.2, RFC 4443 §2.4 (e)", name: "never about an ICMP error",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{
			on(a, l(100, 0, 1), v4(64).icmp(3, 1, make([]byte, 32)...)), on(a, l(100, 0, 1), v4(64).icmp(11, 0, make([]byte, 32)...)),
			on(a, l(100, 0, 1), v6(64).icmp(1, 0, make([]byte, 52)...)), on(a, l(100, 0, 1), v6(64).icmp(3, 0, make([]byte, 52)...)),
		},
		counts: map[string]int{dropped(whyExpired): 4},
	},
	{
		rule: "M5", clause: "RFC 1122 §3.2.2", name: "but about an echo", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{on(a, l(100, 0, 1), v4(64).icmp(8, 0, echo...)), on(a, l(100, 0, 1), v6(64).icmp(128, 0, echo...))},
		out: []frame{
			on(a, exceeded(v4(64).icmp(8, 0, echo...), l(100, 0, 1))), on(a, exceeded(v6(64).icmp(128, 0, echo...), l(100, 0, 1))),
		},
	},
	{
		rule: "M5", clause: "RFC 1122 §3.2.2", name: "never about a fragment but the first",
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(100, 0, 1), over4.fragments(600)[1])},
		counts: map[string]int{dropped(whyExpired): 1},
	},
	{
		rule: "M5", clause: "RFC 1122 §3.2.2, RFC 4443 §2.4 (e)", name: "never to what is no single host",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{
			on(a, l(100, 0, 1), v4(64).from(nobody4)), on(a, l(100, 0, 1), v6(64).from(nobody6)),
			on(a, l(100, 0, 1), v4(64).from(netip.MustParseAddr("127.0.0.1"))), on(a, l(100, 0, 1), v4(64).from(netip.MustParseAddr("255.255.255.255"))),
			on(a, l(100, 0, 1), v4(64).from(netip.MustParseAddr("224.0.0.5"))), on(a, l(100, 0, 1), v6(64).from(netip.MustParseAddr("ff02::5"))),
			on(a, l(100, 0, 1), v4(64).from(netip.MustParseAddr("240.0.0.1"))), on(a, l(100, 0, 1), v4(64).from(netip.MustParseAddr("198.18.0.255"))),
		},
		counts: map[string]int{dropped(whyExpired): 8},
	},
	{
		rule: "M5", clause: "RFC 3032 §2.3", name: "never where the payload is no IP, or not whole",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{
			on(a, l(100, 0, 1), pseudowire()), on(a, l(100, 0, 1), raw(v4(64).bytes(usual)[:19])), on(a, l(100, 0, 1), raw(v6(64).bytes(usual)[:39])),
			on(a, l(100, 0, 1), openStack(40)), on(a, l(100, 0, 1)), on(a, l(100, 0, 1).open()),
		},
		counts: map[string]int{dropped(whyExpired): 6},
	},
	{
		rule: "M5", clause: "RFC 7325 §2.6.2", name: "at a rate: of 3000 in a moment not all are answered", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in:     each(3000, func(i int) frame { return on(a, l(100, 0, 1), v4(64).ports(uint16(10000+i), 9)) }),
		check:  answersLimited,
		counts: map[string]int{dropped(whyExpired): 3000},
	},
	{
		rule: "M6", clause: "RFC 4950 §3, RFC 4884 §5", name: "time exceeded with the stack of one label: 168 bytes for IPv4", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 5, 1), v4(64).ds(10, 1)), on(a, l(100, 5, 1), v6(64).ds(10, 1))},
		out: []frame{on(a, exceeded(v4(64).ds(10, 1), l(100, 5, 1))), on(a, exceeded(v6(64).ds(10, 1), l(100, 5, 1)))},
	},
	{
		rule: "M6", clause: "RFC 4950 §3", name: "of three labels, exactly as they came", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in: []frame{on(a, l(100, 5, 1), l(300, 1, 9), l(301, 7, 255), v4(64)), on(a, l(100, 5, 1), l(300, 1, 9), l(301, 7, 255), v6(64))},
		out: []frame{
			on(a, exceeded(v4(64), l(100, 5, 1), l(300, 1, 9), l(301, 7, 255))), on(a, exceeded(v6(64), l(100, 5, 1), l(300, 1, 9), l(301, 7, 255))),
		},
		or: []outcome{{words: "goes down the LSP, as RFC 3032 §2.3.2 allows", ours: true, out: []frame{
			on(b, l(200, 5, 0).ip(1), l(300, 1, 0).ip(0), l(301, 7, 0).ip(0), exceeded(v4(64), l(100, 5, 1), l(300, 1, 9), l(301, 7, 255))),
			on(b, l(200, 5, 0).ip(1), l(300, 1, 0).ip(0), l(301, 7, 0).ip(0), exceeded(v6(64), l(100, 5, 1), l(300, 1, 9), l(301, 7, 255))),
		}}},
	},
	{
		rule: "M6", clause: "RFC 4950 §3", name: "of labels that were popped before one expired", needs: "icmp",
		config: lines(lsp(50, "ttl pipe pop peek"), plainSwap), kernel: lines(route(50, "dev lo ttl-propagate disabled"), kernelSwap),
		in:  []frame{on(a, l(50, 2, 64), l(100, 5, 1), v4(64))},
		out: []frame{on(a, exceeded(v4(64), l(50, 2, 64), l(100, 5, 1)))},
	},
	{
		rule: "M6", clause: "RFC 4950 §3", name: "of the label that is popped at the penultimate hop", needs: "icmp",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 1), v4(64)), on(a, l(100, 0, 1), v6(64))},
		out: []frame{on(a, exceeded(v4(64), l(100, 0, 1))), on(a, exceeded(v6(64), l(100, 0, 1)))},
	},
	{
		rule: "M6", clause: "RFC 4884 §5.5, RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c)", name: "of a large packet: at least 128 bytes of it, and not over 576 or 1280 in all", needs: "icmp",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 1), over4), on(a, l(100, 0, 1), over6)},
		out: []frame{on(a, exceeded(over4, l(100, 0, 1))), on(a, exceeded(over6, l(100, 0, 1)))},
	},
}

func (w answer) itself() answer { return w }

// ip says that an entry's TTL is that of the IP header beneath, less so many.
func (e entry) ip(below uint8) entry { e.asIP, e.below = true, below; return e }

// downTheLSP is what becomes of two packets that have no way back.
func downTheLSP(from func(answer) answer) []frame {
	return []frame{
		on(b, l(200, 3, 0).ip(1), from(exceeded(v4(64).from(unknown4), l(100, 3, 1)))),
		on(b, l(201, 3, 0).ip(1), from(exceeded(v6(64).from(unknown6), l(101, 3, 1)))),
	}
}
