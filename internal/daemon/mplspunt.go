// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/icmp"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// What the data path passes up is an attacker's to send at any rate, and must not take a CPU.
const (
	puntsPerSecond, puntsAtOnce     = 10000, 1000 // read at all; the rest is lost in the socket
	answersPerSecond, answersAtOnce = 1000, 50    // icmp_msgs_per_sec, icmp_msgs_burst
	addressesFor                    = time.Second // what is known of them is believed
	complainEvery                   = 10 * time.Second
)

// labelSocket is how frames come and go: kernel.LabelSocket.
type labelSocket interface {
	Listen(indexes []int) error
	Hear(buffer []byte) (n, index int, err error)
	Send(index int, to net.HardwareAddr, etherType uint16, packet []byte) error
	Route(to netip.Addr, packet []byte) error

	ListenPair(index int) error
	HearPair(buffer []byte) (n int, err error)
	Speaker(to netip.Addr) (netip.Addr, error)
}

// punts are the labelled packets that the data path passes up, as it cannot do itself what is
// due: an ICMP error for a TTL that ran out or a packet too big, fragments, what is beneath a
// router alert label. What is to become of a packet is asked of the table's own reading, and must
// be what the data path found; anything else is not touched, for it was not passed up for that.
//
// Two goroutines (serve) hear labelled packets, and IP packets that were to get labels. Which of them
// has one holds busy, which guards all but sent: that labels.mu does.
type punts struct {
	busy      sync.Mutex
	labels    *labels
	socket    labelSocket
	addresses func() (map[int][]netip.Prefix, error)
	read      *icmp.Bucket
	answers   *icmp.Bucket
	known     map[int][]netip.Prefix
	learned   time.Time
	complaint time.Time
	sent      sent
}

// sent is what went out by the daemon, which the data path's counters do not have.
type sent struct {
	in  map[dataplane.LabelKey]dataplane.Segment // Errors: not one after all
	out map[uint32]dataplane.Segment             // by NHLFE
	cut map[string]uint64                        // packets that were fragmented, by the port they left by
}

func newSent() sent {
	return sent{map[dataplane.LabelKey]dataplane.Segment{}, map[uint32]dataplane.Segment{}, map[string]uint64{}}
}

// forget drops the counters of what an update takes away, as the data path does with its own. The
// caller holds labels.mu.
func (p *punts) forget(u *dataplane.LabelUpdate) {
	if p == nil {
		return
	}
	if u.Whole {
		p.sent = newSent()
	}
	for _, o := range u.ILM {
		if o.NHLFE == [8]uint32{} {
			delete(p.sent.in, dataplane.LabelKey{Space: o.Space, Label: o.Label})
		}
	}
	for _, n := range u.NHLFEs {
		if n.Form == nil {
			delete(p.sent.out, n.ID)
		}
	}
}

func newPunts(l *labels, socket labelSocket, addresses func() (map[int][]netip.Prefix, error)) *punts {
	return &punts{
		labels: l, socket: socket, addresses: addresses,
		read: icmp.NewBucket(puntsPerSecond, puntsAtOnce), answers: icmp.NewBucket(answersPerSecond, answersAtOnce),
		sent: newSent(),
	}
}

// listen hears the ports that have a label space, and no others: their labelled frames are the
// kernel's. The caller holds labels.mu.
func (p *punts) listen() {
	if p == nil {
		return
	}
	var indexes []int
	for _, port := range p.labels.spaces {
		indexes = append(indexes, port.Index)
	}
	if err := p.socket.Listen(indexes); err != nil {
		p.labels.log.Error("labelled packets that need an answer will get none", "err", err)
	}
}

