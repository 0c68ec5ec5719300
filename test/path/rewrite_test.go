// SPDX-License-Identifier: Apache-2.0

package path

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// rewrite is what a kernel did to a flow: the packet before and after.
type rewrite struct {
	name    string
	in, out exercise.Packet
}

// bases are one packet of each kind that is forwarded, before and after plain routing.
func (b *bench) bases() []rewrite {
	u4, _ := b.udp4()
	u6, _ := b.udp6()
	t4, _ := b.tcp4()
	t6, _ := b.tcp6()
	none := u4
	none.NoSum = true
	echo := func(p exercise.Packet, proto, kind uint8) exercise.Packet {
		p.Proto, p.Type = proto, kind
		return p
	}
	raw := func(p exercise.Packet, proto uint8, payload string) exercise.Packet {
		p.Proto, p.Payload = proto, []byte(payload)
		return p
	}
	var all []rewrite
	add := func(name string, p exercise.Packet) { all = append(all, rewrite{name, p, b.routed(p)}) }
	add("UDP", u4)
	add("UDP without checksum", none)
	add("UDP/IPv6", u6)
	add("TCP", t4)
	add("TCP/IPv6", t6)
	add("ping", echo(u4, 1, 8))
	add("pong", echo(u4, 1, 0))
	add("ping/IPv6", echo(u6, 58, 128))
	add("pong/IPv6", echo(u6, 58, 129))
	for _, p := range []exercise.Packet{u4, u6} {
		add("GRE", raw(p, 47, "\x00\x00\x08\x00in a tunnel"))
		add("GRE with a key", raw(p, 47, "\x20\x00\x08\x00keyin a tunnel"))
		add("GRE with key and checksum", raw(p, 47, "\xa0\x00\x08\x00sumskeyin a tunnel"))
		add("ESP", raw(p, 50, "spi!\x00\x00\x00\x01secret"))
		add("SCTP", raw(p, 132, "\x10\x00\x20\x00tag!crc!chunks"))
		add("unknown protocol", raw(p, 200, "anything"))
		add("unknown protocol of 8 bytes", raw(p, 201, "\x00\x01\x02\x03\x04\x05\x06\x07"))
	}
	return all
}

// natted is each base that NAT can be repeated for, with new addresses, ports or both.
func (b *bench) natted() []rewrite {
	var all []rewrite
	for _, r := range b.bases() {
		four, ported := r.in.Src.Addr().Is4(), r.in.Proto == 6 || r.in.Proto == 17
		for _, n := range []struct{ name, src4, dst4, src6, dst6 string }{
			{"masquerade", "198.19.0.1:1000", "", "[2001:2:0:19::1]:1000", ""},
			{"masquerade with another port", "198.19.0.1:61234", "", "[2001:2:0:19::1]:61234", ""},
			{"DNAT", "", "198.19.0.77:2000", "", "[2001:2:0:19:aaaa:bbbb:cccc:dddd]:2000"},
			{"DNAT with another port", "", "198.19.0.77:443", "", "[2001:2:0:19::77]:443"},
			{"both ends", "203.0.113.255:9", "192.0.2.1:65535", "[2001:db8::ffff]:9", "[2001:db8:1::]:65535"},
			{"last bits", "198.18.0.3:1001", "198.19.0.3:2001", "[2001:2:0:18::3]:1001", "[2001:2:0:19::3]:2001"},
		} {
			src, dst := n.src6, n.dst6
			if four {
				src, dst = n.src4, n.dst4
			}
			out := r.out
			if src != "" {
				out.Src = addr(src)
			}
			if dst != "" {
				out.Dst = addr(dst)
			}
			icmp := r.in.Proto == 1 || r.in.Proto == 58
			if !ported && !icmp { // ports are not edited, and not in these keys
				out.Src, out.Dst = exchange(out.Src, r.in.Src), exchange(out.Dst, r.in.Dst)
			}
			all = append(all, rewrite{r.name + ", " + n.name, r.in, out})
		}
	}
	return all
}

