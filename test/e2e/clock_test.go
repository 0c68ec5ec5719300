// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestClocks: elements of an allow list end three seconds after the last packet of their address, sooner
// than a lease does otherwise. The list lets a steady flow through for ever all the same, if its rule
// is there before the traffic or comes under it, and if the time is the set's or the element's own.
// Most packets are repeated.
func TestClocks(t *testing.T) {
	const list = `
		table ip fw {
			set ok { type ipv4_addr; flags dynamic, timeout; timeout %s; }
			chain f {
				type filter hook forward priority 0; policy drop;
				iifname "wan" accept
				ip saddr @ok update @ok { ip saddr } accept
			}
		}`
	for _, c := range []struct {
		name     string
		xdp      string
		under    bool
		set, own string
	}{
		{"tc", "off", false, "3s", ""}, {"xdp", "on", false, "3s", ""}, {"tc, under traffic", "off", true, "3s", ""}, {"xdp, under traffic", "on", true, "3s", ""},
		{"tc, its own", "off", false, "1h", " timeout 3s"}, {"xdp, its own, under traffic", "on", true, "1h", " timeout 3s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{Open: true, Neighbours: true})
			list := fmt.Sprintf(list, c.set)
			if !c.under {
				r.nft(list)
			}
			r.start(program, append([]string{"--xdp", c.xdp}, both...)...)
			in := r.listenUDP(r.Server.NS, netip.AddrPortFrom(r.Server.V4.Addr(), 6000))
			out := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), 40000), netip.AddrPortFrom(r.Server.V4.Addr(), 6000))
			var came atomic.Int32
			go func() {
				b := make([]byte, 16)
				for {
					if _, err := in.Read(b); err != nil {
						return // it was closed
					}
					came.Add(1)
				}
			}()
			talk := func(n int) {
				for range n {
					_, err := out.Write([]byte("q"))
					r.must(err)
					time.Sleep(20 * time.Millisecond)
				}
			}
			n := 400 // eight seconds
			if c.under {
				talk(100)
				r.nft(list)
				n += 100
			}
			r.nft("add element ip fw ok { " + r.Client.V4.Addr().String() + c.own + " }")
			talk(400)
			r.eventually(fmt.Sprintf("%d packets arrive", n), 2*time.Second, func() bool { return int(came.Load()) == n })
			if hits := r.status().Hits; int(hits) < n/2 {
				t.Errorf("%d hits of %d", hits, n)
			}
			r.eventually("explain names the set", 5*time.Second, func() bool {
				talk(5)
				told, _, _ := r.shunt("explain", "198.18.0.2:40000", "198.19.0.2:6000/udp")
				return strings.Contains(told, "elements of set ok end after 3s")
			})
			if out, _, _ := r.shunt("doctor"); !strings.Contains(out, "elements of set ok end after 3s") {
				t.Errorf("doctor does not name the clock: %s", out)
			}
			r.must(r.daemon.Stop())
			r.nothing()
		})
	}
}

// TestGroupClock: a resilient next-hop group that comes bounds the lease by its idle timer, and one
// that goes no longer does.
func TestGroupClock(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, both...)
	is := func(when string, lease float64) {
		t.Helper()
		r.eventually(fmt.Sprintf("%s: a lease of %v s", when, lease), 5*time.Second, func() bool {
			s := r.status()
			return s.LeaseSeconds == lease && s.LeaseLiveSeconds == lease
		})
	}
	is("before", 4)
	r.ip("nexthop add id 1 via "+r.Server.V4.Addr().String()+" dev "+r.WAN.Device, "nexthop add id 9 group 1 type resilient buckets 8 idle_timer 2")
	is("with a group", (8 * time.Second / 9).Seconds())
	if out, _, _ := r.shunt("doctor"); !strings.Contains(out, "next-hop group 9") {
		t.Errorf("doctor does not tell: %s", out)
	}
	r.ip("nexthop del id 9")
	is("without it", 4)
	r.must(r.daemon.Stop())
	r.nothing()
}
