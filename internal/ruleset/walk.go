// SPDX-License-Identifier: Apache-2.0

package ruleset

import "slices"

// walk follows packets through the chains that forwarded ones pass.
type walk struct {
	chains map[chainName]*chain
	bases  []base

	report   Report
	findings map[string]int // place in report.Enforcing, by rule
	visited  map[*chain]map[Match]States
	harmless map[*chain]bool
	counted  map[*chain]bool
	steps    int
	raw      bool // in a chain before conntrack
}

// base is a chain with a hook.
type base struct {
	name     chainName
	hook     uint32
	priority int32
	families []uint8
}

// Bounds of a walk. A ruleset that needs more is taken for one that looks at everything.
const (
	mostSteps    = 2_000_000 // rules met
	mostMatches  = 64        // ways to one chain, before it is walked for everything
	mostNested   = 32        // jumps; the kernel takes 16
	allTheOthers = "more rules of this kind"
)

func newWalk() *walk {
	return &walk{chains: map[chainName]*chain{}, findings: map[string]int{}, harmless: map[*chain]bool{}, counted: map[*chain]bool{}}
}

// put adds a rule to a chain.
func (w *walk) put(c *chain, r rule) {
	if r.ipset {
		w.silent("members of an ipset")
	}
	c.add(r)
}

func (w *walk) silent(what string) {
	if !slices.Contains(w.report.Silent, what) && len(w.report.Silent) < MaxFindings {
		w.report.Silent = append(w.report.Silent, what)
	}
}

// run follows each family through each base chain by itself: what one chain accepts, the
// next one sees all the same.
func (w *walk) run() Report {
	sortBases(w.bases)
	for _, b := range w.bases {
		c := w.chains[b.name]
		w.raw = b.hook == hookPrerouting && b.priority <= conntrackPriority
		w.visited = map[*chain]map[Match]States{}
		for _, family := range b.families {
			w.enter(c, Match{Family: family, States: AnyState}, 0)
		}
	}
	slices.Sort(w.report.Silent)
	for i := range w.report.Enforcing {
		w.report.Enforcing[i].Touches = joinFamilies(w.report.Enforcing[i].Touches)
	}
	return w.report
}

// enter follows packets through a chain, and returns in which states some may come out of
// its end.
func (w *walk) enter(c *chain, ctx Match, depth int) States {
	states := ctx.States
	if c == nil {
		return states
	}
	if depth > mostNested {
		w.giveUp()
		return states
	}
	been := w.visited[c]
	if been == nil {
		been = map[Match]States{}
		w.visited[c] = been
	}
	if len(been) >= mostMatches {
		ctx = Match{Family: ctx.Family, States: AnyState}
	}
	if out, ok := been[ctx]; ok {
		return out & states
	}
	been[ctx] = ctx.States // if it comes back to itself, which the kernel refuses
	w.tellCounting(c)
	out := w.through(c, ctx, depth)
	been[ctx] = out
	return out & states
}

// through is enter, for what was not followed before.
func (w *walk) through(c *chain, ctx Match, depth int) States {
	var back States
	for i := range c.rules {
		r := &c.rules[i]
		if w.steps++; w.steps > mostSteps {
			w.giveUp()
			return ctx.States | back
		}
		want, exact := r.match, r.exact
		if w.raw && r.stateful { // no state is known yet, so the rule asks for nothing that is there
			want.States, exact = AnyState, false
		}
		m, ok := ctx.both(want)
		if !ok {
			continue
		}
		w.judge(c, r, m)
		for _, b := range r.to {
			on, ok := m.both(b.match)
			if !ok {
				continue
			}
			sure := exact && b.exact && want.covers(ctx) && b.match.covers(ctx)
			stays := w.follow(c, b, on, depth)
			if b.kind == giveBack || b.kind == goTo {
				back |= stays
				stays = 0
			}
			if sure {
				ctx.States = ctx.States&^on.States | stays
			}
		}
		if ctx.States == 0 {
			break
		}
	}
	return ctx.States | back
}

// follow takes a branch and returns the states of packets that come back from it.
func (w *walk) follow(c *chain, b branch, m Match, depth int) States {
	switch b.kind {
	case terminal:
		return 0
	case giveBack:
		return m.States
	case jump, goTo:
		return w.enter(w.chains[chainName{c.name.source, c.name.table, b.chain}], m, depth+1)
	}
	for name, other := range w.chains {
		if name.source == c.name.source && name.table == c.name.table && !w.isBase(name) {
			w.enter(other, m, depth+1)
		}
	}
	return m.States
}

func (w *walk) isBase(name chainName) bool {
	return slices.ContainsFunc(w.bases, func(b base) bool { return b.name == name })
}

// judge notes a rule that looks at each packet, if anything but a count or a log depends
// on it.
func (w *walk) judge(c *chain, r *rule, m Match) {
	if r.varies == "" {
		return
	}
	matters := r.acts
	for _, b := range r.to {
		switch b.kind {
		case jump:
			matters = matters || !w.isHarmless(w.chains[chainName{c.name.source, c.name.table, b.chain}], 0)
		default:
			matters = true
		}
	}
	if matters {
		w.found(c.name.String()+" "+r.where, r.varies, m)
	}
}

// isHarmless tells whether a chain does nothing but count and log.
func (w *walk) isHarmless(c *chain, depth int) bool {
	if c == nil {
		return true
	}
	if known, ok := w.harmless[c]; ok {
		return known
	}
	ok := !c.acts && depth <= mostNested
	for i := range c.rules {
		for _, b := range c.rules[i].to {
			switch b.kind {
			case giveBack:
			case jump, goTo:
				ok = ok && w.isHarmless(w.chains[chainName{c.name.source, c.name.table, b.chain}], depth+1)
			default:
				ok = false
			}
		}
	}
	w.harmless[c] = ok
	return ok
}

// found adds what a rule could touch to the report.
func (w *walk) found(name, why string, m Match) {
	at, known := w.findings[name]
	if !known {
		if len(w.report.Enforcing) >= MaxFindings {
			w.giveUp()
			return
		}
		at = len(w.report.Enforcing)
		w.findings[name] = at
		w.report.Enforcing = append(w.report.Enforcing, Finding{Rule: name, Why: why})
	}
	f := &w.report.Enforcing[at]
	switch {
	case slices.Contains(f.Touches, m):
	case len(f.Touches) < maxMatches:
		f.Touches = append(f.Touches, m)
	default:
		f.Touches = append(f.Touches[:0:0], Match{States: AnyState})
	}
}

// giveUp says that more may be touched than can be told.
func (w *walk) giveUp() {
	if _, known := w.findings[allTheOthers]; known {
		return
	}
	w.findings[allTheOthers] = len(w.report.Enforcing)
	w.report.Enforcing = append(w.report.Enforcing,
		Finding{Rule: allTheOthers, Why: "too many to follow", Touches: []Match{{States: AnyState}}})
}

func (w *walk) tellCounting(c *chain) {
	if w.counted[c] {
		return
	}
	w.counted[c] = true
	w.report.Counted += c.counted
	for _, name := range c.counting {
		if len(w.report.Counting) < maxCounting {
			w.report.Counting = append(w.report.Counting, name)
		}
	}
}

// joinFamilies makes one of two matches that are alike but for the family.
func joinFamilies(matches []Match) (joined []Match) {
	for _, m := range matches {
		other := m
		other.Family = 10 - m.Family
		if slices.Contains(matches, other) {
			m.Family = 0
		}
		if !slices.Contains(joined, m) {
			joined = append(joined, m)
		}
	}
	return joined
}
