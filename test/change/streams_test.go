// SPDX-License-Identifier: Apache-2.0

package change

import (
	"net/netip"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// banned is a second source behind the client's side, for changes that are about one host.
var banned = lab.Behind4.Next().Next()

// Ports that changes are about.
const (
	plainPort  = 9
	otherPort  = 10
	tcpService = 80
)

// standard are the flows of every kind of change: both families and directions, several
// sources, sizes and ports, and a TCP connection.
func (r *rig) standard() []flow {
	up := func(name string, proto uint8, source netip.Addr, sport uint16, dest netip.Addr, dport uint16) flow {
		return flow{name: name, proto: proto, from: client, smac: r.Client.MAC, dmac: r.LAN.MAC,
			source: netip.AddrPortFrom(source, sport), dest: netip.AddrPortFrom(dest, dport)}
	}
	c4, s4, c6, s6 := r.Client.V4.Addr(), r.Server.V4.Addr(), r.Client.V6.Addr(), r.Server.V6.Addr()
	four, six := up("UDP", unix.IPPROTO_UDP, c4, 10000, s4, plainPort), up("IPv6 UDP", unix.IPPROTO_UDP, c6, 10000, s6, plainPort)
	tcp := up("TCP", unix.IPPROTO_TCP, c4, 10003, s4, tcpService)
	large := up("large UDP", unix.IPPROTO_UDP, c4, 10002, s4, plainPort)
	large.size = 1400
	another := up("UDP of another host", unix.IPPROTO_UDP, banned, 10001, s4, otherPort)
	return []flow{
		four, r.answer(four),
		another, r.answer(another),
		large,
		six, r.answer(six),
		tcp, r.answer(tcp),
	}
}

// answer is the other direction of a flow from client to server.
func (r *rig) answer(f flow) flow {
	back := flow{name: f.name + " answer", proto: f.proto, from: server, smac: r.Server.MAC, dmac: r.WAN.MAC, source: f.dest, dest: f.source}
	if r.masked && !f.six() {
		back.dest = netip.AddrPortFrom(r.WAN.V4.Addr(), f.source.Port())
	}
	return back
}

// shakeHands sends a side's packets of a handshake, so that conntrack knows the connection:
// the one who opens it has the lower port on the far side.
func (r *rig) shakeHands(t *tap, f *flow) {
	r.t.Helper()
	send := func(tcp *layers.TCP) {
		tcp.Options = nil
		if tcp.SYN { // windows as large as can be: nobody here minds them
			tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{14}}}
		}
		_, err := t.send(f.segment(tcp, nil))
		r.must(err)
		time.Sleep(5 * time.Millisecond)
	}
	if f.from == client {
		send(&layers.TCP{SYN: true, Seq: tcpSeq - 1})
	} else {
		send(&layers.TCP{SYN: true, ACK: true, Seq: tcpAck - 1, Ack: tcpSeq})
	}
}
