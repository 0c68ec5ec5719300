// SPDX-License-Identifier: Apache-2.0

package change

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// host is one of the three that send and take in frames.
type host int

const (
	client host = iota
	server
	spare // reached by the router's third port
	hosts
)

var hostNames = [hosts]string{"client", "server", "spare"}

// flow is one direction of a conversation, as its sender puts it on the wire.
type flow struct {
	name         string
	proto        uint8 // unix.IPPROTO_UDP or unix.IPPROTO_TCP
	from         host
	smac, dmac   net.HardwareAddr
	source, dest netip.AddrPort
	size         int // of the IP packet, in bytes; 0: 100
}

// A payload begins with who it is: magic, flow, number. The rest is its pattern.
const (
	magic      = 0x6368616e
	markLen    = 12
	numberAt   = 8 // in the payload
	ethLen     = 14
	windowSize = 0xfff0
	// Every segment is the same one again, as far as TCP is concerned: conntrack takes it
	// for a retransmission, and GRO leaves it alone (skb_gro_receive wants the next in line).
	tcpSeq, tcpAck = 1001, 2001
)

func (f *flow) six() bool { return f.source.Addr().Is6() }

// headers is where the payload begins, and l4 where the transport does.
func (f *flow) l4() int {
	if f.six() {
		return ethLen + 40
	}
	return ethLen + 20
}

func (f *flow) headers() int {
	if f.proto == unix.IPPROTO_TCP {
		return f.l4() + 20
	}
	return f.l4() + 8
}

// sumAt is where the transport's checksum stands.
func (f *flow) sumAt() int {
	if f.proto == unix.IPPROTO_TCP {
		return f.l4() + 16
	}
	return f.l4() + 6
}

// frame is the packet of number 0.
func (f *flow) frame(index int) []byte {
	size := f.size
	if size == 0 {
		size = 100
	}
	payload := make([]byte, size-(f.headers()-ethLen))
	for i := range payload {
		payload[i] = byte(i)
	}
	binary.BigEndian.PutUint32(payload, magic)
	binary.BigEndian.PutUint32(payload[4:], uint32(index))
	binary.BigEndian.PutUint32(payload[numberAt:], 0)
	tcp := &layers.TCP{ACK: true, PSH: true, Seq: tcpSeq, Ack: tcpAck}
	if f.from != client {
		tcp.Seq, tcp.Ack = tcpAck, tcpSeq
	}
	return f.segment(tcp, payload)
}

// segment is a packet with any payload and, for TCP, any flags and numbers.
func (f *flow) segment(tcp *layers.TCP, payload []byte) []byte {
	var ip gopacket.SerializableLayer
	var pseudo gopacket.NetworkLayer
	eth := &layers.Ethernet{SrcMAC: f.smac, DstMAC: f.dmac, EthernetType: layers.EthernetTypeIPv4}
	if f.six() {
		eth.EthernetType = layers.EthernetTypeIPv6
		six := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocol(f.proto), SrcIP: f.source.Addr().AsSlice(), DstIP: f.dest.Addr().AsSlice()}
		ip, pseudo = six, six
	} else {
		four := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Id: 0x5348, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocol(f.proto),
			SrcIP: f.source.Addr().AsSlice(), DstIP: f.dest.Addr().AsSlice()}
		ip, pseudo = four, four
	}
	var l4 gopacket.SerializableLayer
	if f.proto == unix.IPPROTO_TCP {
		tcp.SrcPort, tcp.DstPort, tcp.Window = layers.TCPPort(f.source.Port()), layers.TCPPort(f.dest.Port()), windowSize
		tcp.SetNetworkLayerForChecksum(pseudo)
		l4 = tcp
	} else {
		udp := &layers.UDP{SrcPort: layers.UDPPort(f.source.Port()), DstPort: layers.UDPPort(f.dest.Port())}
		udp.SetNetworkLayerForChecksum(pseudo)
		l4 = udp
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, eth, ip, l4, gopacket.Payload(payload)); err != nil {
		panic(err) // of the table, which is the same every time
	}
	return slices.Clone(buffer.Bytes())
}

// sum is the ones' complement sum of b in 16-bit words, added to start.
func sum(start uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		start += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	for start > 0xffff {
		start = start>>16 + start&0xffff
	}
	return start
}

// number writes a number into a frame of number 0 and mends the checksum.
func (f *flow) number(frame []byte, n uint32) {
	at := frame[f.headers()+numberAt:]
	binary.BigEndian.PutUint32(at, n)
	old := ^binary.BigEndian.Uint16(frame[f.sumAt():])
	check := ^uint16(sum(uint32(old), at[:4]))
	if check == 0 && f.proto == unix.IPPROTO_UDP {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(frame[f.sumAt():], check)
}

// arrival is what a frame that came in says of itself.
type arrival struct {
	proto    uint8
	l4, data int // where the transport and the payload begin
	index    int // of its flow
	number   uint32
}

// recognise reads a frame; false if it is none of ours, or quoted in an ICMP error.
func recognise(frame []byte) (a arrival, ok bool) {
	if len(frame) < ethLen+20 {
		return a, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		a.proto, a.l4 = frame[ethLen+9], ethLen+int(frame[ethLen]&15)*4
	case unix.ETH_P_IPV6:
		a.proto, a.l4 = frame[ethLen+6], ethLen+40
	}
	switch a.proto {
	case unix.IPPROTO_UDP:
		a.data = a.l4 + 8
	case unix.IPPROTO_TCP:
		a.data = a.l4 + 20
	default:
		return a, false
	}
	if len(frame) < a.data+markLen || binary.BigEndian.Uint32(frame[a.data:]) != magic {
		return a, false
	}
	a.index = int(binary.BigEndian.Uint32(frame[a.data+4:]))
	a.number = binary.BigEndian.Uint32(frame[a.data+numberAt:])
	return a, true
}

// whole reports whether the checksums are right and the payload is the one that was sent.
func (a arrival) whole(frame, sent []byte, f *flow) bool {
	ip := frame[ethLen:a.l4]
	addresses := ip[8:]
	if len(ip) == 20 {
		if sum(0, ip) != 0xffff {
			return false
		}
		addresses = ip[12:]
	}
	if sum(sum(uint32(a.proto)+uint32(len(frame)-a.l4), addresses), frame[a.l4:]) != 0xffff {
		return false
	}
	got, want := frame[a.data:], sent[f.headers():]
	return a.proto == f.proto && len(got) == len(want) && string(got[markLen:]) == string(want[markLen:])
}

// describe says in words what a normalised frame is (see pump.take).
func describe(key string) string {
	at, frame := hostNames[key[0]], []byte(key[2:])
	text := fmt.Sprintf("%s: MAC %v > %v, ", at, net.HardwareAddr(frame[6:12]), net.HardwareAddr(frame[:6]))
	if key[1] != 0 {
		text = "ALTERED, " + text
	}
	ip, l4 := frame[ethLen:], frame[min(ethLen+40, len(frame)):]
	var source, dest netip.Addr
	ttl := byte(0)
	if ip[0]>>4 == 4 {
		source, dest, ttl, l4 = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[8], ip[20:]
	} else {
		source, dest, ttl = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[7]
	}
	return text + fmt.Sprintf("%s > %s, TTL %d", netip.AddrPortFrom(source, binary.BigEndian.Uint16(l4)),
		netip.AddrPortFrom(dest, binary.BigEndian.Uint16(l4[2:])), ttl)
}
