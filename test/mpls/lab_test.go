// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"shunt/internal/lab"
)

// network is a lab with a router between two hosts that say nothing by themselves: these
// have no addresses, and the router knows their MACs for good. Both are interfaces of one
// namespace, as they are for who tests a router of his own.
type network struct {
	*lab.Lab
	hosts, ports [2]lab.End
}

// deviceNames are the router's.
var deviceNames = [2]string{"lan", "wan"}

// mtus: B's is what a wire has, A's lets frames in that do not fit there.
var mtus = [2]int{2000, 1500}

func newNetwork(name string) (*network, error) {
	l, err := lab.New(name)
	if err != nil {
		return nil, err
	}
	n := &network{Lab: l}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return n, nil
}

func (n *network) build() error {
	spaces, err := n.Namespaces("h", "r")
	if err != nil {
		return err
	}
	host := spaces[0]
	for i := range 2 {
		if err := host.Sysctl("net.ipv6.conf.all.disable_ipv6", "1"); err != nil {
			return err
		}
		n.hosts[i] = lab.End{NS: host, Device: fmt.Sprintf("eth%d", i), MAC: net.HardwareAddr{2, 0, 0, 0, byte(18 + i), 2}}
		n.ports[i] = lab.End{
			NS: spaces[1], Device: deviceNames[i], MAC: net.HardwareAddr{2, 0, 0, 0, byte(18 + i), 1},
			V4: netip.PrefixFrom(router4[i], 24), V6: netip.PrefixFrom(router6[i], 64),
		}
		if err := n.Connect(n.hosts[i], n.ports[i], lab.Wire, mtus[i]); err != nil {
			return err
		}
		known := n.hosts[i]
		known.V4, known.V6 = netip.PrefixFrom(host4[i], 24), netip.PrefixFrom(host6[i], 64)
		if err := n.ports[i].Know(known); err != nil {
			return err
		}
	}
	for key, value := range map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"} {
		if err := n.router().Sysctl(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (n *network) router() *lab.NS { return n.ports[a].NS }

// names puts the router's own names of its ports into a line.
func (n *network) names(line string) string {
	return strings.NewReplacer("@A", deviceNames[a], "@B", deviceNames[b]).Replace(line)
}

// ip runs one `ip` command in the router, or sets a sysctl by "sysctl KEY=VALUE".
func (n *network) ip(line string) error {
	words := strings.Fields(n.names(line))
	if words[0] == "sysctl" {
		key, value, _ := strings.Cut(words[1], "=")
		return n.router().Sysctl(key, value)
	}
	_, err := n.router().Run(append([]string{"ip"}, words...)...)
	return err
}

// ipUndone is the line that takes away what another one made; "" if nothing needs to be.
func ipUndone(line string) string {
	words := strings.Fields(line)
	at := slices.Index(words, "add")
	switch {
	case at < 1:
		return ""
	case words[at-1] == "link":
		return "link del " + words[slices.Index(words, "name")+1]
	}
	return strings.Join(words[:at], " ") + " del " + words[at+1]
}

// undoIP takes away what lines made, the last first. What is gone already is no error:
// a case may have taken it away itself.
func (n *network) undoIP(lines []string) {
	for _, line := range slices.Backward(lines) {
		if undone := ipUndone(line); undone != "" {
			_ = n.ip(undone)
		}
	}
}

// rig opens taps at both hosts.
func (n *network) rig(r router) (*rig, error) {
	g := &rig{router: r, came: make(chan arrival, 1<<16)}
	for i := range 2 {
		g.host[i], g.place.router[i] = n.hosts[i].MAC, n.ports[i].MAC
		err := n.hosts[i].NS.Do(func() (err error) {
			g.taps[i], err = openTap(port(i), n.hosts[i].Device, g.came)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.hosts[i], err)
		}
	}
	return g, nil
}

// close ends the taps, then the router.
func (r *rig) close() error {
	var errs []error
	for _, t := range r.taps {
		if t != nil {
			errs = append(errs, t.close())
		}
	}
	return errors.Join(append(errs, r.router.close())...)
}
