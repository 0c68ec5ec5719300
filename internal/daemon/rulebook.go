// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
	"shunt/internal/kernel"
	"shunt/internal/nft"
	"shunt/internal/ruleset"
)

// How often the ruleset is read where nothing announces a change, and how long it is left
// alone after it was read, as a multiple of what that took.
const (
	legacyEvery  = 5 * time.Second
	readRest     = 1           // a large ruleset that changes all the time costs half a core
	firstRead    = time.Second // the start waits so long for it; meanwhile and then nothing is learned
	mostNamed    = 10          // rules in the log at once
	unreadRule   = "the ruleset cannot be read"
	changedRule  = "the ruleset changed and is being read"
	refusedWords = "a rule looks at each packet: what it could touch stays with the kernel"
)

// rulebook keeps the data path's policy as the configuration and the ruleset have it.
//
// The ruleset is read in a goroutine of its own, since that may take seconds: run. Ports
// come from the review of them (see), which must not learn anything on a port before the
// policy knows it.
type rulebook struct {
	cfg   config.Config
	plane *dataplane.Plane
	log   *slog.Logger
	stale chan struct{} // the ruleset changed
	first chan struct{} // closed once it was read, or could not be
	rules ruleset.Reader

	groups   chan struct{}       // next-hop objects changed
	group    ruleset.Clock       // of next-hop groups; for run alone
	wind     func(ruleset.Clock) // bounds leases by the clock, whenever the ruleset was read
	elements atomic.Bool         // the clock depends on elements of sets

	gate    sync.Mutex  // held for moments only
	heard   uint64      // changes that were announced
	done    uint64      // of which so many were read
	touched nft.Touched // by changes since it was read last

	mu     sync.Mutex
	links  []kernel.Link
	ports  []int // ifindex
	report ruleset.Report
	failed string // why the ruleset is not known
	now    compiled
	inPlay *dataplane.Policy // what the data path has; nil: not known
}

func newRulebook(cfg config.Config, plane *dataplane.Plane, log *slog.Logger) *rulebook {
	b := &rulebook{cfg: cfg, plane: plane, log: log, stale: make(chan struct{}, 1), first: make(chan struct{}),
		groups: make(chan struct{}, 1), wind: func(ruleset.Clock) {}}
	b.elements.Store(true) // it may
	b.unread("not yet")
	return b
}

// unread is what is known while the ruleset is not: any rule may be there. The caller
// holds mu.
func (b *rulebook) unread(why string) {
	b.failed = why
	b.report = ruleset.Report{Enforcing: []ruleset.Finding{{Rule: unreadRule, Why: why, Touches: []ruleset.Match{{States: ruleset.AnyState}}}}}
}

// hear takes note of an announced change, and waits for nobody. Until it was read, nothing is
// learned: a rule that looks at each packet may be in it. Of elements of sets that have an address
// only timeouts are read, so a change of nothing else is no news unless the clock depends on them.
// That, like a change of next-hop groups, makes leases shorter at the most: flows learn on, and
// prove themselves once it was read.
func (b *rulebook) hear(e kernel.Event) {
	read := b.stale
	b.note(e)
	switch {
	case e.Kind == kernel.EventResync || e.Kind == kernel.EventNftables && e.Elements == nil:
		b.gate.Lock()
		b.heard++
		b.setUnread(b.cfg.Policy != config.PolicyMark)
		b.gate.Unlock()
	case e.Kind == kernel.EventNftables:
		if _, read := b.changes(); read && !b.elements.Load() {
			return
		}
	case e.Kind == kernel.EventNexthop:
		read = b.groups
	default:
		return
	}
	select {
	case read <- struct{}{}:
	default: // it will be read anyway
	}
}

// note keeps what must be read again.
func (b *rulebook) note(e kernel.Event) {
	b.gate.Lock()
	defer b.gate.Unlock()
	switch e.Kind {
	case kernel.EventResync:
		b.touched.All = true
	case kernel.EventNftables:
		b.touched.Add(e.Touched)
	}
}

// untold is what must be read, and after how many changes. Who asks reads it.
func (b *rulebook) untold() (changes uint64, touched nft.Touched) {
	b.gate.Lock()
	defer b.gate.Unlock()
	touched, b.touched = b.touched, nft.Touched{}
	return b.heard, touched
}

// learned notes that the ruleset was read as it was after so many changes. The caller does not
// hold gate.
func (b *rulebook) learned(changes uint64) {
	b.gate.Lock()
	defer b.gate.Unlock()
	if b.done = changes; b.done == b.heard {
		b.setUnread(false)
	}
}

// setUnread says it to the data path. The caller holds gate.
func (b *rulebook) setUnread(unread bool) {
	if err := b.plane.SetUnread(unread); err != nil {
		b.log.Error("the data path could not be told that the ruleset changed", "err", err)
	}
}

// changes is how many were announced, and whether all of them were read.
func (b *rulebook) changes() (heard uint64, read bool) {
	b.gate.Lock()
	defer b.gate.Unlock()
	return b.heard, b.heard == b.done
}

// begin starts run and waits for its first reading, but not long. The returned function
// ends it.
func (b *rulebook) begin(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		b.run(ctx)
		close(ended)
	}()
	select {
	case <-b.first:
	case <-time.After(firstRead):
		b.log.Info("the ruleset is large; nothing is fast until it was read")
	}
	return func() { cancel(); <-ended }
}

