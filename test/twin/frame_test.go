// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// leg is one end of a conversation as it is on that host's wire.
type leg struct {
	at           int              // client or server
	mac, via     net.HardwareAddr // of the host and of the router
	source, dest netip.AddrPort   // of what the host sends
}

// header is what of a packet below L4 varies within a flow.
type header struct {
	tos, ttl uint8
	id       uint16 // IPv4
	df       bool   // IPv4
	label    uint32 // IPv6
}

// packet puts Ethernet and IP before a transport that is complete.
func (l leg) packet(h header, proto uint8, transport []byte) []byte {
	if l.source.Addr().Is6() {
		return l.frame(l.ipv6(h, proto), gopacket.Payload(transport))
	}
	return l.frame(l.ipv4(h, proto), gopacket.Payload(transport))
}

func (l leg) ipv4(h header, proto uint8) *layers.IPv4 {
	ip := &layers.IPv4{
		Version: 4, IHL: 5, TOS: h.tos, TTL: h.ttl, Id: h.id, Protocol: layers.IPProtocol(proto),
		SrcIP: l.source.Addr().AsSlice(), DstIP: l.dest.Addr().AsSlice(),
	}
	if h.df {
		ip.Flags = layers.IPv4DontFragment
	}
	return ip
}

func (l leg) ipv6(h header, next uint8) *layers.IPv6 {
	return &layers.IPv6{
		Version: 6, TrafficClass: h.tos, HopLimit: h.ttl, FlowLabel: h.label, NextHeader: layers.IPProtocol(next),
		SrcIP: l.source.Addr().AsSlice(), DstIP: l.dest.Addr().AsSlice(),
	}
}

// withOptions is packet with an IPv4 record route option, which the router fills in, or
// an IPv6 destination options header of padding.
func (l leg) withOptions(h header, proto uint8, transport []byte) []byte {
	if l.source.Addr().Is6() {
		extension := []byte{proto, 0, 1, 4, 0, 0, 0, 0} // PadN
		return l.frame(l.ipv6(h, 60), gopacket.Payload(append(extension, transport...)))
	}
	ip := l.ipv4(h, proto)
	ip.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}, {OptionType: 0}}
	return l.frame(ip, gopacket.Payload(transport))
}

// fragments is packet in two parts, the first of 64 bytes.
func (l leg) fragments(h header, proto uint8, transport []byte) (first, last []byte) {
	const cut = 64
	if l.source.Addr().Is6() {
		part := func(offset uint16, more bool, b []byte) []byte {
			extension := []byte{proto, 0, 0, 0, 0, 0, byte(h.id >> 8), byte(h.id)}
			binary.BigEndian.PutUint16(extension[2:], offset)
			if more {
				extension[3] |= 1
			}
			return l.frame(l.ipv6(h, 44), gopacket.Payload(append(extension, b...)))
		}
		return part(0, true, transport[:cut]), part(cut, false, transport[cut:])
	}
	a, b := l.ipv4(h, proto), l.ipv4(h, proto)
	a.Flags, b.Flags, b.FragOffset = layers.IPv4MoreFragments, 0, cut/8
	return l.frame(a, gopacket.Payload(transport[:cut])),
		l.frame(b, gopacket.Payload(transport[cut:]))
}

// frame puts Ethernet before a packet. gopacket writes lengths and the IPv4 header
// checksum, and no padding.
func (l leg) frame(ip gopacket.SerializableLayer, payload gopacket.Payload) []byte {
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, payload)
	if err != nil {
		panic(err) // of the script itself, which is the same every time
	}
	kind := uint16(layers.EthernetTypeIPv4)
	if l.source.Addr().Is6() {
		kind = uint16(layers.EthernetTypeIPv6)
	}
	return slices.Concat(l.via, l.mac, []byte{byte(kind >> 8), byte(kind)}, buffer.Bytes())
}

// udp is a datagram without its checksum.
func udp(source, dest uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], dest)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	return append(b, payload...)
}

// Flags of TCP.
const fin, syn, rst, psh, ack = 1, 2, 4, 8, 16

// tcp is a segment without its checksum.
func tcp(source, dest uint16, seq, acked uint32, flags byte, payload []byte) []byte {
	b := make([]byte, 20, 28+len(payload))
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], dest)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], acked)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 0xfff0)
	if flags&syn != 0 {
		b[12] = 7 << 4
		b = append(b, 2, 4, 1420>>8, 1420&255, 1, 3, 3, 7) // MSS; window scale 7
	}
	return append(b, payload...)
}

// echo is an ICMP or ICMPv6 echo without its checksum.
func echo(kind byte, id, seq uint16, payload []byte) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = kind
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	return append(b, payload...)
}

// gre is RFC 2784 with, unless key is 0, the key of RFC 2890.
func gre(key uint32, payload []byte) []byte {
	b := []byte{0, 0, 8, 0}
	if key != 0 {
		b[0] = 0x20
		b = binary.BigEndian.AppendUint32(b, key)
	}
	return append(b, payload...)
}

// sumAt is where a protocol keeps the Internet checksum in its header, or -1.
func sumAt(proto uint8) int {
	switch proto {
	case protoTCP:
		return 16
	case protoUDP, protoUDPLite:
		return 6
	case protoICMP, protoICMPv6:
		return 2
	}
	return -1
}

// checksum is what belongs into the empty checksum field of a transport (RFC 1071).
func checksum(source, dest netip.Addr, proto uint8, transport []byte) uint16 {
	return ^fold(pseudo(source, dest, proto, len(transport)) + sum(transport))
}

// pseudo is the sum of the pseudo header (RFC 9293 3.1, RFC 8200 8.1); ICMP has none.
func pseudo(source, dest netip.Addr, proto uint8, length int) uint32 {
	if proto == protoICMP {
		return 0
	}
	return sum(source.AsSlice()) + sum(dest.AsSlice()) + uint32(proto) + uint32(length)
}

func sum(b []byte) (s uint32) {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
