// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"shunt/internal/kernel"
)

const (
	coalesce = 10 * time.Millisecond // events that belong together
	// No event is obeyed sooner than that: the kernel announces the end of an IPv4 route before
	// it takes it out (fib_table_delete()), and a flow that proved itself by a route that is
	// still there would go on by it for a lease.
	ripening = 2 * time.Millisecond
	// A flood of changes that touch everything must not keep all flows slow: some are
	// obeyed one by one, those behind them together.
	bumpsAtOnce = 10
	bumpsApart  = 100 * time.Millisecond
	// To look through very many flows for those that are touched takes time: what it may take
	// at once, and that it may take one part in so many in the long run.
	searchAtOnce = 100 * time.Millisecond
	searchShare  = 10
)

// change is what events that come together have touched, and when it is due.
type change struct {
	touched                // what must prove itself now
	fresh    touched       // and what later
	due      time.Time     // of the next tick; zero: none
	window   bool          // due is the end of a window
	ripening bool          // or that of the time after it
	search   allowance     // of time for looking through flows
	budget   budget        // of bumps for everything
	looks    budget        // of looks at the ports
	lease    time.Duration // unheard ends cost a bump once for each lease, after which every flow
	made     time.Time     // would prove itself anyway; the last one
}

func newChange(lease time.Duration) *change { return &change{lease: lease} }

// next returns the next event, or false at a time that is not zero, or once there is no more.
type next func(until time.Time) (kernel.Event, bool)

// follow obeys announced changes until ctx ends, and sends on look when ports must be looked at
// again. Everything from the kernel's message to the write into the data path happens on this
// goroutine's own thread: an ordinary thread in between would have to wait for its turn on a
// busy CPU (realtime.go).
func (d *Daemon) follow(ctx context.Context, event next, look chan<- bool) {
	c := newChange(d.cfg.Load().Lease)
	for ctx.Err() == nil {
		if e, ok := event(c.due); ok {
			d.labels.news.hear(e)
			if e.Kind != kernel.EventNeighNew { // which is no change to a flow
				d.announce(e, c)
			}
		}
		if !c.due.IsZero() && !time.Now().Before(c.due) {
			c.lease = d.cfg.Load().Lease
			d.tick(c, look)
		}
	}
}

// announce notes what an event touches and sees to it that it is obeyed within 10 ms.
func (d *Daemon) announce(e kernel.Event, c *change) {
	d.mu.Lock()
	d.events[e.Kind.String()]++
	d.mu.Unlock()
	d.rules.hear(e)
	c.fresh.add(e, d.isPort)
	c.open()
}

// open begins a window, if there is something fresh and none yet.
func (c *change) open() {
	if c.window || c.ripening || c.fresh.nothing() {
		return
	}
	c.window = true
	c.due = time.Now().Add(coalesce - ripening)
}

// tick ends a window, or obeys a little later the changes that it gathered. Changes that come
// in between belong to the next window.
func (d *Daemon) tick(c *change, look chan<- bool) {
	now := time.Now()
	if !c.ripening {
		c.ripen()
		c.due = now.Add(ripening)
		return
	}
	c.ripening, c.due = false, time.Time{}
	d.obey(c, now, look)
	c.wait(now)
	c.open()
}

// ripen ends a window.
func (c *change) ripen() {
	c.touched.merge(&c.fresh)
	c.fresh = touched{}
	c.window, c.ripening = false, true
}

// isPort tells whether flows go out by an interface.
func (d *Daemon) isPort(index int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.shown {
		if p.link.Index == index {
			return p.decision.Attach
		}
	}
	return false
}

// obey makes what is touched prove itself again, and nothing else.
func (d *Daemon) obey(c *change, now time.Time, look chan<- bool) {
	if c.ports && c.looks.take(now) {
		c.ports = false
		select {
		case look <- true:
		default: // they will be looked at anyway
		}
	}
	if c.unheard && now.Sub(c.made) >= c.lease {
		c.unheard, c.made, c.all = false, now, true
	}
	if c.all && c.budget.take(now) {
		d.plane.Bump()
		c.all, c.ended = false, nil
		c.forget()
	}
	if len(c.ended) > 0 { // these are looked up, not looked for
		d.plane.Forget(c.ended)
		c.ended = nil
	}
	if c.some() && c.search.wait(now) == 0 {
		begun := time.Now()
		d.search(c.scopes())
		c.forget()
		c.search.left -= time.Since(begun)
	}
}

// wait sets the time for what could not be obeyed yet.
func (c *change) wait(now time.Time) {
	next := time.Duration(-1)
	sooner := func(is bool, in time.Duration) {
		if is && (next < 0 || in < next) {
			next = in
		}
	}
	sooner(c.all, c.budget.next(now))
	sooner(c.ports, c.looks.next(now))
	sooner(c.unheard, c.lease-now.Sub(c.made))
	sooner(c.some(), c.search.wait(now))
	if next >= 0 {
		c.due = now.Add(next)
	}
}

// budget is a token bucket for what costs much.
type budget struct {
	spent int // of bumpsAtOnce
	at    time.Time
}

// take tells whether it may be done once more now.
func (b *budget) take(now time.Time) bool {
	back := int(now.Sub(b.at) / bumpsApart)
	if back >= b.spent {
		b.spent, b.at = 0, now
	} else {
		b.spent -= back
		b.at = b.at.Add(time.Duration(back) * bumpsApart)
	}
	if b.spent == bumpsAtOnce {
		return false
	}
	b.spent++
	return true
}

// next is how long it is until that is so again, after take() was asked at the same time.
func (b *budget) next(now time.Time) time.Duration { return bumpsApart - now.Sub(b.at) }

// allowance is time that may be spent on something.
type allowance struct {
	left time.Duration // less than 0: overdrawn by the last time
	at   time.Time     // as of then
}

// wait brings the allowance up to date and returns how long it is overdrawn yet.
func (a *allowance) wait(now time.Time) time.Duration {
	a.left = min(searchAtOnce, a.left+now.Sub(a.at)/searchShare)
	a.at = now
	return max(0, -a.left*searchShare)
}
