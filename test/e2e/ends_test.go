// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/dataplane/exercise"
	"shunt/internal/lab"
)

// Who sends a segment, as it seems.
const (
	byClient = iota
	byServer
)

// segment is a forged one: its numbers are so far from those of the connection.
type segment struct {
	by       int
	flags    string // some of SAFR
	seq, ack uint32
	payload  string
	station  bool // from another MAC
	astray   bool // on the other side's wire
	last     bool // TTL 1: the router answers, and conntrack has seen it before
}

// ends are the rows of the table in docs/security.md: what is done to a connection, and what becomes of it. The
// kernel alone must come to the same.
var ends = []struct {
	name   string
	before func(k *talk) // what shunt knows, or does not
	forged []segment
	end    int // this side ends it in the end: the other one must hear of it
	reset  bool
}{
	{"blind FIN and RST", nil, blind("FA", "R", "RA"), byClient, false},
	{"blind FIN and RST, then a reset", nil, blind("FA", "R", "RA"), byServer, true},
	{"blind SYN, then FIN and RST", nil, blind("S", "FA", "R", "RA", "FA"), byClient, false},
	{"blind SYN and SYN with ACK, then RST", nil, blind("S", "SA", "R", "RA"), byServer, true},
	{"blind data, then FIN and RST behind it", nil, blindData(), byServer, false},
	{"data of another station, the server ends", nil, []segment{{by: byClient, flags: "A", seq: 1e9, ack: 1e9, station: true}}, byServer, false},
	{"data of another station, the client ends", nil, []segment{{by: byServer, flags: "A", seq: 1e9, ack: 1e9, station: true}}, byClient, false},
	{"data of another station, the client resets", nil, []segment{{by: byServer, flags: "A", seq: 1e9, ack: 1e9, station: true}}, byClient, true},
	{"blind data, the client ends", nil, []segment{{by: byClient, flags: "A", seq: 1e9, ack: 1e9}, {by: byServer, flags: "A", seq: 2e9, ack: 2e9}}, byClient, false},
	{"blind data, the server resets", nil, []segment{{by: byClient, flags: "A", seq: 1e9, ack: 1e9}, {by: byServer, flags: "A", seq: 2e9, ack: 2e9}}, byServer, true},
	{"blind SYN, FIN and RST whose TTL ends", nil, last(blind("S", "FA", "R")), byServer, true},
	{"on the wrong wire", nil, astray(blind("FA", "R")), byClient, false},
	{"idle, and a change", (*talk).change, blind("FA", "R", "RA"), byClient, false},
	{"idle, and a new daemon", (*talk).restart, blind("FA", "R", "RA"), byServer, false},
	{"a pause, and one message", (*talk).pauseAndSay, blind("FA", "R", "RA"), byServer, false},
	{"a pause", (*talk).pauseAndMove, nil, byClient, false},
	{"a pause, then a reset", (*talk).pauseAndMove, nil, byServer, true},
	{"the daemon is dead", (*talk).kill, blind("S", "FA", "R", "RA"), byServer, true},
}

// blind are segments of both sides that begin far behind and far ahead of the connection.
func blind(flags ...string) (all []segment) {
	for _, seq := range []uint32{1e9, 3e9} {
		for _, f := range flags {
			all = append(all, segment{by: byClient, flags: f, seq: seq, ack: seq}, segment{by: byServer, flags: f, seq: seq, ack: seq})
		}
	}
	return all
}

// blindData are segments whose FIN or RST follows what they seem to have sent before.
func blindData() (all []segment) {
	for _, flags := range []string{"FA", "R"} {
		for by := range 2 {
			all = append(all, segment{by: by, flags: "A", seq: 1e9, ack: 1e9, payload: "forged"}, segment{by: by, flags: flags, seq: 1e9 + 6, ack: 1e9})
		}
	}
	return all
}

func last(list []segment) []segment {
	for i := range list {
		list[i].last = true
	}
	return list
}

func astray(list []segment) []segment {
	for i := range list {
		list[i].astray = true
	}
	return list
}

func (k *talk) shunted() bool { return k.r.daemon != nil }

// change announces one that concerns every flow.
func (k *talk) change() {
	k.r.ip("address add 192.0.2.1/32 dev lo", "address del 192.0.2.1/32 dev lo")
	time.Sleep(300 * time.Millisecond)
}

// restart has another daemon take over.
func (k *talk) restart() {
	if k.shunted() {
		k.r.terminate()
		k.r.start(program, k.r.args...)
	}
}

func (k *talk) kill() {
	if k.shunted() {
		k.r.daemon.Kill9()
		k.r.daemon = nil
	}
}

func (k *talk) pause(meanwhile func()) {
	if !k.shunted() {
		meanwhile()
		return
	}
	k.r.must(k.r.api.Pause(context.Background()))
	meanwhile()
	k.r.must(k.r.api.Resume(context.Background()))
}

// pauseAndSay comes out of a pause, and each side is heard of once.
func (k *talk) pauseAndSay() {
	k.pause(func() {})
	k.say(1)
}

// pauseAndMove goes on by many windows during a pause.
func (k *talk) pauseAndMove() {
	const size = 4 << 20
	k.pause(func() {
		for _, pair := range [][2]*net.TCPConn{{k.client, k.server}, {k.server, k.client}} {
			for _, c := range pair {
				c.SetDeadline(time.Now().Add(patience))
			}
			go pair[0].Write(make([]byte, size))
			_, err := io.CopyN(io.Discard, pair[1], size)
			k.r.must(err)
		}
	})
}

