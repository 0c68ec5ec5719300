// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// trial is one case: what the router is told, what is sent to it, what must come out.
type trial struct {
	rule   string // of the table in rules_test.go
	clause string // where the RFCs say so
	name   string
	needs  string // what it takes beyond switching of labelled frames; a word of `needs`

	spaces        [2]string // label space of A and B, perhaps with one for groups; "" is 0
	setup         []string  // `ip` lines for a router that leaves routing to the kernel
	config        []string  // lines of `shunt mpls`; nil: the grammar has no words for it
	kernel        []string  // `ip` lines for the kernel's own MPLS; nil: it has no words for it
	refused       []string  // lines of `shunt mpls` of which each must be refused
	kernelRefused []string

	in, out []frame
	or      []outcome                             // others that the RFCs allow, and this router does not do
	counts  map[string]int                        // what counters rise by
	levels  map[string]int                        // what numbers of things are, the fence's among them
	check   func(in []frame, came [][]byte) error // instead of out
}

// checked is the port whose frames check looks at: answers come back to A.
func (c trial) checked() port {
	if c.needs == "icmp" {
		return a
	}
	return b
}

// outcome is another thing that a router may do.
type outcome struct {
	words string
	ours  bool // not decided yet: shunt may do so too
	out   []frame
}

// needs are the words for what a trial takes beyond the switching of labelled frames.
var needs = map[string]string{
	"icmp":      "label TTL expiry and too big packets are answered with ICMP by the daemon",
	"fragment":  "IPv4 packets are fragmented by the daemon",
	"ftn":       "IP traffic is put into LSPs at TC egress",
	"upstream":  "upstream-assigned labels come with EtherType 0x8848",
	"vlan":      "labelled frames come and go with a VLAN tag",
	"multicast": "labelled frames come to a group MAC",
	"zero":      "an IP TTL of 0 beneath a label that is popped is looked at",
	"alert":     "the daemon forwards what it was given for a router alert",
}

// Words of the configuration. @A and @B are the router's ports.
const (
	toA  = "send dev @A via inet 198.18.0.2"
	toB  = "send dev @B via inet 198.19.0.2"
	viaB = "via inet 198.19.0.2 dev @B"
)

// nhlfe and ilm are lines; lsp is both, for a label and what is done with it.
func nhlfe(id int, words string) string  { return fmt.Sprintf("nhlfe add %d %s", id, words) }
func ilm(label int, words string) string { return fmt.Sprintf("ilm add %d %s", label, words) }
func lsp(label int, words string) []string {
	return []string{nhlfe(label, words), ilm(label, fmt.Sprintf("nhlfe %d", label))}
}

// lines puts several together.
func lines(parts ...any) (all []string) {
	for _, part := range parts {
		switch p := part.(type) {
		case string:
			all = append(all, p)
		case []string:
			all = append(all, p...)
		}
	}
	return all
}

// route is a label's route in the kernel's words.
func route(label int, words string) string {
	return strings.TrimSpace(fmt.Sprintf("-f mpls route add %d %s", label, words))
}

// Counters, by the flat names that statistics_test.go gives them.
func inSegment(space, label int, name string) string {
	return fmt.Sprintf("in/%d/%d/%s", space, label, name)
}
func outSegment(id int, name string) string { return fmt.Sprintf("out/%d/%s", id, name) }
func ofPort(p port, name string) string     { return fmt.Sprintf("interface/@%s/%s", p, name) }
func dropped(why string) string             { return "reason/" + why }

// Why a labelled frame is not forwarded: the reasons of the data path.
const (
	whySpaceOff  = "mpls_off"       // MPLS input is off on the port
	whyUnknown   = "mpls_no_label"  // no such label in the space
	whySpecial   = "mpls_special"   // a special-purpose label that is not allowed there
	whyMalformed = "mpls_malformed" // truncated, or labels that contradict each other
	whyPayload   = "mpls_payload"   // beneath the stack is not the IP that it was to be
	whyExpired   = "mpls_ttl"       // the outgoing TTL would be 0
	whyZero      = "mpls_ttl_zero"  // it came in with 0
	whyTooBig    = "mpls_over_mtu"
	whyDeep      = "mpls_depth"   // over 16 look-ups
	whyDiscard   = "mpls_discard" // by an instruction, or no choice for this TC or DSCP
	whyOAM       = "mpls_oam"     // GAL: the daemon's
)

// each is a number of copies of a thing.
func each(n int, f func(i int) frame) (all []frame) {
	for i := range n {
		all = append(all, f(i))
	}
	return all
}

// trials are all cases, in the order of the rules.
func trials() []trial {
	all := slices.Concat(framing, stacks, payloads, truncated, lookup, choosing, recursion, special, refusals,
		ttlBasics, ttlPush, ttlPop, classes, classesWritten, tooBig, expired, entropyLabels, balance, oam)
	slices.SortStableFunc(all, func(x, y trial) int { return cmp.Compare(ruleAt(x.rule), ruleAt(y.rule)) })
	return all
}
