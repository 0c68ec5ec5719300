// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"net"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// ways opens a rig that goes by XDP, then one that goes by TC alone. first is what a packet counts that
// teaches, without the last reason.
func ways(t *testing.T, f func(t *testing.T, b *bench, first string)) {
	t.Helper()
	t.Run("XDP", func(t *testing.T) { f(t, open(t, exercise.Options{}), teaches) })
	t.Run("TC", func(t *testing.T) {
		f(t, open(t, exercise.Options{TCOnly: true}), "tc-ingress learning, tc-egress ")
	})
}

// TestRouteProgram: what a route with a program lets pass now it may not let pass the next time.
func TestRouteProgram(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, first string) {
		for _, kind := range []string{"in", "out", "xmit"} {
			path, err := b.PinRouteProgram(kind)
			check(t, err)
			for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
				in, out := p()
				bits := in.Dst.Addr().BitLen()
				route := fmt.Sprintf("route %%s %s/%d encap bpf %s pinned %s dev wan", in.Dst.Addr(), bits, kind, path)
				check(t, b.Clear())
				check(t, b.LAN.NS.IP(fmt.Sprintf(route, "replace")))
				for range 2 {
					b.forth(t, first+"route_program", in.Bytes(), out.Bytes())
				}
				b.answers(t, queryOf(in), "route_program")
				check(t, b.LAN.NS.IP(fmt.Sprintf("route del %s/%d dev wan", in.Dst.Addr(), bits)))
				b.forth(t, first+"learned", in.Bytes(), out.Bytes())
			}
		}
	})
}

// TestGroupNeighbour: a cluster that shares a group MAC, or a fixed broadcast entry for magic packets.
func TestGroupNeighbour(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, first string) {
		for _, mac := range []string{"03:bf:0a:00:00:01", "ff:ff:ff:ff:ff:ff"} {
			for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
				in, out := p()
				to, err := net.ParseMAC(mac)
				check(t, err)
				out.To = to
				check(t, b.Clear())
				check(t, b.LAN.NS.IP(fmt.Sprintf("neighbour replace %s lladdr %s dev wan nud permanent", in.Dst.Addr(), mac)))
				for range 2 {
					b.forth(t, first+"group_neighbour", in.Bytes(), out.Bytes())
				}
				b.answers(t, queryOf(in), "group_neighbour")
				check(t, b.WAN.Know(b.Server))
			}
		}
	})
}
