// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// port is an interface that the configuration wants, and is there.
type port struct {
	link     kernel.Link
	hooks    []string          // other people's, but for tcx programs
	queue    kernel.Queue      // without tcx programs
	behind   kernel.Queue      // queue, and programs at tcx egress
	looked   bool              // hooks and queue are as of the last event about such
	judged   eligible.Decision // what policy grants
	decision eligible.Decision // what could be had of it
	failed   string            // why not all of it, as logged
	peer     eligible.Peer
	seen     eligible.Wire      // counters at the last observation
	transmit dataplane.Transmit // at the last health check
	loses    time.Time          // no XDP towards it before
	held     time.Duration      // from when it lost frames until then
	switched int                // how often its offloads were switched off
	proof    proof              // that its XDP program runs
}

// shown is what the API tells of a port.
type shown struct {
	link     kernel.Link
	queue    kernel.Queue
	decision eligible.Decision
}

// review reads all links, decides for each wanted one, makes it so, and shows it.
func (d *Daemon) review() error {
	links, err := kernel.Links()
	if err != nil {
		return err
	}
	there := map[int]bool{}
	var want []dataplane.Attach
	for _, l := range links {
		if !d.wants(l) {
			continue
		}
		p := d.meet(l)
		err := d.decide(p, l)
		if errors.Is(err, unix.ENODEV) { // it went since the links were read
			continue
		}
		if err != nil {
			return err
		}
		there[l.Index] = true
		if p.decision.XDPReceive && eligible.LosesMarks(l) {
			d.plane.LoseMarks()
		}
		if p.decision.Attach {
			want = append(want, dataplane.Attach{Index: l.Index,
				XDPReceive: p.decision.XDPReceive, XDPTransmit: p.decision.XDPTransmit,
				KeepsMark: p.decision.KeepsMark, LooksDeeper: p.decision.LooksDeeper, Wire: l.Kind == ""})
		}
	}
	for index, p := range d.ports {
		if !there[index] {
			d.log.Warn("port is gone", "port", p.link.Name)
			delete(d.ports, index)
		}
	}
	fits, _ := d.plane.Fit(want) // the policy has no more room than the port table
	if err := d.rules.see(links, indexes(fits)); err != nil {
		return err
	}
	d.apply(want)
	d.show()
	return nil
}

// wants leaves out what this daemon makes itself.
func (d *Daemon) wants(l kernel.Link) bool {
	return d.cfg.Load().Wants(l.Name) && l.Name != kernel.PairOuter && l.Name != kernel.PairInner
}

func indexes(want []dataplane.Attach) (list []int) {
	for _, a := range want {
		list = append(list, a.Index)
	}
	return list
}

// reviewAgain is review while the daemon runs; what fails is tried again within a second.
func (d *Daemon) reviewAgain() {
	if err := d.review(); err != nil {
		d.log.Error("ports could not be read; trying again", "err", err)
	}
}

// meet returns the port of a link, a new one if it was not there before.
func (d *Daemon) meet(l kernel.Link) *port {
	p := d.ports[l.Index]
	if p != nil {
		return p
	}
	p = &port{link: l}
	if d.ownXDP(l) {
		p.peer = eligible.Wired() // an earlier daemon saw so; nothing is detached to find out again
		p.proof.proven = true
	}
	// an earlier daemon's figures are not this one's; without any they are zero
	p.seen, _ = d.received(l.Index)
	p.transmit, _ = d.plane.Transmit(l.Index)
	p.proof.tally, _ = d.seenByXDP(l.Index)
	d.ports[l.Index] = p
	return p
}

