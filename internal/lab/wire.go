// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Offloads says what a veth pair pretends to be.
type Offloads int

const (
	// Wire makes the host's end send what a cable carries: whole checksums and
	// frames no longer than the MTU. XDP can repeat them.
	Wire Offloads = iota
	// Stack leaves veth as it comes: checksums stay partial and TCP travels in
	// pieces of up to 64 KiB, as between containers.
	Stack
)

// End is one end of a veth pair, with the addresses that belong to it.
type End struct {
	NS     *NS
	Device string
	MAC    net.HardwareAddr
	V4, V6 netip.Prefix // an invalid one is left out
}

// String names the end for errors.
func (e End) String() string { return e.NS.name + "/" + e.Device }

// Connect makes a veth pair between two ends, with fixed MACs, an MTU in bytes
// (0: 1500) and addresses, and brings both up. The offloads are those of host;
// router keeps its own. Both ends get GRO, and so a NAPI context, without which
// a veth loses every frame that XDP redirects to its peer (veth_xdp_xmit).
func (l *Lab) Connect(host, router End, offloads Offloads, mtu int) error {
	return l.connect(host, router, offloads, mtu, 1)
}

// connect is Connect with a number of queues at both ends.
func (l *Lab) connect(host, router End, offloads Offloads, mtu, queues int) error {
	if mtu == 0 {
		mtu = 1500
	}
	many := ""
	if queues > 1 {
		many = fmt.Sprintf(" numtxqueues %d numrxqueues %d", queues, queues)
	}
	pair := fmt.Sprintf("link add %s netns %s address %s mtu %d%s type veth peer name %s netns %s address %s mtu %d%s\n",
		host.Device, host.NS.name, host.MAC, mtu, many, router.Device, router.NS.name, router.MAC, mtu, many)
	if err := ip("", pair); err != nil {
		return err
	}
	features := []string{"gro", "on"}
	if err := router.features(features...); err != nil {
		return err
	}
	if offloads == Wire {
		features = append(features, "tx", "off", "tso", "off", "gso", "off")
	}
	if err := host.features(features...); err != nil {
		return err
	}
	for _, e := range []End{host, router} {
		if err := e.steer(queues); err != nil {
			return err
		}
		if err := e.up(); err != nil {
			return err
		}
	}
	return nil
}

// steer gives each CPU a transmit queue of its own (XPS), whose frames the other end then takes in on
// the same CPU. What XDP redirects goes by CPU anyhow (veth_select_rxq).
func (e End) steer(queues int) error {
	if queues == 1 {
		return nil
	}
	var script strings.Builder
	for n := range queues {
		mask := fmt.Sprintf("%x", uint32(1)<<(n%32)) + strings.Repeat(",00000000", n/32)
		fmt.Fprintf(&script, "echo %s > /sys/class/net/%s/queues/tx-%d/xps_cpus\n", mask, e.Device, n)
	}
	_, err := e.NS.Run("sh", "-ec", script.String())
	return err
}

func (e End) features(words ...string) error {
	_, err := e.NS.Run(append([]string{"ethtool", "-K", e.Device}, words...)...)
	return err
}

func (e End) up() error {
	lines := []string{"link set " + e.Device + " up"}
	for _, a := range []netip.Prefix{e.V4, e.V6} {
		if a.IsValid() {
			lines = append(lines, fmt.Sprintf("address add %s dev %s", a, e.Device))
		}
	}
	return e.NS.IP(lines...)
}

// Know gives e permanent neighbour entries for the other end, so that no ARP or
// neighbour discovery is needed to reach it.
func (e End) Know(other End) error {
	var lines []string
	for _, a := range []netip.Prefix{other.V4, other.V6} {
		if a.IsValid() {
			lines = append(lines, fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent", a.Addr(), other.MAC, e.Device))
		}
	}
	return e.NS.IP(lines...)
}
