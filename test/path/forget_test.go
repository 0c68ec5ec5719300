// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net"
	"net/netip"
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// TestForget: a change that is about some flows puts their entries out of use, and no others.
func TestForget(t *testing.T) {
	b := open(t, exercise.Options{})
	in4, out4 := b.udp4()
	in6, out6 := b.udp6()
	in4.Src, in4.Dst = addr("192.0.2.7:1000"), addr("198.51.100.9:2000")
	out4.Src, out4.Dst = addr("203.0.113.1:3000"), addr("10.9.8.7:4000")
	in6.Src, out6.Src = addr("[2001:db8:1::7]:1000"), addr("[2001:db8:2::7]:3000")
	echo := in4
	echo.Proto, echo.Type, echo.Src = 1, 8, addr("192.0.2.8:77")
	lease := b.lease(t)
	learned := []exercise.Slot{b.Learned(in4, out4, lease), b.Learned(in6, out6, lease), b.Learned(echo, b.routed(echo), lease)}

	prefix := func(s string) dataplane.Scope { return dataplane.Scope{Prefix: netip.MustParsePrefix(s)} }
	tuple := func(src, dst string, proto uint8) dataplane.Scope {
		return dataplane.Scope{Tuple: dataplane.Tuple{Source: addr(src), Destination: addr(dst)}, Proto: proto}
	}
	elsewhere := net.HardwareAddr{2, 0, 0, 0, 19, 99}
	for _, c := range []struct {
		name   string
		scopes []dataplane.Scope
		want   []bool // of in4, in6, echo
	}{
		{"nothing", nil, []bool{false, false, false}},
		{"source", []dataplane.Scope{prefix("192.0.2.7/32")}, []bool{true, false, false}},
		{"source, host bits set", []dataplane.Scope{prefix("192.0.2.1/24")}, []bool{true, false, true}},
		{"destination", []dataplane.Scope{prefix("198.51.100.0/28")}, []bool{true, false, true}},
		{"translated source", []dataplane.Scope{prefix("203.0.113.0/24")}, []bool{true, false, false}},
		{"translated destination", []dataplane.Scope{prefix("10.0.0.0/8")}, []bool{true, false, false}},
		{"neighbouring prefix", []dataplane.Scope{prefix("192.0.2.8/31"), prefix("198.51.100.16/28")}, []bool{false, false, true}},
		{"all of IPv4", []dataplane.Scope{prefix("0.0.0.0/0")}, []bool{true, false, true}},
		{"all of IPv6", []dataplane.Scope{prefix("::/0")}, []bool{false, true, false}},
		{"IPv6", []dataplane.Scope{prefix("2001:db8:1::/48")}, []bool{false, true, false}},
		{"IPv6 translated", []dataplane.Scope{prefix("2001:db8:2::7/128")}, []bool{false, true, false}},
		{"out", []dataplane.Scope{{Out: b.WANIndex}}, []bool{true, true, true}},
		{"out by another", []dataplane.Scope{{Out: b.LANIndex}}, []bool{false, false, false}},
		{"out to a MAC", []dataplane.Scope{{Out: b.WANIndex, MAC: b.Server.MAC}}, []bool{true, true, true}},
		{"out to another", []dataplane.Scope{{Out: b.WANIndex, MAC: elsewhere}}, []bool{false, false, false}},
		{"to a MAC by any", []dataplane.Scope{{MAC: b.Server.MAC}}, []bool{true, true, true}},
		{"to another by any", []dataplane.Scope{{MAC: elsewhere}}, []bool{false, false, false}},
		{"in", []dataplane.Scope{{In: b.LANIndex}}, []bool{true, true, true}},
		{"in by another", []dataplane.Scope{{In: b.WANIndex}}, []bool{false, false, false}},
		{"connection", []dataplane.Scope{tuple("192.0.2.7:1000", "198.51.100.9:2000", 17)}, []bool{true, false, false}},
		{"other protocol", []dataplane.Scope{tuple("192.0.2.7:1000", "198.51.100.9:2000", 6)}, []bool{false, false, false}},
		{"other port", []dataplane.Scope{tuple("192.0.2.7:1001", "198.51.100.9:2000", 17)}, []bool{false, false, false}},
		{"echo", []dataplane.Scope{tuple("192.0.2.8:77", "198.51.100.9:0", 1)}, []bool{false, false, true}},
		{"several", []dataplane.Scope{prefix("2001:db8:2::/48"), tuple("192.0.2.7:1000", "198.51.100.9:2000", 17)}, []bool{true, true, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			var places []exercise.Place
			for _, s := range learned {
				at, err := b.Put(s)
				check(t, err)
				places = append(places, at)
			}
			want := 0
			for _, w := range c.want {
				if w {
					want++
				}
			}
			if n := b.Forget(c.scopes); n != want {
				t.Errorf("%d entries put out of use, want %d", n, want)
			}
			for i, at := range places {
				s, err := b.At(at)
				check(t, err)
				if forgotten := s.Gen != b.Generation(); forgotten != c.want[i] || s.State != exercise.Armed {
					t.Errorf("flow %d: generation %d of %d, state %d", i, s.Gen, b.Generation(), s.State)
				}
			}
		})
	}
}

// TestForgotten: what was forgotten proves itself again by the kernel's next packet, and what
// was not goes on; an entry whose lease ended and was renewed is still found.
func TestForgotten(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	i, o := in.Bytes(), out.Bytes()
	scope := []dataplane.Scope{{Prefix: netip.PrefixFrom(in.Dst.Addr(), 32)}}
	b.forth(t, teaches+"learned", i, o)
	b.forth(t, "xdp hit", i, o)
	if n := b.Forget([]dataplane.Scope{{Prefix: netip.MustParsePrefix("100.64.0.0/10")}}); n != 0 {
		t.Errorf("%d entries put out of use by a change elsewhere", n)
	}
	b.forth(t, "xdp hit", i, o)

	forget := func() {
		t.Helper()
		if n := b.Forget(scope); n != 1 {
			t.Errorf("%d entries put out of use, want 1", n)
		}
		b.forth(t, "xdp old_generation, tc-ingress old_generation, tc-egress renewed", i, o)
		b.forth(t, "xdp hit", i, o)
	}
	forget()

	s, at, _ := b.Find(exercise.KeyOf(in, b.LANIndex))
	now, err := b.Beat()
	check(t, err)
	s.Lease = now - 2*b.HZ
	check(t, b.PutAt(at, s))
	if n := b.Forget(scope); n != 0 {
		t.Errorf("%d entries put out of use whose lease had ended long before", n)
	}
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress renewed", i, o)
	forget()
}
