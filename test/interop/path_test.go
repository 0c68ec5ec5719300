// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"shunt/internal/lab"
)

// kind is what a router is.
type kind string

const (
	kernel kind = "kernel"
	shunt  kind = "shunt"
)

// place is where on the path it stands.
type place int

const (
	ingress place = iota
	transit
	egress
)

func (p place) String() string { return []string{"ingress", "transit", "egress"}[p] }

// path is
//
//	sender: eth0 -- lan :ingress: wan -- lan :transit: wan -- lan :egress: wan -- eth0 :receiver
//
// with 198.18.0.0/24 and 2001:2:0:0::/64 on the first link, 198.18.1.0/24 and 2001:2:0:1::/64 on
// the next, and so on; the left end of each is .1 and ::1, the right one .2 and ::2. Sender and
// receiver have no addresses: they are raw sockets.
type path struct {
	kinds            [3]kind
	sender, receiver lab.End
	routers          [3]*router
	labs             []*lab.Lab
}

// router is one of the three. Each has a lab of its own, since a lab holds one daemon.
type router struct {
	kind
	place
	lab      *lab.Lab
	lan, wan lab.End
}

func (r *router) String() string { return fmt.Sprintf("%s at %s", r.kind, r.place) }

// hopAddress is a next hop's.
type hopAddress struct{ v4, v6 netip.Addr }

func (p *path) String() string {
	return fmt.Sprintf("%s-%s-%s", p.kinds[ingress], p.kinds[transit], p.kinds[egress])
}

// newPath makes a path of routers of these kinds, with all LSPs on it.
func newPath(kinds [3]kind) (*path, error) {
	p := &path{kinds: kinds}
	if err := p.build(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *path) build() error {
	spaces, err := p.namespaces()
	if err != nil {
		return err
	}
	var left, right [4]lab.End
	for i := range 4 {
		left[i], right[i] = end(spaces[i], "wan", i, 1), end(spaces[i+1], "lan", i, 2)
	}
	left[0].Device, right[3].Device = "eth0", "eth0"
	p.sender, p.receiver = left[0], right[3]
	for i, k := range p.kinds {
		p.routers[i] = &router{kind: k, place: place(i), lab: p.labs[i], lan: right[i], wan: left[i+1]}
	}
	for i := range 4 {
		if err := p.link(left[i], right[i], i == 0, i == 3); err != nil {
			return err
		}
	}
	for i, r := range p.routers {
		next := right[i+1]
		if err := r.start(hopAddress{next.V4.Addr(), next.V6.Addr()}); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	return nil
}

// namespaces are those of the sender, the routers and the receiver.
func (p *path) namespaces() (all []*lab.NS, err error) {
	for i, roles := range [][]string{{"sender", "ingress"}, {"transit"}, {"egress", "receiver"}} {
		l, err := lab.New("interop")
		if err != nil {
			return nil, err
		}
		p.labs = append(p.labs, l)
		spaces, err := p.labs[i].Namespaces(roles...)
		if err != nil {
			return nil, err
		}
		all = append(all, spaces...)
	}
	return all, nil
}

func end(n *lab.NS, device string, link, host int) lab.End {
	return lab.End{
		NS: n, Device: device, MAC: net.HardwareAddr{2, 0, 0, 0, byte(link), byte(host)},
		V4: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(link), byte(host)}), 24),
		V6: netip.MustParsePrefix(fmt.Sprintf("2001:2:0:%d::%d/64", link, host)),
	}
}

// link connects two nodes that know each other for good.
func (p *path) link(left, right lab.End, sender, receiver bool) error {
	bare := func(e lab.End, is bool) (lab.End, error) {
		if !is {
			return e, nil
		}
		e.V4, e.V6 = netip.Prefix{}, netip.Prefix{}
		return e, e.NS.Sysctl("net.ipv6.conf.all.disable_ipv6", "1")
	}
	l, err := bare(left, sender)
	if err != nil {
		return err
	}
	r, err := bare(right, receiver)
	if err != nil {
		return err
	}
	if err := p.labs[0].Connect(l, r, lab.Wire, 0); err != nil {
		return err
	}
	if !sender {
		err = left.Know(right)
	}
	if !receiver {
		err = errors.Join(err, right.Know(left))
	}
	return err
}

func (p *path) close() error {
	var errs []error
	for _, l := range p.labs {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// start makes it forward, and puts all LSPs on it.
func (r *router) start(next hopAddress) error {
	ns := r.lan.NS
	for key, value := range map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"} {
		if err := ns.Sysctl(key, value); err != nil {
			return err
		}
	}
	if r.kind == shunt {
		return r.startShunt(next)
	}
	for key, value := range map[string]string{"net.mpls.platform_labels": "10000", "net.mpls.conf.lan.input": "1", "net.mpls.conf.lo.input": "1"} {
		if err := ns.Sysctl(key, value); err != nil {
			return err
		}
	}
	var lines []string
	for _, l := range lsps() {
		lines = append(lines, l.kernelLines(r.place, next)...)
	}
	return r.ip(lines)
}

// ip runs commands one by one: a batch knows one family.
func (r *router) ip(lines []string) error {
	for _, line := range lines {
		if _, err := r.lan.NS.Run(append([]string{"ip"}, strings.Fields(line)...)...); err != nil {
			return err
		}
	}
	return nil
}

// startShunt runs a daemon. Where packets have no labels the kernel routes them.
func (r *router) startShunt(next hopAddress) error {
	var lines, routes []string
	if r.place != ingress {
		lines = append(lines, "space set lan 0")
	}
	for _, l := range lsps() {
		lines = append(lines, l.shuntLines(r.place, next)...)
		routes = append(routes, fmt.Sprintf("route add %s %s dev wan", l.prefix(), l.via(next)))
	}
	if r.place != transit {
		if err := r.ip(routes); err != nil {
			return err
		}
	}
	_, err := r.lab.StartDaemon(context.Background(), r.lan.NS, program, "--port", "lan", "--port", "wan", "--xdp", "on")
	if err != nil {
		return err
	}
	_, err = r.shunt(strings.Join(lines, "\n")+"\n", "mpls", "apply", "-")
	return err
}

// shunt runs a client command.
func (r *router) shunt(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := r.lan.NS.Command(ctx, program, append([]string{"--state", r.lab.State(), "--bpffs", r.lab.BPFFS()}, args...)...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("shunt %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
