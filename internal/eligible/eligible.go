// SPDX-License-Identifier: Apache-2.0

// Package eligible judges ports: may shunt's programs sit on an interface at all, may
// one of them be an XDP program, and may other ports redirect frames to it?
//
// It is arithmetic on facts: package kernel's Links and Hooks, what TC ingress
// counted of the port's peer (Peer), and the mode from the configuration. The daemon
// calls Decide for every port whenever one of these changes; doctor calls it to say
// what would be. Nothing here touches the system or needs rights.
//
// In doubt it refuses: a kind of interface that is not known here is not understood
// by the data path either, and forwards as before. Its limit is what the kernel tells:
// a driver that claims a feature and lacks it is found out by the transmit counters,
// not here.
package eligible

import (
	"fmt"
	"strings"

	"shunt/internal/kernel"
)

// Mode is the operator's word on XDP, from the configuration.
type Mode string

// The modes.
const (
	Auto Mode = "auto" // where it is right and pays
	On   Mode = "on"   // wherever the driver can
	Off  Mode = "off"  // nowhere
)

// Port is what is known of an interface.
type Port struct {
	Link    kernel.Link
	Foreign []string     // other people's hooks in words: kernel.Hooks, and tcx programs
	Queue   kernel.Queue // what lies behind TC egress
	OwnXDP  uint32       // id of shunt's own XDP program, if it is attached; else 0
	Proven  bool         // that program has counted what came in
	Keep    bool         // offloads = "keep": the daemon may not switch what hides frames from XDP
	CPUs    int          // that may redirect frames
	Peer    Peer         // what the other end sends
}

// Decision is what a port gets.
type Decision struct {
	Attach      bool // TC programs; false: refused, the kernel forwards as before
	XDPReceive  bool // the XDP program too
	XDPTransmit bool // others may redirect frames to it in XDP
	KeepsMark   bool // the skb goes on behind it: flows with a mark out by it go by TC
	LooksDeeper bool // flows out by it stay with the kernel, whose qdisc or filter reads more than bytes

	// Reason says in plain words why something was not granted: if Attach is false,
	// why not; else why there is no XDP. Remedy says what would change that; it is
	// empty where nothing would, or waiting will.
	Reason, Remedy string
}

// Decide judges a port.
func Decide(p Port, mode Mode) Decision {
	for _, refuse := range []func(Port) (reason, remedy string){kind, medium, member, foreign} {
		if reason, remedy := refuse(p); reason != "" {
			return Decision{Reason: reason, Remedy: remedy}
		}
	}
	d := Decision{Attach: true, LooksDeeper: p.Queue.LooksDeeper != "", KeepsMark: keepsMark(p.Link)}
	var why, remedy string
	d.XDPReceive, d.Reason, d.Remedy = Receive(p, mode)
	d.XDPTransmit, why, remedy = Transmit(p)
	switch {
	case d.LooksDeeper:
		d.Reason, d.Remedy = LooksDeeper(p)
	case d.Reason == "":
		d.Reason, d.Remedy = why, remedy
	}
	if d.Reason == "" && d.KeepsMark {
		d.Reason = fmt.Sprintf("flows with a mark to %s go by TC: what is behind it sees the mark, which XDP would lose", p.Link.Name)
	}
	return d
}

// keepsMark reports whether a device hands an skb on together with its mark: a veth whose other end is in this
// namespace (skb_scrub_packet() clears the mark only between namespaces), or a software device
// that is not known. A tap hands bytes to a program.
func keepsMark(l kernel.Link) bool {
	switch l.Kind {
	case "", "tun":
		return false
	case "veth":
		return l.Parent != 0
	}
	return true
}

// LooksDeeper says why flows out by a port stay with the kernel, and what would change that. Both are
// empty if they do not. Flows in by the port are not concerned.
func LooksDeeper(p Port) (reason, remedy string) {
	if p.Queue.LooksDeeper == "" {
		return "", ""
	}
	return fmt.Sprintf("flows out by %s stay with the kernel (queue_looks_deeper): %s", p.Link.Name, p.Queue.LooksDeeper),
		"take it away, or let it go by bytes, mark and priority alone (docs/queues.md)"
}

