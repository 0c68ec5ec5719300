// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"sort"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// ARPHRD values that policy tells apart (include/uapi/linux/if_arp.h).
const (
	Ethernet = unix.ARPHRD_ETHER
	Loopback = unix.ARPHRD_LOOPBACK
)

// XDPMode says how an XDP program is attached (XDP_ATTACHED_* in
// include/uapi/linux/if_link.h).
type XDPMode uint8

// The modes. XDPGeneric runs after the skb was made; shunt never uses it.
const (
	XDPNone XDPMode = iota
	XDPNative
	XDPGeneric
	XDPOffload
	XDPMulti // several of them at once
)

// Link is an interface and what shunt must know of it.
type Link struct {
	Index   int
	Name    string
	Kind    string // "veth", "bridge", "vlan", ...; empty for a physical device
	Type    uint16 // ARPHRD_*
	MTU     int    // bytes of IP
	MAC     net.HardwareAddr
	Burned  net.HardwareAddr // the card's own MAC, whatever MAC is; nil if it has none
	Up      bool             // set up by the administrator
	Carrier bool             // and there is somebody at the other end

	Parent     int    // index of the device below, or of a veth's peer; 0 if none here
	ParentName string // empty if there is none, or it is a veth's peer
	Master     int    // index of the bridge, bond, VRF ... it belongs to; 0 if none
	MasterName string // empty if the master cannot be seen
	MasterKind string
	SlaveKind  string   // what it is to its master, "bridge", "bond", "vrf"
	Uppers     []string // VLAN, macvlan ... devices on top of it, sorted

	Qdisc    string // kind of the root qdisc
	Queueing string // kind of the qdisc that somebody set; empty while it has the kernel's own

	XDP      XDPMode
	XDPID    uint32 // id of the attached XDP program, 0 if none or several
	Driver   string // as `ethtool -i` tells it; empty if it does not
	Features XDPFeatures
	Offloads Offloads
	TxQueues int // as `ethtool -l` counts them, combined ones too; 0 if the driver does not tell
}

// Links returns all interfaces of the namespace, ordered by index. It reads
// several tables one after the other; a link that goes meanwhile is returned with
// what was seen of it.
func Links() ([]Link, error) {
	links, err := linkTable()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	qdiscs, err := rootQdiscs()
	if err != nil {
		return nil, fmt.Errorf("qdiscs: %w", err)
	}
	features, err := xdpFeatures()
	if err != nil {
		return nil, fmt.Errorf("XDP features: %w", err)
	}
	offloads, err := offloadTable()
	if err != nil {
		return nil, fmt.Errorf("offloads: %w", err)
	}
	queues, err := txQueues()
	if err != nil {
		return nil, fmt.Errorf("queues: %w", err)
	}
	drivers := driverNames(links)
	for i := range links {
		l := &links[i]
		l.Queueing = qdiscs[l.Index]
		l.Features = features[l.Index]
		l.Offloads = offloads[l.Index]
		l.Driver = drivers[l.Index]
		l.TxQueues = queues[l.Index]
	}
	relate(links)
	return links, nil
}

const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS

// linkTable dumps the interfaces, without the statistics that nobody here reads.
func linkTable() ([]Link, error) {
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_EXT_MASK, skipStats)
	ext, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	body := append(make([]byte, unix.SizeofIfInfomsg), ext...)
	messages, err := nl.Dump(unix.NETLINK_ROUTE, unix.RTM_GETLINK, body)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(messages))
	for _, m := range messages {
		l, err := decodeLink(m)
		if err != nil {
			return nil, err
		}
		links = append(links, l.Link)
	}
	sort.Slice(links, func(i, j int) bool { return links[i].Index < links[j].Index })
	return links, nil
}

// linkMessage is a Link as one RTM_NEWLINK tells it, and what only the message has.
type linkMessage struct {
	Link
	family   uint8 // AF_BRIDGE: about a bridge port's state, not about the link
	wireless bool  // a wireless extension's event: scan results and the like
}

func decodeLink(m netlink.Message) (linkMessage, error) {
	var l linkMessage
	if len(m.Data) < unix.SizeofIfInfomsg {
		return l, fmt.Errorf("link message of %d bytes", len(m.Data))
	}
	l.family = m.Data[0]
	l.Type = binary.NativeEndian.Uint16(m.Data[2:])
	l.Index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	flags := binary.NativeEndian.Uint32(m.Data[8:])
	l.Up = flags&unix.IFF_UP != 0
	l.Carrier = flags&unix.IFF_LOWER_UP != 0

	elsewhere := false
	err := nl.Attributes(m, unix.SizeofIfInfomsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.Name = ad.String()
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(ad.Bytes())
		case unix.IFLA_PERM_ADDRESS:
			l.Burned = net.HardwareAddr(ad.Bytes())
		case unix.IFLA_MTU:
			l.MTU = int(ad.Uint32())
		case unix.IFLA_LINK:
			l.Parent = int(ad.Uint32())
		case unix.IFLA_LINK_NETNSID:
			elsewhere = true
		case unix.IFLA_MASTER:
			l.Master = int(ad.Uint32())
		case unix.IFLA_QDISC:
			l.Qdisc = ad.String()
		case unix.IFLA_WIRELESS:
			l.wireless = true
		case unix.IFLA_LINKINFO:
			nl.Inner(ad, l.info)
		case unix.IFLA_XDP:
			nl.Inner(ad, l.xdp)
		}
	})
	if elsewhere {
		l.Parent = 0 // an index of another namespace says nothing here
	}
	return l, err
}

func (l *Link) info(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.IFLA_INFO_KIND:
		l.Kind = ad.String()
	case unix.IFLA_INFO_SLAVE_KIND:
		l.SlaveKind = ad.String()
	}
}

func (l *Link) xdp(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case unix.IFLA_XDP_ATTACHED:
		l.XDP = XDPMode(ad.Uint8())
	case unix.IFLA_XDP_PROG_ID:
		l.XDPID = ad.Uint32()
	}
}

// relate fills in what links know of each other: the names of masters, and the
// devices on top. A veth's peer is beside it, not on top.
func relate(links []Link) {
	at := make(map[int]*Link, len(links))
	for i := range links {
		at[links[i].Index] = &links[i]
	}
	for _, l := range links {
		if below := at[l.Parent]; below != nil && l.Kind != "veth" && l.Parent != l.Index {
			below.Uppers = append(below.Uppers, l.Name)
			at[l.Index].ParentName = below.Name
		}
		if master := at[l.Master]; master != nil {
			at[l.Index].MasterName, at[l.Index].MasterKind = master.Name, master.Kind
		}
	}
	for i := range links {
		sort.Strings(links[i].Uppers)
	}
}
