// SPDX-License-Identifier: Apache-2.0

package ruleset

import "slices"

// walk follows packets through the chains that forwarded ones pass.
type walk struct {
	chains map[chainName]*chain
	bases  []base
	named  []namedRule
	asked  map[string]bool // state with these names

	report   Report
	findings map[string]int // place in report.Enforcing, by rule
	visited  map[*chain]map[Match][]Match
	harmless map[*chain]bool
	counted  map[*chain]bool
	steps    int
	raw      bool   // in a chain before conntrack
	hook     uint32 // that the chain is called from
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
	mostAtOnce   = 12        // kinds of packets that are told apart within a chain
	mostNested   = 32        // jumps; the kernel takes 16
	allTheOthers = "more rules of this kind"
)

func newWalk() *walk {
	return &walk{chains: map[chainName]*chain{}, findings: map[string]int{}, harmless: map[*chain]bool{}, counted: map[*chain]bool{}, asked: map[string]bool{}}
}

func (w *walk) silent(what string) {
	if !slices.Contains(w.report.Silent, what) && len(w.report.Silent) < MaxFindings {
		w.report.Silent = append(w.report.Silent, what)
	}
}

// run follows each family through each base chain by itself: an accept ends only its own base
// chain, and later ones still see the packet.
func (w *walk) run() Report {
	w.settle()
	sortBases(w.bases)
	for _, b := range w.bases {
		c := w.chains[b.name]
		w.raw = b.hook == hookPrerouting && b.priority <= conntrackPriority
		w.hook = b.hook
		w.visited = map[*chain]map[Match][]Match{}
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

// enter follows packets through a chain, and returns those of which some may come out of its
// end.
func (w *walk) enter(c *chain, ctx Match, depth int) []Match {
	if c == nil {
		return []Match{ctx}
	}
	if depth > mostNested {
		w.giveUp()
		return []Match{ctx}
	}
	been := w.visited[c]
	if been == nil {
		been = map[Match][]Match{}
		w.visited[c] = been
	}
	from := ctx
	if len(been) >= mostMatches {
		from = Match{Family: ctx.Family, States: AnyState}
	}
	out, ok := been[from]
	if !ok {
		been[from] = []Match{from} // if it comes back to itself, which the kernel refuses
		w.tellCounting(c)
		out = w.through(c, from, depth)
		been[from] = out
	}
	if from == ctx {
		return out
	}
	var mine []Match
	for _, m := range out {
		if m, ok := ctx.both(m); ok {
			mine = merge(mine, m)
		}
	}
	return mine
}

// through is enter, for what was not followed before.
func (w *walk) through(c *chain, ctx Match, depth int) []Match {
	at := []Match{ctx}
	var back []Match
	for i := range c.rules {
		var next []Match
		for _, ctx := range at {
			if w.steps++; w.steps > mostSteps {
				w.giveUp()
				return []Match{ctx}
			}
			for _, m := range w.meet(c, &c.rules[i], ctx, depth, &back) {
				next = merge(next, m)
			}
		}
		if at = next; len(at) == 0 {
			break
		}
		if len(at) > mostAtOnce {
			at = []Match{ctx}
		}
	}
	for _, m := range back {
		at = merge(at, m)
	}
	if len(at) > mostAtOnce {
		return []Match{ctx}
	}
	return at
}

// meet lets packets meet a rule, and returns those that go on to the next one. What a rule sends
// elsewhere is taken away only if that was proved for all of it.
func (w *walk) meet(c *chain, r *rule, ctx Match, depth int, back *[]Match) []Match {
	w.judge(c, r, ctx)
	want, exact := w.here(r.match, r.stateful)
	m, ok := ctx.both(want)
	if !ok || r.never || want.In.loopback() || want.Out.loopback() {
		return []Match{ctx}
	}
	rest := []Match{ctx}
	for _, b := range r.to {
		also, plain := w.here(b.match, r.stateful)
		on, ok := m.both(also)
		if !ok || also.In.loopback() || also.Out.loopback() {
			continue
		}
		stays := w.follow(c, b, on, depth)
		if b.kind == giveBack || b.kind == goTo {
			for _, s := range stays {
				*back = merge(*back, s)
			}
			stays = nil
		}
		sent, ok := want.both(also)
		if r.exact && exact && b.exact && plain && ok && !(len(stays) == 1 && stays[0] == on) {
			rest = without(rest, sent, stays)
		}
	}
	return rest
}

// here is what a match says at the hook that is being walked, and whether that is all. Before
// conntrack no state is known, so a rule asks for nothing that is there; before routing no way out is.
func (w *walk) here(m Match, stateful bool) (_ Match, exact bool) {
	exact = true
	if w.raw && stateful {
		m.States, exact = AnyState, false
	}
	if w.hook == hookPrerouting && (m.Out != "" || m.NotOut != "") {
		m.Out, m.NotOut, exact = "", "", false
	}
	return m, exact
}

// without takes packets away, and adds those of them that come back. What cannot be said
// without them stays as it is.
func without(from []Match, sent Match, stays []Match) (left []Match) {
	for _, m := range from {
		both, ok := m.both(sent)
		if !ok {
			left = merge(left, m)
			continue
		}
		rest := m // of the states that are taken away, in by another interface
		rest.States = both.States
		switch {
		case sent.covers(rest):
			rest.States = 0
		case sent.coversBut(m) && sent.NotIn == "" && sent.NotOut == "" && sent.Out == "":
			if !narrowInterfaces(&rest.In, &rest.NotIn, "", sent.In) {
				rest.States = 0
			}
		case sent.coversBut(m) && sent.NotIn == "" && sent.NotOut == "" && sent.In == "":
			if !narrowInterfaces(&rest.Out, &rest.NotOut, "", sent.Out) {
				rest.States = 0
			}
		default:
			left = merge(left, m)
			continue
		}
		m.States &^= both.States
		for _, piece := range append([]Match{m, rest}, stays...) {
			if piece.States != 0 {
				left = merge(left, piece)
			}
		}
	}
	return left
}

// merge adds packets to others, unless they are among them.
func merge(list []Match, m Match) []Match {
	for i, o := range list {
		states := o.States
		if o.covers(m) && m.States&^states == 0 {
			return list
		}
		if o.States = m.States; o == m {
			list = slices.Clone(list)
			list[i].States |= m.States
			return list
		}
	}
	return append(list[:len(list):len(list)], m)
}

// follow takes a branch and returns the packets that come back from it.
func (w *walk) follow(c *chain, b branch, m Match, depth int) []Match {
	switch b.kind {
	case terminal:
		return nil
	case giveBack:
		return []Match{m}
	case jump, goTo:
		return w.enter(w.target(c, b), m, depth+1)
	}
	for name, other := range w.chains {
		if name.source == c.name.source && name.table == c.name.table && !w.isBase(name) {
			w.enter(other, m, depth+1)
		}
	}
	return []Match{m}
}

// target is the chain that a branch leads to.
func (w *walk) target(c *chain, b branch) *chain {
	return w.chains[chainName{c.name.source, c.name.table, b.chain}]
}

func (w *walk) isBase(name chainName) bool {
	return slices.ContainsFunc(w.bases, func(b base) bool { return b.name == name })
}

// judge notes a rule that looks at each packet, if anything but a count or a log depends
// on it.
func (w *walk) judge(c *chain, r *rule, ctx Match) {
	enforces := r.varies != "" && w.matters(c, r)
	touched := r.match
	if r.drained || r.fed {
		touched = r.reach
	}
	if slow := enforces && touched == r.reach; len(r.keeps) > 0 && (!slow || r.clock.tooShort()) {
		w.wind(r, ctx)
	}
	if !enforces {
		return
	}
	touched, _ = w.here(touched, r.stateful)
	m, ok := ctx.both(touched)
	if !ok {
		return
	}
	m.Until = r.until
	name := c.name.String() + " " + r.where
	if r.varies != insideTunnels {
		w.found(name, r.varies, m)
		return
	}
	for _, p := range tunnelProtocols {
		if m, ok := m.both(Match{Proto: p, States: AnyState}); ok {
			w.found(name, r.varies, m)
		}
	}
}

func (w *walk) matters(c *chain, r *rule) bool {
	return r.fed || r.decides() || slices.ContainsFunc(r.to, func(b branch) bool {
		return b.kind == jump && !w.isHarmless(w.target(c, b), 0)
	})
}

// isHarmless reports whether a chain does nothing but count and log.
func (w *walk) isHarmless(c *chain, depth int) bool {
	if c == nil {
		return true
	}
	if known, ok := w.harmless[c]; ok {
		return known
	}
	ok := !c.acts && depth <= mostNested
	for i := range c.rules {
		ok = ok && !w.movesAsked(&c.rules[i])
		for _, b := range c.rules[i].to {
			switch b.kind {
			case giveBack:
			case jump, goTo:
				ok = ok && w.isHarmless(w.target(c, b), depth+1)
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
