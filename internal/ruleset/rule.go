// SPDX-License-Identifier: Apache-2.0

package ruleset

import "fmt"

// rule is what matters of a rule, whichever tool wrote it.
type rule struct {
	where    string // behind the chain's name: its handle or number, and its comment
	match    Match
	exact    bool   // all that it asks for stands in match
	stateful bool   // it asks for conntrack's state
	never    bool   // no packet that could be repeated fits it
	varies   string // what in it looks at each packet
	acts     bool   // it changes the packet, or what becomes of it
	counts   string // what in it counts, logs or copies
	ipset    bool   // it asks an ipset
	to       []branch
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
	return rule{where: where, match: Match{States: AnyState}, exact: true}
}

// vary notes that the rule looks at each packet; the first finding is told.
func (r *rule) vary(why string) {
	if r.varies == "" {
		r.varies = why
	}
	r.exact = false
}

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

// Bits of the TCP flags. A repeated packet has ACK and none of the other three.
const (
	tcpFIN, tcpSYN, tcpRST, tcpACK = 1, 2, 4, 16
	tcpKnown                       = tcpFIN | tcpSYN | tcpRST | tcpACK
)

// flags asks that of the TCP flags in mask those in want are set, or (not) that they are
// anything else.
func (r *rule) flags(mask, want byte, not bool) {
	known, conflict := mask&^tcpKnown == 0, mask&tcpKnown&tcpACK != want&tcpKnown
	switch {
	case conflict && !not, known && !conflict && not:
		r.never = true
	case conflict || known: // always so
	default:
		r.vary("TCP flags")
	}
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

func (c *chain) add(r rule) {
	if r.never {
		return
	}
	follow := r.varies != ""
	for _, b := range r.to {
		switch b.kind {
		case terminal:
			c.acts = true
			follow = follow || r.exact
		default:
			follow = true
		}
	}
	c.acts = c.acts || r.acts
	if r.counts != "" {
		c.count(r.where, r.counts)
	}
	if follow {
		c.rules = append(c.rules, r)
	}
}

func (c *chain) count(where, what string) {
	if c.counted++; len(c.counting) < maxCounting {
		c.counting = append(c.counting, fmt.Sprintf("%s %s (%s)", c.name, where, what))
	}
}
