// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// ErrNoLink says that there is no interface of that name.
var ErrNoLink = errors.New("no such interface")

// Neighbour is what the kernel knows of an address beside a link.
type Neighbour struct {
	MAC    net.HardwareAddr // that frames go to; nil: the kernel sends none
	Failed bool             // it was asked for and has not answered
	Static bool             // set by hand or by the kind of device: nobody asks for it
}

// Resolver asks how frames get to a neighbour, one thing at a time, and makes the kernel find
// out. Its methods may be called at the same time.
type Resolver struct {
	conn *netlink.Conn
}

// OpenResolver opens an rtnetlink socket.
func OpenResolver() (*Resolver, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("resolver: %w", err)
	}
	return &Resolver{conn}, nil
}

// Close closes the socket.
func (r *Resolver) Close() error { return r.conn.Close() }

// Link returns the interface of a name, without what Links reads from elsewhere (qdisc, driver,
// features, offloads) or from other links, or ErrNoLink.
func (r *Resolver) Link(name string) (Link, error) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, name)
	ae.Uint32(unix.IFLA_EXT_MASK, skipStats)
	body, err := ae.Encode()
	if err != nil {
		return Link{}, err
	}
	messages, err := nl.Ask(r.conn, unix.RTM_GETLINK, 0, append(make([]byte, unix.SizeofIfInfomsg), body...))
	if errors.Is(err, unix.ENODEV) {
		return Link{}, ErrNoLink
	}
	if err != nil {
		return Link{}, fmt.Errorf("interface %s: %w", name, err)
	}
	if len(messages) != 1 {
		return Link{}, fmt.Errorf("interface %s: %d answers", name, len(messages))
	}
	l, err := decodeLink(messages[0])
	return l.Link, err
}

// Neighbour returns what the kernel knows of an address; nothing, if it does not know it.
func (r *Resolver) Neighbour(index int, addr netip.Addr) (Neighbour, error) {
	messages, err := nl.Ask(r.conn, unix.RTM_GETNEIGH, 0, neighbourQuery(index, addr, 0))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return Neighbour{}, nil
	}
	if err != nil {
		return Neighbour{}, fmt.Errorf("neighbour %s: %w", addr, err)
	}
	if len(messages) != 1 {
		return Neighbour{}, fmt.Errorf("neighbour %s: %d answers", addr, len(messages))
	}
	return decodeNeighbour(messages[0])
}

// Use tells the kernel that a neighbour is in use, as a packet to it would: it asks for the MAC
// if it does not know it, or has not heard of it for a while, and finds out if it is gone.
//
// Not for a Static one: NTF_USE takes NUD_PERMANENT away (neigh_add() in
// net/core/neighbour.c, since 5.16).
func (r *Resolver) Use(index int, addr netip.Addr) error {
	_, err := nl.Ask(r.conn, unix.RTM_NEWNEIGH, netlink.Acknowledge|netlink.Create, neighbourQuery(index, addr, unix.NTF_USE))
	if err != nil {
		return fmt.Errorf("neighbour %s: %w", addr, err)
	}
	return nil
}

// neighbourQuery is an ndmsg with the address.
func neighbourQuery(index int, addr netip.Addr, flags uint8) []byte {
	b := make([]byte, sizeofNdmsg, sizeofNdmsg+20)
	b[0] = unix.AF_INET6
	if addr.Is4() {
		b[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	b[10] = flags
	raw := addr.AsSlice()
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(raw)))
	b = binary.NativeEndian.AppendUint16(b, unix.NDA_DST)
	return append(b, raw...)
}

func decodeNeighbour(m netlink.Message) (n Neighbour, err error) {
	var mac net.HardwareAddr
	err = nl.Attributes(m, sizeofNdmsg, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NDA_LLADDR {
			mac = ad.Bytes()
		}
	})
	if err != nil {
		return n, err
	}
	state := binary.NativeEndian.Uint16(m.Data[8:])
	n.Failed = state&unix.NUD_FAILED != 0
	n.Static = state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
	if state&usable != 0 {
		n.MAC = mac
	}
	return n, nil
}
