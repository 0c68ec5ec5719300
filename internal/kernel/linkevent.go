// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// LinkChange says what is new about a link: any of the following.
type LinkChange uint16

// The changes of a link that a packet could meet.
const (
	LinkNew        LinkChange = 1 << iota // it was not there before
	LinkState                             // set up or down, carrier, operational state, other flags
	LinkMTU                               //
	LinkMAC                               //
	LinkMaster                            // it joined or left a bridge, bond or VRF
	LinkName                              //
	LinkBridgePort                        // its bridge treats it otherwise: STP state, isolation, VLANs ...
	LinkSettings                          // anything else of it; with LinkNew: it lies on top of another
)

var linkChanges = []string{"new", "state", "MTU", "MAC", "master", "name", "bridge port", "settings"}

// String lists the changes.
func (c LinkChange) String() string {
	var words []string
	for i, word := range linkChanges {
		if c&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

// linkFacts is what is remembered of a link. Everything that is not known to be without
// consequence for packets is in rest.
type linkFacts struct {
	name, mac   string
	mtu, master uint32
	parent      int  // below it, or the other end of a veth; 0: none here
	tunnel      bool // what it sends leaves by a port that no link names
	flags       uint32
	operstate   uint8
	carrier     uint8
	rest        uint64
}

// watching are flags that are there for somebody who listens (tcpdump): they change
// which packets are copied up, not what becomes of those for this host.
const watching = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_DEBUG

// idleAttributes of a link change without any consequence for packets, or are looked at by
// the port's review (qdisc, XDP). IFLA_AF_SPEC is a copy of the settings that come as
// netconf events, with counters among it.
var idleAttributes = set(unix.IFLA_STATS, unix.IFLA_STATS64, unix.IFLA_QDISC, unix.IFLA_XDP,
	unix.IFLA_TXQLEN, unix.IFLA_IFALIAS, unix.IFLA_PROMISCUITY, unix.IFLA_ALLMULTI, unix.IFLA_MAP,
	unix.IFLA_CARRIER_CHANGES, unix.IFLA_CARRIER_UP_COUNT, unix.IFLA_CARRIER_DOWN_COUNT,
	unix.IFLA_EVENT, unix.IFLA_AF_SPEC, unix.IFLA_PROP_LIST, unix.IFLA_NUM_TX_QUEUES, unix.IFLA_NUM_RX_QUEUES)

// Timers and counters of bridges and of their ports.
var (
	bridgeClocks = set(unix.IFLA_BR_HELLO_TIMER, unix.IFLA_BR_TCN_TIMER, unix.IFLA_BR_TOPOLOGY_CHANGE_TIMER,
		unix.IFLA_BR_GC_TIMER, unix.IFLA_BR_FDB_N_LEARNED)
	portClocks = set(unix.IFLA_BRPORT_MESSAGE_AGE_TIMER, unix.IFLA_BRPORT_FORWARD_DELAY_TIMER,
		unix.IFLA_BRPORT_HOLD_TIMER, unix.IFLA_BRPORT_MCAST_EHT_HOSTS_CNT, unix.IFLA_BRPORT_MCAST_N_GROUPS)
)

func set(types ...uint16) map[uint16]bool {
	s := make(map[uint16]bool, len(types))
	for _, t := range types {
		s[t] = true
	}
	return s
}

// compressedVLANs is RTEXT_FILTER_BRVLAN_COMPRESSED, with which the kernel announces
// bridge ports: asked for likewise, what is read first compares equal.
const compressedVLANs = 1 << 2

// linkQuery is the body of RTM_GETLINK.
func linkQuery(family uint8, filter uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg, unix.SizeofIfInfomsg+8)
	b[0] = family
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, unix.IFLA_EXT_MASK)
	return binary.NativeEndian.AppendUint32(b, filter)
}

// link tells of a link, and of what is new about it. Wireless extensions' events (scans)
// are no news of it. The family AF_BRIDGE is about what a bridge thinks of its port, and
// told only if that has changed.
func (d *routeDecoder) link(m netlink.Message) (Event, bool, error) {
	l, err := decodeLink(m)
	if err != nil {
		return Event{}, false, err
	}
	e := Event{Kind: EventLink, Index: l.Index, Name: l.Name, Deleted: m.Header.Type == unix.RTM_DELLINK}
	switch {
	case l.wireless:
		return e, false, nil
	case l.family == unix.AF_BRIDGE:
		return d.bridgePort(m, e)
	case l.family != unix.AF_UNSPEC:
		return e, false, nil
	case e.Deleted:
		d.place(&e)
		delete(d.links, l.Index)
		delete(d.ports, l.Index)
		delete(d.reach, l.Index)
		delete(d.objects, l.Index)
		return e, true, nil
	}
	now, err := factsOf(m)
	if err != nil {
		return e, false, err
	}
	now.parent, now.tunnel = l.Parent, l.Type != Ethernet && l.Type != Loopback || tunnels[l.Kind]
	old, known := d.links[l.Index]
	if known {
		d.place(&e) // what it belonged to until now, and
	}
	d.links[l.Index] = now
	e.Link = now.since(old)
	if !known {
		d.reach[l.Index] = map[netip.Prefix]bool{}
		e.Link = LinkNew
		if l.Parent != 0 && l.Kind != "veth" {
			e.Link |= LinkSettings // what comes in below it may be its own (macvlan, passthru)
		}
	}
	if around := d.near(l.Index); around == nil || known && e.Near == nil {
		e.Near = nil
	} else {
		e.Near = append(e.Near, around...) // from now on
	}
	e.Routes = d.routesBy(l.Index)
	return e, true, nil
}

