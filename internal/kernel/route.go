// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Packet is what the kernel routes by.
type Packet struct {
	Proto               uint8
	Source, Destination netip.AddrPort
	In                  int    // ifindex that it came in by; 0: sent by this host
	Mark                uint32 // fwmark
}

// Route is what the kernel would do with a packet.
type Route struct {
	Local bool       // it is for this host
	Out   int        // ifindex that it leaves by; 0 if it is not forwarded
	Via   netip.Addr // next hop; not valid if the destination is on the link
	Why   string     // why it is not forwarded, in the kernel's word: "unreachable", "no route", ...
}

// RouteOf asks the kernel how it would route a packet that comes in, as "ip route get ... from ... iif"
// does. It needs no rights.
func RouteOf(p Packet) (Route, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	defer conn.Close()
	body, err := routeQuery(p)
	if err != nil {
		return Route{}, fmt.Errorf("route: %w", err)
	}
	messages, err := nl.Ask(conn, unix.RTM_GETROUTE, 0, body)
	if why := unroutable(err); why != "" {
		return Route{Why: why}, nil
	}
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", p.Destination.Addr(), err)
	}
	if len(messages) != 1 || len(messages[0].Data) < unix.SizeofRtMsg {
		return Route{}, fmt.Errorf("route to %s: %d answers", p.Destination.Addr(), len(messages))
	}
	return decodeRoute(messages[0])
}

// unroutable puts the error of a route into a word (fib_props in net/ipv4/fib_semantics.c); "" if it is
// another one.
func unroutable(err error) string {
	for code, word := range map[unix.Errno]string{
		unix.ENETUNREACH: "no route", unix.EHOSTUNREACH: "unreachable", unix.EINVAL: "blackhole", unix.EACCES: "prohibit",
		unix.EXDEV: "its source would not be reached by the port that it came in by (rp_filter), or is one of this host's own",
	} {
		if errors.Is(err, code) {
			return word
		}
	}
	return ""
}

// Attributes that x/sys lacks (include/uapi/linux/rtnetlink.h).
const (
	rtaIPProto    = 27
	rtaSourcePort = 28
	rtaDestPort   = 29
)

func routeQuery(p Packet) ([]byte, error) {
	source, dest := p.Source.Addr(), p.Destination.Addr()
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.RTA_DST, dest.AsSlice())
	ae.Bytes(unix.RTA_SRC, source.AsSlice())
	if p.In != 0 {
		ae.Uint32(unix.RTA_IIF, uint32(p.In))
	}
	if p.Mark != 0 {
		ae.Uint32(unix.RTA_MARK, p.Mark)
	}
	switch p.Proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP: // the kernel takes ports of these alone (fib_rules by port)
		ae.Uint8(rtaIPProto, p.Proto)
		ae.Bytes(rtaSourcePort, binary.BigEndian.AppendUint16(nil, p.Source.Port()))
		ae.Bytes(rtaDestPort, binary.BigEndian.AppendUint16(nil, p.Destination.Port()))
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		ae.Uint8(rtaIPProto, p.Proto)
	}
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	head := make([]byte, unix.SizeofRtMsg)
	head[0], head[1], head[2] = unix.AF_INET, 32, 32
	if dest.Is6() {
		head[0], head[1], head[2] = unix.AF_INET6, 128, 128
	}
	return append(head, attrs...), nil
}

func decodeRoute(m netlink.Message) (Route, error) {
	var r Route
	kind := m.Data[7]
	err := nl.Attributes(m, unix.SizeofRtMsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.RTA_OIF:
			r.Out = int(ad.Uint32())
		case unix.RTA_GATEWAY:
			r.Via, _ = netip.AddrFromSlice(ad.Bytes())
		case unix.RTA_VIA:
			if b := ad.Bytes(); len(b) > 2 {
				r.Via, _ = netip.AddrFromSlice(b[2:])
			}
		}
	})
	switch kind {
	case unix.RTN_LOCAL, unix.RTN_ANYCAST:
		r.Local, r.Out = true, 0
	case unix.RTN_BROADCAST, unix.RTN_MULTICAST:
		r.Why, r.Out = "broadcast or multicast", 0
	case unix.RTN_UNREACHABLE:
		r.Why, r.Out = "unreachable", 0
	case unix.RTN_BLACKHOLE:
		r.Why, r.Out = "blackhole", 0
	case unix.RTN_PROHIBIT:
		r.Why, r.Out = "prohibit", 0
	}
	return r, err
}

