// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// The two ends of the veth pair in which IP packets get labels. What is sent to the outer one comes
// as it would from a wire: checksums complete, no longer than one packet.
const (
	PairOuter = "shunt-ftn"
	PairInner = "shunt-ftn-in"
)

// pairMTU takes whatever the kernel has let out to a port. With less than IPv6 wants, an interface is
// none of IPv6's (ipv6_add_dev): it joins groups as it becomes one, and tells of those.
const (
	pairMTU      = 65535
	pairMTUFirst = 1279
)

// MakePair makes the pair where it is not there, whole and up, and returns both ends by ifindex. An
// end that somebody else has made is an error, as is whatever keeps one from being made.
func (r *Resolver) MakePair() (outer, inner int, err error) {
	a, errA := r.Link(PairOuter)
	b, errB := r.Link(PairInner)
	for _, err := range []error{errA, errB} {
		if err != nil && !errors.Is(err, ErrNoLink) {
			return 0, 0, err
		}
	}
	switch {
	case errA == nil && a.Kind != "veth" || errB == nil && b.Kind != "veth":
		return 0, 0, fmt.Errorf("%s or %s is an interface that shunt has not made: rename it, they are for IP packets that get labels", PairOuter, PairInner)
	case errA == nil && errB == nil && a.Up && b.Up && a.Parent == b.Index:
		return a.Index, b.Index, nil
	case errA == nil || errB == nil: // a daemon died while it made it, or somebody has set it down
		if err := r.RemovePair(); err != nil {
			return 0, 0, err
		}
	}
	if err := r.makePair(); err != nil {
		return 0, 0, fmt.Errorf("%s, where IP packets get labels: %w", PairOuter, errors.Join(err, r.RemovePair()))
	}
	if a, err = r.Link(PairOuter); err == nil {
		b, err = r.Link(PairInner)
	}
	return a.Index, b.Index, err
}

// RemovePair removes it, if it is there.
func (r *Resolver) RemovePair() error {
	for _, name := range []string{PairOuter, PairInner} {
		l, err := r.Link(name)
		if errors.Is(err, ErrNoLink) {
			continue
		}
		if err == nil && l.Kind == "veth" {
			_, err = nl.Ask(r.conn, unix.RTM_DELLINK, netlink.Acknowledge, linkMessageOf(l.Index, 0, 0))
		}
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

func (r *Resolver) makePair() error {
	body, err := pairRequest(runtime.NumCPU())
	if err != nil {
		return err
	}
	if _, err := nl.Ask(r.conn, unix.RTM_NEWLINK, netlink.Acknowledge|netlink.Create|netlink.Excl, body); err != nil {
		return err
	}
	if err := finishInSoftware(PairOuter); err != nil {
		return err
	}
	for _, name := range []string{PairInner, PairOuter} {
		if err := r.mute(name); err != nil {
			return err
		}
	}
	for _, name := range []string{PairInner, PairOuter} {
		l, err := r.Link(name)
		if err != nil {
			return err
		}
		if _, err := nl.Ask(r.conn, unix.RTM_NEWLINK, netlink.Acknowledge, linkMessageOf(l.Index, unix.IFF_UP, unix.IFF_UP)); err != nil {
			return err
		}
	}
	return nil
}

// mute sees to it that the kernel has nothing to say on an interface by itself: no ARP, no groups, no
// address of its own. It is for one that is down.
func (r *Resolver) mute(name string) error {
	const (
		inet6AddrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
		none             = 1 // IN6_ADDR_GEN_MODE_NONE
	)
	l, err := r.Link(name)
	if err != nil {
		return err
	}
	flags := linkMessageOf(l.Index, unix.IFF_NOARP, unix.IFF_NOARP|unix.IFF_MULTICAST)
	if _, err := nl.Ask(r.conn, unix.RTM_NEWLINK, netlink.Acknowledge, flags); err != nil {
		return err
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint32(unix.IFLA_MTU, pairMTU)
	mtu, err := ae.Encode()
	if err != nil {
		return err
	}
	if _, err := nl.Ask(r.conn, unix.RTM_NEWLINK, netlink.Acknowledge, append(linkMessageOf(l.Index, 0, 0), mtu...)); err != nil {
		return err
	}
	ae = netlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_AF_SPEC, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(unix.AF_INET6, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(inet6AddrGenMode, none)
			return nil
		})
		return nil
	})
	spec, err := ae.Encode()
	if err != nil {
		return err
	}
	_, err = nl.Ask(r.conn, unix.RTM_NEWLINK, netlink.Acknowledge, append(linkMessageOf(l.Index, 0, 0), spec...))
	if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		return nil
	}
	return err
}

// linkMessageOf is an ifinfomsg that changes flags.
func linkMessageOf(index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// pairRequest is the pair with a queue for each CPU.
func pairRequest(queues int) ([]byte, error) {
	const vethPeer = 1 // VETH_INFO_PEER
	end := func(ae *netlink.AttributeEncoder, name string) {
		ae.String(unix.IFLA_IFNAME, name)
		ae.Uint32(unix.IFLA_MTU, pairMTUFirst)
		ae.Uint32(unix.IFLA_NUM_TX_QUEUES, uint32(queues))
		ae.Uint32(unix.IFLA_NUM_RX_QUEUES, uint32(queues))
	}
	peer := netlink.NewAttributeEncoder()
	end(peer, PairInner)
	inner, err := peer.Encode()
	if err != nil {
		return nil, err
	}
	ae := netlink.NewAttributeEncoder()
	end(ae, PairOuter)
	ae.Nested(unix.IFLA_LINKINFO, func(ae *netlink.AttributeEncoder) error {
		ae.String(unix.IFLA_INFO_KIND, "veth")
		ae.Nested(unix.IFLA_INFO_DATA, func(ae *netlink.AttributeEncoder) error {
			ae.Bytes(unix.NLA_F_NESTED|vethPeer, append(make([]byte, unix.SizeofIfInfomsg), inner...))
			return nil
		})
		return nil
	})
	outer, err := ae.Encode()
	return append(make([]byte, unix.SizeofIfInfomsg), outer...), err
}

// finishInSoftware has the stack complete checksums and cut long packets before an interface has
// them (ethtool -K … tx off tso off gso off).
func finishInSoftware(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, command := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_STXCSUM} {
		value := struct{ command, on uint32 }{command, 0}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			rest [16]byte // of the union that data is in
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return fmt.Errorf("its offloads cannot be switched off: %w", errno)
		}
	}
	return nil
}
