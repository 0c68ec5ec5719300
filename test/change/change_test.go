// SPDX-License-Identifier: Apache-2.0

// Package change shows that what changes on a router is obeyed: at once where the kernel
// announces it, within one lease where it does not or where nobody listens.
//
// Each kind of change (kinds_*_test.go) has a router of its own, with three hosts
// (rig_test.go) and numbered packets of all flows under way all the time (pump_test.go). First
// the kernel alone is changed, and what then comes out, where, with which bytes and MACs, is
// the model. Then shunt is started, all flows must truly be repeated, and the same change is made
// again and again. After it the hosts must see what they saw without shunt; the time from the
// change to the last packet that was still treated as before is measured, and printed in a table. A
// flow that is then dropped must never be repeated again, one that is not must be.
//
// A change that is announced must be obeyed long before a lease ends, so no lease hides a deaf
// daemon. That it is obeyed within 20 ms, and the others within a lease, is asserted with -strict
// alone (make change), because a busy machine takes that long for anything.
//
// chaos_test.go does such things at random, to two routers at a time of which one has shunt.
//
// Times are those of this machine and of veths. With -strict, a measurement during which the machine
// itself stood still (the sender's thread tells) is taken again. It needs root.
package change

import (
	"errors"
	"flag"
	"path/filepath"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/test/suite"
)

// program is the daemon under test, upgrade another build of it.
var program, upgrade string

var (
	times  = flag.Int("times", 2, "how often each kind of change is made, each way")
	each   = flag.Duration("each", time.Millisecond, "a packet of each flow is sent so often")
	strict = flag.Bool("strict", false, "assert how soon changes are obeyed, by the 99th percentile of each kind")
)

const (
	// Bound for announced changes on an idle machine.
	atOnce = 20 * time.Millisecond
	// Timeout for anything to happen on a busy machine.
	inTheEnd = 5 * time.Second
	// Lease for announced changes: several times inTheEnd, even where conntrack's timeout
	// halves it.
	longLease = 30 * time.Second
	// Lease for changes that nobody announces.
	shortLease = 500 * time.Millisecond
	// Leases are up to an eighth longer (design, lease).
	jitter = 8
)

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "2") // they wait more than they work
	suite.Main(m, "change", func(dir string) error {
		program, upgrade = filepath.Join(dir, "shunt"), filepath.Join(dir, "shunt-next")
		return errors.Join(suite.Build(program, ""), suite.Build(upgrade, "-X main.e2e=upgrade"))
	}, measured.print)
}

// TestChanges makes every kind of change, without shunt and with it.
func TestChanges(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if k.needs != nil {
				if words := k.needs(); words != "" {
					t.Skip(words)
				}
			}
			k.run(t)
		})
	}
}

// run is all that is done about one kind of change.
func (k *kind) run(t *testing.T) {
	r := newRig(t, k.router)
	r.lease = longLease
	if !k.announced {
		r.lease = shortLease
	}
	if k.setup != nil {
		k.setup(r)
	}
	flows := r.standard()
	if k.flows != nil {
		flows = k.flows(r)
	}
	r.begin(flows, *each, newOutcomes())
	m := k.model(r)
	var rows []*row
	for _, way := range []string{api.WayXDP, api.WayTC} {
		row := &row{kind: k.name, way: way, announced: k.announced, lease: r.lease}
		r.run(program, way)
		for i := range *times {
			k.repeat(r, m, row, k.watch(r, i+1 == *times))
		}
		r.end()
		row.kernel = m.losses
		measured.add(row)
		rows = append(rows, row)
	}
	for _, row := range rows {
		if *strict {
			row.judge(t)
		}
	}
}

// model is what the kernel alone does about the change.
func (k *kind) model(r *rig) *model {
	r.t.Helper()
	m := &model{before: r.forwarded()}
	if k.prepare != nil {
		k.prepare(r)
		r.reach("prepared, without shunt", m.before, inTheEnd)
	}
	icmp, from := r.pump.icmp(), time.Now()
	k.change(r)
	m.after = r.steady("after the change, without shunt")
	m.between, m.losses = r.transient(m.before, m.after, from, time.Now().Add(-flight))
	m.errors = r.pump.icmp() > icmp+20 // not only on the way
	if n := m.changed(); n < k.moves || k.moves == 0 && n > 0 {
		r.t.Fatalf("without shunt the change moved %d flows, want %d or more (none for 0)", n, k.moves)
	}
	k.undo(r)
	r.reach("after the undoing", m.before, inTheEnd)
	return m
}

