// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// Bounds of ChainOptions.
const (
	MaxHops   = 9
	MaxRoutes = 15 << 16
)

// Chain is a row of routers, with a first host before the first and a host behind each, so that there is
// a way over any number of them:
//
//	a: eth0 ─── west :r1: east ─── west :r2: east ─── west :r3
//	                 host               host               host
//	                  │                  │                  │
//	                 eth0 :h1           eth0 :h2           eth0 :h3
//
// Hosts have 10.128.N.2 and, for packets that are to be label switched, 10.128.N.3 (N is 0 for the
// first); routers have 10.128.N.1 there and 198.18.N.1 and .2 at both ends of the link behind router N.
// All links take frames that are two labels longer than 1500 bytes of IP.
type Chain struct {
	*Lab
	First   End
	Hosts   []End // behind each router
	Routers []Router
	routes  int
}

// Router is one of a Chain. The last one has no East.
type Router struct {
	NS               *NS
	West, East, Host End
}

// ChainOptions says how long a chain is.
type ChainOptions struct {
	Name   string
	Kept   bool // made by NewKept, for Keep
	Hops   int  // routers, 1 to MaxHops
	Routes int  // that each of them has beside those of the chain, 0 to MaxRoutes
}

// chainMTU is that of all links: IP of 1500 bytes and two labels.
const chainMTU = 1508

// NewChain makes a chain, in which all neighbours are known.
func NewChain(o ChainOptions) (*Chain, error) {
	if o.Hops < 1 || o.Hops > MaxHops || o.Routes < 0 || o.Routes > MaxRoutes {
		return nil, fmt.Errorf("lab: a chain of %d routers with %d routes: use 1 to %d, and 0 to %d", o.Hops, o.Routes, MaxHops, MaxRoutes)
	}
	open := New
	if o.Kept {
		open = NewKept
	}
	l, err := open(o.Name)
	if err != nil {
		return nil, err
	}
	c := &Chain{Lab: l, routes: o.Routes}
	if err := c.build(o.Hops); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return c, nil
}

func (c *Chain) build(hops int) error {
	if err := c.place(hops); err != nil {
		return err
	}
	for i, r := range c.Routers {
		if err := r.NS.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
			return err
		}
		if err := c.host(c.Hosts[i], r.Host, i+1); err != nil {
			return err
		}
		if i == 0 {
			if err := c.host(c.First, r.West, 0); err != nil {
				return err
			}
			continue
		}
		before := c.Routers[i-1].East
		if err := c.Connect(r.West, before, Wire, chainMTU); err != nil {
			return err
		}
		if err := errors.Join(r.West.Know(before), before.Know(r.West)); err != nil {
			return err
		}
	}
	for i := range c.Routers {
		if err := c.route(i); err != nil {
			return err
		}
	}
	return nil
}

// place makes the namespaces and says which end is where.
func (c *Chain) place(hops int) error {
	roles := []string{"a"}
	for n := 1; n <= hops; n++ {
		roles = append(roles, fmt.Sprintf("r%d", n), fmt.Sprintf("h%d", n))
	}
	spaces, err := c.Namespaces(roles...)
	if err != nil {
		return err
	}
	end := func(n *NS, device string, number byte, address string) End {
		return End{NS: n, Device: device, MAC: net.HardwareAddr{2, 0, 1, number >> 4, number & 15, device[0]}, V4: netip.MustParsePrefix(address)}
	}
	c.First = end(spaces[0], "eth0", 0, "10.128.0.2/24")
	for n := byte(1); int(n) <= hops; n++ {
		router, host := spaces[2*n-1], spaces[2*n]
		r := Router{NS: router, Host: end(router, "host", n, fmt.Sprintf("10.128.%d.1/24", n)),
			West: end(router, "west", n, fmt.Sprintf("198.18.%d.2/24", n-1))}
		if n == 1 {
			r.West.V4 = netip.MustParsePrefix("10.128.0.1/24")
		}
		if int(n) < hops {
			r.East = end(router, "east", n, fmt.Sprintf("198.18.%d.1/24", n))
		}
		c.Routers = append(c.Routers, r)
		c.Hosts = append(c.Hosts, end(host, "eth0", n, fmt.Sprintf("10.128.%d.2/24", n)))
	}
	return nil
}

// Switched is the address of a host, by its number, for packets that are to be label switched.
func (c *Chain) Switched(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128, byte(host), 3})
}

