// SPDX-License-Identifier: Apache-2.0

package path

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// punted is a frame that both programs leave to the kernel for a reason of the frame itself.
type punted struct {
	name   string
	reason string
	frame  []byte
}

// put16 and put8 return a frame with bytes of it changed.
func put16(f []byte, at int, v uint16) []byte {
	f = slices.Clone(f)
	binary.BigEndian.PutUint16(f[at:], v)
	return f
}

func put8(f []byte, at int, v byte) []byte {
	f = slices.Clone(f)
	f[at] = v
	return f
}

// sealed makes the IPv4 header checksum right again after a change.
func sealed(f []byte) []byte {
	header := 14 + int(f[14]&15)*4
	f = put16(f, 24, 0)
	return put16(f, 24, ^exercise.Fold(exercise.Sum(f[14:header])))
}

// with returns the frame of a changed packet.
func with(p exercise.Packet, change func(*exercise.Packet)) []byte {
	change(&p)
	return p.Bytes()
}

// linkFrames are about what is below and in IPv4's header.
func linkFrames(b *bench) []punted {
	in4, _ := b.udp4()
	u := in4.Bytes()
	tagged := func(proto uint16) []byte {
		return slices.Concat(u[:12], []byte{byte(proto >> 8), byte(proto), 0, 7}, u[12:])
	}
	options := sealed(put16(put8(slices.Concat(u[:34], []byte{1, 1, 1, 0}, u[34:]), 14, 0x46), 16, uint16(len(u)-14+4)))
	return []punted{
		{"ARP", "not_ip", put16(u, 12, 0x0806)},
		{"MPLS", "mpls_off", put16(u, 12, 0x8847)},
		{"length instead of a type", "not_ip", put16(u, 12, 46)},
		{"VLAN tag", "vlan_tag", tagged(0x8100)},
		{"service tag", "vlan_tag", tagged(0x88a8)},
		{"broadcast", "not_host", with(in4, func(p *exercise.Packet) { p.To = net.HardwareAddr{255, 255, 255, 255, 255, 255} })},
		{"multicast", "not_host", with(in4, func(p *exercise.Packet) { p.To = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} })},
		{"IPv4 cut in its header", "runt", u[:33]},
		{"IPv4 version 5", "malformed", sealed(put8(u, 14, 0x55))},
		{"IPv4 header of 16 bytes", "malformed", put8(u, 14, 0x44)},
		{"IPv4 shorter than its header", "malformed", sealed(put16(u, 16, 19))},
		{"IPv4 longer than the frame", "malformed", sealed(put16(u, 16, uint16(len(u)-14+1)))},
		{"IPv4 checksum", "bad_checksum", put8(u, 24, u[24]^1)},
		{"IPv4 checksum of zero", "bad_checksum", put16(u, 24, 0)},
		{"IPv4 options", "ip_options", options},
		{"more fragments", "fragment", with(in4, func(p *exercise.Packet) { p.Flags = 0x2000 })},
		{"last fragment", "fragment", with(in4, func(p *exercise.Packet) { p.Flags = 100 })},
		{"reserved bit", "fragment", with(in4, func(p *exercise.Packet) { p.Flags = 0x8000 })},
		{"TTL 1", "ttl", with(in4, func(p *exercise.Packet) { p.TTL = 1 })},
		{"TTL 0", "ttl", with(in4, func(p *exercise.Packet) { p.TTL = 0 })},
	}
}

// header6Frames are about IPv6's header.
func header6Frames(b *bench) []punted {
	in6, _ := b.udp6()
	u := in6.Bytes()
	cases := []punted{
		{"IPv6 cut in its header", "runt", u[:53]},
		{"IPv6 version 4", "malformed", put8(u, 14, 0x40)},
		{"IPv6 longer than the frame", "malformed", put16(u, 18, uint16(len(u)-54+1))},
		{"jumbogram", "malformed", put16(u, 18, 0)},
		{"IPv6 fragment", "fragment", put8(u, 20, 44)},
		{"hop limit 1", "ttl", put8(u, 21, 1)},
		{"hop limit 0", "ttl", put8(u, 21, 0)},
	}
	for _, next := range []byte{0, 43, 51, 59, 60, 135, 139, 140, 253, 254} {
		cases = append(cases, punted{"IPv6 extension header", "extension_header", put8(u, 20, next)})
	}
	return cases
}

