// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"slices"
)

// rule is what matters of a rule, whichever tool wrote it.
type rule struct {
	where    string // behind the chain's name: its handle or number, and its comment
	match    Match
	exact    bool   // proved: every packet in match fits the rule
	stateful bool   // it asks for conntrack's state
	never    bool   // no packet that could be repeated fits it
	varies   string // what in it looks at each packet
	until    Until  // beyond this its outcome stays what it is, and varies no longer counts
	acts     bool   // it changes the packet, or what becomes of it
	counts   string // what in it counts, logs or copies
	ipset    bool   // it asks an ipset
	to       []branch

	// State that packets move (named.go).
	drained bool     // packets use up state of this rule itself
	moves   bool     // there is some such state
	reach   Match    // the packets that come to the first one: later conditions spare none
	feeds   []string // names of the state that it moves, more with each packet
	adds    []string // sets that it adds to: the same element again changes nothing
	asks    []string // names of the state that its outcome depends on
	deletes []string // sets that it takes elements from
	keeps   []keep   // what runs out unless its packets come (clock.go)
	clock   Clock    // that of them which runs out first, once all rules are known
	fed     bool     // what it feeds is asked by a rule with a verdict, or runs out too soon
}

// branch is where a rule sends packets; a verdict map has one for each element.
type branch struct {
	kind  branchKind
	chain string // jump, goTo
	match Match  // which of the rule's packets
	exact bool   // all of those
}

type branchKind uint8

const (
	terminal branchKind = iota // accepted, dropped or queued: no rule of this base chain sees it again
	giveBack                   // "return"
	jump
	goTo
	jumpAnywhere // to some chain of the table: an element of a map that was not read
)

func newRule(where string) rule {
	return rule{where: where, match: Match{States: AnyState}}
}

// vary notes that the rule looks at each packet; the first finding is told, but one about tunnels
// alone says less than any other. What stands behind a condition that no repeated packet fits
// is not reached.
func (r *rule) vary(why string) {
	if (r.varies == "" || r.varies == insideTunnels) && !r.never {
		r.varies = why
	}
}

// drain is vary, for state that every packet uses up that comes so far: at says which.
func (r *rule) drain(why string, at Match) {
	if r.never {
		return
	}
	r.vary(why)
	r.reached(at)
	r.drained = true
}

// reached notes which packets come to the rule's first state.
func (r *rule) reached(at Match) {
	if !r.moves {
		r.moves, r.reach = true, at
	}
}

// feed notes that packets move state with a name.
func (r *rule) feed(name string, at Match) {
	if r.never {
		return
	}
	r.reached(at)
	r.feeds = append(r.feeds, name)
}

// enforce makes all packets that come to the rule's first state stay with the kernel.
func (r *rule) enforce(why string) {
	r.fed, r.exact, r.until = true, false, Until{}
	if r.varies == "" || r.varies == insideTunnels {
		r.varies = why
	}
}

func (r *rule) ask(name string) { r.asks = append(r.asks, name) }

// only narrows the rule's match, but for states; what no packet can fit makes it never match.
func (r *rule) only(m Match) {
	states := r.match.States
	r.match.States, m.States = AnyState, AnyState
	var ok bool
	if r.match, ok = r.match.both(m); !ok {
		r.never = true
	}
	r.match.States = states
}

// send adds a branch for all of the rule's packets.
func (r *rule) send(kind branchKind, chain string) {
	r.to = append(r.to, branch{kind: kind, chain: chain, match: Match{States: AnyState}, exact: true})
}

// queue is the verdict of NFQUEUE: a program looks at each packet.
func (r *rule) queue() {
	r.vary("queue")
	r.send(terminal, "")
}

// spend notes a comparison of a counter that only grows: past a bound its outcome stays. A rule
// that has two such counters varies for good.
func (r *rule) spend(u Until, why string) {
	switch {
	case r.never:
	case r.until.Counter == 0:
		r.until = u
	case r.until.Counter == u.Counter && r.until.Direction == u.Direction:
		r.until.At = max(r.until.At, u.At)
	default:
		r.vary(why)
	}
}

// finish settles what is known only of a whole rule.
func (r *rule) finish() {
	if r.until.Counter != 0 {
		r.exact = false
		if r.varies == "" && len(r.feeds)+len(r.adds)+len(r.keeps) == 0 {
			r.varies = "ct " + r.until.Counter.String()
		} else {
			r.vary("ct " + r.until.Counter.String())
			r.until = Until{}
		}
	}
	if r.varies != "" {
		r.exact = false
		r.feeds, r.adds = append(r.feeds, r.adds...), nil
	}
}

// decides reports whether anything depends on whether a packet fits, jumps aside.
func (r *rule) decides() bool {
	return r.acts || slices.ContainsFunc(r.to, func(b branch) bool { return b.kind != jump })
}

// Bits of the TCP flags. A repeated packet has ACK and none of the other three.
const (
	tcpFIN, tcpSYN, tcpRST, tcpACK = 1, 2, 4, 16
	tcpKnown                       = tcpFIN | tcpSYN | tcpRST | tcpACK
)

// flags asks that of the TCP flags in mask those in want are set, or (not) that they are
// anything else, and reports whether all repeated packets fit.
func (r *rule) flags(mask, want byte, not bool) (all bool) {
	known, conflict := mask&^tcpKnown == 0, want&^mask != 0 || mask&tcpKnown&tcpACK != want&tcpKnown
	switch {
	case conflict && !not, known && !conflict && not:
		r.never = true
	case conflict || known: // always so
		return true
	default:
		r.vary("TCP flags")
	}
	return false
}

type chainName struct{ source, table, name string }

func (n chainName) String() string { return fmt.Sprintf("%s %s %s", n.source, n.table, n.name) }

// chain keeps those of its rules that can matter.
type chain struct {
	name     chainName
	rules    []rule
	acts     bool     // some rule does more than count or jump
	counting []string // the first rules that count
	counted  int
}

// add returns the place of the rule, if it is kept; -1: it is not.
func (c *chain) add(r rule) int {
	if r.never && !r.drained && len(r.feeds)+len(r.adds)+len(r.keeps) == 0 {
		return -1
	}
	c.acts = c.acts || r.acts && !r.never
	if r.counts != "" && !r.never {
		c.count(r.where, r.counts)
	}
	follow := r.varies != "" || len(r.feeds)+len(r.adds)+len(r.keeps) > 0
	for _, b := range r.to {
		switch {
		case r.never:
		case b.kind == terminal:
			c.acts = true
			follow = follow || r.exact
		default:
			follow = true
		}
	}
	if !follow {
		return -1
	}
	c.rules = append(c.rules, r)
	return len(c.rules) - 1
}

func (c *chain) count(where, what string) {
	if c.counted++; len(c.counting) < maxCounting {
		c.counting = append(c.counting, fmt.Sprintf("%s %s (%s)", c.name, where, what))
	}
}
