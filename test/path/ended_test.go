// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// TestEnded: the flow of a connection that ended must prove itself again, wherever it is in
// the table, and no other.
func TestEnded(t *testing.T) {
	b := open(t, exercise.Options{})
	udp4, _ := b.udp4()
	udp6, _ := b.udp6()
	tcp4, _ := b.tcp4()
	echo := udp4
	echo.Proto, echo.Type, echo.Src, echo.Dst = 1, 8, addr("198.18.0.2:1000"), addr("198.19.0.2:0")
	other4, other6 := udp4, udp6
	other4.Src, other6.Src = addr("198.18.0.2:1001"), addr("[2001:2:0:19::2]:1000") // alike in the last word
	for _, c := range []struct {
		name          string
		ended, spared exercise.Packet
	}{{"UDP", udp4, tcp4}, {"IPv6", udp6, other6}, {"TCP", tcp4, udp4}, {"echo", echo, other4}} {
		for choice := range 2 {
			for way := range uint32(2) {
				check(t, b.Clear())
				places := map[bool]exercise.Place{}
				for ended, in := range map[bool]exercise.Packet{true: c.ended, false: c.spared} {
					s := b.Learned(in, b.routed(in), b.lease(t))
					at := exercise.Place{Bucket: b.Hash().Places(s.Key, s.In6)[choice], Way: way}
					if !ended {
						at.Way = 1 - way // by chance both have one bucket
					}
					places[ended] = at
					check(t, b.PutAt(at, s))
				}
				if n := b.Forget(connection(c.ended)); n != 1 {
					t.Errorf("%s, choice %d, way %d: %d entries put out of use", c.name, choice, way, n)
				}
				for ended, at := range places {
					s, err := b.At(at)
					check(t, err)
					if (s.Gen == b.Generation()) == ended {
						t.Errorf("%s, choice %d, way %d: ended %v, generation %d of %d", c.name, choice, way, ended, s.Gen, b.Generation())
					}
				}
			}
		}
	}
}

// connection is what conntrack's tuple of a packet becomes.
func connection(p exercise.Packet) []dataplane.Scope {
	return []dataplane.Scope{{Proto: p.Proto, Tuple: dataplane.Tuple{Source: p.Src, Destination: p.Dst}}}
}

// TestEndedProtocols: where flows are told apart by more than conntrack knows, all between the
// same hosts are meant.
func TestEndedProtocols(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	in.Proto, in.Payload = 50, []byte("spi and some more")
	out.Proto, out.Payload = in.Proto, in.Payload
	at, err := b.Put(b.Learned(in, out, b.lease(t)))
	check(t, err)
	elsewhere := in
	elsewhere.Dst = netip.AddrPortFrom(in.Dst.Addr().Next(), 0)
	for want, p := range []exercise.Packet{elsewhere, in} {
		if n := b.Forget(connection(p)); n != want {
			t.Errorf("%v to %v: %d entries put out of use, want %d", p.Src, p.Dst, n, want)
		}
	}
	s, err := b.At(at)
	check(t, err)
	if s.Gen == b.Generation() || s.State != exercise.Armed {
		t.Errorf("generation %d of %d, state %d", s.Gen, b.Generation(), s.State)
	}
}
