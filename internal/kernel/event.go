package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// routeGroups is what the rtnetlink socket subscribes to. One socket for all of it
// keeps the order in which things happened.
var routeGroups = []uint32{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_TC,
	unix.RTNLGRP_NEXTHOP,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
}

// xfrmPolicyGroup is XFRMNLGRP_POLICY (include/uapi/linux/xfrm.h).
const xfrmPolicyGroup = 4

// routeDecoder turns rtnetlink messages into events. It remembers the MACs of
// neighbours and the flags of addresses, because the kernel announces every refresh
// of them (reachability probes, router advertisements) like a change.
type routeDecoder struct {
	neighbours map[endpoint]string // MAC, while it may be used
	forgotten  map[endpoint]string // MAC that a deleted neighbour had
	addresses  map[address]uint32  // IFA_F_*
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

// reload reads the neighbour table. Addresses are forgotten instead: at worst the
// next refresh of each is told as a change.
func (d *routeDecoder) reload() error {
	d.addresses = make(map[address]uint32)
	d.neighbours = make(map[endpoint]string)
	d.forgotten = make(map[endpoint]string)
	messages, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETNEIGH, make([]byte, sizeofNdmsg))
	if err != nil {
		return err
	}
	for _, m := range messages {
		if _, _, err := d.neigh(m); err != nil {
			return err
		}
	}
	return nil
}

// decode returns the event of a message, and whether there is one.
func (d *routeDecoder) decode(m netlink.Message) (Event, bool, error) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return linkEvent(m)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return d.neigh(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return d.address(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return routeEvent(m)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Event{Kind: EventRule, Deleted: m.Header.Type == unix.RTM_DELRULE}, true, nil
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		return Event{Kind: EventNexthop, Deleted: m.Header.Type == unix.RTM_DELNEXTHOP}, true, nil
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS:
		t, err := decodeTC(m)
		gone := m.Header.Type == unix.RTM_DELQDISC || m.Header.Type == unix.RTM_DELTCLASS
		return Event{Kind: EventQdisc, Index: t.index, Deleted: gone}, true, err
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN:
		t, err := decodeTC(m)
		gone := m.Header.Type == unix.RTM_DELTFILTER || m.Header.Type == unix.RTM_DELCHAIN
		return Event{Kind: EventFilter, Index: max(t.index, 0), Deleted: gone}, true, err
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		return netconfEvent(m)
	}
	return Event{}, false, nil
}

// linkEvent leaves out what is no news of the link itself: bridge port states, which
// come as the bridge's own family, and wireless extensions' scans.
func linkEvent(m netlink.Message) (Event, bool, error) {
	l, err := decodeLink(m)
	if err != nil {
		return Event{}, false, err
	}
	deleted := m.Header.Type == unix.RTM_DELLINK
	tell := l.family == unix.AF_UNSPEC && !l.wireless
	return Event{Kind: EventLink, Index: l.Index, Name: l.Name, Deleted: deleted}, tell, nil
}

// Sizes of the fixed headers (include/uapi/linux/{neighbour,if_addr,rtnetlink,netconf}.h).
const (
	sizeofNdmsg      = 12
	sizeofIfaddrmsg  = 8
	sizeofRtmsg      = 12
	sizeofNetconfmsg = 4 // one byte, padded
)

// usable are the states in which the kernel sends to a neighbour's MAC (NUD_VALID).
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE |
	unix.NUD_STALE | unix.NUD_DELAY

// neigh tells of a neighbour that was known and now has another MAC or none. One that
// was deleted may come back with another MAC: entries learned from the old one are wrong
// then, so MACs are remembered beyond deletion, and Resync is told when they no longer
// can be. A truly new neighbour is no news: no entry is learned from it. Proxy entries are not
// neighbours, forwarding databases (AF_BRIDGE) belong to bridges, and the kernel
// makes up neighbours for groups as it needs them.
func (d *routeDecoder) neigh(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofNdmsg {
		return Event{}, false, fmt.Errorf("neighbour message of %d bytes", len(m.Data))
	}
	family, flags := m.Data[0], m.Data[10]
	key := endpoint{index: int(int32(binary.NativeEndian.Uint32(m.Data[4:])))}
	state := binary.NativeEndian.Uint16(m.Data[8:])
	var mac string
	err := attributes(m, sizeofNdmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NDA_DST:
			key.addr, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.NDA_LLADDR:
			mac = string(ad.Bytes())
		}
	})
	if err != nil || flags&unix.NTF_PROXY != 0 || family != unix.AF_INET && family != unix.AF_INET6 ||
		!key.addr.IsValid() || key.addr.IsMulticast() {
		return Event{}, false, err
	}
	gone := m.Header.Type == unix.RTM_DELNEIGH
	valid := !gone && state&usable != 0
	old, known := d.neighbours[key]
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
	return e, known && (!valid || old != mac), nil
}

// address tells of an address that is new, gone or has other flags (a duplicate was
// found, it was deprecated). A lifetime renewed is no news.
func (d *routeDecoder) address(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofIfaddrmsg {
		return Event{}, false, fmt.Errorf("address message of %d bytes", len(m.Data))
	}
	key := address{index: int(binary.NativeEndian.Uint32(m.Data[4:]))}
	flags := uint32(m.Data[2])
	var local, remote netip.Addr
	err := attributes(m, sizeofIfaddrmsg, func(ad *netlink.AttributeDecoder) {
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
	if m.Header.Type == unix.RTM_DELADDR {
		e.Deleted = true
		delete(d.addresses, key)
		return e, true, nil
	}
	old, known := d.addresses[key]
	d.addresses[key] = flags
	return e, !known || old != flags, nil
}

func routeEvent(m netlink.Message) (Event, bool, error) {
	if len(m.Data) < sizeofRtmsg {
		return Event{}, false, fmt.Errorf("route message of %d bytes", len(m.Data))
	}
	e := Event{Kind: EventRoute, Deleted: m.Header.Type == unix.RTM_DELROUTE}
	dest := netip.IPv4Unspecified()
	if m.Data[0] == unix.AF_INET6 {
		dest = netip.IPv6Unspecified()
	}
	err := attributes(m, sizeofRtmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.RTA_DST:
			dest, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_OIF:
			e.Index = int(ad.Uint32())
		}
	})
	e.Prefix = netip.PrefixFrom(dest, int(m.Data[1]))
	return e, true, err
}

// netconfEvent reads the interface; the kernel's -1 and -2 stand for "all" and "default".
func netconfEvent(m netlink.Message) (Event, bool, error) {
	const ifindex = 1 // NETCONFA_IFINDEX
	e := Event{Kind: EventNetconf, Deleted: m.Header.Type == unix.RTM_DELNETCONF}
	err := attributes(m, sizeofNetconfmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == ifindex {
			e.Index = max(int(ad.Int32()), 0)
		}
	})
	return e, true, err
}

// decodeGeneration tells of NFT_MSG_NEWGEN, with which every nftables transaction
// ends, and of nothing before it.
func decodeGeneration(m netlink.Message) (Event, bool, error) {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
		return Event{}, false, nil
	}
	e := Event{Kind: EventNftables}
	err := attributes(m, sizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_PROC_NAME {
			e.Name = ad.String()
		}
	})
	return e, true, err
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
