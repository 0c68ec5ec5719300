// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"sync"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
)

const (
	differencesKept = 256
	// An event that is on its way when the lease ends is obeyed within 10 ms, or 100 ms
	// where events rain (announce()): a difference is nobody's fault until that is past.
	announceWait = 250 * time.Millisecond
	// Differences come with leases: of many flows, all at once. The log gets the first.
	logDifferences = 10 * time.Second
	// So many may wait to be judged; more are counted and not kept.
	differencesWait = 1024
)

// differences are what renewals found that no event had announced: the last ones with both
// forms, and how many there were.
type differences struct {
	mu        sync.Mutex
	waiting   int
	announced uint64 // an event came behind it: not counted as a difference
	before    uint64 // counted by the data path when this daemon began
	kept      []api.Difference
	logged    time.Time
	unlogged  int
}

// begin leaves out what was counted under earlier daemons.
func (k *differences) begin(p *dataplane.Plane) error {
	out, err := p.Totals(dataplane.StageTCEgress)
	k.before = out.Of("changed")
	return err
}

// differs hears of a difference and lets some time go by before it is believed.
func (d *Daemon) differs(x dataplane.Difference) {
	k := &d.differences
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting == differencesWait {
		return
	}
	k.waiting++
	at := time.Now()
	time.AfterFunc(announceWait, func() { d.judgeDifference(x, at) })
}

// judgeDifference keeps a difference and tells of it, unless the change was announced meanwhile.
func (d *Daemon) judgeDifference(x dataplane.Difference, at time.Time) {
	told := d.look().Difference(&x, at)
	tell, unlogged := d.differences.keep(told, d.plane.Announced(&x, at.Add(-coalesce)))
	if tell {
		d.log.Warn("the kernel does something else with a flow and had not announced it; see \"shunt status --differences\"",
			"port", told.Port, "proto", told.Proto, "from", told.Source, "to", told.Destination,
			"repeated", told.Packets, "unlogged", unlogged)
	}
}

// keep ends the waiting of a difference. It says whether the log is to be told, and how many it
// was not told of since the last one.
func (k *differences) keep(x api.Difference, announced bool) (tell bool, unlogged int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting--
	if announced {
		k.announced++
		return false, 0
	}
	if len(k.kept) == differencesKept {
		k.kept = slices.Delete(k.kept, 0, 1)
	}
	k.kept = append(k.kept, x)
	if x.At.Sub(k.logged) < logDifferences {
		k.unlogged++
		return false, 0
	}
	unlogged = k.unlogged
	k.logged, k.unlogged = x.At, 0
	return true, unlogged
}

// count is how many there were since this daemon began. changed is the data path's counter.
func (k *differences) count(changed uint64) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if not := k.before + k.announced; changed > not {
		return changed - not
	}
	return 0
}

// Differences implements api.Backend.
func (d *Daemon) Differences() ([]api.Difference, error) {
	k := &d.differences
	k.mu.Lock()
	defer k.mu.Unlock()
	list := slices.Clone(k.kept)
	slices.Reverse(list)
	return list, nil
}
