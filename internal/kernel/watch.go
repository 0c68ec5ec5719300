// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nft"
	"shunt/internal/nl"
)

// EventKind says what kind of thing changed.
type EventKind int

// The kinds.
const (
	EventResync        EventKind = iota // anything may have changed: read everything again
	EventLink                           // an interface: new, gone, or any property of it
	EventAddr                           // an address of this host, other than its lifetime
	EventRoute                          // a route, IPv4 or IPv6
	EventRule                           // a policy rule
	EventNeigh                          // a known neighbour has another MAC, failed or is gone
	EventNexthop                        // a nexthop object or group, other than a new one
	EventQdisc                          // a qdisc or traffic class
	EventFilter                         // a tc filter, chain or block
	EventNftables                       // the ruleset: one event per transaction
	EventXDPFeatures                    // what a driver can do for XDP
	EventNetconf                        // forwarding, rp_filter and their like
	EventXFRM                           // an IPsec policy or state
	EventFDB                            // a MAC that a bridge learned, moved or forgot
	EventConntrack                      // a connection that was deleted before its time
	EventConntrackLost                  // connections were deleted, and which ones was lost
	EventNeighNew                       // a neighbour that the kernel can send to now, and could not before
	eventKinds
)

var eventNames = [eventKinds]string{"resync", "link", "addr", "route", "rule", "neigh", "nexthop",
	"qdisc", "filter", "nftables", "xdp-features", "netconf", "xfrm", "fdb", "conntrack", "conntrack-lost", "neigh-new"}

// String returns the kind's word, as counters and logs use it.
func (k EventKind) String() string {
	if k < 0 || k >= eventKinds {
		return fmt.Sprintf("event %d", int(k))
	}
	return eventNames[k]
}

// Event is one change that the kernel announced.
type Event struct {
	Kind    EventKind
	Index   int          // interface; 0 where there is none, or it concerns all; FDB: the bridge port
	Deleted bool         // rather than new or changed
	Name    string       // Link: its name; Nftables: the program that changed the rules
	Link    LinkChange   // Link: what is new about it; 0: nothing that a packet could meet
	Table   uint32       // Route: the routing table
	Prefix  netip.Prefix // Addr, Route (destination), Neigh and NeighNew (the neighbour's address)
	// MAC is, for Neigh, the one the neighbour had until now, or before it was deleted.
	// A neighbour that the kernel forgot because nobody used it is Deleted too, so an
	// event whose MAC no entry uses can be ignored. For FDB and NeighNew it is the one it is about.
	MAC net.HardwareAddr
	// Elements is, for Nftables, everything that the transaction can have changed: what
	// comes from these addresses or goes to them. nil: anything. Touched is what must be read again.
	Elements []netip.Prefix
	Touched  nft.Touched
	// Near is, for Link, Addr and Netconf, the interfaces that stand below, above and beside the one that
	// it is about, before and after, and that one. nil: not known.
	Near []int
	// Routes is, for the same, the prefixes that the routes by that interface lead to. nil: not known.
	Routes []netip.Prefix
	// Ended is, for Conntrack, the connection's original and its reply direction.
	Ended [2]Tuple
}

// receiveBuffer is what each socket may hold before messages are lost, in bytes. A
// full feed of 1 million routes loaded at once overruns it, which costs a Resync.
const receiveBuffer = 8 << 20

const (
	retry = time.Second            // before a socket is opened again or a failed dump repeated
	apart = 100 * time.Millisecond // between two losses of a socket: each costs a dump
)

// Watcher hears what the kernel announces. One goroutine calls Next; between two calls nothing
// is read, so a slow reader loses detail but no change: the sockets overflow, and a Resync
// reports that.
//
// Next waits in ppoll(2) on the sockets themselves and does not use the runtime's poller.
// A goroutine that is locked to a real-time thread therefore wakes up with that thread, without
// waiting for an ordinary one to hand it a message or a timer.
type Watcher struct {
	ctx     context.Context
	sources []*source
	queue   []Event // decoded and not returned yet
	polls   []unix.PollFd
	polled  []*source // of polls, behind the first
	buffer  []byte

	mu     sync.Mutex
	wake   int // eventfd, first of polls; -1 after the end
	told   []Event
	opened []*source // sockets that replace lost ones
}

// Watch subscribes to everything that can change where a packet goes. What is read after
// Watch returned is never older than the first event. A Resync follows whenever messages
// were lost. The Watcher ends with ctx, and not before.
//
// An error means that the kernel lacks what is needed, or the right to listen.
func Watch(ctx context.Context) (*Watcher, error) {
	return watch(ctx, receiveBuffer)
}