func (d *routeDecoder) bridgePort(m netlink.Message, e Event) (Event, bool, error) {
	e.Link = LinkBridgePort
	d.place(&e)
	if e.Deleted {
		delete(d.ports, e.Index)
		e.Deleted = false // it left the bridge
		return e, true, nil
	}
	var h maphash.Hash
	h.SetSeed(digestSeed)
	err := nl.Attributes(m, unix.SizeofIfInfomsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFLA_PROTINFO:
			digestNest(&h, ad, portClocks)
		case unix.IFLA_MASTER, unix.IFLA_AF_SPEC: // the latter here: VLANs
			digest(&h, ad)
		}
	})
	now := h.Sum64()
	old, known := d.ports[e.Index]
	d.ports[e.Index] = now
	return e, !known || old != now, err
}

// factsOf reads a message of family AF_UNSPEC.
func factsOf(m netlink.Message) (linkFacts, error) {
	var h maphash.Hash
	h.SetSeed(digestSeed)
	f := linkFacts{flags: binary.NativeEndian.Uint32(m.Data[8:]) &^ watching}
	err := nl.Attributes(m, unix.SizeofIfInfomsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			f.name = ad.String()
		case unix.IFLA_ADDRESS:
			f.mac = string(ad.Bytes())
		case unix.IFLA_MTU:
			f.mtu = ad.Uint32()
		case unix.IFLA_MASTER:
			f.master = ad.Uint32()
		case unix.IFLA_OPERSTATE:
			f.operstate = ad.Uint8()
		case unix.IFLA_CARRIER:
			f.carrier = ad.Uint8()
		case unix.IFLA_LINKINFO:
			digestInfo(&h, ad)
		default:
			if !idleAttributes[ad.Type()] {
				digest(&h, ad)
			}
		}
	})
	f.rest = h.Sum64()
	return f, err
}

// since is what is new.
func (f linkFacts) since(old linkFacts) (c LinkChange) {
	for _, part := range []struct {
		same bool
		what LinkChange
	}{
		{f.flags == old.flags && f.operstate == old.operstate && f.carrier == old.carrier, LinkState},
		{f.mtu == old.mtu, LinkMTU},
		{f.mac == old.mac, LinkMAC},
		{f.master == old.master, LinkMaster},
		{f.name == old.name, LinkName},
		{f.rest == old.rest, LinkSettings},
	} {
		if !part.same {
			c |= part.what
		}
	}
	return c
}

var digestSeed = maphash.MakeSeed()

func digest(h *maphash.Hash, ad *netlink.AttributeDecoder) {
	b := ad.Bytes()
	h.Write(binary.NativeEndian.AppendUint16(nil, ad.Type()))
	h.Write(binary.NativeEndian.AppendUint32(nil, uint32(len(b))))
	h.Write(b)
}

// digestNest leaves out some of the attributes inside.
func digestNest(h *maphash.Hash, ad *netlink.AttributeDecoder, without map[uint16]bool) {
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		if !without[ad.Type()] {
			digest(h, ad)
		}
	})
}

// digestInfo is for IFLA_LINKINFO: the settings of the link's kind, and those that its
// master keeps for it.
func digestInfo(h *maphash.Hash, ad *netlink.AttributeDecoder) {
	var kind, slaveKind []byte
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFLA_INFO_KIND:
			kind = ad.Bytes()
			digest(h, ad)
		case unix.IFLA_INFO_SLAVE_KIND:
			slaveKind = ad.Bytes()
			digest(h, ad)
		case unix.IFLA_INFO_DATA:
			digestNest(h, ad, ofBridge(kind, bridgeClocks))
		case unix.IFLA_INFO_SLAVE_DATA:
			digestNest(h, ad, ofBridge(slaveKind, portClocks))
		}
	})
}

// ofBridge is what to leave out if the kind, which comes first, is a bridge.
func ofBridge(kind []byte, clocks map[uint16]bool) map[uint16]bool {
	if string(bytes.TrimRight(kind, "\x00")) == "bridge" {
		return clocks
	}
	return nil
}
