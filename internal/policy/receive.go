package policy

import (
	"fmt"
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
	if !l.Features.Has(kernel.XDPBasic | kernel.XDPRedirect) {
		return false, fmt.Sprintf("driver %s cannot redirect in XDP on %s", named(l.Driver), l.Name), ""
	}
	if l.Kind == "" && l.Offloads.RxVLAN {
		return stripped(l)
	}
	if mode == Auto && software(l) && !p.Peer.wire {
		reason, remedy = p.Peer.explain(l)
		return false, reason, remedy
	}
	return true, "", ""
}

// stripped refuses a port that takes VLAN tags out of frames before XDP sees them:
// tagged frames would look untagged there and be sent into the wrong network. A
// veth's peer keeps the tag beside the frame only if it sends one: Peer watches.
func stripped(l kernel.Link) (ok bool, reason, remedy string) {
	reason = fmt.Sprintf("%s strips VLAN tags before XDP can see them (rx-vlan-hw-parse)", l.Name)
	if !l.Offloads.RxVLANFixed {
		remedy = fmt.Sprintf("ethtool -K %s rxvlan off", l.Name)
	}
	return false, reason, remedy
}

// software reports whether the other end of a link is no wire but a program or a
// kernel on this machine, which may hand over packets with unfinished checksums and
// many segments in one. To attach XDP makes it stop (a veth switches its peer's TSO
// off), so bulk TCP would get slower.
func software(l kernel.Link) bool {
	switch l.Driver {
	case "virtio_net", "vif", "hv_netvsc", "vmxnet3": // vif is Xen's
		return true
	}
	return l.Kind != ""
}

// Wire is what TC ingress counted of a port's received packets in one period.
type Wire struct {
	Plain   uint64 // checksum complete in the frame
	Partial uint64 // checksum left to hardware that never comes, or merged by GRO; on any port
	Tagged  uint64 // VLAN tag beside the frame
	Gain    uint64 // of those that are plain: repeated, or with labels
}

// What it takes to call a peer a wire, and to trust it again.
const (
	enough  = 64          // plain packets that make a period count, if half of them gain by XDP
	periods = 2           // such periods in a row
	HoldOff = time.Minute // after a peer stopped behaving like a wire
)

// Peer judges from what a port receives whether its other end behaves like a wire.
// The zero value knows nothing yet. Copying it copies the judgement.
type Peer struct {
	wire  bool
	clean int       // periods in a row
	until time.Time // not before
	worst Wire      // last period that had something else than plain packets
	slow  bool      // most packets of the last full period were the kernel's
}

// Wired is a Peer that was found to behave like a wire before.
func Wired() Peer { return Peer{wire: true} }

// Observe takes the counts of one period, which ended now; periods of about a second
// are meant. A period with few packets says nothing. One packet that no wire carries
// ends the trust at once. Trust is only won while packets are repeated: XDP makes such a link
// copy what a kernel at its other end sends (veth_convert_skb_to_xdp_buff() in
// drivers/net/veth.c), and of short connections nothing is repeated that would pay for it.
func (p *Peer) Observe(now time.Time, seen Wire) {
	switch {
	case seen.Partial > 0 || seen.Tagged > 0:
		if p.wire {
			p.until = now.Add(HoldOff)
		}
		p.wire, p.clean, p.worst = false, 0, seen
	case now.Before(p.until):
	case seen.Plain < enough:
	case seen.Gain < seen.Plain/2:
		p.slow = true
	default:
		p.slow = false
		p.clean++
		p.wire = p.wire || p.clean >= periods
	}
}

// explain says why the peer is not taken for a wire.
func (p *Peer) explain(l kernel.Link) (reason, remedy string) {
	switch {
	case p.worst.Tagged > 0:
		return fmt.Sprintf("the peer of %s sends VLAN tags beside the frame, invisible to XDP", l.Name),
			fmt.Sprintf("switch that off at the peer of %s (ethtool -K PEER txvlan off)", l.Name)
	case p.worst.Partial > 0:
		return "bulk TCP comes in merged segments or with unfinished checksums: TC keeps them, which is faster than XDP here",
			fmt.Sprintf("for many small packets instead, set xdp = \"on\" for %s and switch offloads off at its peer (ethtool -K PEER tx off)", l.Name)
	}
	if p.slow {
		return fmt.Sprintf("most packets from the peer of %s are the kernel's: XDP would cost more than it gains", l.Name), ""
	}
	return fmt.Sprintf("not yet known whether the peer of %s behaves like a wire", l.Name), ""
}
