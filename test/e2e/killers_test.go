// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"shunt/internal/lab"
)

// udp is a packet from a port of the client to one of the server.
func (r *rig) udp(sport, dport uint16, payload string) packet {
	return packet{proto: layers.IPProtocolUDP, payload: []byte(payload),
		source: netip.AddrPortFrom(r.Client.V4.Addr(), sport), dest: netip.AddrPortFrom(r.Server.V4.Addr(), dport)}
}

// burst sends a packet n times, slowly enough to be seen and learned in order.
func (w *wire) burst(p packet, n int) {
	w.r.t.Helper()
	frame := p.frame(w.r.Client.MAC, w.r.LAN.MAC)
	for range n {
		w.send(frame)
		time.Sleep(200 * time.Microsecond)
	}
}

func isUDP(p packet) bool { return p.proto == layers.IPProtocolUDP }

// TestBadChecksum: a UDP packet with a wrong checksum is INVALID to conntrack, which looks
// like "no conntrack" to those who come after. Under masquerade without a rule against it
// the kernel lets it out untranslated. If that were learned, the valid packets of the same
// flow would follow.
func TestBadChecksum(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Open: true})
			r.ping()
			r.start(program, with("--xdp", mode)...)
			client, server := r.wire(r.Client), r.wire(r.Server)
			good := r.udp(6000, 7000, "good")
			bad := r.udp(6000, 7000, "bad!")
			bad.badSum = true

			client.burst(bad, 40)
			got := server.collect(200*time.Millisecond, isUDP)
			for _, p := range got {
				if p.source != bad.source {
					t.Errorf("the kernel translates bad checksums (%v): the test does not test", p.source)
				}
			}
			if n := r.count("no_conntrack"); n < 25 || len(got) != 40 {
				t.Errorf("%d packets counted as no_conntrack, %d of 40 arrived", n, len(got))
			}
			if armed := r.armed(); len(armed) != 0 {
				t.Errorf("learned from INVALID packets: %+v", armed)
			}

			client.burst(good, 100)
			got = server.collect(200*time.Millisecond, isUDP)
			if len(got) != 100 {
				t.Errorf("%d of 100 valid packets arrived", len(got))
			}
			r.translated(got, 6000)
			hits := r.status().Hits
			if hits < 80 {
				t.Errorf("%d hits of 100 packets: the test did not test", hits)
			}
			// Between valid ones: nothing that shunt sends goes out untranslated.
			for range 50 {
				client.burst(bad, 1)
				client.burst(good, 1)
			}
			for _, p := range server.collect(200*time.Millisecond, isUDP) {
				if p.source == good.source && !p.badSum {
					t.Errorf("a valid packet leaked untranslated")
					break
				}
			}
		})
	}
}

// TestStatelessRewrite: what is rewritten without conntrack is repeated as rewritten, and
// packets that already look as if they were rewritten are another flow.
func TestStatelessRewrite(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{})
			r.ping()
			alias := netip.MustParseAddr("198.18.0.77")
			r.nft(fmt.Sprintf(`table ip stateless {
				chain prerouting {
					type filter hook prerouting priority raw;
					ip saddr %[1]s udp dport 7000 drop
					ip saddr %[2]s udp dport 7000 notrack ip saddr set %[1]s
				}
			}
			table inet filter { chain forward { udp dport 7000 accept; }; }`, alias, r.Client.V4.Addr()))
			r.start(program, with("--xdp", mode)...)
			client, server := r.wire(r.Client), r.wire(r.Server)
			honest := r.udp(6000, 7000, "honest")
			client.burst(honest, 100)
			got := server.collect(200*time.Millisecond, isUDP)
			for _, p := range got {
				if p.source != netip.AddrPortFrom(alias, 6000) || p.badSum {
					t.Fatalf("from %v (checksum bad: %v), want %v", p.source, p.badSum, alias)
				}
			}
			hits := r.status().Hits
			if len(got) != 100 || hits < 80 {
				t.Errorf("%d of 100 arrived, %d hits", len(got), hits)
			}
			liar := honest
			liar.source, liar.payload = netip.AddrPortFrom(alias, 6000), []byte("liar")
			client.burst(liar, 100)
			if got := server.collect(200*time.Millisecond, isUDP); len(got) != 0 {
				t.Errorf("%d packets came that the ruleset drops", len(got))
			}
			if n := r.status().Hits; n != hits {
				t.Errorf("%d hits by packets that the ruleset drops", n-hits)
			}
		})
	}
}

// TestLocalAnswers: a router that answers for itself reuses the memory of the packets that
// asked. With every packet due for learning, nothing of that may be learned, and what is
// forwarded meanwhile is learned right.
func TestLocalAnswers(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) { t.Parallel(); localAnswers(t, mode) })
	}
}

func localAnswers(t *testing.T, mode string) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	r.start(program, with("--xdp", mode, "--threshold", "1", "--lease", "200ms")...)
	router := netip.AddrPortFrom(r.LAN.V4.Addr(), 7007)
	echo := r.listenUDP(r.LAN.NS, router)
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			echo.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	sink := r.sink(r.Server, 1)
	stop := r.background(r.generator(64, 3000))
	var asked, answered atomic.Int64
	ask := func(sport uint16, size int) {
		c := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), sport), router)
		b, reply := make([]byte, size), make([]byte, 2000)
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			c.Write(b)
			asked.Add(1)
			c.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := c.Read(reply); err == nil && n == size {
				answered.Add(1)
			}
		}
	}
	done := make(chan bool)
	for i, size := range []int{22, 22, 400} { // two as long as the forwarded ones
		go func() { ask(uint16(6000+i), size); done <- true }()
	}
	for range 3 {
		<-done
	}
	sent := stop()
	r.whole("forwarded while the router answers", sink, sent.Sent)
	if asked.Load() != answered.Load() || asked.Load() < 1000 {
		t.Errorf("asked %d times, answered %d times", asked.Load(), answered.Load())
	}
	if n := r.count("local_socket"); n == 0 {
		t.Error("no answer met the sighting of its question: the test did not test")
	}
	armed := 0
	for _, f := range r.flows() {
		if f.Out == "" {
			continue // never learned
		}
		armed++
		if f.Port != "lan" || f.Out != "wan" || f.Destination.Addr() != r.Server.V4.Addr() ||
			f.Rewrite == nil || f.Rewrite.Source.Addr() != r.WAN.V4.Addr() || f.Rewrite.Destination != f.Destination {
			t.Errorf("learned: %+v", f)
		}
	}
	if armed != 64 {
		t.Errorf("%d flows were learned, want the 64 forwarded ones", armed)
	}
}