// show lets the API see the ports as they are now.
func (d *Daemon) show() {
	var now []shown
	for _, p := range d.ports {
		now = append(now, shown{p.link, p.behind, p.decision})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown = now
}

// apply has the ports made so, and writes into their decisions what could not be had.
func (d *Daemon) apply(want []dataplane.Attach) {
	failed := d.plane.Apply(want)
	for _, a := range want {
		p, err := d.ports[a.Index], failed[a.Index]
		if err == nil {
			p.failed = ""
			continue
		}
		words := "port is not fast"
		if xdp := (*dataplane.XDPError)(nil); errors.As(err, &xdp) {
			words, p.decision.XDPReceive = "port goes by TC alone", false
		} else {
			p.decision = eligible.Decision{}
		}
		p.decision.Reason, p.decision.Remedy = err.Error(), "see \"shunt doctor\""
		if errors.Is(err, dataplane.ErrTaken) {
			p.decision.Remedy = fmt.Sprintf("ip link set dev %s xdp off, or leave the port out", p.link.Name)
		}
		if p.failed != err.Error() {
			d.log.Warn(words, "port", p.link.Name, "reason", p.decision.Reason)
		}
		p.failed = err.Error()
	}
}

// hooksChanged makes the next review read the hooks on all ports. They are not read every
// second: with many chains and filters that costs more than all the rest, and every change
// of them is announced.
func (d *Daemon) hooksChanged() {
	for _, p := range d.ports {
		p.looked = false
	}
}

func (d *Daemon) ownXDP(l kernel.Link) bool {
	return l.XDP != kernel.XDPNone && d.plane.OwnsXDP(l.Index, l.XDPID)
}

// decide fills in the port's facts and its decision, and logs what is new.
func (d *Daemon) decide(p *port, l kernel.Link) error {
	facts, err := d.facts(p, l)
	if err != nil {
		return err
	}
	mode := eligible.Mode(d.cfg.Load().XDPFor(l.Name))
	next := eligible.Decide(facts, mode)
	if names := eligible.Wants(facts, mode); next.Attach && len(names) > 0 && p.switched < switchTries {
		p.switched++
		if l, err = d.switchOff(l, names); err != nil {
			return err
		}
		facts.Link = l
		next = eligible.Decide(facts, mode)
	}
	p.link = l
	d.withhold(p, &next)
	if next != p.judged {
		level := slog.LevelInfo
		if !next.Attach {
			level = slog.LevelWarn
		}
		d.log.Log(context.Background(), level, "port", "port", l.Name, "fast", next.Attach, "xdp-receive", next.XDPReceive,
			"xdp-transmit", next.XDPTransmit, "reason", next.Reason, "remedy", next.Remedy)
	}
	p.judged, p.decision = next, next
	return nil
}

// facts gathers what a port is judged by.
func (d *Daemon) facts(p *port, l kernel.Link) (eligible.Port, error) {
	facts := eligible.Port{Link: l, Peer: p.peer, Keep: d.keepsOffloads(), CPUs: d.cpus}
	if !p.looked {
		hooks, err := d.hooks(l)
		if err != nil {
			return facts, err
		}
		if p.queue, err = kernel.ReadQueue(l); err != nil {
			return facts, err
		}
		p.hooks, p.looked = hooks, true
	}
	ingress, egress, err := d.plane.ForeignTCX(l.Index)
	if err != nil {
		return facts, err
	}
	p.behind = p.queue.With(egress)
	facts.Foreign, facts.Queue = slices.Concat(p.hooks, ingress), p.behind
	if p.link.Up != l.Up || p.link.MTU != l.MTU {
		p.proof.lost = 0
	}
	if d.ownXDP(l) {
		facts.OwnXDP, facts.Proven = l.XDPID, p.proof.proven || eligible.Vouched(l) && p.proof.lost == 0
	} else {
		p.proof.attached() // when it is
	}
	return facts, nil
}

// withhold takes from a decision what the daemon has found out, or has yet to do.
func (d *Daemon) withhold(p *port, next *eligible.Decision) {
	l := p.link
	if next.XDPReceive && d.keepsOffloads() && d.cards.has(l) { // returnCards puts them back
		next.XDPReceive, next.XDPTransmit = false, false
		next.Reason = fmt.Sprintf("shunt has switched offloads of %s off, and offloads = \"keep\" forbids that", l.Name)
	}
	if next.XDPReceive && p.proof.barred() {
		next.XDPReceive, next.XDPTransmit = false, false
		next.Reason = fmt.Sprintf("driver %s does not run the XDP program on %s although it is attached", l.Driver, l.Name)
		next.Remedy = fmt.Sprintf("ip link set dev %s down, then up: shunt tries again", l.Name)
	}
	if next.XDPTransmit && time.Now().Before(p.loses) {
		next.XDPTransmit = false
		next.Reason = fmt.Sprintf("%s lost redirected frames: flows to it go by TC for a while", l.Name)
	}
}

func (d *Daemon) keepsOffloads() bool { return d.cfg.Load().Offloads == config.OffloadsKeep }

// switchTries is how often a port's offloads are switched off: at first, and once more if somebody
// switches them on again. After that they are his.
const switchTries = 2

// switchOff switches features of a card off and returns the link as it is then. What cannot be
// switched stays as it is, and the port goes by TC.
func (d *Daemon) switchOff(l kernel.Link, names []string) (kernel.Link, error) {
	if err := d.cards.off(l, names); err != nil {
		d.log.Warn("offloads could not be switched off; the port goes by TC", "port", l.Name, "reason", err)
	}
	links, err := kernel.Links()
	if err != nil {
		return l, err
	}
	at := slices.IndexFunc(links, func(o kernel.Link) bool { return o.Index == l.Index })
	if at < 0 {
		return l, unix.ENODEV
	}
	return links[at], nil
}

// received counts, since the programs were loaded, what a port's peer sent.
func (d *Daemon) received(index int) (eligible.Wire, error) {
	c, err := d.plane.Counters(dataplane.StageTCIngress, index)
	if err != nil {
		return eligible.Wire{}, err
	}
	x, err := d.plane.Counters(dataplane.StageXDP, index)
	if err != nil {
		return eligible.Wire{}, err
	}
	tagged := c.Of("vlan_tag")
	return eligible.Wire{
		Plain: x.Of("hit") + c.Total() - c.Partial - tagged, Partial: c.Partial, Merged: c.Merged, Tagged: tagged,
		Gain: x.Of("hit") + c.Of("hit") + c.Of("mpls_off"),
	}, nil
}

// observe tells each port's judge what came in since the last time. Unfinished segments
// count against all ports: what one peer sends in bulk, the other acknowledges, and both
// directions are faster by TC then.
func (d *Daemon) observe(now time.Time) {
	news := map[*port]eligible.Wire{}
	var partial, merged, plain uint64
	for index, p := range d.ports {
		w, err := d.received(index)
		if err != nil {
			d.log.Error("counters", "err", err)
			return
		}
		news[p] = eligible.Wire{Plain: w.Plain - p.seen.Plain, Partial: w.Partial - p.seen.Partial, Tagged: w.Tagged - p.seen.Tagged, Gain: w.Gain - p.seen.Gain}
		partial += w.Partial - p.seen.Partial
		merged += w.Merged - p.seen.Merged
		if eligible.Finishes(p.link) {
			plain += w.Plain - p.seen.Plain + w.Partial - p.seen.Partial
		}
		p.seen = w
	}
	for p, w := range news {
		if eligible.Finishes(p.link) { // all of these together: one may only send
			w.Plain, w.Partial = plain, merged
		} else {
			w.Partial = partial
		}
		p.peer.Observe(now, w)
	}
}

// holdOff is until when an egress that lost frames gets no XDP: for a second, as it is over by
// then if a link went down or a port was set up anew, and twice as long whenever it
// happens soon again, for it may be a driver that takes no frames at all.
func (p *port) holdOff(now time.Time) time.Time {
	if now.Sub(p.loses) > losesHoldOff {
		p.held = 0
	}
	p.held = min(max(2*p.held, losesFirst), losesHoldOff)
	return now.Add(p.held)
}

// redirects reports whether XDP does, of ports or of the imposer: only then may a driver refuse frames.
func (d *Daemon) redirects() bool {
	if d.labels.imposing.Load() {
		return true
	}
	for _, p := range d.ports {
		if p.decision.XDPReceive {
			return true
		}
	}
	return false
}

// transmitsFromNow forgets what became of frames while nobody looked: other people redirect, too.
func (d *Daemon) transmitsFromNow() {
	for index, p := range d.ports {
		p.transmit, _ = d.plane.Transmit(index)
	}
}

// checkTransmits takes XDP from an egress whose driver refuses frames, or loses more than
// one in eight to a full queue: the kernel's way has a qdisc and says why it drops.
func (d *Daemon) checkTransmits() {
	var lost []string
	for index, p := range d.ports {
		t, err := d.plane.Transmit(index)
		before := p.transmit
		p.transmit = t
		if err != nil || !p.decision.XDPTransmit {
			continue
		}
		sent, drops, errs := t.Sent-before.Sent, t.Drops-before.Drops, t.Errors-before.Errors
		if errs > 0 || drops > 16 && drops > (sent+drops)/8 {
			p.loses = p.holdOff(time.Now())
			lost = append(lost, fmt.Sprintf("%s (%d refused, %d dropped, %d sent)", p.link.Name, errs, drops, sent))
		}
	}
	if lost == nil {
		return
	}
	slices.Sort(lost)
	d.log.Warn("redirected frames were lost; flows go by TC", "ports", strings.Join(lost, ", "))
	d.reviewAgain()
}