// understood are the link kinds whose packets the data path knows to read on both
// ways; a physical device has no kind. Tap devices have kind "tun" too, and tun
// devices fall to medium.
var understood = map[string]bool{"": true, "veth": true, "tun": true}

// kindWords names the kinds that people will try.
var kindWords = map[string]string{
	"vlan": "a VLAN device", "macvlan": "a macvlan device", "macvtap": "a macvtap device",
	"ipvlan": "an ipvlan device", "bond": "a bond", "team": "a team", "bridge": "a bridge",
	"vrf": "a VRF", "ppp": "a PPP device", "vxlan": "a VXLAN tunnel", "geneve": "a Geneve tunnel",
	"gre": "a GRE tunnel", "gretap": "a GRE tunnel", "ip6gre": "a GRE tunnel", "ip6gretap": "a GRE tunnel",
	"erspan": "an ERSPAN tunnel", "ipip": "an IPIP tunnel", "sit": "a SIT tunnel",
	"ip6tnl": "an IPv6 tunnel", "vti": "a VTI tunnel", "vti6": "a VTI tunnel",
	"xfrm": "an IPsec interface", "wireguard": "a WireGuard tunnel", "openvswitch": "an Open vSwitch bridge",
	"macsec": "a MACsec device", "netkit": "a netkit device", "dummy": "a dummy device",
	"ifb": "an ifb device", "dsa": "a DSA switch port", "hsr": "an HSR device", "nlmon": "a netlink monitor",
}

func kind(p Port) (reason, remedy string) {
	l := p.Link
	if understood[l.Kind] {
		return "", ""
	}
	words := kindWords[l.Kind]
	if words == "" {
		words = fmt.Sprintf("a device of kind %q", l.Kind)
	}
	reason = fmt.Sprintf("%s is %s, which is not understood yet", l.Name, words)
	switch {
	case l.ParentName != "":
		remedy = fmt.Sprintf("name its physical port %s; what goes through %s stays with the kernel", l.ParentName, l.Name)
	case l.Kind == "bond" || l.Kind == "team" || l.Kind == "bridge" || l.Kind == "vrf":
		remedy = fmt.Sprintf("name only physical ports that do not belong to %s", l.Name)
	default:
		remedy = "name only physical ports, veth and tap devices"
	}
	return reason, remedy
}

func medium(p Port) (reason, remedy string) {
	switch p.Link.Type {
	case kernel.Ethernet:
		return "", ""
	case kernel.Loopback:
		return p.Link.Name + " is the loopback device: nothing is forwarded there", "leave it out"
	}
	return p.Link.Name + " is not an Ethernet port", "name only Ethernet ports"
}

// member refuses ports that another device takes its packets from: what the kernel
// does to them is not decided on the port.
func member(p Port) (reason, remedy string) {
	l := p.Link
	if l.Master == 0 {
		return "", ""
	}
	master := l.MasterName
	if master == "" {
		master = fmt.Sprintf("interface %d", l.Master)
	}
	what := l.MasterKind
	if what == "" {
		what = l.SlaveKind
	}
	return fmt.Sprintf("%s belongs to %s %s, which is not understood yet", l.Name, orDevice(what), master),
		fmt.Sprintf("take it out of %s (ip link set dev %s nomaster), or leave it to the kernel", master, l.Name)
}

func orDevice(kind string) string {
	if kind == "" {
		return "device"
	}
	return kind
}