// TestRewrites: every rewrite that can be learned, byte for byte, both ways, with odd
// and even lengths, with all ECN marks, with frames filled up to 60 bytes and with
// trailers that must not go on.
func TestRewrites(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, r := range slices.Concat(b.bases(), b.natted()) {
		t.Run(r.name, func(t *testing.T) {
			for _, dscp := range [][2]uint8{{0, 0}, {0x28, 0xb8}, {0xfc, 0}} {
				r.in.TOS, r.out.TOS = dscp[0], dscp[1]
				b.arm(t, r.in, r.out)
				for _, shape := range shapes(r.in, r.out) {
					b.counts(t, "xdp hit", func() { b.repeated(t, shape.in, shape.out) })
					b.counts(t, "tc-ingress hit", func() { b.repeatedTC(t, shape.in, shape.out) })
				}
			}
		})
	}
}

// TestRunt: a packet with less than 8 bytes behind its IP header is the kernel's, also in a
// frame that was filled up.
func TestRunt(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, p := range []func() (in, out exercise.Packet){b.udp4, b.udp6} {
		in, _ := p()
		in.Proto, in.Payload = 201, []byte{1, 2, 3, 4, 5, 6, 7}
		out := b.routed(in)
		b.arm(t, in, out)
		in.Trailer = make([]byte, 25)
		b.meetsBoth(t, "runt", in, out)
		in.Payload = append(in.Payload, 8)
		out.Payload = in.Payload
		b.meetsBoth(t, "", in, out)
	}
}

// arm empties the table and puts in what a pair of packets teaches.
func (b *bench) arm(t *testing.T, in, out exercise.Packet) exercise.Place {
	t.Helper()
	check(t, b.Clear())
	at, err := b.Put(b.Learned(in, out, b.lease(t)))
	check(t, err)
	return at
}

// shapes are packets of one flow that the entry must do for.
func shapes(in, out exercise.Packet) []rewrite {
	var all []rewrite
	add := func(name string, change func(*exercise.Packet)) {
		r := rewrite{name, in, out}
		change(&r.in)
		change(&r.out)
		r.out.Trailer = nil
		all = append(all, r)
	}
	add("as it is", func(*exercise.Packet) {})
	for ecn := range uint8(4) {
		add("ECN", func(p *exercise.Packet) { p.TOS |= ecn })
	}
	headless := in.Proto != 6 && in.Proto != 17 && in.Proto != 1 && in.Proto != 58
	for _, n := range []int{0, 1, 17, 18, 1000, 1443} {
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(i * 37)
		}
		if headless { // its header is in the payload
			body = append(slices.Clone(in.Payload), body...)[:max(len(in.Payload), min(len(in.Payload)+n, 1460))]
		}
		if len(body) > 1440 && in.Src.Addr().Is6() {
			body = body[:1430]
		}
		add("length", func(p *exercise.Packet) { p.Payload = body; p.ID += uint16(n) })
	}
	add("TTL 255", func(p *exercise.Packet) { p.TTL = uint8(int(p.TTL) + 255 - int(in.TTL)) })
	add("TTL 2", func(p *exercise.Packet) { p.TTL = uint8(int(p.TTL) + 2 - int(in.TTL)) })
	add("don't fragment", func(p *exercise.Packet) {
		if p.Src.Addr().Is4() {
			p.Flags = 0x4000
		}
	})
	for _, n := range []int{1, 4, 18, 300} {
		add("trailer", func(p *exercise.Packet) { p.Trailer = slices.Repeat([]byte{0xa5}, n) })
	}
	return all
}

