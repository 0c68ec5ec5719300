// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// States of a TCP connection in conntrack (enum tcp_conntrack).
const (
	ctEstablished = 3
	ctClose       = 8
)

// talk is one TCP connection from client to server through the router.
type talk struct {
	r              *rig
	client, server *net.TCPConn
}

// connect opens a connection from a port of the client.
func (r *rig) connect(port uint16) *talk {
	r.t.Helper()
	return r.connectFrom(netip.AddrPortFrom(r.Client.V4.Addr(), port), r.Server.V4.Addr())
}

func (r *rig) connectFrom(client netip.AddrPort, server netip.Addr) *talk {
	r.t.Helper()
	k := &talk{r: r}
	var l net.Listener
	r.must(r.Server.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(server, tcpPort).String())
		return err
	}))
	defer l.Close()
	r.must(r.Client.NS.Do(func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(client), Timeout: patience}
		c, err := d.Dial("tcp", l.Addr().String())
		if err == nil {
			k.client = c.(*net.TCPConn)
		}
		return err
	}))
	c, err := l.Accept()
	r.must(err)
	k.server = c.(*net.TCPConn)
	r.t.Cleanup(func() { k.client.Close(); k.server.Close() })
	return k
}

// say sends n short messages in each direction, in turn.
func (k *talk) say(n int) {
	k.r.t.Helper()
	message := make([]byte, 100)
	for range n {
		for _, pair := range [][2]*net.TCPConn{{k.client, k.server}, {k.server, k.client}} {
			pair[0].SetDeadline(time.Now().Add(patience))
			pair[1].SetDeadline(time.Now().Add(patience))
			_, err := pair[0].Write(message)
			k.r.must(err)
			_, err = io.ReadFull(pair[1], message)
			k.r.must(err)
		}
	}
}

// state is conntrack's state of the connection from a port of the client, 0 if none.
func (r *rig) state(port uint16) uint8 {
	r.t.Helper()
	for _, c := range append(r.connections(syscall.AF_INET), r.connections(syscall.AF_INET6)...) {
		if c.Original.Proto == syscall.IPPROTO_TCP && c.Original.Source.Port() == port {
			return c.TCPState
		}
	}
	return 0
}

// TestForgedResets sends RST and FIN with sequence numbers that a blind attacker would
// guess, from both sides. Conntrack must do what it does without shunt: nothing.
func TestForgedResets(t *testing.T) {
	for _, way := range []string{"kernel", "xdp", "tc"} {
		t.Run(way, func(t *testing.T) { t.Parallel(); forge(t, way) })
	}
}

func forge(t *testing.T, way string) {
	const port = 30000
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	if way != "kernel" {
		r.start(program, with("--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	}
	// What conntrack does not know must not reach the ends as if it came from elsewhere.
	r.nft("table ip strict { chain forward { type filter hook forward priority -1; ct state invalid drop; }; }")
	k := r.connect(port)
	k.say(20)
	if way != "kernel" {
		r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
	}

	client, server := r.wire(r.Client), r.wire(r.Server)
	there := packet{proto: layers.IPProtocolTCP, ack: 1,
		source: netip.AddrPortFrom(r.Client.V4.Addr(), port), dest: netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort)}
	back := there
	back.source, back.dest = there.dest, netip.AddrPortFrom(r.WAN.V4.Addr(), port)
	now := k.sequence()
	forged := 0
	for _, flags := range []string{"R", "RA", "FA"} {
		for _, off := range []uint32{1e9, 3e9} { // far behind and far ahead
			there.flags, there.seq = flags, now[0]+off
			back.flags, back.seq = flags, now[1]+off
			client.send(there.frame(r.Client.MAC, r.LAN.MAC))
			server.send(back.frame(r.Server.MAC, r.WAN.MAC))
			forged += 2
		}
	}
	time.Sleep(100 * time.Millisecond)
	if s := r.state(port); s != ctEstablished {
		t.Errorf("after forged packets conntrack's state is %d, want %d (ESTABLISHED)", s, ctEstablished)
	}
	if way != "kernel" {
		if n := r.count("tcp_implausible"); n != uint64(forged) {
			t.Errorf("%d packets are counted as tcp_implausible, want %d", n, forged)
		}
		if n := r.armedTCP(way); n != 2 {
			t.Errorf("%d directions are armed after forged packets, want 2", n)
		}
	}
	k.say(20)

	k.client.SetLinger(0)
	k.client.Close()
	if err := expectError(k.server, syscall.ECONNRESET); err != nil {
		t.Errorf("a genuine reset: %v", err)
	}
	// with shunt, the daemon must tell conntrack that the reset was next in sequence
	r.eventually("conntrack's state is CLOSE after a genuine reset", patience, func() bool { return r.state(port) == ctClose })
	if way != "kernel" && len(r.armed()) != 0 {
		t.Errorf("armed after a genuine reset: %+v", r.armed())
	}

	// Data that nobody acknowledged yet, and the reset right behind it.
	k = r.connect(port + 1)
	k.say(20)
	if way != "kernel" {
		r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
	}
	k.client.Write(make([]byte, 1000))
	k.client.SetLinger(0)
	k.client.Close()
	r.eventually("conntrack's state is CLOSE after data and reset", patience, func() bool { return r.state(port+1) == ctClose })
}

// TestResetIPv6: conntrack is told of a genuine reset of either family, from either side.
func TestResetIPv6(t *testing.T) {
	const port = 32000
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NAT66})
			r.start(program, with("--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
			for i := range uint16(2) {
				k := r.connectFrom(netip.AddrPortFrom(r.Client.V6.Addr(), port+i), r.Server.V6.Addr())
				k.say(20)
				r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
				ends := []*net.TCPConn{k.client, k.server}
				ends[i].SetLinger(0)
				ends[i].Close()
				if err := expectError(ends[1-i], syscall.ECONNRESET); err != nil {
					t.Errorf("a genuine reset: %v", err)
				}
				r.eventually("conntrack's state is CLOSE", patience, func() bool { return r.state(port+i) == ctClose })
			}
		})
	}
}

