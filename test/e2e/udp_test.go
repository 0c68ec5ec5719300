// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestMappingLifetime: a UDP flow with pauses keeps its NAT mapping never longer than
// without shunt, and at most one lease shorter.
func TestMappingLifetime(t *testing.T) {
	const lease = time.Second
	const machinery = 200 * time.Millisecond // ticks, and the last packet's way
	var mu sync.Mutex
	lived := map[string]span{}
	t.Run("measure", func(t *testing.T) {
		for _, way := range []string{"kernel", "xdp", "tc"} {
			for _, answered := range []bool{false, true} {
				name := fmt.Sprintf("%s,answered=%v", way, answered)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					d := mapping(t, way, answered, lease)
					mu.Lock()
					lived[name] = d
					mu.Unlock()
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	t.Logf("after the last packet, mappings lived for %v", lived)
	for _, answered := range []bool{false, true} {
		kernel := lived[fmt.Sprintf("kernel,answered=%v", answered)]
		for _, way := range []string{"xdp", "tc"} {
			got := lived[fmt.Sprintf("%s,answered=%v", way, answered)]
			if longest := lease + lease/8; got.least > kernel.most+machinery || got.most < kernel.least-longest-machinery {
				t.Errorf("%s, answered=%v: the mapping lived for %v, without shunt %v; a lease is %v at most", way, answered, got, kernel, longest)
			}
		}
	}
}

// span is how long something lived: to when it was last seen, and first seen gone.
type span struct{ least, most time.Duration }

// mapping sends bursts with pauses and returns how long conntrack kept the mapping after
// the last packet.
func mapping(t *testing.T, way string, answered bool, lease time.Duration) span {
	const port, service = 40000, 7000
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	r.sysctl("net.netfilter.nf_conntrack_udp_timeout", "4")
	r.sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "5")
	if way != "kernel" {
		r.start(program, with("--lease", lease.String(), "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	}
	at := netip.AddrPortFrom(r.Server.V4.Addr(), service)
	seen := r.serveUDP(at, answered)
	client := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), port), at)
	var last time.Time
	sent := 0
	for _, burst := range []time.Duration{4 * time.Second, time.Second, time.Second} {
		for end := time.Now().Add(burst); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if _, err := client.Write([]byte("burst")); err != nil {
				t.Fatal(err)
			}
			last = time.Now()
			sent++
		}
		if burst == time.Second {
			continue
		}
		time.Sleep(1500 * time.Millisecond) // longer than a lease, shorter than the timeout
	}
	if way != "kernel" {
		s := r.status()
		if min := uint64(sent * 3 / 4); s.Hits < min {
			t.Errorf("%d hits for %d packets sent: the test did not test", s.Hits, sent)
		}
	}
	var lived span
	for looked := time.Since(last); r.mapped(port); looked = time.Since(last) {
		lived.least = looked
		time.Sleep(20 * time.Millisecond)
	}
	lived.most = time.Since(last)
	if got := seen(); len(got) != 1 || got[netip.AddrPortFrom(r.WAN.V4.Addr(), port)] != sent {
		t.Errorf("the server saw %v, want %d packets from one mapping", got, sent)
	}
	return lived
}

// serveUDP counts datagrams at the server by where they come from, and sends them back if
// told to.
func (r *rig) serveUDP(at netip.AddrPort, answer bool) (seen func() map[netip.AddrPort]int) {
	server := r.listenUDP(r.Server.NS, at)
	counts := map[netip.AddrPort]int{}
	var mu sync.Mutex
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			mu.Lock()
			counts[from]++
			mu.Unlock()
			if answer {
				server.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	return func() map[netip.AddrPort]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(counts)
	}
}

// mapped tells whether conntrack knows the UDP flow from a port of the client.
func (r *rig) mapped(port uint16) bool {
	for _, c := range r.connections(syscall.AF_INET) {
		if c.Original.Proto == syscall.IPPROTO_UDP && c.Original.Source.Port() == port {
			return true
		}
	}
	return false
}
