// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"slices"
	"strings"
	"testing"
)

// rule is a line of the specification. Its words are a summary for the table; what is
// demanded is in the clauses.
type rule struct{ id, clause, words string }

var rules = []rule{
	{"P1", "RFC 5332 §4, RFC 3032 §5", "EtherType 0x8847; 0x8848 only for an upstream-assigned top label; tags may precede"},
	{"P2", "RFC 3032 §2.1", "S is set in exactly the last entry"},
	{"P3", "RFC 3032 §2.2, RFC 4385", "the payload's protocol is known or the packet is discarded; a pseudowire is never taken for IP"},
	{"P4", "RFC 7325 §2.1, RFC 7274 §3.1.1", "truncated stacks are discarded; a swap needs no S"},
	{"P5", "RFC 3031 §3.14", "MPLS input is off unless a port is told otherwise"},
	{"L1", "RFC 3031 §3.14, RFC 5331 §3, §8", "a label is looked up in its space"},
	{"L2", "RFC 3031 §3.18, §3.22", "unknown labels, and labels without a next hop, are discarded and counted"},
	{"L3", "RFC 3031 §3.11, RFC 3270 §2.4", "of several NHLFEs exactly one is chosen, by class; a microflow stays on one"},
	{"L4", "RFC 6178 §4", "IP options do not change what is imposed"},
	{"L5", "RFC 7325 §2.5", "recursion is bounded; every pop and swap counts"},
	{"S0", "RFC 4182, RFC 3032 §2.1", "explicit null is legal anywhere; at the bottom it tells the payload"},
	{"S1", "RFC 3032 §2.1", "router alert goes to the daemon; never at the bottom"},
	{"S3", "RFC 3032 §2.1, RFC 7274 §5", "implicit null is never on the wire; outgoing it is a pop"},
	{"S4", "RFC 3031 §3.18, RFC 7325 §2.1.1", "unassigned special-purpose labels are dropped"},
	{"S7", "RFC 6790 §4.3", "ELI on top on arrival is dropped"},
	{"S13", "RFC 5586 §4", "GAL is for OAM here, and not forwarded"},
	{"S14", "RFC 7325 §2.1.1", "OAM alert is dropped"},
	{"S15", "RFC 9017 §4, RFC 7274 §3.1", "XL is dropped: not understood, at the bottom, or before 0 to 15"},
	{"T1", "RFC 3443 §3.4", "the incoming TTL by model, over several pops"},
	{"T2", "RFC 3032 §2.4.2, RFC 3443 §2.3", "a TTL that runs out is neither forwarded nor stripped and forwarded"},
	{"T3", "RFC 3443 §3.5", "a swap writes the outgoing TTL in every model"},
	{"T4", "RFC 3443 §3.1, §3.2", "a push copies the TTL (uniform) or sets its own (pipe)"},
	{"T5", "RFC 3443 §3.1, §3.3", "PHP: uniform writes the exposed TTL, short pipe does not look at it"},
	{"T6", "RFC 3443 §3.2", "UHP with pipe: the core is hidden, and a label TTL of 1 is fine"},
	{"T7", "RFC 3443 §3.1", "uniform never raises an IP TTL: the smaller of label and IP"},
	{"T8", "RFC 3443 §2.3, RFC 8029 §4.4", "delivery to oneself is no forwarding: TTL 1 is delivered"},
	{"T9", "RFC 3032 §2.4.2", "a received TTL of 0 is never forwarded"},
	{"Q1", "RFC 3270 §2.6", "the models differ at push and pop alone"},
	{"Q2", "RFC 3270 §2.6.2", "pipe: the exposed header stays; the class is that before the pop, of short pipe that after it"},
	{"Q3", "RFC 3270 §2.6.4", "uniform: the class goes into the exposed header"},
	{"Q4", "RFC 3270 §3.2.1, §4.2.1.1", "maps of E-LSP and L-LSP"},
	{"Q5", "RFC 7325 §2.1.2", "maps per LSP, shared by LSPs"},
	{"Q6", "RFC 2474 §3, RFC 3168 §5", "writing a DSCP keeps ECN, and the checksum right"},
	{"Q7", "RFC 5129 §4", "ECN in the TC field, where an operator assigns code points"},
	{"Q8", "RFC 5462", "TC is what was EXP: three bits above S"},
	{"M1", "RFC 3032 §3.3", "what fits goes out whole"},
	{"M2", "RFC 3032 §3.4, §3.5", "what does not: fragments with the same stack, or an ICMP error with the MTU less the stack"},
	{"M3", "RFC 3032 §3.2", "a largest size of initially labelled datagrams"},
	{"M4", "RFC 3032 §3.6", "the head of an LSP answers for its MTU"},
	{"M5", "RFC 3032 §2.3.2, RFC 7325 §2.6.2", "ICMP only where it can be: back, or down the LSP; never about errors; at a rate"},
	{"M6", "RFC 4884 §5, RFC 4950 §3", "the stack, exactly as received, in the ICMP error"},
	{"E1", "RFC 6790 §3, §4.2", "ingress: TL, ELI, EL with TTL 0"},
	{"E2", "RFC 6790 §4.1", "egress: ELI and EL go with the label before them"},
	{"E3", "RFC 7325 §2.4.5, RFC 6790 §4.3", "what feeds the hash, and what must not"},
	{"E4", "RFC 6790 §4.4, RFC 7325 §2.1.8", "PHP strips ELI and EL; the same flows go the same ways"},
	{"O1", "RFC 8029 §4.4, RFC 1122 §3.2.1.3", "what is for OAM is not forwarded; 127/8 is not routed"},
	{"O2", "RFC 3813", "counters per segment and interface"},
	{"O3", "RFC 7325 T#6", "counters are exact with all traffic on one LSP"},
}

// ruleAt is where a rule stands in the table, or -1.
func ruleAt(id string) int {
	return slices.IndexFunc(rules, func(r rule) bool { return r.id == id })
}

// TestTables: every rule has a case, and every case is one that can be told.
func TestTables(t *testing.T) {
	cases := map[string]int{}
	names := map[string]bool{}
	for _, c := range trials() {
		if ruleAt(c.rule) < 0 {
			t.Errorf("%s: there is no rule %q", c.name, c.rule)
		}
		if c.clause == "" || c.name == "" || names[c.rule+c.name] {
			t.Errorf("%s %q: has no clause, or no name of its own", c.rule, c.name)
		}
		for _, word := range strings.Fields(c.needs) {
			if needs[word] == "" {
				t.Errorf("%s: there is no need %q", c.name, word)
			}
		}
		if c.check != nil && (c.out != nil || c.or != nil) {
			t.Errorf("%s: is judged twice", c.name)
		}
		if len(c.in) == 0 && len(c.refused)+len(c.kernelRefused) == 0 {
			t.Errorf("%s: does nothing", c.name)
		}
		names[c.rule+c.name] = true
		cases[c.rule]++
	}
	for _, r := range rules {
		if cases[r.id] == 0 {
			t.Errorf("%s (%s) has no case", r.id, r.words)
		}
	}
	t.Logf("%d cases for %d rules", len(names), len(rules))
}
