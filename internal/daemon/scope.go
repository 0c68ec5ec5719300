// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net"
	"net/netip"
	"slices"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// mostScoped is how many neighbours, prefixes or connections a window may touch: with more,
// making everything prove itself is as good, and cheaper.
const mostScoped = 4096

// adjacency is a way out: a port and the MAC behind it. Port 0 stands for every port, no
// MAC for every one behind the port.
type adjacency struct {
	port int
	mac  string
}

// touched is what changes can have made wrong: everything, or these parts of it. A change
// of which it is not certain which flows it concerns touches everything.
type touched struct {
	all         bool
	adjacencies map[adjacency]bool
	prefixes    map[netip.Prefix]bool // flows from or to these, before or after NAT
	ended       []dataplane.Scope     // flows of connections that are no more
	ports       bool                  // what is attached must be looked at again
	unheard     bool                  // ended connections of which nothing else is known
}

// nothing tells that nothing is touched.
func (t *touched) nothing() bool {
	return !t.all && !t.ports && !t.unheard && !t.some() && len(t.ended) == 0
}

// merge adds what another has.
func (t *touched) merge(o *touched) {
	t.all = t.all || o.all
	t.ports = t.ports || o.ports
	t.unheard = t.unheard || o.unheard
	for a := range o.adjacencies {
		t.wayOut(a)
	}
	for p := range o.prefixes {
		t.prefix(p)
	}
	t.ended = append(t.ended, o.ended...)
}

// some tells whether flows must be looked for; scopes which, and forget that it was done.
func (t *touched) some() bool { return len(t.adjacencies)+len(t.prefixes) > 0 }

func (t *touched) forget() { t.adjacencies, t.prefixes = nil, nil }

func (t *touched) scopes() (scopes []dataplane.Scope) {
	for a := range t.adjacencies {
		scopes = append(scopes, dataplane.Scope{Out: a.port, MAC: net.HardwareAddr(a.mac)})
	}
	for p := range t.prefixes {
		scopes = append(scopes, dataplane.Scope{Prefix: p})
	}
	return scopes
}

// add notes what an event touches. isPort tells whether flows go out by an interface itself:
// the port of a flow is the lowest device, and a neighbour or a route can be of one above.
func (t *touched) add(e kernel.Event, isPort func(int) bool) {
	switch e.Kind {
	case kernel.EventLink:
		t.ports = true
		if !t.apart(e, isPort) {
			t.link(e, isPort)
		}
	case kernel.EventQdisc, kernel.EventFilter, kernel.EventXDPFeatures:
		t.ports = true
	case kernel.EventResync:
		t.ports, t.all = true, true
	case kernel.EventNftables:
		if e.Elements == nil {
			t.ports, t.all = true, true // a chain may hook a port
		}
		for _, p := range e.Elements {
			t.prefix(p)
		}
	case kernel.EventNeigh:
		// The kernel forgets neighbours that it does not hear of, which repeated packets
		// do not change; the next renewal resolves them again. A failure, and another MAC
		// even after that, are announced as changes.
		if !e.Deleted {
			t.adjacency(e.Index, e.MAC, isPort)
		}
	case kernel.EventFDB: // by whichever port of the bridge it went before
		t.adjacency(0, e.MAC, isPort)
	case kernel.EventRoute:
		t.prefix(e.Prefix)
	case kernel.EventConntrack:
		t.connection(e.Ended)
	case kernel.EventConntrackLost:
		t.unheard = true
	case kernel.EventNeighNew: // nothing was learned of one that was not there
	case kernel.EventNetconf:
		t.all = t.all || !t.apart(e, isPort)
	case kernel.EventAddr:
		// The address of an interface far from every port may be the one that a port without an
		// address masquerades by (inet_select_addr()); one that is local to its link never is.
		t.all = t.all || !linkLocal(e.Prefix.Addr()) || !t.apart(e, isPort)
	default: // rules, next hops, IPsec
		t.all = true
	}
}

// apart notes an event of an interface that no port stands under or beside. Such a one can concern
// flows by its routes alone. It returns false if the interface is another, or that is not known.
func (t *touched) apart(e kernel.Event, isPort func(int) bool) bool {
	if e.Near == nil || e.Routes == nil || slices.ContainsFunc(e.Near, isPort) {
		return false
	}
	for _, p := range e.Routes {
		t.prefix(p)
	}
	return true
}

// linkLocal reports whether an address is one of those that no router forwards (ip6_forward()).
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// link: a new one is not used yet. Of a port's MTU only packets on their way out see
// anything; of all the rest, or of a device above a port, whoever.
func (t *touched) link(e kernel.Event, isPort func(int) bool) {
	switch {
	case e.Deleted:
		t.all = true
	case e.Link == 0 || e.Link == kernel.LinkNew:
	case e.Link == kernel.LinkMTU && isPort(e.Index):
		t.adjacency(e.Index, nil, isPort)
	default:
		t.all = true
	}
}

func (t *touched) adjacency(index int, mac []byte, isPort func(int) bool) {
	a := adjacency{index, string(mac)}
	if index != 0 && !isPort(index) {
		a.port = 0
	}
	if len(a.mac) != macLength {
		a.mac = ""
	}
	t.wayOut(a)
}

func (t *touched) wayOut(a adjacency) {
	if a == (adjacency{}) || len(t.adjacencies) >= mostScoped {
		t.all = true
		return
	}
	if t.adjacencies == nil {
		t.adjacencies = map[adjacency]bool{}
	}
	t.adjacencies[a] = true
}

const macLength = 6

// Shortest prefixes that are told from everything, in bits: a default route is everything, but
// within the budget for that.
const (
	shortestIPv4 = 8
	shortestIPv6 = 16
)

func (t *touched) prefix(p netip.Prefix) {
	if linkLocal(p.Addr()) && p.Bits() >= 10 || p.Addr().IsMulticast() && p.Bits() >= 4 {
		return // no flow has such an address
	}
	shortest := shortestIPv6
	if p.Addr().Is4() {
		shortest = shortestIPv4
	}
	if p.Bits() < shortest || len(t.prefixes) >= mostScoped {
		t.all = true
		return
	}
	if t.prefixes == nil {
		t.prefixes = map[netip.Prefix]bool{}
	}
	t.prefixes[p.Masked()] = true
}

// connection: conntrack's tuples are what its two flows look like where they come in.
func (t *touched) connection(directions [2]kernel.Tuple) {
	if len(t.ended) >= mostScoped {
		t.all = true
		return
	}
	for _, c := range directions {
		source := c.Source
		if c.Echo != 0 {
			source = netip.AddrPortFrom(source.Addr(), c.Echo)
		}
		t.ended = append(t.ended, dataplane.Scope{Proto: c.Proto, Tuple: dataplane.Tuple{Source: source, Destination: c.Destination}})
	}
}
