// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// wire is a raw socket on a device: frames go out and come in as they are.
type wire struct {
	r  *rig
	fd int
}

// packetIgnoreOutgoing is PACKET_IGNORE_OUTGOING (linux/if_packet.h): only what comes in.
const packetIgnoreOutgoing = 23

// wire opens a raw socket at an end.
func (r *rig) wire(e lab.End) *wire {
	r.t.Helper()
	w := &wire{r: r}
	r.must(e.NS.Do(func() error {
		i, err := net.InterfaceByName(e.Device)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)
		all = all<<8 | all>>8
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		return unix.SetsockoptInt(w.fd, unix.SOL_PACKET, packetIgnoreOutgoing, 1)
	}))
	r.t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

func (w *wire) send(frames ...[]byte) {
	w.r.t.Helper()
	for _, f := range frames {
		if _, err := unix.Write(w.fd, f); err != nil {
			w.r.t.Fatalf("raw socket: %v", err)
		}
	}
}

// collect returns the frames that pass `want` and came until there was silence for `wait`.
func (w *wire) collect(wait time.Duration, want func(packet) bool) (got []packet) {
	w.r.t.Helper()
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		w.r.t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return got
		}
		if p, ok := decode(bytes.Clone(buf[:n])); ok && want(p) {
			got = append(got, p)
		}
	}
}

// packet is one TCP or UDP packet.
type packet struct {
	source, dest netip.AddrPort
	proto        layers.IPProtocol
	seq, ack     uint32
	flags        string // of TCP: some of SAFR
	badSum       bool   // L4 checksum, over IPv4
	payload      []byte
}

// frame builds the packet over IPv4 with right lengths; the checksum is wrong by one bit with badSum.
func (p packet) frame(from, to net.HardwareAddr) []byte {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: p.proto, Flags: layers.IPv4DontFragment,
		SrcIP: p.source.Addr().AsSlice(), DstIP: p.dest.Addr().AsSlice()}
	var l4 gopacket.SerializableLayer
	at := 14 + 20 + 6
	if p.proto == layers.IPProtocolUDP {
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.source.Port()), DstPort: layers.UDPPort(p.dest.Port())}
		udp.SetNetworkLayerForChecksum(ip)
		l4 = udp
	} else {
		at = 14 + 20 + 16
		has := func(flag string) bool { return bytes.Contains([]byte(p.flags), []byte(flag)) }
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.source.Port()), DstPort: layers.TCPPort(p.dest.Port()),
			Seq: p.seq, Ack: p.ack, Window: 64000, SYN: has("S"), ACK: has("A"), FIN: has("F"), RST: has("R")}
		tcp.SetNetworkLayerForChecksum(ip)
		l4 = tcp
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}, ip, l4, gopacket.Payload(p.payload))
	if err != nil {
		panic(err)
	}
	frame := bytes.Clone(b.Bytes())
	if p.badSum {
		frame[at] ^= 0x10
	}
	return frame
}

// decode reads a frame; ok is false for anything else than TCP and UDP.
func decode(frame []byte) (p packet, ok bool) {
	g := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	var src, dst netip.Addr
	switch ip := g.NetworkLayer().(type) {
	case *layers.IPv4:
		src, _ = netip.AddrFromSlice(ip.SrcIP)
		dst, _ = netip.AddrFromSlice(ip.DstIP)
		p.proto, p.badSum = ip.Protocol, l4Sum(ip) != 0xffff
	case *layers.IPv6:
		src, _ = netip.AddrFromSlice(ip.SrcIP)
		dst, _ = netip.AddrFromSlice(ip.DstIP)
		p.proto = ip.NextHeader
	}
	if !src.IsValid() || g.TransportLayer() == nil {
		return p, false
	}
	var sport, dport uint16
	switch l4 := g.TransportLayer().(type) {
	case *layers.TCP:
		sport, dport = uint16(l4.SrcPort), uint16(l4.DstPort)
		p.seq, p.ack, p.payload = l4.Seq, l4.Ack, l4.Payload
		for _, f := range []struct {
			set  bool
			flag string
		}{{l4.SYN, "S"}, {l4.ACK, "A"}, {l4.FIN, "F"}, {l4.RST, "R"}} {
			if f.set {
				p.flags += f.flag
			}
		}
	case *layers.UDP:
		sport, dport = uint16(l4.SrcPort), uint16(l4.DstPort)
		p.payload = l4.Payload
	default:
		return p, false
	}
	p.source, p.dest = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p, true
}

// l4Sum is the ones' complement sum of L4 and its pseudo header: 0xffff if all is well.
func l4Sum(ip *layers.IPv4) uint16 {
	sum := uint32(ip.Protocol) + uint32(len(ip.Payload))
	for _, b := range [][]byte{ip.SrcIP, ip.DstIP, ip.Payload} {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
