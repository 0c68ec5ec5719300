// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// ErrNoRoute says that the kernel has no route to an address.
var ErrNoRoute = errors.New("no route")

// LabelSocket hears the labelled frames that a data path has passed up, and sends frames to
// neighbours and IP packets to wherever the kernel's routes lead. It takes CAP_NET_RAW to open
// one, none to use it. Hear is for one goroutine; the rest may be called by others meanwhile.
type LabelSocket struct {
	packets *os.File // AF_PACKET, behind the Ethernet header
	pair    *os.File // the same, of one interface alone
	routed  [2]int   // raw IPv4 and IPv6, with their headers
	bound   bool
}

// OpenLabelSocket opens one that hears nothing until Listen.
func OpenLabelSocket() (*LabelSocket, error) {
	s := &LabelSocket{routed: [2]int{-1, -1}}
	for name, file := range map[string]**os.File{"labelled frames": &s.packets, "frames that were to get labels": &s.pair} {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("packet socket: %w", err), s.Close())
		}
		*file = os.NewFile(uintptr(fd), name)
	}
	var err error
	for i := range s.routed {
		s.routed[i], err = sendOnly(i == 1)
		if err != nil && (i == 0 || !errors.Is(err, unix.EAFNOSUPPORT)) {
			return nil, errors.Join(fmt.Errorf("raw socket: %w", err), s.Close())
		}
	}
	return s, nil
}

// sendOnly is a raw socket for packets with their headers. It is one of ICMP, of which the kernel
// gives copies away, here to nobody: one of IPPROTO_RAW would take packets of protocol 255, so that
// the router no longer answered that it does not know it (raw_v4_input, ip_protocol_deliver_rcu).
func sendOnly(six bool) (fd int, err error) {
	const rawLevel, icmpFilter = 255, 1 // SOL_RAW, ICMP_FILTER
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if six {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	if fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
		return -1, err
	}
	if six {
		none := unix.ICMPv6Filter{}
		for i := range none.Data {
			none.Data[i] = 1<<32 - 1
		}
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL, 1),
			unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &none))
	} else {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_HDRINCL, 1),
			unix.SetsockoptInt(fd, rawLevel, icmpFilter, -1))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Close closes it, and ends Hear.
func (s *LabelSocket) Close() error {
	for _, fd := range s.routed {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return errors.Join(s.packets.Close(), s.pair.Close())
}

// Listen says from which interfaces frames are heard.
func (s *LabelSocket) Listen(indexes []int) error {
	var to *unix.SockaddrLinklayer
	if !s.bound && len(indexes) > 0 {
		to = &unix.SockaddrLinklayer{Protocol: wire16(unix.ETH_P_MPLS_UC)}
	}
	err := hears(s.packets, labelFilter(indexes), to)
	s.bound = s.bound || to != nil && err == nil
	return err
}

// hears has a packet socket take what a filter takes, and, if to is not nil, of there alone.
func hears(socket *os.File, filter []unix.SockFilter, to *unix.SockaddrLinklayer) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
		if failed == nil && to != nil {
			failed = unix.Bind(int(fd), to)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("%s: %w", socket.Name(), err)
	}
	return nil
}

// What filters are made of: load a word, skip unless it is this one, give so many bytes.
const (
	load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	same  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	give  = unix.BPF_RET | unix.BPF_K
	whole = 1 << 18

	ancillary  = 1<<32 - 0x1000 // SKF_AD_OFF
	packetType = ancillary + 4  // SKF_AD_PKTTYPE
	cameInBy   = ancillary + 8  // SKF_AD_IFINDEX
)

// labelFilter takes frames to this host that came in by one of some interfaces. Each has its own
// end, for a jump is no longer than a byte says; so many fit that shunt has not that many ports.
func labelFilter(indexes []int) []unix.SockFilter {
	f := []unix.SockFilter{
		{Code: load, K: packetType},
		{Code: same, Jt: 1, K: unix.PACKET_HOST},
		{Code: give},
		{Code: load, K: cameInBy},
	}
	for _, index := range indexes {
		f = append(f, unix.SockFilter{Code: same, Jf: 1, K: uint32(index)}, unix.SockFilter{Code: give, K: whole})
	}
	return append(f, unix.SockFilter{Code: give})
}

