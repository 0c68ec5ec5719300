// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestEndAfterMove: one side's packets come by another port for many windows, which may be none of shunt's, and
// perhaps come back: as with two uplinks, ECMP or VRRP. The end that follows is genuine, whoever sends it.
func TestEndAfterMove(t *testing.T) {
	for _, path := range []string{"xdp", "tc"} {
		for _, ported := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s,ports=%v", path, ported), func(t *testing.T) { t.Parallel(); endAfterMove(t, path, ported) })
		}
	}
}

// uplinks gives client and server a second wire to the router each: lan2 and wan2.
func (r *rig) uplinks() {
	r.t.Helper()
	for i, pair := range [][2]lab.End{{r.Client, r.LAN}, {r.Server, r.WAN}} {
		for j := range pair {
			e := &pair[j]
			e.MAC = net.HardwareAddr{2, 0, 0, 0, byte(40 + i), byte(j + 1)}
			e.V4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(40 + i), byte(2 - j)}), 24)
			e.V6 = netip.MustParsePrefix(fmt.Sprintf("2001:2:0:%d::%d/64", 40+i, 2-j))
		}
		pair[0].Device = "eth9"
		pair[1].Device += "2"
		r.must(r.Connect(pair[0], pair[1], lab.Wire, 0))
		for _, e := range []lab.End{r.Client, r.LAN, r.Server, r.WAN, pair[0], pair[1]} {
			for _, name := range []string{"all", e.Device} {
				r.must(e.NS.Sysctl("net.ipv4.conf."+name+".rp_filter", "0"))
			}
		}
		r.must(pair[1].Know(pair[0]))
		r.must(pair[0].Know(pair[1]))
	}
}

// route sends what one side has for the other by its second wire, or by its first one.
func (r *rig) route(by int, second bool) {
	r.t.Helper()
	from, via, to := r.Client, r.LAN, r.Server
	if by == byServer {
		from, via, to = r.Server, r.WAN, r.Client
	}
	device, gateway4, gateway6 := from.Device, via.V4.Addr().String(), via.V6.Addr().String()
	if second {
		device, gateway4, gateway6 = "eth9", fmt.Sprintf("198.18.%d.1", 40+by), fmt.Sprintf("2001:2:0:%d::1", 40+by)
	}
	r.must(from.NS.IP(
		fmt.Sprintf("route replace %s via %s dev %s", to.V4.Masked(), gateway4, device),
		fmt.Sprintf("route replace %s via inet6 %s dev %s", to.V6.Masked(), gateway6, device)))
}

// carry sends n bytes each way.
func (k *talk) carry(n int64) {
	k.r.t.Helper()
	for _, pair := range [][2]*net.TCPConn{{k.client, k.server}, {k.server, k.client}} {
		for _, c := range pair {
			c.SetDeadline(time.Now().Add(ioTime))
		}
		go pair[0].Write(make([]byte, n))
		_, err := io.CopyN(io.Discard, pair[1], n)
		k.r.must(err)
	}
}

func endAfterMove(t *testing.T, path string, ported bool) {
	const many = 10 << 20 // bytes: more than a packet may be from the last one
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATNone})
	r.uplinks()
	args := with("--xdp", map[string]string{"xdp": "on", "tc": "off"}[path])
	if ported {
		args = append(args, "--port", "lan2", "--port", "wan2")
	}
	r.start(program, args...)
	port := uint16(36000)
	for _, v6 := range []bool{false, true} {
		for mover := range 2 {
			for _, back := range []bool{false, true} {
				for end := range 2 {
					reset := end != mover // of each some
					port++
					from, to := netip.AddrPortFrom(r.Client.V4.Addr(), port), r.Server.V4.Addr()
					if v6 {
						from, to = netip.AddrPortFrom(r.Client.V6.Addr(), port), r.Server.V6.Addr()
					}
					name := fmt.Sprintf("%v: side %d moves, back %v, side %d ends, reset %v", from, mover, back, end, reset)
					k := r.connectFrom(from, to)
					k.say(20)
					r.eventually(name+": both directions are armed", patience, func() bool { k.say(5); return r.armedFrom(port, path) == 2 })
					r.route(mover, true)
					k.carry(many)
					if back {
						r.route(mover, false)
					}
					k.finish(name, end, reset)
					r.route(mover, false)
				}
			}
		}
	}
	r.believed()
}
