// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

func openResolver(t *testing.T) *Resolver {
	t.Helper()
	r, err := OpenResolver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestResolver: a link by its name; neighbours by hand, that answer and that do not.
func TestResolver(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va address 02:00:00:00:00:0a mtu 1400 up
		ip link set vb up
		ip addr add 10.0.0.1/24 dev va
		ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 nud permanent dev va
		ip neigh add fe80::2 lladdr 02:00:00:00:00:06 nud stale dev va`)
	r := openResolver(t)
	if _, err := r.Link("none"); !errors.Is(err, ErrNoLink) {
		t.Errorf("an interface that is not there: %v", err)
	}
	l, err := r.Link("va")
	if err != nil || l.Name != "va" || l.Index != index(t, "va") || l.MTU != 1400 || l.MAC.String() != "02:00:00:00:00:0a" ||
		!l.Up || !l.Carrier || l.Type != Ethernet {
		t.Errorf("%+v, %v", l, err)
	}
	for _, c := range []struct {
		addr, mac      string
		failed, static bool
	}{
		{"10.0.0.2", "02:00:00:00:00:02", false, true},
		{"fe80::2", "02:00:00:00:00:06", false, false},
		{"10.0.0.3", "", false, false},
	} {
		n, err := r.Neighbour(l.Index, netip.MustParseAddr(c.addr))
		if err != nil || n.MAC.String() != c.mac || n.Failed != c.failed || n.Static != c.static {
			t.Errorf("%s: %+v, %v", c.addr, n, err)
		}
	}
	// one of which nobody has heard: the kernel asks, and says in the end that nobody answers
	lost := netip.MustParseAddr("10.0.0.3")
	events := listen(t)
	if err := r.Use(l.Index, lost); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		n, err := r.Neighbour(l.Index, lost)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("nobody answers, and %+v, %v", n, err)
		}
		if n.Failed && n.MAC == nil {
			break
		}
	}
	// and then somebody does
	nltest.Run(t, `ip addr add 10.0.0.3/24 dev vb`)
	nltest.Run(t, `ip neigh replace 10.0.0.3 lladdr 02:00:00:00:00:03 nud reachable dev va`)
	if e := await(t, events, EventNeighNew); e.MAC.String() != "02:00:00:00:00:03" || e.Index != l.Index || e.Prefix.Addr() != lost {
		t.Errorf("%+v", e)
	}
	if err := r.Use(l.Index+100, lost); err == nil {
		t.Error("a neighbour without an interface is used")
	}
}

// TestWatchNewNeighbours: one is new when the kernel can send to it and could not before,
// whatever was known of it earlier.
func TestWatchNewNeighbours(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up`)
	events := listen(t)
	for _, c := range []struct {
		command string
		fresh   bool
	}{
		{"ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 nud reachable dev va", true},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:02 nud stale dev va", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:03 nud reachable dev va", false}, // EventNeigh tells
		{"ip neigh change 10.0.0.2 nud failed dev va", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:03 nud reachable dev va", true},
		{"ip neigh del 10.0.0.2 dev va", false},
		{"ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:03 nud reachable dev va", true},
	} {
		nltest.Run(t, c.command)
		if got := until(t, events, EventNeighNew); (len(got) == 1) != c.fresh {
			t.Errorf("%s: %+v", c.command, got)
		}
	}
}

func TestShortNeighbour(t *testing.T) {
	if n, err := decodeNeighbour(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWNEIGH}, Data: []byte{2}}); err == nil {
		t.Errorf("%+v", n)
	}
}