// host connects a host, with both of its addresses, and its router.
func (c *Chain) host(host, router End, number int) error {
	if err := c.Connect(host, router, Wire, chainMTU); err != nil {
		return err
	}
	if err := errors.Join(host.Know(router), router.Know(host)); err != nil {
		return err
	}
	second := c.Switched(number)
	return errors.Join(
		host.NS.IP(fmt.Sprintf("address add %s/24 dev eth0", second), fmt.Sprintf("route add default via %s", router.V4.Addr())),
		router.NS.IP(fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent", second, host.MAC, router.Device)))
}

// route gives a router, by its place from 0 on, the ways to all hosts, and as many routes besides.
func (c *Chain) route(i int) error {
	lines := make([]string, 0, c.routes+len(c.Routers))
	r := c.Routers[i]
	onward := c.Hosts[i].V4.Addr()
	if i+1 < len(c.Routers) {
		onward = c.Routers[i+1].West.V4.Addr()
	}
	for n := 0; n <= len(c.Routers); n++ {
		switch {
		case n < i+1 && i > 0:
			lines = append(lines, fmt.Sprintf("route add 10.128.%d.0/24 via %s", n, c.Routers[i-1].East.V4.Addr()))
		case n > i+1:
			lines = append(lines, fmt.Sprintf("route add 10.128.%d.0/24 via %s", n, onward))
		}
	}
	for n := range c.routes {
		lines = append(lines, fmt.Sprintf("route add %s via %s", generated(n), onward))
	}
	return r.NS.IP(lines...)
}

// generated is one of many prefixes of 28 bits, all over 10.0.0.0/8 but for the hosts' sixteenth of it
// (10.128.0.0/12), in an order like none.
func generated(n int) netip.Prefix {
	const (
		part   = 1 << 16 // a sixteenth of all blocks of 16 addresses
		hosts  = 8       // which of them is the hosts'
		spread = 607_547 // coprime with MaxRoutes, and about its golden section
	)
	block := n * spread % MaxRoutes
	if block >= hosts*part {
		block += part
	}
	a := uint32(10<<24 | block<<4)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}), 28)
}

// ChainConfig is a configuration for a router with few labels and flows.
const ChainConfig = "labels = 1024\nflows = 1024\n"

// StartDaemons starts a daemon on every router. Each has a directory of its own, as StateAt says; its place is r1, r2 and so on.
func (c *Chain) StartDaemons(ctx context.Context, binary string) ([]*Daemon, error) {
	file := filepath.Join(c.Dir(), "shunt.toml")
	if err := os.WriteFile(file, []byte(ChainConfig), 0o600); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	var daemons []*Daemon
	for i, r := range c.Routers {
		args := []string{"--config", file, "--xdp", "on"}
		for _, e := range []End{r.West, r.East, r.Host} {
			if e.Device != "" {
				args = append(args, "--port", e.Device)
			}
		}
		d, err := c.StartDaemonAt(ctx, fmt.Sprintf("r%d", i+1), r.NS, binary, args...)
		if err != nil {
			return nil, err
		}
		daemons = append(daemons, d)
	}
	return daemons, nil
}

// ChainLabel is the label that a router, by its number from 1 on, gets packets with whose way is over so many
// routers; back is the way to the first host.
func ChainLabel(hops, router int, back bool) uint32 {
	label := uint32(1000 + 16*hops + router)
	if back {
		label += 1000
	}
	return label
}

// Tables are the lines for `shunt mpls apply` on a router, by its place from 0 on, that make an LSP from the
// first host to each that is more than one router away, and back: the first router pushes a label, the
// others swap it, and the last pops it and sends the packet to the host, without a look at its routes.
func (c *Chain) Tables(i int) []string {
	n := i + 1
	var lines []string
	entry := func(id, hops int, back bool, list string) {
		lines = append(lines, fmt.Sprintf("nhlfe add %d %s", id, list), fmt.Sprintf("ilm add %d nhlfe %d", ChainLabel(hops, n, back), id))
	}
	push := func(id, hops int, to int, back bool, send string) {
		next := n + 1
		if back {
			next = n - 1
		}
		lines = append(lines, fmt.Sprintf("nhlfe add %d push %d %s", id, ChainLabel(hops, next, back), send),
			fmt.Sprintf("ftn add %s/32 nhlfe %d", c.Switched(to), id))
	}
	for hops := max(n, 2); hops <= len(c.Routers); hops++ {
		forth, back := hops, 100+hops
		switch n {
		case 1:
			push(forth, hops, hops, false, c.eastward(i))
			entry(back, hops, true, fmt.Sprintf("pop send dev west via inet %s", c.Switched(0)))
		case hops:
			entry(forth, hops, false, fmt.Sprintf("pop send dev host via inet %s", c.Switched(hops)))
			push(back, hops, 0, true, c.westward(i))
		default:
			entry(forth, hops, false, fmt.Sprintf("swap %d %s", ChainLabel(hops, n+1, false), c.eastward(i)))
			entry(back, hops, true, fmt.Sprintf("swap %d %s", ChainLabel(hops, n-1, true), c.westward(i)))
		}
	}
	return append(lines, c.space(n))
}

// space lets a router's ports to other routers take labels; with none there, that to the first host.
func (c *Chain) space(n int) string {
	switch {
	case n == 1 && len(c.Routers) == 1:
		return "space set west 0"
	case n == 1:
		return "space set east 0"
	case n == len(c.Routers):
		return "space set west 0"
	}
	return "space set west east 0"
}

// eastward and westward send to the router behind or before one.
func (c *Chain) eastward(i int) string {
	return fmt.Sprintf("send dev %s via inet %s", c.Routers[i].East.Device, c.Routers[i+1].West.V4.Addr())
}

func (c *Chain) westward(i int) string {
	return fmt.Sprintf("send dev %s via inet %s", c.Routers[i].West.Device, c.Routers[i-1].East.V4.Addr())
}
