// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// usable are the states in which the kernel sends to a neighbour's MAC (NUD_VALID).
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE |
	unix.NUD_STALE | unix.NUD_DELAY

// neigh tells of a neighbour that was known and now has another MAC or none. One that
// was deleted may come back with another MAC: entries learned from the old one are wrong
// then, so MACs are remembered beyond deletion, and Resync is told when they no longer
// can be. A truly new neighbour is told as such: no entry is learned from it, but it may be
// waited for. Proxy entries are not neighbours, and the kernel makes up neighbours for groups
// as it needs them. The family AF_BRIDGE is about forwarding databases.
func (d *routeDecoder) neigh(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofNdmsg {
		return Event{}, false, fmt.Errorf("neighbour message of %d bytes", len(m.Data))
	}
	family, flags := m.Data[0], m.Data[10]
	key := endpoint{index: int(int32(binary.NativeEndian.Uint32(m.Data[4:])))}
	state := binary.NativeEndian.Uint16(m.Data[8:])
	var mac string
	err := nl.Attributes(m, sizeofNdmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NDA_DST:
			key.addr, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.NDA_LLADDR:
			mac = string(ad.Bytes())
		}
	})
	if err == nil && family == unix.AF_BRIDGE {
		e, tell := fdb(m, key.index, mac)
		return e, tell, nil
	}
	if err != nil || flags&unix.NTF_PROXY != 0 || family != unix.AF_INET && family != unix.AF_INET6 ||
		!key.addr.IsValid() || key.addr.IsMulticast() {
		return Event{}, false, err
	}
	gone := m.Header.Type == unix.RTM_DELNEIGH
	valid := !gone && state&usable != 0
	old, known := d.neighbours[key]
	fresh := valid && !known
	delete(d.neighbours, key)
	switch {
	case valid:
		if !known {
			old, known = d.forgotten[key]
			delete(d.forgotten, key)
		}
		d.neighbours[key] = mac
	case gone && known && len(d.forgotten) >= mostForgotten:
		clear(d.forgotten)
		return Event{Kind: EventResync}, true, nil
	case gone && known:
		d.forgotten[key] = old
	}
	e := Event{Kind: EventNeigh, Index: key.index, Deleted: gone, MAC: net.HardwareAddr(old),
		Prefix: netip.PrefixFrom(key.addr, key.addr.BitLen())}
	changed := known && (!valid || old != mac)
	if fresh && !changed {
		e.Kind, e.MAC = EventNeighNew, net.HardwareAddr(mac)
	}
	return e, fresh || changed, nil
}

// fdb tells of a MAC that a bridge (or another device with a forwarding database) learned
// behind a port, found behind another one, or forgot. Refreshes are not announced
// (br_fdb_update()). One that is new is news: what is sent to a MAC that nobody knows
// goes to all ports, and may have been learned so.
func fdb(m netlink.Message, port int, mac string) (Event, bool) {
	group := len(mac) != 6 || mac[0]&1 != 0 || mac == "\x00\x00\x00\x00\x00\x00"
	e := Event{Kind: EventFDB, Index: port, Deleted: m.Header.Type == unix.RTM_DELNEIGH, MAC: net.HardwareAddr(mac)}
	return e, !group
}