// serve deals with what is passed up until ctx ends.
func (p *punts) serve(ctx context.Context) {
	if p == nil {
		return
	}
	var all sync.WaitGroup
	all.Go(func() {
		p.hear(ctx, func(buffer []byte) (func() error, error) {
			n, err := p.socket.HearPair(buffer)
			return func() error { return p.takeIP(buffer[:n]) }, err
		})
	})
	p.hear(ctx, func(buffer []byte) (func() error, error) {
		n, index, err := p.socket.Hear(buffer)
		return func() error { return p.take(index, buffer[:n]) }, err
	})
	all.Wait()
}

// hear waits for packets, and deals with one after the other, no faster than it may.
func (p *punts) hear(ctx context.Context, next func(buffer []byte) (deal func() error, err error)) {
	buffer := make([]byte, 1<<17)
	for ctx.Err() == nil {
		deal, err := next(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		p.busy.Lock()
		for !p.read.Take(time.Now()) {
			time.Sleep(time.Millisecond)
		}
		if err == nil {
			err = deal()
		}
		if err != nil {
			p.complain(err)
		}
		p.busy.Unlock()
	}
}

// counted is what was sent. The caller holds labels.mu.
func (p *punts) counted() sent {
	if p == nil {
		return sent{}
	}
	return p.sent
}

// complain logs an error, if it is long since the last one.
func (p *punts) complain(err error) {
	if now := time.Now(); now.Sub(p.complaint) > complainEvery {
		p.labels.log.Warn("a labelled packet could not be dealt with", "err", err)
		p.complaint = now
	}
}

// punted is what a packet that was passed up comes to.
type punted struct {
	lfib.Verdict
	to     dataplane.Adjacency // of Send
	before int                 // so many of Labels have been counted by the data path
}

// take does what is due for a packet that came in by an interface.
func (p *punts) take(index int, packet []byte) error {
	v, ok := p.verdict(index, packet)
	if !ok {
		return nil
	}
	switch v.Reason {
	case lfib.Switched:
		p.goesOn(&v, len(packet))
		return p.send(&v, v.Packet)
	case lfib.Expired:
		if in, ok := icmp.Parse(lfib.EtherMPLS, packet); ok {
			return p.answer(index, in, func(from netip.Addr) []byte { return icmp.TimeExceeded(in, from) })
		}
	case lfib.OverMTU:
		return p.tooBig(index, packet, &v)
	}
	return nil
}

// verdict is what becomes of a packet; false if nothing is due here.
func (p *punts) verdict(index int, packet []byte) (v punted, ok bool) {
	l := p.labels
	l.mu.Lock()
	defer l.mu.Unlock()
	space := -1
	for _, port := range l.spaces {
		if port.Index == index {
			space = port.Space
		}
	}
	if space < 0 {
		return v, false
	}
	env := l.env()
	v.Verdict = l.table.Switch(lfib.Space(space), packet, env)
	v.before = len(v.Labels)
	ok = v.Reason == lfib.Expired || v.Reason == lfib.OverMTU
	if v.Reason == lfib.Alert {
		env.Alerted, ok = true, true
		v.Verdict = l.table.Switch(lfib.Space(space), packet, env)
	}
	if v.Send != nil {
		v.to = l.ways.at[wayOutOf(v.Send)].now
	}
	return v, ok
}

// env is how the data path would see it. The caller holds mu.
func (l *labels) env() lfib.Env {
	return lfib.Env{
		Hash: l.plane.LabelHash,
		Adjacency: func(s *lfib.Send) (int, bool) {
			w := l.ways.at[wayOutOf(s)]
			if w == nil || w.now.Index == 0 {
				return 0, false
			}
			return w.now.MTU, true
		},
	}
}

// goesOn counts a packet of so many bytes that is not lost after all: what the data path, which
// passed it up, has called an error of the last label that it saw is none, and the labels that it
// did not come to have one packet more.
func (p *punts) goesOn(v *punted, octets int) {
	p.labels.mu.Lock()
	defer p.labels.mu.Unlock()
	for i, o := range v.Labels {
		key := dataplane.LabelKey{Space: o.Space, Label: o.Label}
		switch {
		case i == v.before-1:
			p.sent.in[key] = p.sent.in[key].Plus(dataplane.Segment{Errors: 1})
		case i >= v.before:
			p.sent.in[key] = p.sent.in[key].Plus(dataplane.Segment{Packets: 1, Octets: uint64(octets)})
		}
	}
}

// send sends packets that an NHLFE has made to its neighbour.
func (p *punts) send(v *punted, packets ...[]byte) error {
	var gone dataplane.Segment
	var failed error
	for _, packet := range packets {
		if err := p.socket.Send(v.to.Index, v.to.Destination[:], v.EtherType, packet); err != nil {
			failed = err
			continue
		}
		gone.Packets++
		gone.Octets += uint64(len(packet))
	}
	p.labels.mu.Lock()
	defer p.labels.mu.Unlock()
	p.sent.out[v.NHLFE] = p.sent.out[v.NHLFE].Plus(gone)
	return failed
}

// tooBig cuts a packet, or tells its source to.
func (p *punts) tooBig(index int, packet []byte, v *punted) error {
	kind := v.EtherType
	if kind == lfib.EtherUpstream {
		kind = lfib.EtherMPLS
	}
	out, ok := icmp.Parse(kind, v.Packet)
	in, whole := icmp.Parse(lfib.EtherMPLS, packet)
	if !ok || !whole {
		return nil
	}
	if out.DontFragment() {
		return p.answer(index, in, func(from netip.Addr) []byte { return icmp.TooBig(in, v.MTU-len(out.Stack), from) })
	}
	p.goesOn(v, len(packet))
	return p.cut(v, out)
}

// cut sends a packet in parts.
func (p *punts) cut(v *punted, out icmp.Packet) error {
	parts := out.Fragments(v.MTU)
	if len(parts) == 0 {
		return nil
	}
	if err := p.send(v, parts...); err != nil {
		return err
	}
	p.labels.mu.Lock()
	defer p.labels.mu.Unlock()
	p.sent.cut[v.Send.Port]++
	return nil
}

// answer sends an ICMP error to a packet's source. Where there is no way back it follows the
// packet (RFC 3032 §2.3.2).
func (p *punts) answer(index int, about icmp.Packet, report func(from netip.Addr) []byte) error {
	if !about.Answerable() || !p.answers.Take(time.Now()) {
		return nil
	}
	from, err := p.speaker(index, about.Source())
	if err != nil || !from.IsValid() {
		return err
	}
	message := report(from)
	err = p.socket.Route(about.Source(), message)
	if errors.Is(err, kernel.ErrNoRoute) {
		return p.follow(index, about.Relabel(message))
	}
	return err
}

// follow switches an answer as the packet would have been. It is answered by nobody. Its labels
// are those of the router's own packet, and count for none that came in.
func (p *punts) follow(index int, packet []byte) error {
	v, _ := p.verdict(index, packet)
	if v.Reason != lfib.Switched {
		return nil
	}
	return p.send(&v, v.Packet)
}

// speaker is the address that an interface answers somebody from, as the kernel chooses it: one
// in a subnet that they share, or the first one. None if somebody is this host itself.
func (p *punts) speaker(index int, to netip.Addr) (netip.Addr, error) {
	if now := time.Now(); now.Sub(p.learned) > addressesFor {
		known, err := p.addresses()
		if err != nil {
			return netip.Addr{}, err
		}
		p.known, p.learned = known, now
	}
	for _, prefixes := range p.known {
		for _, own := range prefixes {
			if own.Addr() == to {
				return netip.Addr{}, nil
			}
		}
	}
	var best netip.Addr
	for _, own := range p.known[index] {
		a := own.Addr()
		if a.Is4() != to.Is4() || a.IsLinkLocalUnicast() && !a.Is4() {
			continue
		}
		if !best.IsValid() || own.Contains(to) {
			best = a
		}
	}
	return best, nil
}
