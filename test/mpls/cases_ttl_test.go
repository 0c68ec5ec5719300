// SPDX-License-Identifier: Apache-2.0

package mpls

import "fmt"

// models are one LSP in each model, 100 uniform, 101 pipe, 102 short pipe.
func models(words string) (all []string) {
	for i, model := range []string{"uniform", "pipe", "short-pipe"} {
		all = append(all, lsp(100+i, "ttl "+model+" "+words)...)
	}
	return all
}

// inModels is a frame for each of them; the first entry's label is 100 in the frame given.
func inModels(top entry, rest ...any) []frame {
	return each(3, func(i int) frame {
		e := top
		e.label += uint32(i)
		return on(a, append([]any{e}, rest...)...)
	})
}

// ttlBasics: T1 to T3.
var ttlBasics = []trial{
	{
		rule: "T1", clause: "RFC 3443 §3.5", name: "a swap counts down the top label, whatever lies beneath",
		config: plainSwap, kernel: kernelSwap,
		in:  []frame{on(a, l(100, 0, 40), l(300, 0, 9), v4(64)), on(a, l(100, 0, 255), v4(3))},
		out: []frame{on(b, l(200, 0, 39), l(300, 0, 9), v4(64)), on(b, l(200, 0, 254), v4(3))},
	},
	{
		rule: "T1", clause: "RFC 3443 §3.4", name: "after a uniform pop it is that of the popped label",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:  []frame{on(a, l(50, 0, 10), l(100, 0, 64), v4(64)), on(a, l(50, 0, 64), l(100, 0, 10), v4(64))},
		out: []frame{on(b, l(200, 0, 9), v4(64)), on(b, l(200, 0, 63), v4(64))},
	},
	{
		rule: "T1", clause: "RFC 3443 §3.4", name: "after a pipe's pop it is that of the exposed label",
		config: lines(lsp(50, "ttl pipe pop peek"), lsp(51, "ttl short-pipe pop peek"), plainSwap),
		kernel: lines(route(50, "dev lo ttl-propagate disabled"), route(51, "dev lo ttl-propagate disabled"), kernelSwap),
		in:     []frame{on(a, l(50, 0, 10), l(100, 0, 64), v4(64)), on(a, l(51, 0, 10), l(100, 0, 44), v4(64))},
		out:    []frame{on(b, l(200, 0, 63), v4(64)), on(b, l(200, 0, 43), v4(64))},
	},
	{
		rule: "T1", clause: "RFC 3443 §3.4", name: "several pops of one NHLFE",
		config: lsp(100, "pop pop "+toB),
		in:     []frame{on(a, l(100, 0, 20), l(200, 0, 60), l(300, 0, 61), pseudowire())},
		out:    []frame{on(b, l(300, 0, 19), pseudowire())},
	},
	{
		rule: "T1", clause: "RFC 3443 §3.4", name: "a uniform tunnel in a pipe, a pipe in a uniform one",
		config: lines(lsp(50, "pop peek"), lsp(60, "ttl pipe pop peek"), plainSwap),
		kernel: lines(route(50, "dev lo"), route(60, "dev lo ttl-propagate disabled"), kernelSwap),
		in:     []frame{on(a, l(50, 0, 10), l(60, 0, 64), l(100, 0, 30), v4(64)), on(a, l(60, 0, 10), l(50, 0, 20), l(100, 0, 30), v4(64))},
		out:    []frame{on(b, l(200, 0, 29), v4(64)), on(b, l(200, 0, 19), v4(64))},
	},
	{
		rule: "T2", clause: "RFC 3032 §2.4.2", name: "a swap of TTL 1 is not forwarded, of TTL 2 it is",
		config: plainSwap, kernel: kernelSwap,
		in:     []frame{on(a, l(100, 0, 1), pseudowire()), on(a, l(100, 0, 2), pseudowire())},
		out:    []frame{on(b, l(200, 0, 1), pseudowire())},
		counts: map[string]int{dropped(whyExpired): 1},
	},
	{
		rule: "T2", clause: "RFC 3443 §3.5 (3)", name: "a label that is popped at the penultimate hop is checked in every model",
		config: models("pop " + toB), kernel: kernelModels(viaB),
		in:     append(inModels(l(100, 0, 1), l(300, 0, 64), pseudowire()), inModels(l(100, 0, 1), v4(64).from(nobody4))...),
		counts: map[string]int{dropped(whyExpired): 6},
	},
	{
		rule: "T2", clause: "RFC 3032 §2.4.2", name: "pipe: so is what is exposed and counted down",
		config: lsp(100, "ttl pipe pop "+toB), kernel: []string{route(100, viaB+" ttl-propagate disabled")},
		in:     []frame{on(a, l(100, 0, 64), l(300, 0, 1), pseudowire()), on(a, l(100, 0, 64), v4(1).from(nobody4)), on(a, l(100, 0, 64), v6(1).from(nobody6))},
		counts: map[string]int{dropped(whyExpired): 3},
	},
	{
		rule: "T2", clause: "RFC 3443 §3.4", name: "uniform: a TTL that runs out further down",
		config: lines(lsp(50, "pop peek"), plainSwap), kernel: lines(route(50, "dev lo"), kernelSwap),
		in:     []frame{on(a, l(50, 0, 1), l(100, 0, 64), pseudowire())},
		counts: map[string]int{dropped(whyExpired): 1},
	},
	{
		rule: "T2", clause: "RFC 3032 §2.4.2", name: "a push on a label of TTL 1",
		config: lines(lsp(100, "push 300 "+toB), lsp(101, "ttl pipe push 300 "+toB), lsp(102, "ttl pipe swap 200 push 300 ttl 9 "+toB)),
		kernel: []string{route(100, "as 300/100 "+viaB), route(102, "as 300/200 "+viaB)},
		in:     inModels(l(100, 0, 1), pseudowire()),
		counts: map[string]int{dropped(whyExpired): 3},
	},
	{
		rule: "T3", clause: "RFC 3443 §3.5", name: "the three models are one at a swap",
		config: models("swap 200 " + toB), kernel: kernelModels("as 200 " + viaB),
		in:  inModels(l(100, 0, 64), v4(9)),
		out: each(3, func(int) frame { return on(b, l(200, 0, 63), v4(9)) }),
	},
	{
		rule: "T3", clause: "RFC 3443 §3.5", name: "swap and push: the label beneath is counted down once",
		config: lsp(100, "swap 200 push 300 "+toB), kernel: []string{route(100, "as 300/200 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), v4(9))},
		out: []frame{on(b, l(300, 0, 63), l(200, 0, 63), v4(9))},
	},
	{
		rule: "T3", clause: "RFC 3443 §3.2", name: "swap and push into a pipe",
		config: lines(lsp(100, "ttl pipe swap 200 push 300 ttl 9 push 400 "+toB), lsp(101, "ttl short-pipe swap 200 push 300 "+toB)),
		in:     []frame{on(a, l(100, 0, 64), v4(9)), on(a, l(101, 0, 64), v4(9))},
		out:    []frame{on(b, l(400, 0, 255), l(300, 0, 9), l(200, 0, 63), v4(9)), on(b, l(300, 0, 255), l(200, 0, 63), v4(9))},
	},
}

// kernelModels are the kernel's routes for 100 to 102: it tells uniform from pipe.
func kernelModels(words string) (all []string) {
	for i, model := range []string{"enabled", "disabled", "disabled"} {
		all = append(all, route(100+i, fmt.Sprintf("%s ttl-propagate %s", words, model)))
	}
	return all
}

// ttlPush: T4.
var ttlPush = []trial{
	{
		rule: "T4", clause: "RFC 3443 §3.1", name: "uniform over IP: the packet's TTL, after it was counted down", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", "ftn add 2001:db8:51::/48 nhlfe 1"},
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 via inet 198.19.0.2 dev @B", "route add 2001:db8:51::/48 encap mpls 200 via inet6 2001:2:0:19::2 dev @B"},
		in:     []frame{on(a, v4(40).to(beyond4)), on(a, v6(41).to(beyond6)), on(a, v4(2).to(beyond4))},
		out:    []frame{on(b, l(200, 0, 39), v4(39).to(beyond4)), on(b, l(200, 0, 40), v6(40).to(beyond6)), on(b, l(200, 0, 1), v4(1).to(beyond4))},
	},
	{
		rule: "T4", clause: "RFC 3443 §3.2", name: "pipe over IP: 255, or what was configured", needs: "ftn",
		setup:  beyondB,
		config: []string{nhlfe(1, "ttl pipe push 200 "+toB), nhlfe(2, "push 201 ttl 30 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", "ftn add 2001:db8:51::/48 nhlfe 2"},
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 ttl 255 via inet 198.19.0.2 dev @B", "route add 2001:db8:51::/48 encap mpls 201 ttl 30 via inet6 2001:2:0:19::2 dev @B"},
		in:     []frame{on(a, v4(40).to(beyond4)), on(a, v6(41).to(beyond6))},
		out:    []frame{on(b, l(200, 0, 255), v4(39).to(beyond4)), on(b, l(201, 0, 30), v6(40).to(beyond6))},
	},
	{
		rule: "T4", clause: "RFC 3443 §3.1", name: "uniform over a label: both have its TTL, counted down",
		config: lsp(100, "push 300 push 400 "+toB), kernel: []string{route(100, "as 400/300/100 "+viaB)},
		in:  []frame{on(a, l(100, 0, 64), v4(9))},
		out: []frame{on(b, l(400, 0, 63), l(300, 0, 63), l(100, 0, 63), v4(9))},
	},
	{
		rule: "T4", clause: "RFC 3443 §3.2", name: "pipe over a label: 255, or what was configured",
		config: lines(lsp(100, "ttl pipe push 300 "+toB), lsp(101, "ttl short-pipe push 300 ttl 1 "+toB), lsp(102, "push 300 ttl 77 "+toB)),
		in:     inModels(l(100, 0, 64), v4(9)),
		out: []frame{
			on(b, l(300, 0, 255), l(100, 0, 63), v4(9)), on(b, l(300, 0, 1), l(101, 0, 63), v4(9)), on(b, l(300, 0, 77), l(102, 0, 63), v4(9)),
		},
	},
	{
		rule: "T4", clause: "RFC 3443 §3.1", name: "over IP that a uniform pop exposed: the TTL that the packet has then",
		config: popThenPush("uniform"),
		in:     []frame{on(a, l(100, 0, 64), v4(64)), on(a, l(100, 0, 30), v4(64)), on(a, l(100, 0, 64), v6(30)), on(a, l(100, 0, 2), v6(64)), on(a, l(100, 0, 64), v4(1))},
		out: []frame{
			on(b, l(300, 0, 63), v4(63)), on(b, l(300, 0, 29), v4(29)), on(b, l(300, 0, 30), v6(30)), // the smaller one stays: T7
			on(b, l(300, 0, 1), v6(1)), on(b, l(300, 0, 1), v4(1)),
		},
		or: []outcome{{words: "that of the popped label", ours: true, out: []frame{
			on(b, l(300, 0, 63), v4(63)), on(b, l(300, 0, 29), v4(29)), on(b, l(300, 0, 63), v6(30)), on(b, l(300, 0, 1), v6(1)), on(b, l(300, 0, 63), v4(1)),
		}}},
	},
	{
		rule: "T4", clause: "RFC 3032 §2.4.2", name: "and nothing if that is 0", needs: "zero",
		config: popThenPush("uniform"),
		in:     []frame{on(a, l(100, 0, 64), v4(0).from(nobody4)), on(a, l(100, 0, 64), v6(0).from(nobody6)), on(a, l(100, 0, 1), v4(64).from(nobody4))},
	},
	{
		rule: "T4", clause: "RFC 3443 §3.2", name: "over IP that a pipe's pop exposed: its own TTL, counted down",
		config: popThenPush("pipe"),
		in:     []frame{on(a, l(100, 0, 1), v4(64)), on(a, l(100, 0, 64), v6(30)), on(a, l(100, 0, 64), v4(1).from(nobody4)), on(a, l(100, 0, 64), v6(0).from(nobody6))},
		out:    []frame{on(b, l(300, 0, 63), v4(63)), on(b, l(300, 0, 29), v6(29))},
	},
	{
		rule: "T4", clause: "RFC 3032 §2.1", name: "a TTL that does not fit into eight bits is refused",
		config:        []string{nhlfe(1, "swap 200 "+toB)},
		refused:       []string{nhlfe(2, "swap 200 push 300 ttl 256 "+toB), nhlfe(2, "swap 200 push 300 ttl -1 "+toB)},
		kernel:        predefined,
		kernelRefused: []string{"route add 198.51.100.0/24 encap mpls 200 ttl 256 via inet 198.19.0.2 dev @B"},
	},
}

// popThenPush pops a label, and an NHLFE that is chosen then pushes another one.
func popThenPush(model string) []string {
	return []string{nhlfe(1, "push 300 "+toB), nhlfe(100, "ttl "+model+" pop by-tc 0:1"), ilm(100, "nhlfe 100")}
}

// ttlPop: T5 to T9.
var ttlPop = []trial{
	{
		rule: "T5", clause: "RFC 3032 §2.4.2, RFC 3443 §3.1", name: "PHP, uniform: the exposed label gets the outgoing TTL",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 30), l(200, 0, 64), v4(9)), on(a, l(100, 0, 64), l(200, 0, 30), v4(9))},
		out: []frame{on(b, l(200, 0, 29), v4(9)), on(b, l(200, 0, 63), v4(9))},
	},
	{
		rule: "T5", clause: "RFC 3032 §2.4.3", name: "PHP, uniform: so does the IP header, and its checksum is right",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 30), v4(64)), on(a, l(100, 0, 30), v6(64)), on(a, l(100, 0, 2), v4(255))},
		out: []frame{on(b, v4(29)), on(b, v6(29)), on(b, v4(1))},
	},
	{
		rule: "T5", clause: "RFC 3443 §3.3, §3.5", name: "PHP, short pipe: the exposed TTL is neither checked nor changed",
		config: lsp(100, "ttl short-pipe pop "+toB),
		in: []frame{
			on(a, l(100, 0, 30), l(200, 0, 64), v4(9)), on(a, l(100, 0, 30), l(200, 0, 1), v4(9)),
			on(a, l(100, 0, 30), v4(64)), on(a, l(100, 0, 30), v4(1)), on(a, l(100, 0, 30), v6(1)),
		},
		out: []frame{on(b, l(200, 0, 64), v4(9)), on(b, l(200, 0, 1), v4(9)), on(b, v4(64)), on(b, v4(1)), on(b, v6(1))},
	},
	{
		rule: "T5", clause: "RFC 3443 §3.2", name: "PHP, pipe: the exposed label counts down by itself",
		config: lsp(100, "ttl pipe pop "+toB), kernel: []string{route(100, viaB+" ttl-propagate disabled")},
		in:  []frame{on(a, l(100, 0, 30), l(200, 0, 64), v4(9))},
		out: []frame{on(b, l(200, 0, 63), v4(9))},
	},
	{
		rule: "T5", clause: "RFC 3443 §3.2", name: "PHP, pipe: so does the IP header",
		config: lsp(100, "ttl pipe pop "+toB), kernel: []string{route(100, viaB+" ttl-propagate disabled")},
		in:  []frame{on(a, l(100, 0, 30), v4(64)), on(a, l(100, 0, 30), v6(64))},
		out: []frame{on(b, v4(63)), on(b, v6(63))},
	},
	{
		rule: "T6", clause: "RFC 3443 §3.2", name: "UHP, pipe: a label TTL of 1 is fine, the packet counts down once",
		config: lsp(100, "ttl pipe pop deliver"), kernel: []string{route(100, "dev lo ttl-propagate disabled")},
		in:  []frame{on(a, l(100, 0, 1), v4(64)), on(a, l(100, 0, 200), v6(64))},
		out: []frame{on(b, v4(63)), on(b, v6(63))},
	},
	{
		rule: "T6", clause: "RFC 3443 §3.2", name: "a whole LSP of a pipe costs two: one at its head, one at its tail", needs: "ftn",
		setup:  beyondB,
		config: lines(nhlfe(1, "ttl pipe push 200 "+toB), "ftn add 198.51.100.0/24 nhlfe 1", lsp(100, "ttl pipe pop deliver")),
		kernel: []string{"route add 198.51.100.0/24 encap mpls 200 ttl 255 via inet 198.19.0.2 dev @B", route(100, "dev lo ttl-propagate disabled")},
		in:     []frame{on(a, v4(64).to(beyond4)), on(b, l(100, 0, 255), v4(63).from(beyond4).to(host4[a]))},
		out:    []frame{on(b, l(200, 0, 255), v4(63).to(beyond4)), on(a, v4(62).from(beyond4).to(host4[a]))},
	},
	{
		rule: "T7", clause: "RFC 3443 §3.1", name: "PHP, uniform: a smaller IP TTL stays",
		config: plainPop, kernel: kernelPop,
		in:  []frame{on(a, l(100, 0, 64), v4(30)), on(a, l(100, 0, 64), v6(30)), on(a, l(100, 0, 255), v4(1))},
		out: []frame{on(b, v4(30)), on(b, v6(30)), on(b, v4(1))},
		or:  []outcome{{words: "is replaced, as RFC 3443 says", out: []frame{on(b, v4(63)), on(b, v6(63)), on(b, v4(254))}}},
	},
	{
		rule: "T7", clause: "RFC 3443 §3.1", name: "UHP, uniform: a smaller IP TTL stays",
		config: lsp(100, "pop deliver"), kernel: []string{route(100, "dev lo")},
		in:  []frame{on(a, l(100, 0, 64), v4(30)), on(a, l(100, 0, 30), v6(64))},
		out: []frame{on(b, v4(29)), on(b, v6(29))},
		or:  []outcome{{words: "is replaced, as RFC 3443 says", out: []frame{on(b, v4(63)), on(b, v6(29))}}},
	},
	{
		rule: "T8", clause: "RFC 3443 §2.3, RFC 8029 §4.4", name: "explicit null with TTL 1: the router answers a ping",
		config: predefined, kernel: predefined,
		in:  pings(l(0, 0, 1), l(2, 0, 1)),
		out: pongs(),
	},
	{
		rule: "T8", clause: "RFC 3443 §2.3", name: "so it does behind a label of its own, in every model",
		config: models("pop deliver"), kernel: kernelModels("dev lo"),
		in:  append(pings(l(100, 0, 1), l(101, 0, 1)), pings(l(102, 0, 1), l(102, 0, 1))...),
		out: append(pongs(), pongs()...),
	},
	{
		rule: "T9", clause: "RFC 3032 §2.4.2", name: "swapped, pushed on, popped: TTL 0 is never forwarded",
		config: lines(models("pop "+toB), lsp(103, "swap 200 "+toB), lsp(104, "push 300 "+toB)),
		kernel: lines(kernelModels(viaB), route(103, "as 200 "+viaB), route(104, "as 300/104 "+viaB)),
		in: append(append(inModels(l(100, 0, 0), l(300, 0, 64), pseudowire()), inModels(l(100, 0, 0), v4(64).from(nobody4))...),
			on(a, l(103, 0, 0), pseudowire()), on(a, l(104, 0, 0), pseudowire())),
		counts: map[string]int{dropped(whyZero): 8},
	},
	{
		rule: "T9", clause: "RFC 3032 §2.4.2, RFC 1812 §5.3.1", name: "PHP, uniform: nor is a packet whose TTL of 0 would stay", needs: "zero",
		config: plainPop, kernel: kernelPop,
		in: []frame{on(a, l(100, 0, 64), v4(0).from(nobody4)), on(a, l(100, 0, 64), v6(0).from(nobody6))},
		or: []outcome{{words: "the TTL is replaced, as RFC 3443 says", out: []frame{on(b, v4(63).from(nobody4)), on(b, v6(63).from(nobody6))}}},
	},
}

// pings ask the router itself, over IPv4 and IPv6; pongs are its answers.
func pings(over4, over6 entry) []frame {
	return []frame{
		on(a, over4, v4(64).to(router4[a]).icmp(8, 0, echo...)),
		on(a, over6, v6(64).to(router6[a]).icmp(128, 0, echo...)),
	}
}

func pongs() []frame {
	p4, p6 := v4(64).from(router4[a]).to(host4[a]), v6(64).from(router6[a]).to(host6[a])
	p4.own, p6.own = true, true
	return []frame{on(a, p4.icmp(0, 0, echo...)), on(a, p6.icmp(129, 0, echo...))}
}

// echo is identifier, sequence number and data of an echo.
var echo = append([]byte{0x12, 0x34, 0, 1}, filler(28)...)
