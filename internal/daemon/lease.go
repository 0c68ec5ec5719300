// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"shunt/internal/dataplane"
)

const (
	// No lease may last over 30 s, and each is given with 12.5 % more or less, so that not
	// all end at once. A longer one that the operator configured stays.
	longestLease = 26 * time.Second
	// What renewals may cost: about 5 % of each CPU at 2 us a packet through the kernel.
	renewalBudget = 25000 // a second and CPU
)

// leaseControl stretches the lease when there are so many flows that proving them all
// every few seconds would eat the gain, and shortens it again. Stretching waits for
// nothing and goes in one step; shortening is slow, so that it does not swing.
type leaseControl struct {
	base, now time.Duration
	cpus      int
	renewals  uint64 // counter at the last look
	looked    bool
}

// next returns the lease for the renewals that happened in the last period. Where the ruleset
// may change in silence, the lease is all that has it obeyed, and is never stretched.
func (c *leaseControl) next(renewals uint64, period time.Duration, silent bool) time.Duration {
	delta := renewals - c.renewals
	if !c.looked {
		delta, c.looked, c.now = 0, true, c.base
	}
	c.renewals = renewals
	if silent {
		return c.base
	}
	rate := float64(delta) / period.Seconds()
	switch ideal := time.Duration(float64(c.now) * rate / float64(renewalBudget*c.cpus)); {
	case ideal > c.now:
		c.now = ideal
	case ideal < c.now*3/4:
		c.now -= c.now / 8
	}
	return max(c.base, min(c.now, max(longestLease, c.base)))
}

// stretchLease looks at the renewals of the last period.
func (d *Daemon) stretchLease() {
	out, err := d.plane.Totals(dataplane.StageTCEgress)
	if err != nil {
		d.log.Error("counters", "err", err)
		return
	}
	silent := d.rules.silent()
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.lease.now
	d.lease.now = d.lease.next(out.Of("renewed")+out.Of("changed")+out.Of("learned"), reviewEvery, silent)
	if d.lease.now != before {
		d.plane.SetLiveLease(d.jiffies(d.lease.now))
	}
}
