// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

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
	// comes from these addresses or goes to them. nil: anything.
	Elements []netip.Prefix
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

// Watch subscribes to everything that can change where a packet goes, and sends
// what happens from then on: what is read after Watch returned is never older than
// the first event. A Resync follows whenever messages were lost. The channel is
// closed when ctx ends, and not before. A reader that is slow loses nothing but
// detail: the sockets overflow, and a Resync says so.
//
// An error means that the kernel lacks what is needed, or the right to listen.
func Watch(ctx context.Context) (<-chan Event, error) {
	return watch(ctx, receiveBuffer)
}

func watch(ctx context.Context, buffer int) (<-chan Event, error) {
	sources, err := openSources(buffer)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	events := make(chan Event)
	var running sync.WaitGroup
	for _, s := range sources {
		running.Go(func() { s.run(ctx, events) })
	}
	go func() {
		running.Wait()
		close(events)
	}()
	return events, nil
}

// source is one subscribed socket.
type source struct {
	family int
	groups []uint32
	filter []unix.SockFilter // what the kernel delivers; nil: everything
	pace   *pace             // how fast it is read; nil: at once
	buffer int
	lost   EventKind // what is said when messages were lost
	conn   *netlink.Conn
	decode func(netlink.Message) (Event, bool, error) // false: nothing to tell
	reload func() error                               // read again what decode compares with
}

func openSources(buffer int) (opened []*source, err error) {
	defer func() {
		if err != nil {
			for _, s := range opened {
				s.conn.Close()
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
		return Event{Kind: EventNftables, Name: t.Program, Elements: t.Elements}, ended, err
	}
}

// open makes the socket and subscribes.
func (s *source) open() error {
	conn, err := netlink.Dial(s.family, nil)
	if err != nil {
		return err
	}
	if err := s.subscribe(conn); err != nil {
		conn.Close()
		return err
	}
	s.conn = conn
	return nil
}

func (s *source) subscribe(conn *netlink.Conn) error {
	if err := conn.SetReadBuffer(s.buffer); err != nil {
		return err
	}
	if s.filter != nil {
		if err := attachFilter(conn, s.filter); err != nil {
			return err
		}
	}
	for _, g := range s.groups {
		if err := conn.JoinGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// run sends what the socket says until ctx ends. Whatever goes wrong, it opens a new
// socket, says Resync and goes on. An overrun (ENOBUFS) is no exception: until the
// old socket's queue is empty the kernel drops what follows without saying so again
// (NETLINK_S_CONGESTED in net/netlink/af_netlink.c).
func (s *source) run(ctx context.Context, events chan<- Event) {
	for {
		conn, opened := s.conn, time.Now()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		s.receive(ctx, events)
		stop()
		conn.Close()
		pause(ctx, apart-time.Since(opened))
		if !s.reopen(ctx) || !s.resync(ctx, events) {
			return
		}
	}
}

// reopen makes a new socket, however often it must try. It returns false if ctx
// ended.
func (s *source) reopen(ctx context.Context) bool {
	for ctx.Err() == nil {
		if err := s.open(); err == nil {
			return true
		}
		pause(ctx, retry)
	}
	return false
}

// resync reads again what later messages are compared with, and only then says
// Resync: a change before the reading is covered by the Resync, one after it by its
// own message. It returns false if ctx ended.
func (s *source) resync(ctx context.Context, events chan<- Event) bool {
	for {
		var err error
		if s.reload != nil {
			err = s.reload()
		}
		if !send(ctx, events, Event{Kind: s.lost}) {
			return false
		}
		if err == nil {
			return true
		}
		pause(ctx, retry)
	}
}

// receive sends events until the socket fails or ctx ends. A message that cannot be
// decoded is a change that nobody knows: it counts as lost.
func (s *source) receive(ctx context.Context, events chan<- Event) {
	for {
		for m, err := range s.conn.ReceiveIter() {
			if err != nil {
				return
			}
			if s.pace != nil {
				pause(ctx, s.pace.wait(time.Now()))
			}
			e, tell, err := s.decode(m)
			switch {
			case err != nil && !s.resync(ctx, events):
				return
			case err == nil && tell && !send(ctx, events, e):
				return
			}
		}
	}
}

func send(ctx context.Context, events chan<- Event, e Event) bool {
	select {
	case events <- e:
		return true
	case <-ctx.Done():
		return false
	}
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
