// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestUDPBecomesStream: conntrack takes an answered UDP flow for a stream, which it keeps for longer, by a packet more
// than 2 s after the first one. Here the flow ends before its first lease does.
func TestUDPBecomesStream(t *testing.T) {
	const first = 41000
	lasts := []time.Duration{1200 * time.Millisecond, 3 * time.Second}
	type outcome struct {
		status uint32
		left   time.Duration
	}
	got := map[string]map[uint16]outcome{}
	var mu sync.Mutex
	t.Run("run", func(t *testing.T) {
		for _, way := range []string{"kernel", "xdp", "tc"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
				if way != "kernel" {
					r.start(program, with("--lease", "10s", "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
				}
				var g sync.WaitGroup
				for i := range 8 { // IPv4 and IPv6, answered or not, short and long
					ends := [2]netip.Addr{r.Client.V4.Addr(), r.Server.V4.Addr()}
					if i&1 != 0 {
						ends = [2]netip.Addr{r.Client.V6.Addr(), r.Server.V6.Addr()}
					}
					port := first + uint16(i)
					at := netip.AddrPortFrom(ends[1], port)
					r.serveUDP(at, i&2 != 0)
					c := r.dialUDP(r.Client.NS, netip.AddrPortFrom(ends[0], port), at)
					g.Go(func() {
						for end := time.Now().Add(lasts[i>>2]); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
							if _, err := c.Write([]byte("datagram")); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				g.Wait()
				if hits := r.hits(way); way != "kernel" && hits < 8*40 {
					t.Errorf("%d hits: the test did not test", hits)
				}
				outcomes := map[uint16]outcome{}
				for _, c := range append(r.connections(syscall.AF_INET), r.connections(syscall.AF_INET6)...) {
					if c.Original.Proto == syscall.IPPROTO_UDP {
						outcomes[c.Original.Source.Port()-first] = outcome{c.Status, c.Timeout}
					}
				}
				mu.Lock()
				defer mu.Unlock()
				got[way] = outcomes
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, way := range []string{"xdp", "tc"} {
		for i := range uint16(8) {
			want, got := got["kernel"][i], got[way][i]
			if less := want.left - got.left; got.status != want.status || less < -time.Second || less > 5*time.Second {
				t.Errorf("%s: flow %d: %+v, with the kernel alone %+v", way, i, got, want)
			}
		}
	}
}
