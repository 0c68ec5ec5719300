// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
)

// Operation is what the router of an LSR lab does to a frame.
type Operation string

// The operations, each in both directions, by labels of its own.
const (
	OpIP      Operation = "ip"       // IP comes in, IP goes out
	OpPush    Operation = "push"     // IP for Beyond comes in, and gets a label
	OpSwap    Operation = "swap"     // one label for another
	OpPopSwap Operation = "pop+swap" // the first of two labels goes, the next is swapped in the first one's context (RFC 5331)
	OpPHP     Operation = "php"      // the only label goes: the penultimate hop
)

// Labels are those that frames must come in with for an operation, the top of the stack first, and the
// one they leave with, or 0. Those from the server to the client are by one higher.
func (o Operation) Labels(back bool) (in []uint32, out uint32) {
	switch o {
	case OpPush:
		out = 240
	case OpSwap:
		in, out = []uint32{100}, 200
	case OpPopSwap:
		in, out = []uint32{110, 120}, 220
	case OpPHP:
		in = []uint32{130}
	}
	if !back {
		return in, out
	}
	for i := range in {
		in[i]++
	}
	if out != 0 {
		out++
	}
	return in, out
}

// lsrContext is the space that a label beneath label 110 or 111 is looked up in.
const lsrContext = 1

// Beyond are networks behind the client and the server, to which the router pushes a label.
var (
	BeyondClient = netip.MustParsePrefix("198.18.200.0/24")
	BeyondServer = netip.MustParsePrefix("198.19.200.0/24")
)

// LSR makes a lab with a router between client and server that has no rules and knows all
// neighbours. A daemon that is given LSRTables makes it a label switching router.
func LSR(name string, kept bool) (*Topology, error) {
	t, err := Firewall(FirewallOptions{Name: name, Kept: kept, Open: true, Neighbours: true})
	if err != nil {
		return nil, err
	}
	err = t.LAN.NS.IP(
		fmt.Sprintf("route add %s via %s", BeyondClient, t.Client.V4.Addr()),
		fmt.Sprintf("route add %s via %s", BeyondServer, t.Server.V4.Addr()))
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// LSRTables are the lines for `shunt mpls apply` that make the router do all operations.
func (t *Topology) LSRTables() []string {
	lines := []string{fmt.Sprintf("space set %s %s 0", t.LAN.Device, t.WAN.Device)}
	id := 0
	entry := func(label uint32, space int, list string) {
		id++
		lines = append(lines, fmt.Sprintf("nhlfe add %d %s", id, list), fmt.Sprintf("ilm add %d space %d nhlfe %d", label, space, id))
	}
	for _, back := range []bool{false, true} {
		send := fmt.Sprintf("send dev %s via inet %s", t.WAN.Device, t.Server.V4.Addr())
		if back {
			send = fmt.Sprintf("send dev %s via inet %s", t.LAN.Device, t.Client.V4.Addr())
		}
		in, out := OpSwap.Labels(back)
		entry(in[0], 0, fmt.Sprintf("swap %d %s", out, send))
		in, out = OpPopSwap.Labels(back)
		entry(in[0], 0, fmt.Sprintf("pop peek space %d", lsrContext))
		entry(in[1], lsrContext, fmt.Sprintf("swap %d %s", out, send))
		in, _ = OpPHP.Labels(back)
		entry(in[0], 0, "pop "+send)
		_, out = OpPush.Labels(back)
		beyond := BeyondServer
		if back {
			beyond = BeyondClient
		}
		id++
		lines = append(lines, fmt.Sprintf("nhlfe add %d push %d %s", id, out, send), fmt.Sprintf("ftn add %s nhlfe %d", beyond, id))
	}
	return lines
}
