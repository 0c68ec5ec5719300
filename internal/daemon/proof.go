// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// What it takes to say that a card's driver does not run the program that the kernel lists as
// attached. vmxnet3 forgets it whenever its rings are made anew; xen-netfront reports success
// without a program where the back end has no room for one.
const (
	unseenPackets = 16          // came in, and the program counted none
	unseenFor     = time.Second // for so long
	lossesInARow  = 3           // without a proof in between: no program until the link changes
)

// proof says whether the program of a physical port runs: whether it counts what the driver
// counts.
type proof struct {
	proven bool
	lost   int       // how often the program was found not to run, since it was last proven
	mend   bool      // it must be detached before it is attached again: the kernel would not call the driver
	tally  uint64    // of the program, at the last look
	rx     uint64    // of the driver, when the tally was last seen to move
	since  time.Time // then; zero: not yet looked at
}

// attached begins the proof of a program that was attached just now.
func (p *proof) attached() { p.proven, p.since = false, time.Time{} }

// look compares the program's tally with the driver's counter, which is read only while the tally
// stands still. It returns true if the program does not run.
func (p *proof) look(now time.Time, tally, received func() (uint64, error)) (lost bool, err error) {
	if moved, err := p.moved(tally); moved || err != nil {
		return false, err
	}
	rx, err := received()
	switch {
	case err != nil:
		return false, err
	case p.since.IsZero() || rx < p.rx:
		p.rx, p.since = rx, now
		return false, nil
	case rx-p.rx < unseenPackets || now.Sub(p.since) < unseenFor:
		return false, nil
	}
	// what came in between the two readings is in one of them alone
	if moved, err := p.moved(tally); moved || err != nil {
		return false, err
	}
	p.attached()
	p.lost++
	p.mend = true
	return true, nil
}

// moved reports whether the program has counted something since the last look.
func (p *proof) moved(tally func() (uint64, error)) (bool, error) {
	n, err := tally()
	if err != nil || n == p.tally {
		return false, err
	}
	p.proven, p.lost = true, 0
	p.tally, p.since = n, time.Time{}
	return true, nil
}

// barred reports whether a port gets no program for now because an earlier one did not run: once
// after each loss, and from some losses on every time.
func (p *proof) barred() bool {
	once := p.mend
	p.mend = false
	return once || p.lost >= lossesInARow
}

// prove looks at all physical ports with a program, and reports whether one does not run. Then the next
// review detaches it, and the one after that attaches it again.
func (d *Daemon) prove(now time.Time) (lostOne bool) {
	for index, p := range d.ports {
		if p.link.Kind != "" || !p.decision.XDPReceive || !d.ownXDP(p.link) {
			continue
		}
		lost, err := p.proof.look(now, func() (uint64, error) { return d.seenByXDP(index) },
			func() (uint64, error) { return kernel.Received(index) })
		if err != nil && !errors.Is(err, unix.ENODEV) { // it may be about to go
			d.log.Error("counters of a port", "port", p.link.Name, "err", err)
		}
		if lost {
			lostOne = true
			d.log.Warn("the driver does not run the XDP program; attaching it again", "port", p.link.Name,
				"driver", p.link.Driver, "times", p.proof.lost)
		}
	}
	return lostOne
}

// seenByXDP counts what the program of a port met, with labels and without.
func (d *Daemon) seenByXDP(index int) (n uint64, err error) {
	for _, stage := range []int{dataplane.StageXDP, dataplane.StageMPLS} {
		c, err := d.plane.Counters(stage, index)
		if err != nil {
			return 0, err
		}
		n += c.Total()
	}
	return n, nil
}