// Lookup asks conntrack for the entry that a packet belongs to, in either direction. It returns
// ErrNoConnection if there is none. Zones other than 0 are found if the tuple names them.
func Lookup(t Tuple) (Connection, error) {
	body, err := tupleQuery(t)
	if err != nil {
		return Connection{}, fmt.Errorf("conntrack: %v: %w", t, err)
	}
	m, err := askOnce(unix.NETLINK_NETFILTER, netlink.Message{Header: netlink.Header{Type: ctGet, Flags: netlink.Request, Sequence: 1}, Data: body})
	if errors.Is(err, unix.ENOENT) {
		return Connection{}, ErrNoConnection
	}
	if err != nil {
		return Connection{}, fmt.Errorf("conntrack: %v: %w", t, err)
	}
	return decodeConnection(m)
}

// askOnce sends a request and returns the first message of the answer. That of ctnetlink says that more
// will come (ctnetlink_fill_info sets NLM_F_MULTI), none does, and package netlink would wait for it.
func askOnce(family int, request netlink.Message) (m netlink.Message, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return m, err
	}
	defer unix.Close(fd)
	request.Header.Length = uint32(unix.NLMSG_HDRLEN + len(request.Data))
	b, err := request.MarshalBinary()
	if err != nil {
		return m, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return m, err
	}
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return m, err
	}
	answer := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return m, err
	}
	if err := m.UnmarshalBinary(answer[:n]); err != nil {
		return m, err
	}
	if m.Header.Type == netlink.Error && len(m.Data) >= 4 {
		return m, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	}
	return m, nil
}

func tupleQuery(t Tuple) ([]byte, error) {
	source, dest := t.Source.Addr(), t.Destination.Addr()
	if !source.IsValid() || source.Is4() != dest.Is4() {
		return nil, errors.New("addresses of one family are needed")
	}
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Nested(ctaTupleOrig, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(ctaTupleIP, func(ae *netlink.AttributeEncoder) error {
			from, to := uint16(ctaIPv4Source), uint16(ctaIPv4Dest)
			if source.Is6() {
				from, to = ctaIPv6Source, ctaIPv6Dest
			}
			ae.Bytes(from, source.AsSlice())
			ae.Bytes(to, dest.AsSlice())
			return nil
		})
		ae.Nested(ctaTupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(ctaProtoNumber, t.Proto)
			// type and code follow the id (enum ctattr_l4proto)
			switch t.Proto {
			case unix.IPPROTO_ICMP:
				ae.Uint16(ctaProtoICMPID, t.Echo)
				ae.Uint8(ctaProtoICMPID+1, t.Type)
				ae.Uint8(ctaProtoICMPID+2, 0)
			case unix.IPPROTO_ICMPV6:
				ae.Uint16(ctaProtoICMPv6ID, t.Echo)
				ae.Uint8(ctaProtoICMPv6ID+1, t.Type)
				ae.Uint8(ctaProtoICMPv6ID+2, 0)
			default:
				ae.Uint16(ctaProtoSourcePort, t.Source.Port())
				ae.Uint16(ctaProtoDestPort, t.Destination.Port())
			}
			return nil
		})
		return nil
	})
	if t.Zone != 0 {
		ae.Uint16(ctaZone, t.Zone)
	}
	attrs, err := ae.Encode()
	family := byte(unix.AF_INET)
	if source.Is6() {
		family = unix.AF_INET6
	}
	return append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), err
}