// ListenPair says at which interface HearPair hears what comes in there, whoever it is for; at none,
// if it is 0.
func (s *LabelSocket) ListenPair(index int) error {
	if index == 0 {
		return hears(s.pair, []unix.SockFilter{{Code: give}}, nil)
	}
	return hears(s.pair, []unix.SockFilter{
		{Code: load, K: packetType},
		{Code: same, Jf: 1, K: unix.PACKET_OTHERHOST},
		{Code: give, K: whole}, {Code: give},
	}, &unix.SockaddrLinklayer{Protocol: wire16(unix.ETH_P_ALL), Ifindex: index})
}

// HearPair is Hear for them.
func (s *LabelSocket) HearPair(buffer []byte) (n int, err error) {
	n, _, err = hear(s.pair, buffer)
	return n, err
}

// Speaker is the address from which this host speaks to another one, as the kernel chooses it; to
// itself, the same address. None if there is no way.
func (s *LabelSocket) Speaker(to netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return netip.Addr{}, nil
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// Hear waits for a frame, and reads what is behind its Ethernet header. After Close the error is
// os.ErrClosed.
func (s *LabelSocket) Hear(buffer []byte) (n, index int, err error) { return hear(s.packets, buffer) }

func hear(file *os.File, buffer []byte) (n, index int, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		var from unix.Sockaddr
		n, from, failed = unix.Recvfrom(int(fd), buffer, 0)
		if at, ok := from.(*unix.SockaddrLinklayer); ok {
			index = at.Ifindex
		}
		// ENETDOWN: the one interface went, and there may be another one
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR) && !errors.Is(failed, unix.ENETDOWN)
	})
	if err != nil {
		return 0, 0, os.ErrClosed
	}
	return n, index, failed
}

// Send sends a packet to a neighbour of an interface.
func (s *LabelSocket) Send(index int, to net.HardwareAddr, etherType uint16, packet []byte) error {
	address := &unix.SockaddrLinklayer{Protocol: wire16(etherType), Ifindex: index, Halen: uint8(len(to))}
	copy(address.Addr[:], to)
	raw, err := s.packets.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT, address) })
	return errors.Join(err, failed)
}

// Route sends an IP packet to an address by the kernel's routes, or is ErrNoRoute. What routes or
// rules forbid is lost without an error, and so is what goes to a broadcast address.
func (s *LabelSocket) Route(to netip.Addr, packet []byte) error {
	var err error
	if to.Is4() {
		err = unix.Sendto(s.routed[0], packet, unix.MSG_DONTWAIT, &unix.SockaddrInet4{Addr: to.As4()})
	} else {
		err = unix.Sendto(s.routed[1], packet, unix.MSG_DONTWAIT, &unix.SockaddrInet6{Addr: to.As16()})
	}
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EADDRNOTAVAIL): // IPv6 is off
		return ErrNoRoute
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
		return nil
	}
	return err
}

// wire16 is a number in network byte order, as the kernel wants protocols.
func wire16(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// Addresses returns the addresses of all interfaces, by ifindex, each with the length of its
// subnet's prefix, in the kernel's order.
func (r *Resolver) Addresses() (map[int][]netip.Prefix, error) {
	messages, err := nl.Ask(r.conn, unix.RTM_GETADDR, netlink.Dump, make([]byte, unix.SizeofIfAddrmsg))
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	all := map[int][]netip.Prefix{}
	for _, m := range messages {
		prefix, err := decodeAddress(m)
		if err != nil {
			return nil, fmt.Errorf("addresses: %w", err)
		}
		if prefix.IsValid() {
			index := int(binary.NativeEndian.Uint32(m.Data[4:]))
			all[index] = append(all[index], prefix)
		}
	}
	return all, nil
}

// decodeAddress is the interface's own address: IFA_LOCAL, which IPv6 has on point-to-point
// links alone.
func decodeAddress(m netlink.Message) (netip.Prefix, error) {
	var local, remote netip.Addr
	err := nl.Attributes(m, unix.SizeofIfAddrmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.IFA_ADDRESS:
			remote, _ = netip.AddrFromSlice(ad.Bytes())
		}
	})
	if err != nil {
		return netip.Prefix{}, err
	}
	if !local.IsValid() {
		local = remote
	}
	return netip.PrefixFrom(local, int(m.Data[1])), nil
}
