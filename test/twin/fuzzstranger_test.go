// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// stranger adds a frame that belongs to no armed flow.
func (d *director) stranger() {
	from := d.s.conversations[pick(d.Rand, d.armed)].ends[d.IntN(2)].at
	x := []func(from int) (frame []byte, name string){
		d.fresh, d.fresh, d.arp, d.discovery, d.icmpError, d.icmpError, d.noise, d.toRouter,
	}
	frame, name := x[d.IntN(len(x))](from)
	d.s.items = append(d.s.items, item{frame: frame, from: from, flow: -1, kind: []string{name}})
}

// ends are the host that sends and the router's port that it sends to.
func (d *director) hosts(from int) (host, port lab.End) {
	if from == client {
		return d.lab.Client, d.lab.LAN
	}
	return d.lab.Server, d.lab.WAN
}

// fresh is a flow's first packet, or its second, now and then.
func (d *director) fresh(from int) ([]byte, string) {
	family := pick(d.Rand, d.c.families)
	proto := pick(d.Rand, []uint8{protoUDP, protoUDP, protoTCP, protoICMP})
	if proto == protoICMP && family == 6 {
		proto = protoICMPv6
	}
	c := conversation{proto: proto, ends: d.c.ends(d.lab, family, uint16(40000+d.IntN(200)))}
	d.n++
	frame := c.talk(0, d.n)[0].frame
	if proto == protoTCP && d.IntN(2) == 0 {
		frame = c.opening()[0].frame
	}
	host, port := d.hosts(from)
	copy(frame, slices.Concat(port.MAC, host.MAC))
	return frame, "fresh"
}

// arp is a question or an answer, from a host or about one.
func (d *director) arp(from int) ([]byte, string) {
	host, port := d.hosts(from)
	sender, target := host.V4.Addr(), port.V4.Addr()
	mac := slices.Clone(host.MAC)
	if d.IntN(2) == 0 {
		b := sender.As4()
		b[3] = byte(60 + d.IntN(8))
		sender, mac[3] = netip.AddrFrom4(b), b[3]
	}
	if d.IntN(4) == 0 {
		target = sender // gratuitous
	}
	to := pick(d.Rand, [][]byte{port.MAC, {255, 255, 255, 255, 255, 255}})
	frame := slices.Concat(to, host.MAC, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, byte(1 + d.IntN(2))},
		mac, sender.AsSlice(), make([]byte, 6), target.AsSlice())
	return frame, "arp"
}

// discovery is the same for IPv6: solicitations and advertisements.
func (d *director) discovery(from int) ([]byte, string) {
	host, port := d.hosts(from)
	sender := host.V6.Addr().As16()
	sender[15] = byte(0x60 + d.IntN(8))
	mac := slices.Clone(host.MAC)
	mac[3] = sender[15]
	body := []byte{byte(135 + d.IntN(2)), 0, 0, 0, 0x60, 0, 0, 0}
	target := port.V6.Addr()
	option := byte(1)
	if body[0] == 136 {
		target, option = netip.AddrFrom16(sender), 2
	}
	body = slices.Concat(body, target.AsSlice(), []byte{option, 1}, mac)
	l := leg{mac: host.MAC, via: port.MAC, source: netip.AddrPortFrom(netip.AddrFrom16(sender), 0), dest: netip.AddrPortFrom(port.V6.Addr(), 0)}
	frame := l.packet(header{ttl: 255}, protoICMPv6, body)
	look(frame).seal()
	return frame, "discovery"
}

// icmpError tells a host that a packet of an armed flow did not get on: what it quotes is
// the packet as the far side of the router would have seen it.
func (d *director) icmpError(from int) ([]byte, string) {
	c := d.s.conversations[pick(d.Rand, d.armed)]
	way := slices.IndexFunc(c.ends[:], func(l leg) bool { return l.at == from })
	if way < 0 {
		return d.noise(from)
	}
	out := c.far(1 - way) // what this host has got
	out.mac, out.via = c.ends[way].via, c.ends[way].mac
	saved := c.next
	transport := c.transport(1-way, d.IntN(100), true, bytesOf(d.n, 40))
	c.next = saved
	quoted := out.packet(header{ttl: 60, id: uint16(d.n)}, c.proto, transport)[14:]
	kinds, proto := [][2]byte{{3, 1}, {3, 3}, {3, 4}, {3, 13}, {11, 0}, {11, 1}, {4, 0}, {5, 1}, {12, 0}}, uint8(protoICMP)
	if len(quoted) > 40 && quoted[0]>>4 == 6 {
		kinds, proto = [][2]byte{{1, 0}, {1, 4}, {2, 0}, {3, 0}, {4, 1}}, protoICMPv6
	}
	kind := pick(d.Rand, kinds)
	body := append([]byte{kind[0], kind[1], 0, 0, 0, 0, 5, byte(d.IntN(220))}, quoted...)
	frame := c.ends[way].packet(header{ttl: 64, id: uint16(d.n)}, proto, body)
	look(frame).seal()
	return frame, "icmp-error"
}

// noise is anything at all.
func (d *director) noise(from int) ([]byte, string) {
	host, port := d.hosts(from)
	frame := make([]byte, 14+d.IntN(120))
	for i := range frame {
		frame[i] = byte(d.Uint32())
	}
	if d.IntN(3) > 0 {
		copy(frame, slices.Concat(port.MAC, host.MAC))
	}
	frame[0] &^= 1 // what hosts say to all is not compared
	if d.IntN(2) == 0 {
		binary.BigEndian.PutUint16(frame[12:], pick(d.Rand, []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP, 0x8847}))
	}
	return frame, "noise"
}

// toRouter is for the router itself, or for all on its link.
func (d *director) toRouter(from int) ([]byte, string) {
	host, port := d.hosts(from)
	source, dest := host.V4.Addr(), port.V4.Addr()
	if d.IntN(2) == 0 {
		source, dest = host.V6.Addr(), port.V6.Addr()
	} else if d.IntN(4) == 0 {
		dest = netip.MustParseAddr(pick(d.Rand, []string{"224.0.0.1", "255.255.255.255", "239.1.2.3"}))
	}
	l := leg{mac: host.MAC, via: port.MAC, source: netip.AddrPortFrom(source, uint16(50000+d.IntN(50))), dest: netip.AddrPortFrom(dest, 9)}
	h := header{ttl: 64, id: uint16(d.n)}
	var frame []byte
	switch d.IntN(3) {
	case 0:
		frame = l.packet(h, protoUDP, udp(l.source.Port(), 9, bytesOf(d.n, 20)))
	case 1:
		frame = l.packet(h, protoTCP, tcp(l.source.Port(), 9, d.Uint32(), 0, syn, nil))
	default:
		if dest.Is6() {
			frame = l.packet(h, protoICMPv6, echo(128, 7, uint16(d.n), bytesOf(d.n, 30)))
		} else {
			frame = l.packet(h, protoICMP, echo(8, 7, uint16(d.n), bytesOf(d.n, 30)))
		}
	}
	v := look(frame)
	if v.proto == protoUDP {
		v.frame[v.l4+6] = 1 // else it would be without
	}
	v.seal()
	return frame, "to-router"
}
