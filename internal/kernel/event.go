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

// routeGroups is what the rtnetlink socket subscribes to. One socket for all of it
// keeps the order in which things happened.
var routeGroups = []uint32{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_TC,
	unix.RTNLGRP_NEXTHOP,
	rtnlgrpBRVLAN,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
}

// Of include/uapi/linux/rtnetlink.h, what x/sys lacks.
const (
	rtnlgrpBRVLAN      = 33
	rtmNewVLAN         = 112
	rtmDelVLAN         = 113
	rtmNewNexthopGroup = 116 // RTM_NEWNEXTHOPBUCKET: a flow of a resilient group may go elsewhere
	rtmDelNexthopGroup = 117
)

// xfrmGroups are XFRMNLGRP_EXPIRE, _SA, _POLICY and _MIGRATE (include/uapi/linux/xfrm.h):
// what expires is not announced as deleted.
var xfrmGroups = []uint32{2, 3, 4, 7}

// routeDecoder turns rtnetlink messages into events. It remembers what the kernel told
// before, because it announces every refresh (reachability probes, router advertisements,
// whatever of a link) like a change.
type routeDecoder struct {
	neighbours map[endpoint]string // MAC, while it may be used
	forgotten  map[endpoint]string // MAC that a deleted neighbour had
	addresses  map[address]uint32  // IFA_F_*
	links      map[int]linkFacts
	ports      map[int]uint64 // of bridges: digest of what matters
	nexthops   map[uint32]bool
	reach      map[int]map[netip.Prefix]bool // by interface: where its routes lead to, while all are known
	objects    map[int]bool                  // interfaces with next hop objects, whose routes need not name them
}

// mostForgotten bounds the memory of deleted neighbours.
const mostForgotten = 65536

type endpoint struct {
	index int
	addr  netip.Addr
}

type address struct {
	index  int
	prefix netip.Prefix
}

// reset forgets everything.
func (d *routeDecoder) reset() {
	d.addresses = make(map[address]uint32)
	d.neighbours = make(map[endpoint]string)
	d.forgotten = make(map[endpoint]string)
	d.links = make(map[int]linkFacts)
	d.ports = make(map[int]uint64)
	d.nexthops = make(map[uint32]bool)
	d.reach = make(map[int]map[netip.Prefix]bool)
	d.objects = make(map[int]bool)
}

// reload reads the tables again that events are compared with. Addresses are forgotten
// instead: at worst the next refresh of each is told as a change.
func (d *routeDecoder) reload() error {
	d.reset()
	for _, table := range []struct {
		get  netlink.HeaderType
		body []byte
	}{
		{unix.RTM_GETLINK, linkQuery(unix.AF_UNSPEC, 0)},
		{unix.RTM_GETLINK, linkQuery(unix.AF_BRIDGE, compressedVLANs)},
		{unix.RTM_GETNEIGH, make([]byte, sizeofNdmsg)},
		{unix.RTM_GETNEXTHOP, make([]byte, sizeofNhmsg)},
	} {
		messages, err := nl.Dump(unix.NETLINK_ROUTE, table.get, table.body)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if _, _, err := d.decode(m); err != nil {
				return err
			}
		}
	}
	return d.loadRoutes()
}

// decode returns the event of a message, and whether there is one.
func (d *routeDecoder) decode(m netlink.Message) (Event, bool, error) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return d.link(m)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return d.neigh(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return d.address(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return d.route(m)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Event{Kind: EventRule, Deleted: m.Header.Type == unix.RTM_DELRULE}, true, nil
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return d.nexthop(m)
	case rtmNewNexthopGroup, rtmDelNexthopGroup:
		return Event{Kind: EventNexthop}, true, nil
	case rtmNewVLAN, rtmDelVLAN:
		return d.bridgeVLAN(m)
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS:
		t, err := decodeTC(m)
		gone := m.Header.Type == unix.RTM_DELQDISC || m.Header.Type == unix.RTM_DELTCLASS
		return Event{Kind: EventQdisc, Index: t.index, Deleted: gone}, true, err
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN:
		t, err := decodeTC(m)
		gone := m.Header.Type == unix.RTM_DELTFILTER || m.Header.Type == unix.RTM_DELCHAIN
		return Event{Kind: EventFilter, Index: max(t.index, 0), Deleted: gone}, true, err
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return d.netconf(m)
	}
	return Event{}, false, nil
}