// foreign refuses ports with other people's programs: a repeated packet would skip
// them, or reach them changed.
func foreign(p Port) (reason, remedy string) {
	l := p.Link
	if l.XDP != kernel.XDPNone && (l.XDPID == 0 || l.XDPID != p.OwnXDP) {
		return fmt.Sprintf("%s has another XDP program (id %d)", l.Name, l.XDPID),
			fmt.Sprintf("remove it (ip link set dev %s xdp off; bpftool prog show id %d says whose it is), or leave %[1]s to the kernel",
				l.Name, l.XDPID)
	}
	if len(p.Foreign) > 0 {
		return fmt.Sprintf("%s has hooks that would be skipped: %s", l.Name, strings.Join(p.Foreign, ", ")),
			fmt.Sprintf("remove them, or leave %s to the kernel", l.Name)
	}
	return "", ""
}

// Transmit says whether frames may be redirected to a port in XDP, and if not, why and
// what would change that. Its driver must take them (devmap fails with EOPNOTSUPP
// otherwise, and the frames are lost), and nobody may have set a qdisc, which they
// would bypass.
func Transmit(p Port) (ok bool, reason, remedy string) {
	l := p.Link
	switch {
	case !l.Up:
		return false, l.Name + " is down", fmt.Sprintf("ip link set dev %s up", l.Name)
	case l.Queueing != "":
		return false, fmt.Sprintf("%s has the queueing policy %s, which XDP would bypass: flows to it go by TC", l.Name, l.Queueing), ""
	case p.Queue.Filter != "":
		return false, fmt.Sprintf("%s has the %s, which XDP would bypass: flows to it go by TC", l.Name, p.Queue.Filter), ""
	case l.Kind == "":
		return card(p)
	case l.Features.Has(kernel.XDPTransmit):
		return true, "", ""
	case l.Kind == "veth":
		return false, fmt.Sprintf("the peer of %s does not poll, so %[1]s takes no redirected frames", l.Name),
			fmt.Sprintf("switch on GRO at the peer of %s: ethtool -K PEER gro on", l.Name)
	}
	return takesNone(l)
}

func takesNone(l kernel.Link) (ok bool, reason, remedy string) {
	return false, fmt.Sprintf("driver %s takes no redirected frames on %s: flows to it go by TC", named(l.Driver), l.Name), ""
}

// oneBuffer is the longest IP packet that every driver receives in one buffer.
const oneBuffer = 1518

// card says whether frames may be redirected to a physical port. NDO_XMIT alone is no permission:
// some drivers always advertise it, and have the queues for it only while a program is attached
// (qede_xdp_transmit() divides by their number). A frame in fragments is dropped where the
// driver does not take those (__xdp_enqueue()).
func card(p Port) (ok bool, reason, remedy string) {
	l := p.Link
	d := driverOf(l)
	switch {
	case p.OwnXDP == 0:
		return false, fmt.Sprintf("%s does not carry shunt's XDP program: flows to it go by TC", l.Name), ""
	case !l.Features.Has(kernel.XDPTransmit):
		return takesNone(l)
	case d.noTarget != "":
		return false, fmt.Sprintf("driver %s %s: flows to %s go by TC", l.Driver, d.noTarget, l.Name), ""
	case d.ownQueue && l.TxQueues < p.CPUs:
		return false, fmt.Sprintf("%s has %d queues for %d CPUs, and driver %s loses redirected frames of the others: flows to it go by TC",
			l.Name, l.TxQueues, p.CPUs, named(l.Driver)), fmt.Sprintf("ethtool -L %s combined %d", l.Name, p.CPUs)
	case l.MTU > oneBuffer && !l.Features.Has(kernel.XDPTransmitFrags):
		return false, fmt.Sprintf("driver %s takes no redirected frames in fragments, which MTU %d allows: flows to %s go by TC",
			named(l.Driver), l.MTU, l.Name), fmt.Sprintf("ip link set dev %s mtu %d", l.Name, oneBuffer)
	case !p.Proven:
		return false, fmt.Sprintf("no packet has shown yet that the XDP program runs on %s: flows to it go by TC", l.Name), ""
	}
	return true, "", ""
}

func named(driver string) string {
	if driver == "" {
		return "(unnamed)"
	}
	return driver
}