// repeat makes the change once more, with shunt. Where times are asserted, a measurement does not
// count during which the machine stood still; on a machine that does so all the time there is none.
func (k *kind) repeat(r *rig, m *model, row *row, watch time.Duration) {
	r.t.Helper()
	for range 5 {
		s, still := k.once(r, m, watch)
		if r.t.Failed() {
			r.t.Fatalf("%s, %s: see above", k.name, r.way)
		}
		if !*strict || !k.announced || still < late {
			row.samples = append(row.samples, s)
			return
		}
		row.again++
	}
}

// once makes the change with shunt and looks at all that follows, for so long. still is how
// long the machine stood still meanwhile.
func (k *kind) once(r *rig, m *model, watch time.Duration) (s sample, still time.Duration) {
	r.t.Helper()
	r.reach("before the change", m.before, inTheEnd)
	r.fast("before the change", k.repeated(m.before), r.way)
	if k.prepare != nil {
		k.prepare(r)
		r.reach("prepared", m.before, inTheEnd)
	}
	if !k.deaf {
		r.fast("prepared", k.repeated(m.before), r.way)
	}
	icmp, from := r.pump.icmp(), time.Now()
	k.change(r)
	changed, spread, words := k.moment(r, from)
	limit := inTheEnd
	if !k.announced {
		limit += r.lease + r.lease/jitter
	}
	settled := r.reach("after the change", m.after, limit)
	still = max(r.pump.stalled(from, settled), spread)
	k.afterwards(r, m, watch)
	end := time.Now()
	time.Sleep(flight)
	s = r.account(m, from, changed, settled, end)
	s.words = words
	if m.errors && r.pump.icmp() == icmp {
		r.t.Errorf("%s: no ICMP error came, as without shunt", r.way)
	}
	k.undo(r)
	r.pump.forget(time.Now().Add(-time.Second))
	return s, still
}

// moment is when the change had been made: as the last announcement of it was heard, or, if
// there was none, as the command returned. spread is for how long the machine let the command
// wait in the middle: what takes time by itself is not counted.
func (k *kind) moment(r *rig, from time.Time) (at time.Time, spread time.Duration, words []string) {
	at = time.Now()
	time.Sleep(2 * time.Millisecond) // it is read by another thread
	heard := r.heard.Since(from)
	seen := map[string]bool{}
	for _, a := range heard {
		if k.announced {
			at = a.At
		}
		if !seen[a.What] {
			words = append(words, a.What)
		}
		seen[a.What] = true
	}
	if len(heard) > 0 && !k.steps {
		spread = heard[len(heard)-1].At.Sub(heard[0].At)
	}
	return at, spread, words
}

// repeated says which streams shunt is to repeat while they have such outcomes.
func (k *kind) repeated(v view) []bool {
	should := make([]bool, len(v))
	for i, o := range v {
		should[i] = o != lost && (k.slow == nil || !k.slow(i))
	}
	return should
}

// watch returns how long a dropped flow must stay unrepeated: a lease, where that is short.
func (k *kind) watch(r *rig, last bool) time.Duration {
	switch {
	case !k.announced:
		return r.lease + r.lease/jitter
	case *strict && last:
		return inTheEnd
	}
	return 150 * time.Millisecond
}

// afterwards asserts that what is dropped is never repeated again, and what is forwarded is,
// if it should.
func (k *kind) afterwards(r *rig, m *model, watch time.Duration) {
	r.t.Helper()
	if k.deaf {
		time.Sleep(r.lease + r.lease/jitter)
		return
	}
	before, _ := r.hits()
	time.Sleep(watch)
	if k.slowAfter {
		before = r.still()
	} else {
		r.fast("after the change", k.repeated(m.after), "")
	}
	after, _ := r.hits()
	for i, o := range m.after {
		slow := k.slowAfter || k.slow != nil && k.slow(i)
		if (o == lost || slow) && after[i] > before[i] && !k.queued {
			r.t.Errorf("%s: %d packets of %s were repeated after the change: %s", r.way, after[i]-before[i], r.pump.streams[i].name, r.why(i))
		}
	}
}
