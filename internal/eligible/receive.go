// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"fmt"
	"slices"
	"time"

	"shunt/internal/kernel"
)

// Receive says whether the XDP program may be attached to a port that was not refused,
// and if not, why and what would change that. It is never attached as generic XDP: that
// runs after the skb was made, where TC does the same for less.
func Receive(p Port, mode Mode) (ok bool, reason, remedy string) {
	l := p.Link
	if mode == Off {
		return false, `xdp = "off"`, ""
	}
	if l.Kind == "" {
		if reason, remedy := hides(p); reason != "" {
			return false, reason, remedy
		}
	}
	if !l.Features.Has(kernel.XDPBasic | kernel.XDPRedirect) {
		return false, fmt.Sprintf("driver %s cannot redirect in XDP on %s", named(l.Driver), l.Name), ""
	}
	if mode == Auto && software(l) && !p.Peer.gains(l) {
		reason, remedy = p.Peer.explain(l)
		return false, reason, remedy
	}
	return true, "", ""
}

// onePage is the largest MTU whose frames a driver without XDPFrags gives to a program: a page
// less XDP_PACKET_HEADROOM, struct skb_shared_info and the Ethernet header.
const onePage = 3500

// hides says why the program of a physical port would not see what came in, or would not run.
// A frame whose tag was taken out would look untagged and be sent into the wrong network.
// (A veth's peer keeps the tag beside the frame only if it sends one: Peer watches.)
func hides(p Port) (reason, remedy string) {
	l := p.Link
	d := driverOf(l)
	cure := func(switches string) string {
		command := fmt.Sprintf("ethtool -K %s %s", l.Name, switches)
		if p.Keep {
			command += `, or offloads = "switch" in the configuration`
		}
		return command
	}
	switch {
	case d.noProgram != "":
		return fmt.Sprintf("driver %s %s", l.Driver, d.noProgram), ""
	case !l.Features.Has(kernel.XDPBasic|kernel.XDPRedirect) && d.lacks != "":
		return fmt.Sprintf("driver %s cannot redirect in XDP on %s: %s", l.Driver, l.Name, d.lacks), fmt.Sprintf(d.cure, l.Name)
	case !l.Features.Has(kernel.XDPBasic | kernel.XDPRedirect):
		return "", ""
	case l.Offloads.RxVLAN && !d.keepsTags:
		reason = fmt.Sprintf("%s strips VLAN tags before XDP can see them (rx-vlan-hw-parse)", l.Name)
		if l.Offloads.RxVLANFixed {
			return reason, ""
		}
		return reason, cure("rxvlan off rx-vlan-stag-hw-parse off")
	case l.Offloads.LRO:
		return fmt.Sprintf("%s merges segments before XDP can see them (rx-lro)", l.Name), cure("lro off")
	case l.Offloads.HWGRO && !slices.Contains(d.keep, kernel.RxGROHW):
		return fmt.Sprintf("%s merges segments before XDP can see them (rx-gro-hw)", l.Name), cure("rx-gro-hw off")
	case l.MTU > onePage && !l.Features.Has(kernel.XDPFrags):
		return fmt.Sprintf("MTU %d is over what driver %s carries in XDP on %s", l.MTU, named(l.Driver), l.Name),
			fmt.Sprintf("ip link set dev %s mtu %d", l.Name, onePage)
	}
	return "", ""
}

// software reports whether the other end of a link is no wire but a program or a kernel on this
// machine, which hands over many segments in one as long as no XDP program is attached. To
// attach one makes it stop (a veth switches its peer's TSO off, virtio its host's), so bulk
// TCP would get slower.
func software(l kernel.Link) bool {
	if l.Kind != "" {
		return true
	}
	return driverOf(l).merges && (l.Offloads.HWGRO || l.Driver != "virtio_net")
}

// Wire is what TC ingress counted of a port's received packets in one period.
type Wire struct {
	Plain   uint64 // checksum complete in the frame
	Partial uint64 // checksum left to hardware that never comes, or merged by GRO; on any port
	Merged  uint64 // of the partial ones, those of several segments
	Tagged  uint64 // VLAN tag beside the frame
	Gain    uint64 // of the plain ones: repeated, or with labels
}

// What it takes to call a peer a wire, and to trust it again.
const (
	enough  = 64          // plain packets that make a period count
	periods = 2           // such periods in a row
	HoldOff = time.Minute // after a peer stopped behaving like a wire
)

// Peer judges from what a port receives whether its other end behaves like a wire, and whether
// XDP would pay. The zero value knows nothing yet. Copying it copies the judgement.
type Peer struct {
	wire  bool
	pays  bool      // half of what comes in gains by XDP
	clean int       // periods in a row without anything but plain packets
	paid  int       // of these, the last ones in a row that XDP would pay in
	until time.Time // not before
	worst Wire      // last period that had something else than plain packets
}

// Wired is a Peer that was found to behave like a wire before.
func Wired() Peer { return Peer{wire: true, pays: true} }

// Observe takes the counts of one period, which ended now; periods of about a second
// are meant. A period with few packets says nothing. One packet that no wire carries
// ends the trust at once; that XDP pays is believed for as long as the trust lasts.
func (p *Peer) Observe(now time.Time, seen Wire) {
	switch {
	case seen.Partial > 0 || seen.Tagged > 0:
		until := p.until
		if p.wire {
			until = now.Add(HoldOff)
		}
		*p = Peer{until: until, worst: seen}
	case now.Before(p.until):
	case seen.Plain >= enough:
		p.clean++
		p.paid++
		if seen.Gain < seen.Plain/2 {
			p.paid = 0
		}
		p.wire = p.wire || p.clean >= periods
		p.pays = p.pays || p.paid >= periods
	}
}

// gains reports whether XDP is faster than TC for what comes from there. A veth's XDP copies
// what a TCP stack at the other end sends (veth_convert_skb_to_xdp_buff() in
// drivers/net/veth.c): of short connections nothing is repeated that would pay for it.
func (p *Peer) gains(l kernel.Link) bool { return p.wire && (p.pays || l.Kind != "veth") }

// explain says why it does not gain.
func (p *Peer) explain(l kernel.Link) (reason, remedy string) {
	switch {
	case p.wire:
		return fmt.Sprintf("most packets from the peer of %s are the kernel's: XDP would cost more than it gains", l.Name), ""
	case p.worst.Tagged > 0:
		return fmt.Sprintf("the peer of %s sends VLAN tags beside the frame, invisible to XDP", l.Name),
			fmt.Sprintf("switch that off at the peer of %s (ethtool -K PEER txvlan off)", l.Name)
	case p.worst.Partial > 0:
		return "bulk TCP comes in merged segments or with unfinished checksums: TC keeps them, which is faster than XDP here",
			fmt.Sprintf("for many small packets instead, set xdp = \"on\" for %s and switch offloads off at its peer (ethtool -K PEER tx off)", l.Name)
	}
	return fmt.Sprintf("not yet known whether the peer of %s behaves like a wire", l.Name), ""
}