// sequence returns the next sequence numbers of client and server, from packets on the wire.
func (k *talk) sequence() (next [2]uint32) {
	k.r.t.Helper()
	client, server := k.r.wire(k.r.Client), k.r.wire(k.r.Server)
	k.say(1)
	tcp := func(p packet) bool { return p.proto == layers.IPProtocolTCP && len(p.payload) > 0 }
	for i, got := range [][]packet{server.collect(100*time.Millisecond, tcp), client.collect(100*time.Millisecond, tcp)} {
		if len(got) == 0 {
			k.r.t.Fatal("no data on the wire")
		}
		last := got[len(got)-1]
		next[i] = last.seq + uint32(len(last.payload))
	}
	return next
}

// TestOutOfWindow: TCP packets out of window have no conntrack entry. Under masquerade
// without a rule against them the kernel forwards them as they are; nothing may be
// learned from that, and the connection goes on translated.
func TestOutOfWindow(t *testing.T) {
	const port = 31000
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Open: true})
			r.start(program, with("--xdp", mode)...)
			k := r.connect(port)
			k.say(1)
			client, server := r.wire(r.Client), r.wire(r.Server)
			p := packet{proto: layers.IPProtocolTCP, flags: "A", seq: k.sequence()[0] + 1e9, ack: 1, payload: []byte("out of window"),
				source: netip.AddrPortFrom(r.Client.V4.Addr(), port), dest: netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort)}
			for range 40 {
				client.send(p.frame(r.Client.MAC, r.LAN.MAC))
			}
			got := server.collect(200*time.Millisecond, func(q packet) bool { return string(q.payload) == string(p.payload) })
			for _, q := range got {
				if q.source != p.source {
					t.Errorf("the kernel translates what is out of window (%v): the test does not test", q.source)
				}
			}
			if n := r.count("no_conntrack"); n < 25 {
				t.Errorf("%d of 40 packets counted as no_conntrack (%d arrived)", n, len(got))
			}
			if armed := r.armed(); len(armed) != 0 {
				t.Errorf("learned from packets out of window: %+v", armed)
			}
			way := map[string]string{"on": "xdp", "off": "tc"}[mode]
			r.eventually("both directions are armed", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
			server.collect(50*time.Millisecond, func(packet) bool { return false })
			k.say(50)
			r.translated(server.collect(100*time.Millisecond, func(q packet) bool { return q.proto == layers.IPProtocolTCP }), port)
			if c := r.connections(syscall.AF_INET); len(c) != 1 || c[0].Status&kernel.StatusSourceNAT == 0 {
				t.Errorf("conntrack: %+v", c)
			}
		})
	}
}

// translated asserts that packets at the server come from the router, with good checksums.
func (r *rig) translated(got []packet, port uint16) {
	r.t.Helper()
	want := netip.AddrPortFrom(r.WAN.V4.Addr(), port)
	if len(got) == 0 {
		r.t.Error("nothing arrived")
	}
	for _, p := range got {
		if p.source != want || p.badSum {
			r.t.Fatalf("from %v (checksum bad: %v), want %v", p.source, p.badSum, want)
		}
	}
}