// TestChecksumCorners: all values of a 16-bit word in the payload, so that every
// checksum there is comes by, those next to zero too.
func TestChecksumCorners(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, r := range b.natted() {
		if r.in.Payload == nil || r.name != "UDP, both ends" && r.name != "TCP, both ends" &&
			r.name != "ping, both ends" && r.name != "UDP/IPv6, both ends" && r.name != "TCP/IPv6, both ends" {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			b.arm(t, r.in, r.out)
			at := r.in.L4() + map[uint8]int{6: 16, 17: 6, 1: 2}[r.in.Proto]
			zeros := 0
			for i := range r.in.Payload {
				r.in.Payload[i] = 0
			}
			for _, word := range corners(r, at) {
				r.in.Payload = binary.BigEndian.AppendUint16(nil, word)
				r.out.Payload = r.in.Payload
				sum := binary.BigEndian.Uint16(r.out.Bytes()[at:])
				if sum == 0 || sum == 0xffff {
					zeros++
				}
				t.Run(fmt.Sprintf("%04x", sum), func(t *testing.T) {
					b.counts(t, "xdp hit", func() { b.repeated(t, r.in, r.out) })
					b.counts(t, "tc-ingress hit", func() { b.repeatedTC(t, r.in, r.out) })
				})
			}
			if zeros == 0 {
				t.Error("no checksum came out as zero")
			}
		})
	}
}

// corners are payload words that bring the checksum before or after the rewrite close
// to where it wraps.
func corners(r rewrite, at int) []uint16 {
	var words []uint16
	for _, p := range []exercise.Packet{r.in, r.out} {
		p.Payload = []byte{0, 0}
		sum := binary.BigEndian.Uint16(p.Bytes()[at:])
		for _, step := range []uint16{0, 1, 2, 0xfffe, 0xffff} {
			words = append(words, sum+step)
		}
	}
	return append(words, 0, 1, 0x8000, 0xffff)
}

// TestBadChecksumGoesOn: an L4 checksum that is wrong stays wrong by as much, as through
// the kernel's NAT: whoever is to judge it is the receiver.
func TestBadChecksumGoesOn(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.tcp4()
	out.Src = addr("198.19.0.1:50000")
	b.arm(t, in, out)
	spoil := func(p exercise.Packet) []byte { // the payload, after the sum was made
		f := p.Bytes()
		return put8(f, len(f)-1, f[len(f)-1]^0x40)
	}
	b.counts(t, "xdp hit, tc-ingress hit", func() {
		o, err := b.XDP(b.LANIndex, spoil(in))
		check(t, err)
		same(t, "after XDP", o.Frame, spoil(out))
		o, err = b.Ingress(b.LANIndex, spoil(in), exercise.Buffer{})
		check(t, err)
		same(t, "after TC ingress", o.Frame, spoil(out))
	})
}

// TestHitIsCounted: packets, IP bytes and TCP's numbers of the last packet, and mark
// and priority of the entry on a packet that is repeated at TC.
func TestHitIsCounted(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.tcp4()
	s := b.Learned(in, out, b.lease(t))
	s.Mark, s.Priority, s.Packets, s.Bytes = 0x11, 0x22, 10, 1000
	at, err := b.Put(s)
	check(t, err)
	in.TCP = exercise.TCP{Seq: 77, Ack: 88, Window: 99, ACK: true}
	in.Trailer = []byte{1, 2, 3}
	b.counts(t, "xdp hit, tc-ingress hit", func() {
		_, err := b.XDP(b.LANIndex, in.Bytes())
		check(t, err)
		o, err := b.Ingress(b.LANIndex, in.Bytes(), exercise.Buffer{})
		check(t, err)
		if o.Buffer.Mark != 0x11 || o.Buffer.Priority != 0x22 {
			t.Errorf("%+v: not the entry's mark and priority", o.Buffer)
		}
	})
	want := s
	want.Packets, want.Bytes = 12, 1000+2*58
	want.TcpSeq, want.TcpAck, want.TcpWnd = 77+18, 88, 99 // after the payload
	got, err := b.At(at)
	check(t, err)
	if got != want {
		t.Errorf("slot\n%+v, want\n%+v", got, want)
	}
}

// exchange is an address with another's port.
func exchange(a, port netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port.Port())
}
