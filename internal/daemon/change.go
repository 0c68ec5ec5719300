package daemon

import (
	"context"
	"time"

	"shunt/internal/kernel"
)

// change gathers events that come together.
type change struct {
	timer   *time.Timer
	pending bool
	ports   bool // ports must be looked at again
	stale   bool // what was learned may be wrong
	bumped  time.Time
}

// follow obeys what is announced, however slowly the kernel answers meanwhile, and sends on
// look when ports must be looked at again. It ends with ctx.
func (d *Daemon) follow(ctx context.Context, events <-chan kernel.Event, look chan<- bool) {
	c := newChange()
	defer c.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			d.announce(e, c)
		case <-c.timer.C:
			d.obey(c, look)
		}
	}
}

func newChange() *change {
	c := &change{timer: time.NewTimer(time.Hour)}
	c.timer.Stop()
	return c
}

// announce notes what an event is about and sees to it that it is obeyed: within 10 ms,
// or 100 ms after the last time if events rain.
func (d *Daemon) announce(e kernel.Event, c *change) {
	d.mu.Lock()
	d.events[e.Kind.String()]++
	d.mu.Unlock()
	switch e.Kind {
	case kernel.EventLink, kernel.EventQdisc, kernel.EventFilter, kernel.EventXDPFeatures:
		c.ports = true
		c.stale = c.stale || e.Kind == kernel.EventLink
	case kernel.EventNftables, kernel.EventResync: // a chain may hook a port
		c.ports, c.stale = true, true
	case kernel.EventNeigh:
		// The kernel forgets neighbours that it does not hear of, which repeated packets
		// do not change; the next renewal resolves them again. A failure, and another MAC
		// even after that, are announced as changes.
		c.stale = c.stale || !e.Deleted
		if e.Deleted {
			return
		}
	default:
		c.stale = true
	}
	if c.pending {
		return
	}
	c.pending = true
	wait := coalesce
	if since := time.Since(c.bumped); since < bumpsApart {
		wait = max(wait, bumpsApart-since)
	}
	c.timer.Reset(wait)
}

func (d *Daemon) obey(c *change, look chan<- bool) {
	if c.stale {
		d.plane.Bump()
		c.bumped = time.Now()
	}
	if c.ports {
		select {
		case look <- true:
		default: // they will be looked at anyway
		}
	}
	c.pending, c.ports, c.stale = false, false, false
}
