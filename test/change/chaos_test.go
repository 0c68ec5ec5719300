// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

var (
	chaosFor  = flag.Duration("chaos", time.Minute, "how long the chaos lasts")
	chaosSeed = flag.Uint64("seed", 0, "of the chaos; 0: another one each time")
	// The default suits a busy machine. On an idle one shunt obeys a flood of changes within
	// 100 ms (docs/limits.md); make chaos allows 120 ms, because two routers share the machine.
	chaosBound = flag.Duration("bound", 800*time.Millisecond, "how soon an announced change must be obeyed in the chaos")
)

// chaosLease does not end in time to hide a deaf daemon.
func chaosLease() time.Duration { return max(500*time.Millisecond, *chaosBound*5/4) }

// chaosStep is from one act to the next: all has been obeyed some time before.
func chaosStep() time.Duration { return max(500*time.Millisecond, *chaosBound*3/2) }

const (
	// One packet of each flow: 200 flows have 10,000 packets a second.
	chaosEach = 20 * time.Millisecond
	// The last part of a step, in which all must be as it will stay.
	chaosCalm = 160 * time.Millisecond
)

// act is one step of the chaos: what is done to both routers, or to shunt alone.
type act struct {
	name      string
	both      func(*rig)
	shunt     func(*rig)
	announced bool
	slow      bool // the next step waits until shunt must have obeyed
}

// step is an act that was done, and what came of it.
type step struct {
	act
	began, ended time.Time          // until the next one began
	changed      time.Time          // when it had been done to the router with shunt
	until        time.Time          // when shunt must have obeyed
	at           time.Duration      // the bound
	settled      view               // without shunt, at the end; unsettled where there were several outcomes
	seen         []map[outcome]bool // without shunt, in all of it
}

// unsettled is for streams that have no single outcome at the end of a step, unknown for those
// of which nothing could be sent then: their device was down, or the machine stood still.
const (
	unsettled outcome = -1
	unknown   outcome = -2
)

// chaos is two routers, one with shunt, to which the same things are done.
type chaos struct {
	t           *testing.T
	plain, fast *rig
	random      *rand.Rand
	state       *state
	steps       []*step
	losses      map[string]*tally
	late        []time.Duration // of announced changes, by step
	arrived     int
	unknown     int
	bad         int
}

// tally is what one kind of act cost both routers.
type tally struct{ times, plain, shunt int }

// TestChaos does at random, step by step, to two routers what can be done to a router, and
// to shunt on one of them what happens to daemons. Whatever comes out of the one with shunt must
// have been what the other one did at that moment, or up to the bound ago: the bound of what is
// announced, or one lease if it is not or nobody listened.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	t.Logf("again: go test ./test/change -run TestChaos -chaos %v -bound %v -seed %d", *chaosFor, *chaosBound, seed)
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 0)), losses: map[string]*tally{}, state: newState()}
	shared := newOutcomes()
	for _, r := range []**rig{&c.plain, &c.fast} {
		*r = newRig(t, lab.FirewallOptions{})
		(*r).lease = chaosLease()
		c.state.furnish(*r)
		(*r).begin(chaosFlows(*r), chaosEach, shared)
	}
	c.settle()
	c.fast.run(program, api.WayXDP)
	c.step(act{name: "shunt started"})
	for end := time.Now().Add(*chaosFor); time.Now().Before(end) && c.bad < 10; {
		c.step(c.state.next(c.random))
	}
	c.step(c.state.recover())
	c.step(act{name: "the end"})
	c.report()
}

// settle waits until both routers forward all flows alike.
func (c *chaos) settle() {
	c.t.Helper()
	first := &step{act: act{name: "the beginning"}, began: time.Now()}
	first.settled = c.plain.forwarded()
	if i := firstDifference(first.settled, c.fast.forwarded()); i >= 0 {
		c.t.Fatalf("two routers without shunt differ about %s", c.plain.pump.streams[i].name)
	}
	first.seen, _ = c.plain.transient(first.settled, first.settled, first.began, time.Now())
	first.ended = time.Now()
	c.steps = append(c.steps, first)
}

// step does an act to both routers at the same time, waits, and judges the one before it.
func (c *chaos) step(a act) {
	c.t.Helper()
	s := &step{act: a, began: time.Now()}
	deaf := c.state.deaf()
	var both sync.WaitGroup
	for _, r := range []*rig{c.plain, c.fast} {
		both.Go(func() {
			if a.both != nil {
				a.both(r)
			}
		})
	}
	both.Wait()
	if a.shunt != nil {
		a.shunt(c.fast)
	}
	if c.t.Failed() && c.bad == 0 {
		c.t.Fatalf("%s: see above", a.name)
	}
	s.changed = time.Now()
	bound := *chaosBound
	if deaf || c.state.deaf() || !a.announced {
		bound += chaosLease() + chaosLease()/jitter
	}
	if heard := c.fast.heard.Since(s.began); a.announced && len(heard) > 0 {
		s.changed = heard[len(heard)-1].At
	}
	s.at, s.until = bound, s.changed.Add(bound)
	if a.slow {
		time.Sleep(time.Until(s.until))
	}
	time.Sleep(max(time.Until(s.began.Add(chaosStep())), chaosCalm+flight+50*time.Millisecond))
	s.ended = time.Now().Add(-flight)
	c.take(s)
	c.judge(s)
	for _, r := range []*rig{c.plain, c.fast} {
		r.pump.forget(s.began)
	}
}

