// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/ruleset"
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
	limit     time.Duration // by the clock that runs out first; 0: none
	cpus      int
	renewals  uint64 // counter at the last look
	looked    bool
}

// limitBy is the longest lease beside a clock that packets wind: with its 12.5 % more, half of the
// clock's time. 0: any.
func limitBy(clock time.Duration) time.Duration { return clock * 4 / 9 }

// least is the lease that is not stretched.
func (c *leaseControl) least() time.Duration {
	if c.limit > 0 {
		return min(c.base, c.limit)
	}
	return c.base
}

// most is the lease that is stretched as far as may be.
func (c *leaseControl) most() time.Duration {
	if c.limit > 0 {
		return min(max(longestLease, c.base), c.limit)
	}
	return max(longestLease, c.base)
}

// next returns the lease for the renewals that happened in the last period. Where the ruleset
// may change in silence, the lease is all that has it obeyed, and is never stretched.
func (c *leaseControl) next(renewals uint64, period time.Duration, silent bool) time.Duration {
	delta := renewals - c.renewals
	if !c.looked {
		delta, c.looked, c.now = 0, true, c.least()
	}
	c.renewals = renewals
	if silent {
		return c.least()
	}
	rate := float64(delta) / period.Seconds()
	switch ideal := time.Duration(float64(c.now) * rate / float64(renewalBudget*c.cpus)); {
	case ideal > c.now:
		c.now = ideal
	case ideal < c.now*3/4:
		c.now -= c.now / 8
	}
	return max(c.least(), min(c.now, c.most()))
}

// windClock bounds leases by the clock that runs out first. One that runs out sooner than before is
// kept from the next renewal on, which every flow has to make now.
func (d *Daemon) windClock(c ruleset.Clock) {
	d.mu.Lock()
	before := d.lease.limit
	d.lease.limit = limitBy(c.Time)
	d.lease.now = max(d.lease.least(), min(d.lease.now, d.lease.most()))
	d.plane.SetLease(d.jiffies(d.lease.least()))
	d.plane.SetLiveLease(d.jiffies(d.lease.now))
	sooner := d.lease.limit > 0 && (before == 0 || d.lease.limit < before)
	d.mu.Unlock()
	if sooner {
		d.plane.Bump()
		d.log.Info("leases are bounded", "lease", limitBy(c.Time), "because", c.String())
	}
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