// run reads the ruleset, and whenever it changed again, until ctx ends.
func (b *rulebook) run(ctx context.Context) {
	legacy := time.NewTicker(legacyEvery)
	defer legacy.Stop()
	rest := b.read()
	close(b.first)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
		rest = 0
		select {
		case <-ctx.Done():
			return
		case <-b.stale:
			rest = b.read()
		case <-b.groups: // routing daemons change them all the time, and hardly ever the clock
			if clock, err := groupClock(); err != nil || clock != b.group {
				rest = b.read()
			}
		case <-legacy.C:
			if stale, err := b.rules.Stale(); stale || err != nil || b.lacking() {
				rest = b.read()
			}
		}
	}
}

// silent tells whether the ruleset has what can change without an announcement, or is not
// known: then no lease is stretched.
func (b *rulebook) silent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed != "" || len(b.report.Silent) > 0
}

func (b *rulebook) lacking() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed != "" || b.inPlay == nil
}

// read reads the ruleset and puts what it says in force, and returns for how long it is
// to be left alone then. While it cannot be read, nobody knows what is in it.
func (b *rulebook) read() (rest time.Duration) {
	begin := time.Now()
	heard, touched := b.untold()
	report, err := b.rules.Update(touched)
	if err == nil {
		b.group, err = groupClock()
		report.Wind(b.group)
	}
	rest = readRest * time.Since(begin)
	if err == nil {
		b.elements.Store(report.Elements)
		b.wind(report.Clock) // before flows may be learned beside it
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if b.failed != err.Error() {
			b.log.Error(unreadRule+"; trying again", "err", err)
		}
		b.unread(err.Error())
	} else {
		b.tell(b.report.Enforcing, report.Enforcing)
		b.report, b.failed = report, ""
	}
	if b.enforce() == nil && err == nil {
		b.learned(heard)
	}
	return rest
}

// groupClock is the clock of next-hop groups.
func groupClock() (c ruleset.Clock, err error) {
	var id uint32
	c.Time, id, err = kernel.IdleGroup()
	c.Owner, c.What = fmt.Sprintf("next-hop group %d", id), "buckets count as idle"
	return c, err
}

// tell logs the rules that are new.
func (b *rulebook) tell(old, now []ruleset.Finding) {
	told := 0
	for _, f := range now {
		known := slices.ContainsFunc(old, func(o ruleset.Finding) bool { return o.String() == f.String() })
		if known {
			continue
		}
		if told++; told > mostNamed {
			b.log.Warn("more rules look at each packet; \"shunt doctor\" counts them")
			return
		}
		if b.cfg.Policy == config.PolicyMark {
			b.log.Info("a rule looks at each packet; what is marked is fast all the same", "rule", f.Rule, "why", f.Why)
			continue
		}
		b.log.Warn(refusedWords, "rule", f.Rule, "why", f.Why, "touches", touches(f))
	}
}

func touches(f ruleset.Finding) string {
	var words []string
	for _, m := range f.Touches {
		words = append(words, m.String())
	}
	return strings.Join(words, "; ")
}

// see is told which links there are and which of them will be ports, before they are.
func (b *rulebook) see(links []kernel.Link, ports []int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.links, b.ports = links, ports
	return b.enforce()
}

// configure puts the policy of another configuration in force; an error leaves that of the old one.
func (b *rulebook) configure(cfg config.Config) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.cfg
	b.cfg = cfg
	err := b.enforce()
	if err != nil {
		b.cfg = old
		b.enforce() // tried again each second where it fails
	}
	return err
}

// enforce puts the policy in force, if it is not. The caller holds mu.
func (b *rulebook) enforce() error {
	next := compile(b.cfg, b.report.Enforcing)
	next.place(b.links, b.ports)
	for _, name := range next.lost {
		if !slices.Contains(b.now.lost, name) {
			b.log.Error("too many different interfaces in the policy; nothing is included by "+name, "most", dataplane.MaxPolicyGroups)
		}
	}
	for _, name := range next.vain {
		if !slices.Contains(b.now.vain, name) {
			b.log.Warn("the configuration excludes or includes by an interface that is no port now", "interface", name)
		}
	}
	b.now = next
	if b.inPlay != nil && reflect.DeepEqual(*b.inPlay, next.Policy) {
		return nil
	}
	b.inPlay = nil
	if err := b.plane.SetPolicy(next.Policy); err != nil {
		b.log.Error("the policy could not be put in force; trying again", "err", err)
		return err
	}
	b.inPlay = &next.Policy
	return nil
}

// because names the rule behind a reason of policy that a flow met.
func (b *rulebook) because(f dataplane.Flow, reason string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch reason {
	case "excluded", "per_packet_rule":
		if _, read := b.changes(); !read && reason == "per_packet_rule" {
			return changedRule
		}
		return b.now.because(f, reason)
	case "hit":
		if c := b.report.Clock; c.Time > 0 {
			return fmt.Sprintf("leases last %v at the most: %s", limitBy(c.Time).Round(time.Millisecond), c)
		}
	case "not_marked":
		return fmt.Sprintf("connmark & %#x is not %#x", b.cfg.Mark.Mask, b.cfg.Mark.Value)
	}
	return ""
}

// known is what the doctor is told.
func (b *rulebook) known() doctor.Rules {
	b.mu.Lock()
	defer b.mu.Unlock()
	return doctor.Rules{Report: b.report, Mark: b.cfg.Policy == config.PolicyMark}
}
