// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net"
	"net/netip"

	"shunt/internal/dataplane"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// wayOut names an adjacency: what stands behind "send".
type wayOut struct {
	port string
	via  netip.Addr // or
	mac  [macLength]byte
}

func wayOutOf(s *lfib.Send) wayOut {
	k := wayOut{port: s.Port, via: s.Via}
	copy(k.mac[:], s.MAC)
	return k
}

func (k wayOut) String() string {
	s := lfib.Send{Port: k.port, Via: k.via}
	if !k.via.IsValid() {
		s.MAC = k.mac[:]
	}
	return s.String()
}

// way is an adjacency that NHLFEs send to.
type way struct {
	key   wayOut
	users int                 // NHLFEs
	now   dataplane.Adjacency // as the data path has it
	why   string              // it is down; empty: it is up
}

// ways are all adjacencies. They live as long as an NHLFE sends to them.
type ways struct {
	at    map[wayOut]*way
	of    map[uint32]*way // by the NHLFE that sends
	by    map[string]int  // how many leave by a port
	last  uint32          // ID
	free  []uint32        // IDs, the one that has been free longest first
	ended []uint32        // IDs that are free since the last update
}

// idsApart is how many IDs are free before one is given again: a packet that is on its way
// through the tables may still be about to ask for the old one, and the data path waits for
// such packets, for all IDs that have ended at a time.
const idsApart = 64

func newWays() ways {
	return ways{at: map[wayOut]*way{}, of: map[uint32]*way{}, by: map[string]int{}}
}

// newID picks the ID of a new adjacency.
func (w *ways) newID() uint32 {
	if len(w.free) > idsApart {
		id := w.free[0]
		w.free = w.free[1:]
		return id
	}
	w.last++
	return w.last
}

// send notes where an NHLFE sends to now: nil for nowhere. A way that is not there yet is made
// by resolve, and returned; one that has lost its last user is added to idle.
func (w *ways) send(nhlfe uint32, to *wayOut, resolve func(wayOut) (dataplane.Adjacency, string), idle map[*way]bool) (fresh *way) {
	old := w.of[nhlfe]
	if old == nil && to == nil || old != nil && to != nil && old.key == *to {
		return nil
	}
	if old != nil {
		delete(w.of, nhlfe)
		if old.users--; old.users == 0 {
			idle[old] = true
		}
	}
	if to == nil {
		return nil
	}
	next := w.at[*to]
	if next == nil {
		next = &way{key: *to}
		next.now, next.why = resolve(*to)
		next.now.ID = w.newID()
		w.at[*to], fresh = next, next
		w.by[to.port]++
	}
	delete(idle, next)
	next.users++
	w.of[nhlfe] = next
	return fresh
}

// end forgets ways that nobody sends to any more.
func (w *ways) end(idle map[*way]bool) {
	w.ended = nil
	for gone := range idle {
		delete(w.at, gone.key)
		if w.by[gone.key.port]--; w.by[gone.key.port] == 0 {
			delete(w.by, gone.key.port)
		}
		w.free = append(w.free, gone.now.ID)
		w.ended = append(w.ended, gone.now.ID)
	}
}

// look is one look at the kernel's links and neighbours.
type look struct {
	kernel resolver
	ports  map[int]eligible.Decision // by ifindex: labels are switched in XDP alone
	use    bool                      // ask for neighbours, and go on asking for those that are known
	links  map[string]linkFound
}

type linkFound struct {
	kernel.Link
	err error
}

func (l *look) link(name string) (kernel.Link, error) {
	found, ok := l.links[name]
	if !ok {
		found.Link, found.err = l.kernel.Link(name)
		if l.links == nil {
			l.links = map[string]linkFound{}
		}
		l.links[name] = found
	}
	return found.Link, found.err
}

// resolve finds an adjacency, but for its ID, or says why there is none. After an error it is
// not known whether there is.
func (l *look) resolve(k wayOut) (a dataplane.Adjacency, why string, err error) {
	link, err := l.link(k.port)
	switch {
	case errors.Is(err, kernel.ErrNoLink):
		return a, "no such interface now", nil
	case err != nil:
		return a, "", err
	case !isEthernet(link):
		return a, "the interface is no Ethernet", nil
	case !link.Up:
		return a, "the interface is down", nil
	case !link.Carrier:
		return a, "the interface has no carrier", nil
	case !l.ports[link.Index].XDPTransmit:
		reason, remedy := eligible.LabelsOut(link, l.ports[link.Index])
		return a, "the interface takes no frames by XDP: " + lack{reason, remedy}.String(), nil
	}
	mac := net.HardwareAddr(k.mac[:])
	if k.via.IsValid() {
		if mac, why, err = l.neighbour(link.Index, k.via); why != "" || err != nil {
			return a, why, err
		}
	}
	a = dataplane.Adjacency{Index: link.Index, MTU: link.MTU}
	copy(a.Source[:], link.MAC)
	copy(a.Destination[:], mac)
	return a, "", nil
}

func isEthernet(l kernel.Link) bool { return l.Type == kernel.Ethernet && len(l.MAC) == macLength }

// neighbour looks one up. The kernel does not see that it is in use, and would neither notice
// its end nor keep it: it is told.
func (l *look) neighbour(index int, via netip.Addr) (mac net.HardwareAddr, why string, err error) {
	n, err := l.kernel.Neighbour(index, via)
	if err != nil {
		return nil, "", err
	}
	if l.use && !n.Static {
		if err := l.kernel.Use(index, via); err != nil {
			return nil, "", err
		}
	}
	switch {
	case n.Failed:
		return nil, "the neighbour does not answer", nil
	case n.MAC == nil:
		return nil, "the neighbour has not answered yet", nil
	case len(n.MAC) != macLength:
		return nil, "the neighbour's link address is no MAC", nil
	}
	return n.MAC, "", nil
}

// space finds what the data path is to know of a port with a label space; the zero value, if
// there is no such port now.
func (l *look) space(want lfib.PortSpace) (p dataplane.LabelPort, err error) {
	link, err := l.link(want.Port)
	if errors.Is(err, kernel.ErrNoLink) {
		return p, nil
	}
	if err != nil || !isEthernet(link) || !l.ports[link.Index].XDPReceive {
		return p, err
	}
	p = dataplane.LabelPort{Index: link.Index, Space: want.Space, Upstream: want.Upstream}
	copy(p.MAC[:], link.MAC)
	return p, nil
}
