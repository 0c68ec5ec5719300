// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

const (
	booksEvery  = 250 * time.Millisecond // between two looks for quiet connections
	booksShare  = 5                      // settling may use one part in so many of a core
	booksWalk   = 50                     // and the search for quiet connections one part in so many
	booksAtStop = 5 * time.Second        // limit for `shunt stop`
)

// books keeps conntrack's timers of TCP connections as they would be without shunt. Conntrack sees one packet of a
// repeated connection in a lease, so its window tracking freezes: a segment sets TCPUnacknowledged, the acknowledgement
// is a hit and does not clear it, and the connection expires in minutes instead of days. If the flag was clear, a
// connection whose peer is dead expires in days instead of minutes. So each connection is settled by the sequence
// numbers in the flow table once it is quiet (docs/decisions/0012-conntrack-timers.md).
//
// Neither the data path nor the goroutine that obeys changes waits for it.
type books struct {
	plane  *dataplane.Plane
	ct     *kernel.Conntrack
	hz     uint32
	now    func() uint32 // the kernel's jiffies
	log    *slog.Logger
	logged time.Time // of the last failure
	dead   bool      // now is not known
}

// run settles quiet connections until ctx ends.
func (b *books) run(ctx context.Context) {
	timer := time.NewTimer(booksEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begun := time.Now()
		spent := b.settle(false, begun.Add(booksEvery/booksShare))
		timer.Reset(max(booksEvery, (time.Since(begun)-spent)*booksWalk))
	}
}

// release settles all connections, quiet or not, before shunt leaves them to the kernel.
func (b *books) release() {
	b.settle(true, time.Now().Add(booksAtStop))
}

// settleDead does the same for a daemon that died. It reports no error: Remove, which follows, does.
func settleDead(paths config.Paths) {
	plane, err := dataplane.OpenDead(paths.BPFFS)
	if err != nil {
		return
	}
	defer plane.Close()
	ct, err := kernel.OpenConntrack()
	if err != nil {
		return
	}
	defer ct.Close()
	plane.Retire()
	b := books{plane: plane, ct: ct, hz: 1, now: func() uint32 { return 0 }, log: slog.Default(), dead: true}
	b.release()
}

// settle settles connections until the deadline, at least one, and returns the time that this took without the search.
func (b *books) settle(all bool, until time.Time) (spent time.Duration) {
	var timers kernel.TCPTimers
	read := false
	b.plane.Unsettled(b.now(), all, func(t dataplane.Conversation) bool {
		begun := time.Now()
		defer func() { spent += time.Since(begun) }()
		if !read {
			var err error
			if timers, err = kernel.ReadTCPTimers(); err != nil {
				b.logFailure(err)
				return false
			}
			read = true
		}
		if err := b.settleOne(t, timers, all); err != nil && !errors.Is(err, kernel.ErrNoConnection) {
			b.logFailure(err)
		}
		return time.Now().Before(until)
	})
	return spent
}

func (b *books) logFailure(err error) {
	if time.Since(b.logged) > time.Minute {
		b.logged = time.Now()
		b.log.Warn("a quiet connection could not be settled; conntrack may forget it too early", "err", err)
	}
}

func (b *books) settleOne(t dataplane.Conversation, timers kernel.TCPTimers, stopping bool) error {
	tuple := kernel.Tuple{Proto: tcp, Source: t.Tuple.Source, Destination: t.Tuple.Destination, Zone: t.Zone}
	c, err := b.ct.Get(tuple)
	if err != nil {
		return err
	}
	silent := time.Duration(t.Silent) * time.Second / time.Duration(b.hz)
	if b.dead {
		silent, t.Unanswered = timers.Established, false
	}
	s, ok := settlement(t, c, timers, silent, stopping)
	if !ok {
		return nil
	}
	return b.ct.Settle(tuple, s.flags, s.left)
}

// settled is a correction of conntrack's entry.
type settled struct {
	flags kernel.Unacknowledged
	left  time.Duration // 0: its timer stays
}

// settlement returns the correction that makes conntrack's entry what it would be if conntrack had seen all packets;
// false: it is right, or not known. silent is the longest time since conntrack saw a packet; stopping: shunt leaves the connection to the kernel.
func settlement(t dataplane.Conversation, c kernel.Connection, timers kernel.TCPTimers, silent time.Duration, stopping bool) (settled, bool) {
	const established = 3 // enum tcp_conntrack
	if c.TCPState != established || c.Status&(kernel.StatusFixedTimeout|kernel.StatusOffload) != 0 ||
		c.FlagsOriginal&c.FlagsReply&kernel.TCPLiberal == 0 {
		return settled{}, false
	}
	if c.Status&kernel.StatusSeenReply == 0 {
		timers.Established = min(timers.Established, timers.Unacknowledged)
	}
	had := kernel.Unacknowledged{
		Original: c.FlagsOriginal&kernel.TCPUnacknowledged != 0, Reply: c.FlagsReply&kernel.TCPUnacknowledged != 0,
	}
	original, reply := t.There, t.Back
	if c.Original.Source != t.Tuple.Source || c.Original.Destination != t.Tuple.Destination {
		original, reply = reply, original
	}
	s := settled{flags: kernel.Unacknowledged{Original: original == dataplane.NotAll, Reply: reply == dataplane.NotAll}}
	before, since, known := timerInForce(c.Timeout, timers, had.Original || had.Reply, silent)
	if !known {
		return settled{}, false // somebody else set it
	}
	var after time.Duration
	switch {
	case original == dataplane.All && reply == dataplane.All:
		after = timers.Established
		if t.ZeroWindow {
			after = min(after, timers.MaxRetrans)
		}
	case t.Unanswered:
		after = min(before, timers.Unacknowledged, timers.MaxRetrans) // how often it was sent again is not known
	case !stopping:
		return settled{}, false // not known: the kernel's own choice stays
	default: // in use: the kernel's next packet sets the timer, and must not do it by an old flag
		s.flags = kernel.Unacknowledged{}
		return s, had != s.flags
	}
	if d := after - before; d < -time.Second || d > time.Second {
		s.left = max(after-since, time.Second)
	}
	return s, s.left != 0 || s.flags != had
}

// timerInForce returns the timer that the kernel set, by what is left of it, and how long ago it did so. known is false if
// none of the kernel's timers explains it: the connection has timers of its own (`ct timeout`), or somebody changed it.
func timerInForce(left time.Duration, timers kernel.TCPTimers, unacknowledged bool, silent time.Duration) (before, since time.Duration, known bool) {
	first := timers.Established
	if unacknowledged {
		first = min(first, timers.Unacknowledged)
	}
	for _, before = range []time.Duration{first, min(timers.Established, timers.MaxRetrans)} {
		if since = before - left; since >= 0 && since <= silent+2*time.Second {
			return before, since, true
		}
	}
	return 0, 0, false
}
