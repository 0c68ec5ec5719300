// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/icmp"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// This file is about IP packets that get labels: the veth pair in which they do, which is there as
// long as an FTN is, and what is due for those that are too long for it.

// impose adds where IP packets get labels, which is made if the table wants any and it is not there.
func (p *putting) impose() error {
	if !p.table.Imposes() {
		return nil
	}
	p.labels.paired = true
	outer, inner, err := p.labels.kernel.MakePair()
	p.update.Imposer = dataplane.Imposer{Outer: outer, Inner: inner}
	return err
}

// imposed remembers where the data path has IP packets get labels; nowhere, if the last FTN went. The
// caller holds mu.
func (l *labels) imposed(at dataplane.Imposer) error {
	if l.imposer != at {
		l.imposer = at
		l.imposing.Store(at != dataplane.Imposer{})
		l.punts.listenPair(at.Inner)
	}
	if at != (dataplane.Imposer{}) || !l.paired {
		return nil
	}
	l.paired = false
	return l.kernel.RemovePair()
}

// lookAtImposer makes it again if somebody has taken it away. The caller holds mu.
func (l *labels) lookAtImposer() error {
	if l.imposer == (dataplane.Imposer{}) {
		return nil
	}
	outer, inner, err := l.kernel.MakePair()
	now := dataplane.Imposer{Outer: outer, Inner: inner}
	if err != nil || now == l.imposer {
		return err
	}
	l.log.Warn("the interfaces in which IP packets get labels were gone, and are made again", "outer", kernel.PairOuter, "inner", kernel.PairInner)
	if err := l.plane.UpdateLabels(&dataplane.LabelUpdate{Imposer: now}); err != nil {
		return err
	}
	return l.imposed(now)
}

// removePair takes away what imposed has made, of this daemon or of a dead one.
func removePair() error {
	r, err := kernel.OpenResolver()
	if err != nil {
		return err
	}
	defer r.Close()
	return r.RemovePair()
}

// listenPair hears what is passed up at the inner end of the pair.
func (p *punts) listenPair(index int) {
	if p == nil {
		return
	}
	if err := p.socket.ListenPair(index); err != nil {
		p.labels.log.Error("IP packets that are too long with labels will get no answer", "err", err)
	}
}

// takeIP does what is due for an IP packet that was to get labels: its source hears how long it may
// be, or it is cut. Whoever sent it may be this host itself.
func (p *punts) takeIP(packet []byte) error {
	v, ok := p.imposition(packet)
	in, whole := icmp.Parse(etherTypeOf(packet), packet)
	if !ok || !whole {
		return nil
	}
	out, ok := icmp.Parse(v.EtherType, v.Packet)
	if !ok {
		return nil
	}
	if !out.DontFragment() {
		return p.cut(&v, out)
	}
	if !in.Answerable() || !p.answers.Take(time.Now()) {
		return nil
	}
	from, err := p.socket.Speaker(in.Source())
	if err != nil || !from.IsValid() {
		return err
	}
	err = p.socket.Route(in.Source(), icmp.TooBig(in, v.MTU-len(out.Stack), from))
	if errors.Is(err, kernel.ErrNoRoute) { // and no label that it came with
		return nil
	}
	return err
}

// imposition is what becomes of an IP packet that was passed up; false if nothing is due here.
func (p *punts) imposition(packet []byte) (v punted, ok bool) {
	l := p.labels
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Verdict, ok = l.table.Impose(packet, l.env())
	if !ok || v.Reason != lfib.OverMTU {
		return v, false
	}
	v.to = l.ways.at[wayOutOf(v.Send)].now
	return v, true
}

func etherTypeOf(packet []byte) uint16 {
	if len(packet) > 0 && packet[0]>>4 == 6 {
		return lfib.EtherIPv6
	}
	return lfib.EtherIPv4
}
