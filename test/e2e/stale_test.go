// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"shunt/internal/lab"
)

// ctTimeWait is a state of a TCP connection in conntrack (enum tcp_conntrack).
const ctTimeWait = 7

// staleTalk is a connection that is armed both ways, on a router of its own.
func staleTalk(t *testing.T, way string, port uint16) *talk {
	t.Helper()
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	r.start(program, with("--lease", "200ms", "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	k := r.connect(port)
	k.say(20)
	r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
	return k
}

// believed asserts that no FIN or RST was dropped for where the connection once stood.
func (r *rig) believed() {
	r.t.Helper()
	if n := r.count("tcp_implausible"); n > 0 {
		r.t.Errorf("%d genuine packets are counted as tcp_implausible", n)
	}
}

// ends asserts that a side hears that the other one has ended, after size more bytes.
func (k *talk) ends(what string, c *net.TCPConn, size int64) {
	k.r.t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	if n, err := io.Copy(io.Discard, c); err != nil || n != size {
		k.r.t.Errorf("%s: %d bytes, then %v; want %d and the end", what, n, err, size)
	}
}

// TestTupleReused: a connection has ended long ago, and its client's port is used again.
// What a closed port answers lies nowhere near the old connection's windows, and must
// reach the client all the same, at the first try.
func TestTupleReused(t *testing.T) {
	const port = 33000
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			k := staleTalk(t, way, port)
			r := k.r
			k.client.CloseWrite() // first, so that the server keeps nothing of it
			k.ends("the server", k.server, 0)
			k.server.Close()
			k.ends("the client", k.client, 0)
			r.eventually("conntrack has seen both FIN", patience, func() bool { return r.state(port) == ctTimeWait })
			time.Sleep(1500 * time.Millisecond) // a lease, and the second after which a flow counts as idle

			client := r.wire(r.Client)
			syn := packet{proto: layers.IPProtocolTCP, flags: "S", seq: 0x12345678,
				source: netip.AddrPortFrom(r.Client.V4.Addr(), port), dest: netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort)}
			client.send(syn.frame(r.Client.MAC, r.LAN.MAC))
			got := client.collect(200*time.Millisecond, func(p packet) bool { return p.source == syn.dest && p.dest == syn.source })
			if len(got) != 1 || got[0].flags != "AR" || got[0].ack != syn.seq+1 || got[0].badSum {
				t.Errorf("the client got %+v, want one RST that acknowledges %d", got, syn.seq+1)
			}
			if s := r.state(port); s != 0 { // nf_conntrack_tcp_packet() forgets who is refused at once
				t.Errorf("conntrack's state is %d, want no connection", s)
			}
			r.believed()
		})
	}
}

// TestPausedTransfer: what goes by during a pause moves the connection on by many windows
// unwatched. The FIN behind it is genuine.
func TestPausedTransfer(t *testing.T) {
	const port, size = 34000, 8 << 20
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			k := staleTalk(t, way, port)
			r := k.r
			r.must(r.api.Pause(context.Background()))
			for _, pair := range [][2]*net.TCPConn{{k.client, k.server}, {k.server, k.client}} {
				for _, c := range pair {
					c.SetDeadline(time.Now().Add(patience))
				}
				go pair[0].Write(make([]byte, size))
				_, err := io.CopyN(io.Discard, pair[1], size)
				r.must(err)
			}
			r.must(r.api.Resume(context.Background()))

			k.client.CloseWrite()
			k.ends("the server", k.server, 0)
			k.server.Close()
			k.ends("the client", k.client, 0)
			r.eventually("conntrack's state is TIME_WAIT", patience, func() bool { return r.state(port) == ctTimeWait })
			if armed := r.armed(); len(armed) > 0 {
				t.Errorf("armed after the end: %+v", armed)
			}
			r.believed()
		})
	}
}

// TestPortsUsedAgain: both ends of a connection vanish without a word, conntrack loses it, and another one begins
// between the same ports. It is short: nothing of it is learned, and its end fits nothing that is known.
func TestPortsUsedAgain(t *testing.T) {
	const port = 34500
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := staleTalk(t, way, port).r
			for i, reset := range []bool{false, true} {
				port := uint16(port + 1 + i)
				k := r.connect(port)
				k.say(20)
				r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedFrom(port, way) == 2 })
				for _, n := range []*lab.NS{r.Client.NS, r.Server.NS} {
					r.must(n.NFT("table inet mute { chain out { type filter hook output priority 0; policy drop; }; }"))
				}
				for _, c := range []*net.TCPConn{k.client, k.server} {
					c.SetLinger(0)
					c.Close()
				}
				time.Sleep(20 * time.Millisecond)
				for _, n := range []*lab.NS{r.Client.NS, r.Server.NS} {
					r.must(n.NFT("delete table inet mute"))
				}
				if out, err := r.LAN.NS.Run("conntrack", "-D", "-p", "tcp", "--sport", strconv.Itoa(int(port))); err != nil {
					t.Fatal(err, out)
				}
				k = r.connect(port)
				k.say(1)
				if s := r.state(port); s != ctEstablished {
					t.Errorf("conntrack's state is %d, want %d (ESTABLISHED)", s, ctEstablished)
				}
				k.finish("a short connection", byClient, reset)
				r.eventually("conntrack has heard of it", patience, func() bool { return r.state(port) != ctEstablished })
				r.believed()
			}
		})
	}
}