// bridgeVLAN tells of VLANs of a bridge or of its port, in struct br_vlan_msg.
func (d *routeDecoder) bridgeVLAN(m netlink.Message) (Event, bool, error) {
	e := Event{Kind: EventLink, Link: LinkBridgePort}
	if len(m.Data) < sizeofBRVLAN {
		return e, false, fmt.Errorf("VLAN message of %d bytes", len(m.Data))
	}
	e.Index = int(binary.NativeEndian.Uint32(m.Data[4:]))
	d.place(&e)
	return e, true, nil
}

// Sizes of the fixed headers (include/uapi/linux/{neighbour,if_addr,rtnetlink,nexthop,netconf}.h).
const (
	sizeofNdmsg      = 12
	sizeofIfaddrmsg  = 8
	sizeofRtmsg      = 12
	sizeofNhmsg      = 8
	sizeofBRVLAN     = 8
	sizeofNetconfmsg = 4 // one byte, padded
)

// address tells of an address that is new, gone or has other flags (a duplicate was
// found, it was deprecated). A lifetime renewed is no news.
func (d *routeDecoder) address(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofIfaddrmsg {
		return Event{}, false, fmt.Errorf("address message of %d bytes", len(m.Data))
	}
	key := address{index: int(binary.NativeEndian.Uint32(m.Data[4:]))}
	flags := uint32(m.Data[2])
	var local, remote netip.Addr
	err := nl.Attributes(m, sizeofIfaddrmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_ADDRESS:
			remote, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_FLAGS:
			flags = ad.Uint32()
		}
	})
	if err != nil {
		return Event{}, false, err
	}
	if !local.IsValid() {
		local = remote // IPv6 has no IFA_LOCAL, but for point-to-point links
	}
	key.prefix = netip.PrefixFrom(local, int(m.Data[1]))
	e := Event{Kind: EventAddr, Index: key.index, Prefix: key.prefix}
	d.place(&e)
	if m.Header.Type == unix.RTM_DELADDR {
		e.Deleted = true
		delete(d.addresses, key)
		return e, true, nil
	}
	old, known := d.addresses[key]
	d.addresses[key] = flags
	return e, !known || old != flags, nil
}

// nexthop tells of a nexthop object or group that routes may use: of a new one not, unless packets
// wind a timer of it.
func (d *routeDecoder) nexthop(m netlink.Message) (Event, bool, error) {
	const nhaID, nhaOIF = 1, 5
	e := Event{Kind: EventNexthop, Deleted: m.Header.Type == unix.RTM_DELNEXTHOP}
	var id uint32
	winds := false
	err := nl.Attributes(m, sizeofNhmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case nhaID:
			id = ad.Uint32()
		case nhaResGroup:
			winds = true
		case nhaOIF:
			d.objects[int(ad.Uint32())] = true
		}
	})
	if err != nil {
		return e, false, err
	}
	known := d.nexthops[id]
	if e.Deleted {
		delete(d.nexthops, id)
	} else {
		d.nexthops[id] = true
	}
	return e, known || e.Deleted || winds, nil
}

// netconf reads the interface; the kernel's -1 and -2 stand for "all" and "default". The
// settings of a new one come before the link itself, and are no news.
func (d *routeDecoder) netconf(m netlink.Message) (Event, bool, error) {
	const ifindex = 1 // NETCONFA_IFINDEX
	e := Event{Kind: EventNetconf, Deleted: m.Header.Type == unix.RTM_DELNETCONF}
	err := nl.Attributes(m, sizeofNetconfmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == ifindex {
			e.Index = max(int(ad.Int32()), 0)
		}
	})
	_, known := d.links[e.Index]
	d.place(&e)
	return e, known || e.Index == 0, err
}

// netdevDecoder tells of devices whose XDP features changed.
func netdevDecoder(family uint16) func(netlink.Message) (Event, bool, error) {
	return func(m netlink.Message) (Event, bool, error) {
		if uint16(m.Header.Type) != family || len(m.Data) < genlHeader || m.Data[0] != netdevCmdDevChange {
			return Event{}, false, nil
		}
		index, _, err := decodeNetdev(m.Data[genlHeader:])
		return Event{Kind: EventXDPFeatures, Index: index}, true, err
	}
}

func decodeXFRM(netlink.Message) (Event, bool, error) {
	return Event{Kind: EventXFRM}, true, nil
}