func watch(ctx context.Context, buffer int) (*Watcher, error) {
	sources, err := openSources(buffer)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	w := &Watcher{ctx: ctx, sources: sources, buffer: make([]byte, datagram)}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.close()
		return nil, fmt.Errorf("watch: eventfd: %w", err)
	}
	context.AfterFunc(ctx, w.ring)
	return w, nil
}

// Next returns the next event. It returns false if there is none until a time, which a zero
// time does not limit, and once ctx has ended.
func (w *Watcher) Next(until time.Time) (Event, bool) {
	for {
		if w.ctx.Err() != nil {
			w.close()
			return Event{}, false
		}
		if len(w.queue) > 0 {
			e := w.queue[0]
			w.queue = w.queue[1:]
			return e, true
		}
		now := time.Now()
		if !until.IsZero() && !now.Before(until) {
			return Event{}, false
		}
		w.poll(now, until)
	}
}

// poll waits for messages, and reads one datagram of each socket that has some.
func (w *Watcher) poll(now, until time.Time) {
	w.polls = append(w.polls[:0], unix.PollFd{Fd: int32(w.wake), Events: unix.POLLIN})
	w.polled = w.polled[:0]
	for _, s := range w.sources {
		switch {
		case s.lent:
		case s.after.After(now):
			if until.IsZero() || s.after.Before(until) {
				until = s.after
			}
		default:
			w.polls = append(w.polls, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
			w.polled = append(w.polled, s)
		}
	}
	var timeout *unix.Timespec
	if !until.IsZero() {
		t := unix.NsecToTimespec(max(0, until.Sub(now).Nanoseconds()))
		timeout = &t
	}
	if _, err := unix.Ppoll(w.polls, timeout, nil); err != nil {
		return // a signal of the Go runtime
	}
	if w.polls[0].Revents != 0 {
		w.collect()
	}
	for i, s := range w.polled {
		if w.polls[i+1].Revents != 0 && !w.receive(s) {
			w.replace(s)
		}
	}
}

// datagram is the size of the receive buffer, in bytes: more than the kernel puts into one.
const datagram = 256 << 10

// receive queues the events of one datagram. It returns false if messages were lost. A message
// that cannot be decoded is a change that nobody knows, and counts as lost.
func (w *Watcher) receive(s *source) bool {
	n, _, flags, _, err := unix.Recvmsg(s.fd, w.buffer, nil, unix.MSG_DONTWAIT)
	if err == unix.EAGAIN || err == unix.EINTR {
		return true
	}
	if err != nil || flags&unix.MSG_TRUNC != 0 {
		return false
	}
	messages, err := syscall.ParseNetlinkMessage(bytes.Clone(w.buffer[:n]))
	if err != nil {
		return false
	}
	for _, m := range messages {
		if s.pace != nil {
			now := time.Now()
			s.after = now.Add(s.pace.wait(now))
		}
		e, tell, err := s.decode(netlink.Message{
			Header: netlink.Header{Length: m.Header.Len, Type: netlink.HeaderType(m.Header.Type), Flags: netlink.HeaderFlags(m.Header.Flags),
				Sequence: m.Header.Seq, PID: m.Header.Pid},
			Data: m.Data,
		})
		if err != nil {
			return false
		}
		if tell {
			w.queue = append(w.queue, e)
		}
	}
	return true
}

// replace opens a socket again, in a goroutine, since what decode compares with is read again
// by whole tables. An overrun (ENOBUFS) is no exception: until the old socket's queue is empty the
// kernel drops what follows without saying so again (NETLINK_S_CONGESTED in
// net/netlink/af_netlink.c).
func (w *Watcher) replace(s *source) {
	s.lent = true
	unix.Close(s.fd)
	go func() {
		pause(w.ctx, apart-time.Since(s.since))
		for s.open() != nil {
			if pause(w.ctx, retry); w.ctx.Err() != nil {
				return
			}
		}
		for s.reload != nil && s.reload() != nil {
			w.report(Event{Kind: s.lost}, nil)
			if pause(w.ctx, retry); w.ctx.Err() != nil {
				break
			}
		}
		w.report(Event{Kind: s.lost}, s)
	}()
}

// report has Next return an event, after which it reads s again. Messages that s has received
// since it was opened come behind the event.
func (w *Watcher) report(e Event, s *source) {
	w.mu.Lock()
	ended := w.wake < 0
	w.told = append(w.told, e)
	if s != nil {
		w.opened = append(w.opened, s)
	}
	w.mu.Unlock()
	if ended && s != nil {
		unix.Close(s.fd)
	}
	w.ring()
}

// collect takes over what goroutines have reported.
func (w *Watcher) collect() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var n [8]byte
	unix.Read(w.wake, n[:])
	w.queue = append(w.queue, w.told...)
	w.told = nil
	for _, s := range w.opened {
		s.lent = false
	}
	w.opened = nil
}

