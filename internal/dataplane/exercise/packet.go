// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Packet says what is in a frame. Lengths and checksums follow from it. The zero value
// of most fields is what is most often wanted; a test copies a Packet and changes
// what the case is about.
type Packet struct {
	To, From net.HardwareAddr
	Src, Dst netip.AddrPort // ICMP: the port of Src is the echo's id
	Proto    uint8          // layers.IPProtocol...
	TTL      uint8
	TOS      uint8 // DSCP and ECN
	Label    uint32
	ID       uint16
	Flags    uint16 // IPv4 flags and offset, as in the header
	TCP      TCP
	Type     uint8  // ICMP
	NoSum    bool   // UDP: checksum 0
	Payload  []byte // of protocols without a layer here: all behind the IP header
	Trailer  []byte // behind the IP packet
}

// TCP is what a TCP header holds beside ports and checksum.
type TCP struct {
	Seq, Ack           uint32
	Window             uint16
	SYN, ACK, FIN, RST bool
	Scale              uint8 // of the window (RFC 7323), the one option that is built; 0: none
}

// Bytes builds the frame.
func (p Packet) Bytes() []byte {
	eth := &layers.Ethernet{DstMAC: p.To, SrcMAC: p.From, EthernetType: layers.EthernetTypeIPv4}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	if p.Src.Addr().Is4() {
		ip = &layers.IPv4{
			Version: 4, TOS: p.TOS, TTL: p.TTL, Id: p.ID, Protocol: layers.IPProtocol(p.Proto),
			Flags: layers.IPv4Flag(p.Flags >> 13), FragOffset: p.Flags & 0x1fff,
			SrcIP: p.Src.Addr().AsSlice(), DstIP: p.Dst.Addr().AsSlice(),
		}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{
			Version: 6, TrafficClass: p.TOS, FlowLabel: p.Label, HopLimit: p.TTL, NextHeader: layers.IPProtocol(p.Proto),
			SrcIP: p.Src.Addr().AsSlice(), DstIP: p.Dst.Addr().AsSlice(),
		}
	}
	stack := append([]gopacket.SerializableLayer{eth, ip}, p.transport(ip)...)
	b := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(b, opts, append(stack, gopacket.Payload(p.Payload))...); err != nil {
		panic("packet that cannot be built: " + err.Error())
	}
	// the Ethernet layer pads to 60 bytes; what a test wants there it says itself
	f := b.Bytes()[:p.length(len(p.Payload))]
	p.finish(f)
	return append(f[:len(f):len(f)], p.Trailer...)
}

func (p Packet) transport(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
	switch layers.IPProtocol(p.Proto) {
	case layers.IPProtocolTCP:
		t := &layers.TCP{
			SrcPort: layers.TCPPort(p.Src.Port()), DstPort: layers.TCPPort(p.Dst.Port()),
			Seq: p.TCP.Seq, Ack: p.TCP.Ack, Window: p.TCP.Window,
			SYN: p.TCP.SYN, ACK: p.TCP.ACK, FIN: p.TCP.FIN, RST: p.TCP.RST,
		}
		if p.TCP.Scale > 0 {
			t.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{p.TCP.Scale}}}
		}
		t.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{t}
	case layers.IPProtocolUDP:
		u := &layers.UDP{SrcPort: layers.UDPPort(p.Src.Port()), DstPort: layers.UDPPort(p.Dst.Port())}
		u.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{u}
	case layers.IPProtocolICMPv4:
		return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(p.Type, 0), Id: p.Src.Port(), Seq: 1}}
	case layers.IPProtocolICMPv6:
		i := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(p.Type, 0)}
		i.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{i, &layers.ICMPv6Echo{Identifier: p.Src.Port(), SeqNumber: 1}}
	}
	return nil
}

// L4 is where the transport header begins.
func (p Packet) L4() int {
	if p.Src.Addr().Is4() {
		return 34
	}
	return 54
}

// length is that of a frame with n bytes of payload, without trailer.
func (p Packet) length(n int) int {
	switch layers.IPProtocol(p.Proto) {
	case layers.IPProtocolTCP:
		n += 20
		if p.TCP.Scale > 0 {
			n += 4 // filled up to a word
		}
	case layers.IPProtocolUDP, layers.IPProtocolICMPv4, layers.IPProtocolICMPv6:
		n += 8
	}
	return p.L4() + n
}

// finish does what gopacket does not: UDP's two zeros (RFC 768), and the checksum of
// UDP-Lite over its whole length (RFC 3828).
func (p Packet) finish(f []byte) {
	l4 := f[p.L4():]
	switch layers.IPProtocol(p.Proto) {
	case layers.IPProtocolUDP:
		if binary.BigEndian.Uint16(l4[6:]) == 0 {
			binary.BigEndian.PutUint16(l4[6:], 0xffff)
		}
		if p.NoSum {
			binary.BigEndian.PutUint16(l4[6:], 0)
		}
	case layers.IPProtocolUDPLite:
		binary.BigEndian.PutUint16(l4[6:], 0)
		sum := pseudo(p, len(l4)) + Sum(l4)
		binary.BigEndian.PutUint16(l4[6:], ^Fold(sum))
	}
}

func pseudo(p Packet, n int) uint64 {
	return Sum(p.Src.Addr().AsSlice()) + Sum(p.Dst.Addr().AsSlice()) + uint64(p.Proto) + uint64(n)
}

// Sum adds up big-endian 16-bit words, the last one filled up with zero (RFC 1071).
func Sum(b []byte) (s uint64) {
	for i := 0; i < len(b); i++ {
		s += uint64(b[i]) << (8 * (1 - i%2))
	}
	return s
}

// Fold brings a sum to 16 bits by adding the carries.
func Fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
