// SPDX-License-Identifier: Apache-2.0

package ruleset

import "slices"

// State with a name: sets, quotas, limits, recent lists and the like, which packets move in one
// rule and another one asks, in this table or the next. Packets that are repeated would
// move it no further. So where a rule with a verdict asks, all that feeds it looks at each packet,
// although it has no verdict itself. Only what nobody asks does no more than count. What only keeps
// alive is repeated within the time that it has (clock.go).

// namedRule is a rule that moves or asks state with a name.
type namedRule struct {
	chain *chain
	at    int // its place in chain.rules; -1: it is not there
	rule  rule
}

// settle finds out what is asked, and makes what feeds it enforce. A rule without a verdict asks,
// too, if what it feeds is asked.
func (w *walk) settle() {
	deleted := map[string]bool{}
	for _, n := range w.named {
		for _, name := range n.rule.deletes {
			deleted[name] = true
		}
	}
	for i := range w.named { // to add again what another rule takes out does something
		r := &w.named[i].rule
		for _, name := range r.adds {
			if deleted[name] {
				r.feeds = append(r.feeds, name)
			}
		}
	}
	w.setClocks()
	for again := true; again; {
		again = false
		clear(w.harmless)
		for _, n := range w.named {
			if !w.hasSay(n) {
				continue
			}
			for _, name := range n.rule.asks {
				again = again || !w.asked[name]
				w.asked[name] = true
			}
		}
	}
	for _, n := range w.named {
		if n.at < 0 {
			continue
		}
		r := &n.chain.rules[n.at]
		r.clock = n.rule.clock
		if which := slices.IndexFunc(n.rule.feeds, func(name string) bool { return w.asked[name] }); which >= 0 {
			r.enforce(n.rule.feeds[which] + ", which a rule asks")
		}
		if r.clock.tooShort() {
			r.enforce(r.clock.ends())
		}
	}
}

// hasSay reports whether something depends on a rule's outcome.
func (w *walk) hasSay(n namedRule) bool {
	return n.rule.decides() || w.movesAsked(&n.rule) ||
		slices.ContainsFunc(n.rule.to, func(b branch) bool { return b.kind == jump && !w.isHarmless(w.target(n.chain, b), 0) })
}

// movesAsked reports whether a rule moves state that is asked.
func (w *walk) movesAsked(r *rule) bool {
	return slices.ContainsFunc(slices.Concat(r.feeds, r.adds), func(name string) bool { return w.asked[name] })
}
