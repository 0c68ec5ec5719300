// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// An interface that comes, goes or changes far from every port can concern a flow by its routes
// alone: IPv4 deletes those in silence when their link goes down (fib_sync_down_dev()), and with
// them a longer prefix or a part of a multipath route that the flow's packets would have met.

const (
	// mostNear is how many interfaces may stand around one. More count as unknown.
	mostNear = 1024
	// mostRoutes is how many prefixes are remembered for an interface. More count as unknown.
	mostRoutes = 64
	// mostRead is how many routes are read at once. The interfaces of a router with more
	// are unknown, unless they come after the reading.
	mostRead = 20000
)

// tunnels are kinds of Ethernet devices whose packets leave by a port that no link names.
var tunnels = map[string]bool{"vxlan": true, "geneve": true, "gretap": true, "ip6gretap": true, "erspan": true, "ip6erspan": true, "bareudp": true, "hsr": true}

// near returns the interfaces around one: below, above and beside it (the other end of a veth, the
// members of its bridge), and itself. It returns nil if they are not known.
func (d *routeDecoder) near(index int) []int {
	around := map[int]bool{index: true}
	for grown := true; grown; {
		grown = false
		for i, f := range d.links {
			if around[i] && f.tunnel || len(around) > mostNear {
				return nil
			}
			for _, other := range []int{f.parent, int(f.master)} {
				if other != 0 && around[i] != around[other] {
					around[i], around[other], grown = true, true, true
				}
			}
		}
	}
	list := make([]int, 0, len(around))
	for i := range around {
		list = append(list, i)
	}
	return list
}

// place adds to an event the interfaces around its own, and the prefixes of the routes by it.
func (d *routeDecoder) place(e *Event) {
	if _, known := d.links[e.Index]; known {
		e.Near, e.Routes = d.near(e.Index), d.routesBy(e.Index)
	}
}

// routesBy returns the prefixes of the routes by an interface; nil: not known.
func (d *routeDecoder) routesBy(index int) []netip.Prefix {
	prefixes := d.reach[index]
	if prefixes == nil || d.objects[index] {
		return nil
	}
	list := make([]netip.Prefix, 0, len(prefixes))
	for p := range prefixes {
		list = append(list, p)
	}
	return list
}

// reaches notes a route by an interface whose routes are all known.
func (d *routeDecoder) reaches(index int, p netip.Prefix) {
	prefixes := d.reach[index]
	switch {
	case prefixes == nil:
	case len(prefixes) == mostRoutes:
		delete(d.reach, index)
	default:
		prefixes[p] = true
	}
}

// loadRoutes reads which prefixes the routes by each interface lead to.
func (d *routeDecoder) loadRoutes() error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, sizeofRtmsg),
	})
	if err != nil {
		return err
	}
	for index := range d.links {
		d.reach[index] = map[netip.Prefix]bool{}
	}
	n := 0
	for m, err := range conn.ReceiveIter() {
		if err != nil {
			return err
		}
		if n++; n > mostRead {
			clear(d.reach)
			conn.Close() // or the iterator reads the rest
			return nil
		}
		if _, _, err := d.route(m); err != nil {
			return err
		}
	}
	return nil
}

// hops calls by for the interface of each next hop in RTA_MULTIPATH, an array of struct rtnexthop.
func hops(b []byte, by func(index int)) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofRtNexthop {
			return fmt.Errorf("next hop of %d bytes", len(b))
		}
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofRtNexthop {
			return fmt.Errorf("next hop that says it has %d bytes", length)
		}
		by(int(binary.NativeEndian.Uint32(b[4:])))
		b = b[min(len(b), (length+3)&^3):]
	}
	return nil
}

// route tells of a route.
func (d *routeDecoder) route(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofRtmsg {
		return Event{}, false, fmt.Errorf("route message of %d bytes", len(m.Data))
	}
	e := Event{Kind: EventRoute, Deleted: m.Header.Type == unix.RTM_DELROUTE, Table: uint32(m.Data[4])}
	dest := netip.IPv4Unspecified()
	switch m.Data[0] {
	case unix.AF_INET:
	case unix.AF_INET6:
		dest = netip.IPv6Unspecified()
	default: // label switching's, and multicast routing's caches
		return e, false, nil
	}
	var by []int
	var odd error
	err := nl.Attributes(m, sizeofRtmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.RTA_DST:
			dest, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_OIF:
			e.Index = int(ad.Uint32())
			by = append(by, e.Index)
		case unix.RTA_MULTIPATH:
			odd = hops(ad.Bytes(), func(index int) { by = append(by, index) })
		case unix.RTA_TABLE:
			e.Table = ad.Uint32()
		}
	})
	if err == nil {
		err = odd
	}
	e.Prefix = netip.PrefixFrom(dest, int(m.Data[1]))
	if !e.Deleted {
		for _, index := range by {
			d.reaches(index, e.Prefix)
		}
	}
	return e, !dest.IsMulticast(), err
}
