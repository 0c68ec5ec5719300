// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Announcement is a message that the kernel sent to all who listen for changes.
type Announcement struct {
	At   time.Time // when it was read here
	What string    // "route", "neigh", "nftables", ...
}

// Listener hears what the kernel announces in one namespace, as a daemon would, and when.
// It does not listen to conntrack: connections that are made while somebody does are
// announced when they are deleted, others are not, so listening would change what it hears.
type Listener struct {
	sockets []int
	running sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	heard   []Announcement
}

// announcers are the netlink families, and how a message's type is said in a word.
var announcers = []struct {
	family int
	groups []int
	word   func(message []byte) string
}{
	{unix.NETLINK_ROUTE, []int{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_TC, unix.RTNLGRP_NEXTHOP,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	}, routeWord},
	{unix.NETLINK_NETFILTER, []int{unix.NFNLGRP_NFTABLES}, func([]byte) string { return "nftables" }},
	{unix.NETLINK_XFRM, []int{3, 4}, func([]byte) string { return "xfrm" }}, // XFRMNLGRP_SA, XFRMNLGRP_POLICY
}

var routeWords = map[uint16]string{
	unix.RTM_NEWLINK: "link", unix.RTM_DELLINK: "link",
	unix.RTM_NEWADDR: "addr", unix.RTM_DELADDR: "addr",
	unix.RTM_NEWROUTE: "route", unix.RTM_DELROUTE: "route",
	unix.RTM_NEWNEIGH: "neigh", unix.RTM_DELNEIGH: "neigh",
	unix.RTM_NEWRULE: "rule", unix.RTM_DELRULE: "rule",
	unix.RTM_NEWQDISC: "qdisc", unix.RTM_DELQDISC: "qdisc",
	unix.RTM_NEWTFILTER: "filter", unix.RTM_DELTFILTER: "filter",
	unix.RTM_NEWNEXTHOP: "nexthop", unix.RTM_DELNEXTHOP: "nexthop",
	unix.RTM_NEWNETCONF: "netconf", unix.RTM_DELNETCONF: "netconf",
}

func routeWord(m []byte) string {
	kind := binary.NativeEndian.Uint16(m[4:])
	if word := routeWords[kind]; word != "neigh" || len(m) <= unix.NLMSG_HDRLEN || m[unix.NLMSG_HDRLEN] != unix.AF_BRIDGE {
		if word == "" {
			return fmt.Sprintf("rtnetlink %d", kind)
		}
		return word
	}
	return "fdb"
}

// Listen begins to listen. Close ends it.
func (n *NS) Listen() (*Listener, error) {
	l := &Listener{}
	for _, a := range announcers {
		fd, err := n.subscribe(a.family, a.groups)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lab: listen to netlink %d in %s: %w", a.family, n.name, err), l.Close())
		}
		l.sockets = append(l.sockets, fd)
		l.running.Go(func() { l.receive(fd, a.word) })
	}
	return l, nil
}

func (n *NS) subscribe(family int, groups []int) (fd int, err error) {
	err = n.Do(func() (err error) { // a socket stays in the namespace that it was made in
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
		return err
	})
	if err != nil {
		return -1, err
	}
	wake := unix.NsecToTimeval(int64(50 * time.Millisecond))
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake))
	for _, g := range groups {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// receive notes each message until the listener is closed. One that is lost (ENOBUFS) is
// lost: a listener that needs all of them must not make so many.
func (l *Listener) receive(fd int, word func([]byte) string) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		at := time.Now()
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return
		}
		if err == nil && n >= unix.NLMSG_HDRLEN {
			l.heard = append(l.heard, Announcement{at, word(buffer[:n])})
		}
		l.mu.Unlock()
	}
}

// Since is what was heard from a moment on, and forgets what was heard before it.
func (l *Listener) Since(t time.Time) []Announcement {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.heard) > 0 && l.heard[0].At.Before(t) {
		l.heard = l.heard[1:]
	}
	return append([]Announcement(nil), l.heard...)
}

// Close stops listening.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.running.Wait()
	var errs []error
	for _, fd := range l.sockets {
		errs = append(errs, unix.Close(fd))
	}
	l.sockets = nil
	return errors.Join(errs...)
}
