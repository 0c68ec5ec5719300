// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"shunt/internal/kernel"
)

// driver is what a network driver asks of an XDP router and does not tell by a feature. The
// facts are those of Linux 6.12's sources; vmxnet3, virtio_net and e1000e were also run.
type driver struct {
	keepsTags bool     // rx-vlan-hw-parse is emulated behind XDP, which sees the tag in the frame
	keep      []string // features that shunt never switches
	merges    bool     // while rx-gro-hw is on, the host hands over merged segments; XDP ends that
	ownQueue  bool     // loses the frames of a CPU whose number is over that of its queues
	noTarget  string   // why no port may redirect to it, even with the program
	noProgram string   // why it gets no XDP program
	lacks     string   // why its features may lack XDP
	cure      string   // and what would change that; %s stands for the interface
	noMerging bool     // it has no XDP features while it merges segments, and has them otherwise
	unsure    bool     // accepts a program that it may not run: the back end has no room for one
	noMarks   bool     // bpf_xdp_adjust_meta() succeeds, and the metadata does not reach the skb
	attach    attach   // what it does when a program is attached or detached
}

// attach is what attaching a program, or detaching it, does to a card.
type attach int

const (
	pointer attach = iota // nothing
	queues                // its queues start again, some 100 ms at the most
	link                  // the link is down for some seconds
)

// drivers are by the names that `ethtool -i` shows. A driver that is not here is unknown.
var drivers = map[string]driver{
	"am65-cpsw-nuss": {attach: link},
	"atlantic":       {attach: link, noTarget: "frees frames that it still sends when its ring is full"},
	"bnxt_en":        {attach: queues, lacks: "it has no combined channels", cure: "ethtool -L %s combined N"},
	"cpsw":           {keepsTags: true},
	"ena": {attach: queues, lacks: "it needs half of its channels for XDP",
		cure: "ethtool -l %[1]s shows the maximum; ethtool -L %[1]s combined HALF, and an MTU of at most 3498"},
	"fec":           {keepsTags: true, attach: link},
	"fsl_dpa":       {attach: link},
	"fsl_dpaa2_eth": {attach: link},
	"fsl_enetc":     {attach: queues},
	"gve": {attach: queues, lacks: "it needs the queue format GQI-QPL, LRO off, and half of its channels for XDP",
		cure: "ethtool -K %[1]s lro off; ethtool -L %[1]s rx HALF tx HALF"},
	"hv_netvsc":      {merges: true},
	"i40e":           {attach: link, ownQueue: true},
	"ice":            {attach: link, lacks: "it runs in safe mode, without its DDP package", cure: "install the firmware package of ice for %s, and reload the driver"},
	"igb":            {attach: link},
	"igc":            {attach: link},
	"ionic":          {attach: queues},
	"ixgbe":          {attach: link},
	"lan966x-switch": {attach: queues},
	"mana":           {},
	"mlx4_en":        {attach: link, noMarks: true},
	"mlx5_core":      {attach: queues, ownQueue: true, noMerging: true, lacks: "LRO or hardware GRO is on", cure: "ethtool -K %s lro off rx-gro-hw off"},
	"mtk_soc_eth":    {attach: link, noProgram: "has one program for all ports of the chip"},
	"mvneta":         {attach: link},
	"mvpp2":          {attach: link, lacks: "its buffers are not per CPU, or it has too few queues", cure: "ip link set dev %s mtu 1500"},
	"netsec":         {attach: link},
	"qede":           {attach: queues, keep: []string{kernel.RxGROHW}}, // goes by itself
	"rvu-nicpf":      {attach: link, ownQueue: true, noTarget: "frees frames that it still sends when its ring is full"},
	"sfc":            {},
	"st_gmac":        {attach: queues, noMarks: true},
	"st_xgmac":       {attach: queues, noMarks: true},
	"tsnep":          {},
	"vif":            {merges: true, unsure: true, attach: queues, keep: []string{kernel.RxGROHW}},
	// Attaching ends the host's offloads by itself. While it lasts, switching them off is refused.
	"virtio_net": {merges: true, attach: queues, keep: []string{kernel.RxGROHW}},
	"vmxnet3":    {attach: queues},
}

