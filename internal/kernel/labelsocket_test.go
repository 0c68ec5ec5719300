// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

func openLabelSocket(t *testing.T) *LabelSocket {
	t.Helper()
	s, err := OpenLabelSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// twoPairs makes the interfaces va, vb behind it, vc and vd behind that.
const twoPairs = `
		sysctl -qw net.ipv6.conf.all.disable_ipv6=1
		ip link add name va address 02:00:00:00:00:0a type veth peer name vb address 02:00:00:00:00:0b
		ip link add name vc address 02:00:00:00:00:0c type veth peer name vd address 02:00:00:00:00:0d
		ip link set va up
		ip link set vb up
		ip link set vc up
		ip link set vd up`

// TestLabelSocket: labelled frames to this host by the ports that are listened to, and nothing
// else; frames to a neighbour; IP packets by the routes.
func TestLabelSocket(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, twoPairs+`
		ip addr add 10.0.0.1/24 dev va
		ip route add unreachable 10.9.0.0/16
		ip route add blackhole 10.8.0.0/16`)
	s, far := openLabelSocket(t), openLabelSocket(t)
	if err := s.Listen([]int{index(t, "va")}); err != nil {
		t.Fatal(err)
	}
	send := func(dev string, to byte, etherType uint16, words string) {
		t.Helper()
		if err := far.Send(index(t, dev), net.HardwareAddr{2, 0, 0, 0, 0, to}, etherType, []byte(words)); err != nil {
			t.Fatal(err)
		}
	}
	send("vd", 0x0c, unix.ETH_P_MPLS_UC, "by another port")
	send("vb", 0x0f, unix.ETH_P_MPLS_UC, "to another host")
	send("vb", 0x0a, unix.ETH_P_MPLS_MC, "of another type")
	send("va", 0x0b, unix.ETH_P_MPLS_UC, "in the other direction")
	send("vb", 0x0a, unix.ETH_P_MPLS_UC, "this")
	b := make([]byte, 2048)
	n, from, err := s.Hear(b)
	if err != nil || string(b[:n]) != "this" || from != index(t, "va") {
		t.Errorf("%q from %d, %v", b[:n], from, err)
	}
	if err := s.Listen([]int{index(t, "va"), index(t, "vc")}); err != nil {
		t.Fatal(err)
	}
	send("vd", 0x0c, unix.ETH_P_MPLS_UC, "now this")
	if n, from, err = s.Hear(b); err != nil || string(b[:n]) != "now this" || from != index(t, "vc") {
		t.Errorf("%q from %d, %v", b[:n], from, err)
	}
	if err := s.Listen(nil); err != nil {
		t.Fatal(err)
	}
	send("vb", 0x0a, unix.ETH_P_MPLS_UC, "to nobody")

	packet := append([]byte{0x45, 0, 0, 24, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, 11, 0, 0, 0)
	for to, want := range map[string]error{
		"10.0.0.2": nil, "203.0.113.9": ErrNoRoute, "10.9.0.1": ErrNoRoute, "10.8.0.1": nil, "10.0.0.255": nil, "255.255.255.255": ErrNoRoute,
		"2001:db8::1": ErrNoRoute,
	} {
		if a := netip.MustParseAddr(to); a.Is4() {
			copy(packet[16:], a.AsSlice())
			if err := s.Route(a, packet); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("%s: %v, want %v", to, err, want)
			}
		} else if err := s.Route(a, bytes.Repeat([]byte{0x60}, 48)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", to, err, want)
		}
	}

	addresses, err := openResolver(t).Addresses()
	if err != nil || !slices.Equal(addresses[index(t, "va")], []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}) || len(addresses[index(t, "vc")]) != 0 {
		t.Errorf("%v, %v", addresses, err)
	}

	ended := make(chan error)
	go func() {
		_, _, err := s.Hear(make([]byte, 2048))
		ended <- err
	}()
	s.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestLabelFilter: as many ports are heard as shunt may have, the first and the last of them, and no
// other one.
func TestLabelFilter(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, twoPairs)
	va, vc := index(t, "va"), index(t, "vc")
	others := make([]int, 255)
	for i := range others {
		others[i] = 1<<20 + i
	}
	for name, heard := range map[string][]int{"alone": {va}, "first": append([]int{va}, others...), "last": append(slices.Clone(others), va), "none": {}} {
		t.Run(name, func(t *testing.T) {
			s, far := openLabelSocket(t), openLabelSocket(t)
			if err := s.Listen(append(heard, vc)); err != nil {
				t.Fatal(err)
			}
			want := []string{"last"}
			if len(heard) > 0 {
				want = []string{"this", "last"}
			}
			for _, frame := range []struct {
				by, words string
				to        byte
			}{{"vb", "this", 0x0a}, {"vd", "last", 0x0c}} {
				to := net.HardwareAddr{2, 0, 0, 0, 0, frame.to}
				if err := far.Send(index(t, frame.by), to, unix.ETH_P_MPLS_UC, []byte(frame.words)); err != nil {
					t.Fatal(err)
				}
			}
			b := make([]byte, 2048)
			for _, words := range want {
				if n, _, err := s.Hear(b); err != nil || string(b[:n]) != words {
					t.Errorf("heard %q, %v; want %s", b[:max(n, 0)], err, words)
				}
			}
		})
	}
}
