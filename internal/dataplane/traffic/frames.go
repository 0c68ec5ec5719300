// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
)

// Protocol is what is above IP in a frame.
type Protocol uint8

// The protocols a generator can send.
const (
	UDP  Protocol = 17
	TCP  Protocol = 6 // ACK with data
	ICMP Protocol = 1 // echo, for IPv6 that of ICMPv6
)

// String is the name of the protocol.
func (p Protocol) String() string {
	switch p {
	case UDP:
		return "udp"
	case TCP:
		return "tcp"
	case ICMP:
		return "icmp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// pattern is the first word of the payload's pattern; see bpf/traffic.bpf.c.
const pattern = 0x9e3779b97f4a7c15

const (
	// MaxSize, MaxFlows and MaxLabel bound Frames.
	MaxSize  = 1518
	MaxFlows = int(bpfTrafficTRAFFIC_FLOWS)
	MaxLabel = 1<<20 - 1

	maxRoom   = 64 // bytes: a stack of labels, or another header, and well within the frame's page
	labelSize = 4  // bytes of one entry of a label stack

	portsPerGroup = 1 << bpfTrafficTRAFFIC_PORT_BITS
)

// Frames describes the frames of a generator: those of one flow, or of many in
// turn, flow by flow.
//
// Flow f has the source port Source.Port + f mod 16384. Each further 16384 flows
// have the next source address and the next destination port, so that masquerade
// finds a free port for all of them. For ICMP the source port is the echo's id,
// and there is none to spare: masquerade has to change ids beyond 16384 flows.
type Frames struct {
	SourceMAC, DestMAC net.HardwareAddr
	Source, Dest       netip.AddrPort
	Protocol           Protocol
	Size               int    // bytes of the Ethernet frame without FCS: MinSize to 1518
	Flows              int    // 1 to 1,048,576; 0: 1
	First              int    // number of the first of them, where other generators send the ones before it
	Scatter            bool   // frames one after the other belong to flows far apart, as in real traffic
	Reverse            bool   // the other direction: flows differ by destination, ICMP is echo reply
	TOS                uint8  // DSCP and ECN
	TTL                uint8  // 0: 64
	Label              uint32 // MPLS, between Ethernet and IP, TTL as that of IP; 0: none
	Beneath            uint32 // another one beneath Label, at the bottom of the stack; 0: none
	Labels             bool   // that is of flow 0, the next flow has the next one, and so on
	// Room is how many bytes of headroom frames have beyond the 256 of XDP: what is pushed in front of
	// them. Without it the stack's frame that has grown is copied by the veth that hands it to a sink
	// (skb_pp_cow_data); one that XDP redirects is not.
	Room int

	// What attackers send. None of it changes what the mark says.
	Flags    uint8 // of TCP; 0: ACK
	Sweep    bool  // TCP: the sequence numbers go all over their space, frame by frame
	Fragment bool  // IPv4: the first fragment of a datagram whose rest never comes
	Stay     int   // frames of a flow in a row, all with the same number; 0: one
}

// layout is where the parts of a frame are, in bytes from its start.
type layout struct {
	ip, l4, payload int
	v6              bool
}

func (l layout) addrLen() int {
	if l.v6 {
		return 16
	}
	return 4
}

func (f *Frames) layout() layout {
	l := layout{ip: 14, l4: 34, v6: f.Source.Addr().Is6()}
	if l.v6 {
		l.l4 = 54
	}
	l.payload = l.l4 + 8
	if f.Protocol == TCP {
		l.payload = l.l4 + 20
	}
	for _, label := range []uint32{f.Label, f.Beneath} {
		if label != 0 {
			l.ip, l.l4, l.payload = l.ip+labelSize, l.l4+labelSize, l.payload+labelSize
		}
	}
	return l
}

// MinSize is the least size that holds the headers and the mark: 60 bytes for
// UDP and ICMP over IPv4, 64 for TCP, 72 and 88 over IPv6; up to 8 more with labels.
func (f *Frames) MinSize() int {
	head := f.layout().payload + int(bpfTrafficTRAFFIC_MARK)
	return max(60, (head+7)&^7) // the program writes whole words
}

// check fills in defaults and says what is impossible.
func (f *Frames) check() error {
	if f.Flows == 0 {
		f.Flows = 1
	}
	if f.TTL == 0 {
		f.TTL = 64
	}
	groups := (f.Flows - 1) / portsPerGroup
	vary, other := f.Source, f.Dest
	if f.Reverse {
		vary, other = other, vary
	}
	switch {
	case f.Protocol != UDP && f.Protocol != TCP && f.Protocol != ICMP:
		return fmt.Errorf("traffic: %v: use udp, tcp or icmp", f.Protocol)
	case len(f.SourceMAC) != 6 || len(f.DestMAC) != 6:
		return fmt.Errorf("traffic: source and destination MAC must be given")
	case !f.Source.Addr().IsValid() || f.Source.Addr().Is6() != f.Dest.Addr().Is6():
		return fmt.Errorf("traffic: source %v and destination %v must be of one family", f.Source, f.Dest)
	case f.Size < f.MinSize() || f.Size > MaxSize:
		return fmt.Errorf("traffic: size %d: %v to %v takes %d to %d bytes", f.Size, f.Protocol, f.Dest.Addr(), f.MinSize(), MaxSize)
	case f.Label > MaxLabel, f.Labels && (f.Label == 0 || int(f.Label)+f.Flows-1 > MaxLabel):
		return fmt.Errorf("traffic: label %d of %d flows: at most %d", f.Label, f.Flows, MaxLabel)
	case f.Beneath > MaxLabel, f.Beneath != 0 && f.Label == 0:
		return fmt.Errorf("traffic: label %d beneath %d: it must be at most %d, and one above it", f.Beneath, f.Label, MaxLabel)
	case f.Fragment && f.Source.Addr().Is6(), f.Protocol != TCP && (f.Flags != 0 || f.Sweep), f.Stay < 0:
		return fmt.Errorf("traffic: fragments are of IPv4, flags and sequence numbers of TCP, and no flow stays for %d frames", f.Stay)
	case f.Room < 0 || f.Room > maxRoom:
		return fmt.Errorf("traffic: %d bytes of room: at most %d", f.Room, maxRoom)
	case f.Flows < 0 || f.First < 0 || f.First+f.Flows > MaxFlows:
		return fmt.Errorf("traffic: %d flows: at most %d", f.First+f.Flows, MaxFlows)
	case int(vary.Port())+min(f.Flows, portsPerGroup) > 1<<16:
		return fmt.Errorf("traffic: port %d: too high for %d flows", vary.Port(), f.Flows)
	case int(other.Port())+groups >= 1<<16, int(lastWord(vary.Addr()))+groups >= 1<<16:
		return fmt.Errorf("traffic: %d flows from %v to %v: the last port or address is past its range", f.Flows, f.Source, f.Dest)
	}
	return nil
}

// Flow is where the frames of one flow come from and go to when they are sent,
// by the flow's number from 0 on.
func (f *Frames) Flow(n int) (source, dest netip.AddrPort) {
	varied, other := f.Source, f.Dest
	if f.Reverse {
		varied, other = other, varied
	}
	group := uint16(n / portsPerGroup)
	a := varied.Addr().AsSlice()
	binary.BigEndian.PutUint16(a[len(a)-2:], lastWord(varied.Addr())+group)
	addr, _ := netip.AddrFromSlice(a)
	varied = netip.AddrPortFrom(addr, varied.Port()+uint16(n%portsPerGroup))
	if f.Protocol != ICMP {
		other = netip.AddrPortFrom(other.Addr(), other.Port()+group)
	}
	if f.Reverse {
		return other, varied
	}
	return varied, other
}

// lastWord is the last 16 bits of an address.
func lastWord(a netip.Addr) uint16 {
	s := a.AsSlice()
	return binary.BigEndian.Uint16(s[len(s)-2:])
}

// step is how far the next frame's flow is from this one's. Coprime with the number of
// flows, so that each has its turn, and about the golden section of it, so that the order
// looks like none to a processor that guesses what is read next.
func (f *Frames) step() uint32 {
	if !f.Scatter || f.Flows < 3 {
		return 1
	}
	step := uint64(f.Flows) * 618 / 1000
	for gcd(step, uint64(f.Flows)) != 1 {
		step++
	}
	return uint32(step)
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// template lays a frame out: the whole of it as it is first put into memory, and
// the head that the program writes each time. What differs between frames is zero.
func (f *Frames) template() (frame []byte, t bpfFrameTemplate) {
	l := f.layout()
	frame = make([]byte, f.Size)
	f.putEthernet(frame, l)
	f.putIP(frame, l)
	f.putL4(frame, l)
	putPattern(frame[l.payload+int(bpfTrafficTRAFFIC_MARK):])

	t.Flows = uint32(f.Flows)
	t.Step, t.First = f.step(), uint32(f.First)
	t.MarkAt = uint32(l.payload)
	f.vary(l, &t)
	t.Stay, t.Room = uint32(f.Stay), uint32(f.Room)
	if f.Labels {
		t.LabelAt, t.Entry = 14, f.entry()
	}
	if f.Sweep {
		t.SeqAt = uint32(l.l4 + 4)
	}
	if f.Fragment {
		t.IdAt = uint32(l.ip + 4)
	}
	clear(frame[t.AddrAt : t.AddrAt+2])
	t.L4Sum = f.l4Sum(frame, l)
	if l.v6 {
		t.AddrInL4 = 1
	} else {
		t.IpSumAt = uint32(l.ip + 10)
		t.IpSum = sum(frame[l.ip:l.l4])
		if f.Protocol != ICMP {
			t.AddrInL4 = 1
		}
	}
	if f.Protocol == UDP {
		t.NoZero = 1
	}
	t.Head = uint32((l.payload + int(bpfTrafficTRAFFIC_MARK) + 7) &^ 7)
	for i := range t.Head / 8 {
		t.Bytes[i] = binary.LittleEndian.Uint64(frame[i*8:])
	}
	return frame, t
}

// vary says which fields tell flows apart. The last 16 bits of the address are
// cleared by the caller: they are added to the sums frame by frame.
func (f *Frames) vary(l layout, t *bpfFrameTemplate) {
	varied, other := f.Source, f.Dest
	portAt, groupAt := l.l4, l.l4+2
	addrEnd := l.l4 - l.addrLen()
	if f.Reverse {
		varied, other = other, varied
		portAt, groupAt = groupAt, portAt
		addrEnd = l.l4
	}
	if f.Protocol == ICMP {
		portAt, groupAt = l.l4+4, 0
	}
	t.PortAt, t.Port = uint32(portAt), uint32(varied.Port())
	t.GroupAt, t.Group = uint32(groupAt), uint32(other.Port())
	t.AddrAt, t.Addr = uint32(addrEnd-2), uint32(lastWord(varied.Addr()))
	t.L4SumAt = uint32(l.l4 + map[Protocol]int{UDP: 6, TCP: 16, ICMP: 2}[f.Protocol])
}

func (f *Frames) putEthernet(frame []byte, l layout) {
	copy(frame, f.DestMAC)
	copy(frame[6:], f.SourceMAC)
	switch {
	case f.Label != 0:
		binary.BigEndian.PutUint16(frame[12:], 0x8847)
		binary.BigEndian.PutUint32(frame[14:], f.entry())
		if f.Beneath != 0 {
			binary.BigEndian.PutUint32(frame[14+labelSize:], entry(f.Beneath, true, f.TTL))
		}
	case l.v6:
		binary.BigEndian.PutUint16(frame[12:], 0x86dd)
	default:
		binary.BigEndian.PutUint16(frame[12:], 0x0800)
	}
}

// entry is the top of the label stack.
func (f *Frames) entry() uint32 { return entry(f.Label, f.Beneath == 0, f.TTL) }

// entry is a label stack entry with traffic class 0 (RFC 3032).
func entry(label uint32, bottom bool, ttl uint8) uint32 {
	e := label<<12 | uint32(ttl)
	if bottom {
		e |= 1 << 8
	}
	return e
}

// putIP writes the IP header but for the checksum.
func (f *Frames) putIP(frame []byte, l layout) {
	h := frame[l.ip:]
	if l.v6 {
		binary.BigEndian.PutUint32(h, 6<<28|uint32(f.TOS)<<20)
		binary.BigEndian.PutUint16(h[4:], uint16(f.Size-l.l4))
		h[6], h[7] = f.ipProtocol(l), f.TTL
		copy(h[8:], f.Source.Addr().AsSlice())
		copy(h[24:], f.Dest.Addr().AsSlice())
		return
	}
	h[0], h[1] = 0x45, f.TOS
	binary.BigEndian.PutUint16(h[2:], uint16(f.Size-l.ip))
	binary.BigEndian.PutUint16(h[6:], 0x4000) // don't fragment
	if f.Fragment {
		binary.BigEndian.PutUint16(h[6:], 0x2000) // more fragments
	}
	h[8], h[9] = f.TTL, f.ipProtocol(l)
	copy(h[12:], f.Source.Addr().AsSlice())
	copy(h[16:], f.Dest.Addr().AsSlice())
}

func (f *Frames) ipProtocol(l layout) uint8 {
	if f.Protocol == ICMP && l.v6 {
		return 58
	}
	return uint8(f.Protocol)
}

// putL4 writes the L4 header but for ports, id and checksum.
func (f *Frames) putL4(frame []byte, l layout) {
	h := frame[l.l4:]
	switch f.Protocol {
	case UDP:
		binary.BigEndian.PutUint16(h[4:], uint16(f.Size-l.l4))
	case TCP:
		if !f.Sweep {
			binary.BigEndian.PutUint32(h[4:], 0x10000000)
		}
		binary.BigEndian.PutUint32(h[8:], 0x20000000)
		h[12], h[13] = 5<<4, cmp.Or(f.Flags, 0x10) // no options, ACK
		binary.BigEndian.PutUint16(h[14:], 0xffff) // window
	case ICMP:
		request, reply := uint8(8), uint8(0)
		if l.v6 {
			request, reply = 128, 129
		}
		h[0] = request
		if f.Reverse {
			h[0] = reply
		}
	}
}

// l4Sum is the sum of L4 and its pseudo header, with all that varies being zero.
func (f *Frames) l4Sum(frame []byte, l layout) uint32 {
	s := sum(frame[l.l4:])
	if f.Protocol == ICMP && !l.v6 {
		return s // no pseudo header: RFC 792
	}
	n := uint16(f.Size - l.l4)
	return s + sum(frame[l.l4-2*l.addrLen():l.l4]) +
		uint32(f.ipProtocol(l))<<8 + uint32(bits.ReverseBytes16(n))
}

// sum adds up 16-bit words as this machine reads them (RFC 1071: the order does
// not matter as long as it is kept to), unfolded.
func sum(b []byte) uint32 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.LittleEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0])
	}
	return s
}

// putPattern fills the payload behind the mark.
func putPattern(b []byte) {
	var word [8]byte
	for n := uint64(1); len(b) > 0; n++ {
		binary.LittleEndian.PutUint64(word[:], n*pattern)
		b = b[copy(b, word[:]):]
	}
}