// transportFrames are about what is above IP.
func transportFrames(b *bench) []punted {
	u, _ := b.udp4()
	c, _ := b.tcp4()
	c6, _ := b.tcp6()
	udp, tcp := u.Bytes(), c.Bytes()
	flags := func(p exercise.Packet, t exercise.TCP) []byte {
		return with(p, func(p *exercise.Packet) { p.TCP = t })
	}
	icmp := func(p exercise.Packet, proto, kind uint8) []byte {
		return with(p, func(p *exercise.Packet) { p.Proto, p.Type = proto, kind })
	}
	u6, _ := b.udp6()
	payload := func(proto uint8) func(string) []byte {
		return func(s string) []byte {
			return with(u, func(p *exercise.Packet) { p.Proto, p.Payload = proto, []byte(s) })
		}
	}
	gre, lite := payload(47), payload(136)
	raw := func(proto uint8, n int) []byte {
		f := with(u, func(p *exercise.Packet) { p.Proto, p.Payload = 200, make([]byte, n) })
		return sealed(put8(f, 23, proto))
	}
	return []punted{
		{"UDP cut", "runt", sealed(put16(udp, 16, 27))[:41]},
		{"GRE of 7 bytes", "runt", raw(47, 7)},
		{"UDP length below 8", "malformed", put16(udp, 38, 7)},
		{"UDP longer than IP", "malformed", put16(udp, 38, uint16(len(udp)-34+1))},
		{"TCP cut", "malformed", sealed(put16(tcp, 16, 39))[:53]},
		{"TCP header of 16 bytes", "malformed", put8(tcp, 46, 0x40)},
		{"TCP header longer than IP", "malformed", put8(tcp, 46, 0xf0)},
		{"ICMP cut", "runt", append(raw(1, 7), 0)},
		{"GRE cut", "runt", append(raw(47, 7), 0)},
		{"SCTP cut", "runt", append(raw(132, 7), 0)},
		{"DCCP cut", "runt", append(raw(33, 7), 0)},
		{"UDP-Lite cut", "runt", append(raw(136, 7), 0)},
		{"ESP cut", "runt", append(raw(50, 7), 0)},
		{"GRE version 1 (PPTP)", "malformed", gre("\x30\x01\x88\x0b\x00\x05idnumbin a tunnel")},
		{"GRE version 1 that looks like 0", "malformed", gre("\x00\x01\x08\x00\x00\x00\x00\x00")},
		{"GRE version 7", "malformed", gre("\x00\x07\x08\x00\x00\x00\x00\x00")},
		{"UDP-Lite that covers 7 bytes", "malformed", lite("\x10\x00\x20\x00\x00\x07\xab\xcd")},
		{"UDP-Lite that covers more than there is", "malformed", lite("\x10\x00\x20\x00\x00\x09\xab\xcd")},
		{"UDP-Lite without a checksum", "malformed", put16(lite("\x10\x00\x20\x00\x00\x00\x00\x00"), 40, 0)},
		{"ICMP unreachable", "not_echo", icmp(u, 1, 3)},
		{"ICMP timestamp", "not_echo", icmp(u, 1, 13)},
		{"ICMP echo with a code", "not_echo", put8(icmp(u, 1, 8), 35, 1)},
		{"ICMP in IPv6", "not_echo", with(u6, func(p *exercise.Packet) { p.Proto, p.Payload = 1, make([]byte, 8) })},
		{"ICMPv6 in IPv4", "not_echo", raw(58, 8)},
		{"neighbour solicitation", "not_echo", icmp(u6, 58, 135)},
		{"packet too big", "not_echo", icmp(u6, 58, 2)},
		{"SYN", "tcp_syn", flags(c, exercise.TCP{SYN: true})},
		{"SYN of IPv6", "tcp_syn", flags(c6, exercise.TCP{SYN: true})},
		{"SYN with ACK", "tcp_syn", flags(c, exercise.TCP{SYN: true, ACK: true})},
		{"SYN with FIN", "tcp_syn", flags(c, exercise.TCP{SYN: true, FIN: true})},
		{"no flags", "tcp_no_ack", flags(c, exercise.TCP{})},
		{"FIN", "tcp_close", flags(c, exercise.TCP{FIN: true, ACK: true})},
		{"RST", "tcp_close", flags(c, exercise.TCP{RST: true})},
		{"RST of IPv6", "tcp_close", flags(c6, exercise.TCP{RST: true, ACK: true})},
	}
}

// TestInspect: what is not fit to be repeated goes to the kernel as it came, from both
// programs.
func TestInspect(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range slices.Concat(linkFrames(b), header6Frames(b), transportFrames(b)) {
		t.Run(c.name, func(t *testing.T) {
			b.counts(t, "xdp "+c.reason, func() { b.punted(t, c.reason, c.frame) })
			if c.name == "IPv4 cut in its header" || c.name == "IPv6 cut in its header" {
				return // bpf_prog_test_run_skb() makes no such skb
			}
			b.counts(t, "tc-ingress "+c.reason, func() { b.next(t, c.frame) })
		})
	}
	t.Run("for another machine", func(t *testing.T) {
		in, _ := b.udp4()
		frame := with(in, func(p *exercise.Packet) { p.To = net.HardwareAddr{2, 9, 9, 9, 9, 9} })
		b.counts(t, "tc-ingress not_host", func() { b.next(t, frame) })
	})
}

// next says that TC ingress leaves a frame to the kernel.
func (b *bench) next(t *testing.T, frame []byte) {
	t.Helper()
	mark := exercise.Buffer{Mark: 7, Priority: 8}
	o, err := b.Ingress(b.LANIndex, frame, mark)
	check(t, err)
	if o.Verdict != exercise.TCNext || o.Buffer != mark {
		t.Errorf("TC verdict %#x, %+v", o.Verdict, o.Buffer)
	}
	same(t, "after TC ingress", o.Frame, frame)
}