// take notes what the router without shunt did in a step.
func (c *chaos) take(s *step) {
	p := c.plain.pump
	s.settled, s.seen = make(view, len(p.streams)), make([]map[outcome]bool, len(p.streams))
	before := c.steps[len(c.steps)-1].settled
	t := c.tally(s.name)
	t.times++
	for i := range p.streams {
		calm, all := map[outcome]bool{}, map[outcome]bool{}
		p.each(i, s.ended.Add(-chaosCalm), s.ended, func(k packet) { calm[k.outcome] = true })
		missing := 0
		p.each(i, s.began, s.ended, func(k packet) {
			all[k.outcome] = true
			if k.outcome == lost {
				missing++
			}
		})
		s.seen[i], s.settled[i] = all, unsettled
		if len(calm) == 1 {
			s.settled[i] = slices.Collect(maps.Keys(calm))[0]
		}
		if len(calm) == 0 {
			s.settled[i] = unknown
			c.unknown++
		}
		if before[i] > lost && s.settled[i] > lost {
			t.plain += missing
		}
	}
	c.steps = append(c.steps, s)
}

func (c *chaos) tally(name string) *tally {
	if c.losses[name] == nil {
		c.losses[name] = &tally{}
	}
	return c.losses[name]
}

// judge looks at every packet that the router with shunt was given in a step.
func (c *chaos) judge(s *step) {
	c.t.Helper()
	p, before := c.fast.pump, c.steps[len(c.steps)-2].settled
	t := c.tally(s.name)
	var late time.Duration
	s.until = s.until.Add(p.stalled(s.began, s.until))
	for i := range p.streams {
		lastLost, wrong := 0, 0
		p.each(i, s.began, s.ended, func(k packet) {
			now, want := time.Unix(0, k.sent), s.settled[i]
			lastLost++
			if k.outcome != lost {
				c.arrived++
			}
			switch {
			case k.outcome == want:
				lastLost = 0
			case k.outcome == lost:
				if before[i] > lost && want > lost {
					t.shunt++
				}
			case want == unknown:
			case want == unsettled && s.seen[i][k.outcome]:
			case c.excused(i, k.outcome, now):
				if k.outcome == before[i] {
					late = max(late, time.Unix(0, k.got).Sub(s.changed))
				}
			default:
				if wrong++; wrong == 1 {
					c.wrong(s, i, k)
				}
			}
		})
		if calm := int(chaosCalm / chaosEach); s.settled[i] > lost && lastLost >= calm && s.until.Before(s.ended.Add(-chaosCalm)) {
			c.wrong(s, i, packet{sent: s.ended.UnixNano()})
		}
	}
	if s.at == *chaosBound {
		c.late = append(c.late, late)
	}
	if c.unknown > 0 && s.name == "the end" {
		c.t.Logf("%d times nothing of a flow could be sent at the end of a step", c.unknown)
	}
	if len(c.steps) > 8 {
		c.steps = c.steps[1:]
	}
}

// excused reports whether an outcome was right so short a time ago that shunt may not know yet: it
// was one before, or in the course of, a step that need not have been obeyed yet.
func (c *chaos) excused(stream int, o outcome, now time.Time) bool {
	for j := len(c.steps) - 1; j > 0; j-- {
		s, before := c.steps[j], c.steps[j-1]
		if now.Before(s.until) && (before.settled[stream] == unknown || o == before.settled[stream] || s.seen[stream][o] || before.seen[stream][o]) {
			return true
		}
	}
	return false
}

// wrong reports a packet that came out as it should not.
func (c *chaos) wrong(s *step, stream int, k packet) {
	c.t.Helper()
	c.bad++
	if c.bad > 10 {
		return
	}
	names := ""
	for _, b := range c.steps[max(0, len(c.steps)-5):] {
		names += fmt.Sprintf("\n%8.3f s %s", time.Unix(0, k.sent).Sub(b.changed).Seconds(), b.name)
	}
	if c.bad == 1 {
		c.t.Logf("now, without shunt:\n%s\nand with it:\n%s", c.plain.known(stream), c.fast.known(stream))
	}
	c.t.Errorf("%s, sent %v after %q:\n%s.\nWithout shunt: %s\nWhat was done, and how long before it:%s", c.fast.pump.streams[stream].name,
		time.Unix(0, k.sent).Sub(s.changed).Round(time.Millisecond), s.name, c.fast.pump.name(k.outcome), c.name(s.settled[stream]), names)
}

func (c *chaos) name(o outcome) string {
	if o == unsettled {
		return "several things"
	}
	return c.plain.pump.name(o)
}

// report prints what each act cost, and asserts that the test has tested.
func (c *chaos) report() {
	c.t.Helper()
	fmt.Printf("%-28s %6s %12s %12s\n", "chaos", "times", "lost, kernel", "lost, shunt")
	for _, name := range slices.Sorted(maps.Keys(c.losses)) {
		t := c.losses[name]
		fmt.Printf("%-28s %6d %12d %12d\n", name, t.times, t.plain, t.shunt)
	}
	status, err := c.fast.api.Status(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	share := float64(status.Hits) / float64(c.arrived)
	fmt.Printf("%d announced changes: median %s ms, p99 %s ms, most %s ms; %.0f %% of what arrived was repeated\n", len(c.late),
		ms(percentile(c.late, 50)), ms(percentile(c.late, 99)), ms(percentile(c.late, 100)), 100*share)
	if share < 0.4 {
		c.t.Errorf("only %.0f %% of what arrived was repeated: the chaos has not tested much", 100*share)
	}
	if late := percentile(c.late, 99); *strict && late > atOnce {
		c.t.Errorf("the 99th percentile of announced changes is %v, want %v", late, atOnce)
	}
	c.fast.end()
}