// forge sends a segment whose numbers are so far from where the sides are.
func (k *talk) forge(s segment, next [2]uint32) {
	r := k.r
	client, server := k.client.LocalAddr().(*net.TCPAddr).AddrPort(), k.server.LocalAddr().(*net.TCPAddr).AddrPort()
	seen := k.server.RemoteAddr().(*net.TCPAddr).AddrPort() // the client, behind NAT
	p := exercise.Packet{Proto: syscall.IPPROTO_TCP, TTL: 64, From: r.Client.MAC, To: r.LAN.MAC, Src: client, Dst: server, Payload: []byte(s.payload)}
	from := r.Client
	if s.by == byServer {
		p.From, p.To, p.Src, p.Dst, from = r.Server.MAC, r.WAN.MAC, server, seen, r.Server
	}
	if s.astray {
		p.From, p.To, from = r.Server.MAC, r.WAN.MAC, r.Server
		if s.by == byServer {
			p.From, p.To, from = r.Client.MAC, r.LAN.MAC, r.Client
		}
	}
	if s.last {
		p.TTL = 1
	}
	if s.station {
		p.From = net.HardwareAddr{2, 0, 0, 0, 0, 0x66}
	}
	p.TCP = exercise.TCP{Seq: next[s.by] + s.seq, Ack: next[1-s.by] + s.ack, Window: 1000,
		SYN: strings.Contains(s.flags, "S"), ACK: strings.Contains(s.flags, "A"), FIN: strings.Contains(s.flags, "F"), RST: strings.Contains(s.flags, "R")}
	if !p.TCP.ACK {
		p.TCP.Ack = 0
	}
	r.wire(from).send(p.Bytes())
}

// TestEnds: whatever is forged, conntrack keeps a connection that lives, its packets arrive, and the other side
// hears of its end: with shunt as without.
func TestEnds(t *testing.T) {
	for _, nat := range []lab.NAT{lab.NATMasquerade, lab.NAT66} { // each leaves the other family alone
		for _, path := range []string{"kernel", "xdp", "tc"} {
			t.Run(fmt.Sprintf("%s,%s", path, nat), func(t *testing.T) { t.Parallel(); allEnds(t, path, nat, "") })
		}
	}
	for _, path := range []string{"xdp", "tc"} {
		t.Run(path+",zone", func(t *testing.T) { t.Parallel(); allEnds(t, path, lab.NATNone, "ct zone set 7") })
	}
}

// allEnds goes through the table; with a conntrack zone without its SYNs.
func allEnds(t *testing.T, path string, nat lab.NAT, zone string) {
	r := newRig(t, lab.FirewallOptions{NAT: nat})
	r.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")
	r.nft("table inet strict { chain forward { type filter hook forward priority -1; ct state invalid drop; }; }")
	if zone != "" {
		r.nft("table inet early { chain pre { type filter hook prerouting priority -300; " + zone + "; }; }")
	}
	port := uint16(35000)
	for _, c := range ends {
		if zone != "" && slices.ContainsFunc(c.forged, func(s segment) bool { return strings.Contains(s.flags, "S") }) {
			continue
		}
		for _, v6 := range []bool{false, true} {
			if path != "kernel" && r.daemon == nil {
				r.start(program, with("--xdp", map[string]string{"xdp": "on", "tc": "off"}[path])...)
			}
			port++
			name := c.name + ", IPv4"
			from, to := netip.AddrPortFrom(r.Client.V4.Addr(), port), r.Server.V4.Addr()
			if v6 {
				name = c.name + ", IPv6"
				from, to = netip.AddrPortFrom(r.Client.V6.Addr(), port), r.Server.V6.Addr()
			}
			k := r.connectFrom(from, to)
			k.say(20)
			if path != "kernel" {
				r.eventually(name+": both directions are armed", patience, func() bool { k.say(5); return r.armedFrom(port, path) == 2 })
			}
			next := k.sequence()
			if c.before != nil {
				c.before(k)
			}
			for _, s := range c.forged {
				k.forge(s, next)
			}
			time.Sleep(20 * time.Millisecond)
			if s := r.state(port); s != ctEstablished {
				t.Errorf("%s: after what was forged conntrack's state is %d, want %d (ESTABLISHED)", name, s, ctEstablished)
			}
			if len(c.forged) > 0 && c.end == byServer {
				k.say(3)
			}
			k.finish(name, c.end, c.reset)
		}
	}
}

// armedFrom counts the directions of the connection from a port of the client that are armed.
func (r *rig) armedFrom(port uint16, path string) (n int) {
	for _, f := range r.armed() {
		if f.Proto == "tcp" && f.Way == path && (f.Source.Port() == port || f.Destination.Port() == port) {
			n++
		}
	}
	return n
}

// finish ends the connection from one side: the other one must hear of it.
func (k *talk) finish(name string, by int, reset bool) {
	ends := []*net.TCPConn{k.client, k.server}
	mine, other := ends[by], ends[1-by]
	if reset {
		mine.SetLinger(0)
		mine.Close()
	} else {
		mine.CloseWrite()
	}
	other.SetReadDeadline(time.Now().Add(patience))
	n, err := other.Read(make([]byte, 10))
	if reset && !strings.Contains(fmt.Sprint(err), "reset") || !reset && err != io.EOF {
		k.r.t.Errorf("%s: the other side reads %d bytes, then %v", name, n, err)
	}
	k.client.Close()
	k.server.Close()
}