// ring ends a wait.
func (w *Watcher) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wake >= 0 {
		unix.Write(w.wake, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

// close closes what goroutines do not own.
func (w *Watcher) close() {
	w.collect()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wake < 0 {
		return
	}
	unix.Close(w.wake)
	w.wake = -1
	for _, s := range w.sources {
		if !s.lent {
			unix.Close(s.fd)
		}
	}
}

// source is one subscribed socket.
type source struct {
	family int
	groups []uint32
	filter []unix.SockFilter // what the kernel delivers; nil: everything
	pace   *pace             // how fast it is read; nil: at once
	buffer int
	lost   EventKind // what is said when messages were lost
	fd     int
	since  time.Time                                  // when conn was opened
	after  time.Time                                  // when it may be read next
	lent   bool                                       // a goroutine opens it again
	decode func(netlink.Message) (Event, bool, error) // false: nothing to tell
	reload func() error                               // read again what decode compares with
}

func openSources(buffer int) (opened []*source, err error) {
	defer func() {
		if err != nil {
			for _, s := range opened {
				unix.Close(s.fd)
			}
		}
	}()
	family, group, err := netdevGroupID()
	if err != nil {
		return nil, err
	}
	route, rules := &routeDecoder{}, &nft.Decoder{}
	for _, s := range []*source{
		{family: unix.NETLINK_ROUTE, groups: routeGroups, decode: route.decode, reload: route.reload},
		{family: unix.NETLINK_GENERIC, groups: []uint32{group}, decode: netdevDecoder(family)},
		{family: unix.NETLINK_NETFILTER, groups: []uint32{unix.NFNLGRP_NFTABLES}, decode: decodeTransaction(rules), reload: rules.Reload},
		{family: unix.NETLINK_NETFILTER, groups: []uint32{unix.NFNLGRP_CONNTRACK_DESTROY}, decode: decodeDestroyed,
			filter: endedEarly, pace: &pace{}, lost: EventConntrackLost},
		{family: unix.NETLINK_XFRM, groups: xfrmGroups, decode: decodeXFRM},
	} {
		s.buffer = buffer
		err := s.open()
		if s.family != unix.NETLINK_ROUTE && nl.Absent(err) {
			continue // no nftables, conntrack or IPsec in this kernel: nothing to hear
		}
		if err != nil {
			return opened, err
		}
		opened = append(opened, s)
	}
	if err := route.reload(); err != nil {
		return opened, err
	}
	return opened, rules.Reload()
}

// decodeTransaction makes events of what nft says.
func decodeTransaction(rules *nft.Decoder) func(netlink.Message) (Event, bool, error) {
	return func(m netlink.Message) (Event, bool, error) {
		t, ended, err := rules.Decode(m)
		return Event{Kind: EventNftables, Name: t.Program, Elements: t.Elements, Touched: t.Touched}, ended, err
	}
}

// open makes the socket and subscribes. It is none of package netlink's, which the runtime's poller
// watches too: every message would wake up an ordinary thread of this process besides, which
// may be interrupted while it holds the scheduler's lock.
func (s *source) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.family)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	if err := s.subscribe(fd); err != nil {
		unix.Close(fd)
		return err
	}
	s.fd, s.since = fd, time.Now()
	return nil
}

func (s *source) subscribe(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, s.buffer)
	if err == unix.EPERM { // the limit is rmem_max
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, s.buffer)
	}
	if err == nil && s.filter != nil {
		program := unix.SockFprog{Len: uint16(len(s.filter)), Filter: unsafe.SliceData(s.filter)}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	for _, g := range s.groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(g))
		}
	}
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	return nil
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// What a flood of messages may cost: a burst is read at once, so that a deletion of many
// is heard of as one, and then so many a second, a few percent of a core.
const (
	paceBurst = 4096
	paceRate  = 10000
	paceSleep = 10 * time.Millisecond
)

// pace is a token bucket.
type pace struct {
	tokens float64
	at     time.Time
}

// wait takes a token for a message and returns how long to wait before it is looked at.
func (p *pace) wait(now time.Time) time.Duration {
	p.tokens = min(paceBurst, p.tokens+now.Sub(p.at).Seconds()*paceRate) - 1
	p.at = now
	if p.tokens >= 0 {
		return 0
	}
	return paceSleep
}
