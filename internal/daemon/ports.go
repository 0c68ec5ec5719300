package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/policy"
)

// port is an interface that the configuration wants, and is there.
type port struct {
	link     kernel.Link
	decision policy.Decision
	peer     policy.Peer
	seen     policy.Wire        // counters at the last observation
	transmit dataplane.Transmit // at the last health check
	loses    time.Time          // no XDP towards it before
}

// review reads all links, decides for each wanted one, and makes it so. At the start a
// port that somebody else's XDP program holds is an error; later it is refused.
func (d *Daemon) review(first bool) error {
	links, err := kernel.Links()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	there := map[int]bool{}
	var want []dataplane.Attach
	for _, l := range links {
		if !d.cfg.Wants(l.Name) {
			continue
		}
		there[l.Index] = true
		p := d.ports[l.Index]
		if p == nil {
			p = &port{}
			if p.link = l; p.ownXDP(d.plane) {
				p.peer = policy.Wired() // an earlier daemon saw so; nothing is detached to find out again
			}
			p.seen, _ = d.received(l.Index)
			d.ports[l.Index] = p
		}
		if err := d.decide(p, l); err != nil {
			return err
		}
		if first && p.foreignXDP(d.plane) {
			return fmt.Errorf("port %s: %s; %s", l.Name, p.decision.Reason, p.decision.Remedy)
		}
		if p.decision.Attach {
			want = append(want, dataplane.Attach{Index: l.Index, Name: l.Name,
				XDPReceive: p.decision.XDPReceive, XDPTransmit: p.decision.XDPTransmit})
		}
	}
	for index, p := range d.ports {
		if !there[index] {
			d.log.Info("port is gone", "port", p.link.Name)
			delete(d.ports, index)
		}
	}
	return d.apply(want, first)
}

func (d *Daemon) apply(want []dataplane.Attach, first bool) error {
	for index, err := range d.plane.Apply(want) {
		p := d.ports[index]
		p.decision = policy.Decision{Reason: err.Error(), Remedy: "see \"shunt doctor\""}
		if errors.Is(err, dataplane.ErrTaken) {
			p.decision.Remedy = fmt.Sprintf("ip link set dev %s xdp off, or leave the port out", p.link.Name)
			if first {
				return fmt.Errorf("port %s: %s; %s", p.link.Name, p.decision.Reason, p.decision.Remedy)
			}
		}
		d.log.Warn("port is not fast", "port", p.link.Name, "reason", p.decision.Reason)
	}
	return nil
}

func (p *port) ownXDP(plane *dataplane.Plane) bool {
	return p.link.XDP != kernel.XDPNone && plane.OwnsXDP(p.link.Index, p.link.XDPID)
}

func (p *port) foreignXDP(plane *dataplane.Plane) bool {
	return p.link.XDP != kernel.XDPNone && !p.ownXDP(plane)
}

// decide fills in the port's facts and its decision, and logs what is new.
func (d *Daemon) decide(p *port, l kernel.Link) error {
	hooks, err := kernel.Hooks(l)
	if err != nil {
		return err
	}
	tcx, err := d.plane.ForeignTCX(l.Index)
	if err != nil {
		return err
	}
	facts := policy.Port{Link: l, Foreign: append(hooks, tcx...), Peer: p.peer}
	if l.XDP != kernel.XDPNone && d.plane.OwnsXDP(l.Index, l.XDPID) {
		facts.OwnXDP = l.XDPID
	}
	p.link = l
	next := policy.Decide(facts, policy.Mode(d.cfg.XDPFor(l.Name)))
	if next.XDPTransmit && time.Now().Before(p.loses) {
		next.XDPTransmit = false
		next.Reason = fmt.Sprintf("%s lost redirected frames: flows to it go by TC for a while", l.Name)
	}
	if next != p.decision {
		d.log.Info("port", "port", l.Name, "fast", next.Attach, "xdp-receive", next.XDPReceive,
			"xdp-transmit", next.XDPTransmit, "reason", next.Reason, "remedy", next.Remedy)
	}
	p.decision = next
	return nil
}

// received counts, since the programs were loaded, what a port's peer sent.
func (d *Daemon) received(index int) (policy.Wire, error) {
	c, err := d.plane.Counters(dataplane.StageTCIngress, index)
	if err != nil {
		return policy.Wire{}, err
	}
	x, err := d.plane.Counters(dataplane.StageXDP, index)
	if err != nil {
		return policy.Wire{}, err
	}
	tagged := c.Of("vlan_tag")
	return policy.Wire{Plain: x.Of("hit") + c.Total() - c.Partial - tagged, Partial: c.Partial, Tagged: tagged}, nil
}

// observe tells each port's judge what came in since the last time.
func (d *Daemon) observe(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for index, p := range d.ports {
		w, err := d.received(index)
		if err != nil {
			d.log.Error("counters", "err", err)
			return
		}
		p.peer.Observe(now, policy.Wire{Plain: w.Plain - p.seen.Plain,
			Partial: w.Partial - p.seen.Partial, Tagged: w.Tagged - p.seen.Tagged})
		p.seen = w
	}
}

// checkTransmits takes XDP from an egress whose driver refuses frames, or loses more than
// one in eight to a full queue: the kernel's way has a qdisc and says why it drops.
func (d *Daemon) checkTransmits() {
	d.mu.Lock()
	var lost []string
	for index, p := range d.ports {
		if !p.decision.XDPTransmit {
			continue
		}
		t, err := d.plane.Transmit(index)
		if err != nil {
			continue // gone this very moment; the link event follows
		}
		sent, drops, errs := t.Sent-p.transmit.Sent, t.Drops-p.transmit.Drops, t.Errors-p.transmit.Errors
		p.transmit = t
		if errs > 0 || drops > 16 && drops > (sent+drops)/8 {
			p.loses = time.Now().Add(losesHoldOff)
			lost = append(lost, fmt.Sprintf("%s (%d refused, %d dropped, %d sent)", p.link.Name, errs, drops, sent))
		}
	}
	d.mu.Unlock()
	if lost == nil {
		return
	}
	slices.Sort(lost)
	d.log.Warn("redirected frames were lost; flows go by TC", "ports", strings.Join(lost, ", "))
	if err := d.review(false); err != nil {
		d.log.Error("ports could not be read; trying again", "err", err)
	}
}