// driverOf returns the row of a physical port. Of an unknown driver the worst is assumed.
func driverOf(l kernel.Link) driver {
	if d, known := drivers[l.Driver]; known {
		return d
	}
	return driver{attach: link, ownQueue: true}
}

// Wants returns the features that the daemon must switch off before a port's program sees what
// came in. There are none where the port would get no program all the same.
func Wants(p Port, mode Mode) []string {
	if p.Link.Kind != "" || mode == Off || p.Keep {
		return nil
	}
	if ok, _, _ := Receive(Prepared(p), On); !ok {
		return nil
	}
	return switches(p.Link)
}

// switches are the features of a physical port that are on, hide something from XDP, and may
// be switched.
func switches(l kernel.Link) (names []string) {
	d := driverOf(l)
	for _, name := range l.Offloads.Switchable {
		tags := name == kernel.RxVLAN || name == kernel.RxVLANSTag
		if !slices.Contains(d.keep, name) && !(tags && d.keepsTags) {
			names = append(names, name)
		}
	}
	return names
}

// Vouched reports whether a driver that accepts a program is known to run it: then the port is taken for
// proven as soon as it is attached, although nothing has come in yet, and for as long as nothing speaks against it.
func Vouched(l kernel.Link) bool {
	_, known := drivers[l.Driver]
	return known && !driverOf(l).unsure
}

// LosesMarks reports whether TC does not see what XDP leaves in front of a packet that comes in by a port.
func LosesMarks(l kernel.Link) bool { return l.Kind == "" && driverOf(l).noMarks }

// ResetsLink reports whether a port is without its link for some seconds when a program is attached.
func ResetsLink(l kernel.Link) bool { return l.Kind == "" && driverOf(l).attach == link }

// Prepared returns a port as it will be after the daemon attached to it, as far as that can be
// foretold: what can be switched off is off, the program is attached and proven. A driver
// that can run a program and redirect takes redirected frames then, but for a few.
func Prepared(p Port) Port {
	if p.Link.Kind != "" {
		return p
	}
	if !p.Keep {
		p.Link.Offloads = without(p.Link.Offloads, switches(p.Link))
	}
	if p.OwnXDP == 0 {
		p.OwnXDP = math.MaxUint32 // no program has this id
	}
	p.Proven = true
	if driverOf(p.Link).noMerging && !p.Link.Offloads.LRO && !p.Link.Offloads.HWGRO {
		p.Link.Features |= kernel.XDPBasic | kernel.XDPRedirect
	}
	if p.Link.Features.Has(kernel.XDPBasic|kernel.XDPRedirect) && !slices.Contains(neverTakes, p.Link.Driver) {
		p.Link.Features |= kernel.XDPTransmit
	}
	return p
}

// neverTakes are drivers whose programs redirect, and that take no redirected frames themselves.
var neverTakes = []string{"ixgbevf", "mlx4_en", "nfp", "nicvf"}

func without(o kernel.Offloads, names []string) kernel.Offloads {
	for _, name := range names {
		switch name {
		case kernel.RxLRO:
			o.LRO = false
		case kernel.RxGROHW:
			o.HWGRO = false
		default:
			o.RxVLAN = o.RxVLANFixed
		}
	}
	o.Switchable = nil
	return o
}

// Effect says in words what the daemon does to a port before its first packet; empty if it gets no
// program, or the card does not notice.
func Effect(p Port, mode Mode) string {
	l := p.Link
	if ok, _, _ := Receive(Prepared(p), mode); l.Kind != "" || !ok {
		return ""
	}
	var words []string
	if names := Wants(p, mode); len(names) > 0 {
		words = append(words, "switches off "+strings.Join(names, " and ")+" until it stops")
	}
	if _, known := drivers[l.Driver]; !known {
		words = append(words, fmt.Sprintf("may take the link down for some seconds (driver %s is unknown)", named(l.Driver)))
	} else if attach := driverOf(l).attach; attach == link {
		words = append(words, "takes the link down for some seconds")
	} else if attach == queues {
		words = append(words, "restarts the queues of the card")
	}
	return strings.Join(words, ", ")
}

// Finishes reports whether a port's driver has checksums finished and segments cut apart by the other
// end while a program is attached: then only what comes merged speaks against one.
func Finishes(l kernel.Link) bool { return l.Driver == "virtio_net" }
