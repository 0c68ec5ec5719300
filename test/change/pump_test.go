// SPDX-License-Identifier: Apache-2.0

package change

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outcome is what became of a packet: where it came out, and as what. Number 0 is nothing.
type outcome int32

const lost outcome = 0

// packet is one that was sent. Times are nanoseconds of the wall clock, which is the one
// that the kernel stamps frames with.
type packet struct {
	sent, got int64
	outcome   outcome
	unsent    bool // its device was down or gone
}

// stream is a flow and what became of its packets, by number from base on.
type stream struct {
	flow
	zero    []byte // its frame of number 0
	base    uint32
	packets []packet
}

// pump sends the packets of all streams in turn, evenly spaced, and notes what comes out.
type pump struct {
	taps    [hosts]*tap
	gap     time.Duration // between two packets, of whichever stream
	stop    chan struct{}
	running sync.WaitGroup

	*outcomes

	mu      sync.Mutex
	streams []*stream
	errors  [hosts]int // ICMP errors that came to each host
	stalls  []stall    // when the machine let the sender wait
	err     error
}

// outcomes gives numbers to all that a packet can become. Pumps that are compared share it.
type outcomes struct {
	mu    sync.Mutex
	keys  []string
	known map[string]outcome
}

func newOutcomes() *outcomes { return &outcomes{keys: []string{""}, known: map[string]outcome{}} }

func (s *outcomes) number(key []byte) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.known[string(key)]
	if !ok {
		o = outcome(len(s.keys))
		s.known[string(key)] = o
		s.keys = append(s.keys, string(key))
	}
	return o
}

// name says what an outcome is.
func (s *outcomes) name(o outcome) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o == lost {
		return "nothing"
	}
	return describe(s.keys[o])
}

// stall is a time in which nothing was sent because this thread did not run.
type stall struct{ from, to time.Time }

// A sender that is later than this was kept from running by the machine.
const late = 3 * time.Millisecond

// newPump begins to take in; start begins to send.
func newPump(taps [hosts]*tap, flows []flow, each time.Duration, shared *outcomes) *pump {
	p := &pump{taps: taps, gap: each / time.Duration(len(flows)), stop: make(chan struct{}), outcomes: shared}
	for i, f := range flows {
		p.streams = append(p.streams, &stream{flow: f, zero: f.frame(i)})
	}
	for at, t := range taps {
		if t != nil {
			p.running.Go(func() { p.listen(host(at), t) })
		}
	}
	return p
}

func (p *pump) start() { p.running.Go(p.send) }

// close stops all and says what went wrong.
func (p *pump) close() error {
	close(p.stop)
	p.running.Wait()
	return p.err
}

func (p *pump) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

func (p *pump) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

// send is the sender's thread.
func (p *pump) send() {
	runtime.LockOSThread()
	due := time.Now()
	for i := 0; !p.stopped(); i = (i + 1) % len(p.streams) {
		sleepUntil(due)
		if now := time.Now(); now.Sub(due) > late {
			p.mu.Lock()
			p.stalls = append(p.stalls, stall{due, now})
			p.mu.Unlock()
			due = now // what could not be sent is not made up for
		}
		due = due.Add(p.gap)
		if err := p.next(p.streams[i]); err != nil {
			p.fail(err)
			return
		}
	}
}

// next sends the next packet of a stream.
func (p *pump) next(s *stream) error {
	frame := slices.Clone(s.zero)
	p.mu.Lock()
	n := s.base + uint32(len(s.packets))
	s.packets = append(s.packets, packet{sent: time.Now().UnixNano()})
	p.mu.Unlock()
	s.number(frame, n)
	sent, err := p.taps[s.from].send(frame)
	if !sent {
		p.mu.Lock()
		if n >= s.base {
			s.packets[n-s.base].unsent = true
		}
		p.mu.Unlock()
	}
	return err
}

// sleepUntil blocks the thread: time.Sleep wakes up at whole milliseconds.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		t := unix.NsecToTimespec(left.Nanoseconds())
		unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, nil) // a signal of the runtime ends it early
	}
}

// listen is the thread that takes in at one host.
func (p *pump) listen(at host, t *tap) {
	buffer, control := make([]byte, 1<<16), make([]byte, 128)
	for !p.stopped() {
		n, when, err := t.receive(buffer, control)
		if err != nil {
			p.fail(fmt.Errorf("receive at %s: %w", t.end, err))
			return
		}
		if n > 0 {
			p.take(at, buffer[:n], when)
		}
	}
}

// take notes a frame. Its outcome is where it came out, whether it is whole, and all its
// headers, without the transport's checksum, which the payload's number is in.
func (p *pump) take(at host, frame []byte, when int64) {
	a, ours := recognise(frame)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ours {
		if isError(frame) {
			p.errors[at]++
		}
		return
	}
	if a.index >= len(p.streams) {
		p.err = errors.Join(p.err, fmt.Errorf("at the %s: a frame of flow %d, which nobody sent", hostNames[at], a.index))
		return
	}
	s := p.streams[a.index]
	if a.number < s.base || a.number-s.base >= uint32(len(s.packets)) {
		return // of before the last forget
	}
	key := make([]byte, 2, 128)
	key[0] = byte(at)
	if !a.whole(frame, s.zero, &s.flow) {
		key[1] = 1
	}
	k := &s.packets[a.number-s.base]
	if k.outcome != lost {
		key[1] = 2 // twice
	}
	key = append(key, frame[:a.data]...)
	if sumAt := 2 + a.l4 + 6; a.proto == unix.IPPROTO_UDP {
		clear(key[sumAt : sumAt+2])
	} else {
		clear(key[sumAt+10 : sumAt+12])
	}
	k.outcome, k.got = p.outcomes.number(key), when
}

// isError reports whether a frame is an ICMP error, of IPv4 or IPv6.
func isError(frame []byte) bool {
	if len(frame) < ethLen+41 {
		return false
	}
	ip := frame[ethLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		return ip[9] == unix.IPPROTO_ICMP && (ip[20] == 3 || ip[20] == 11)
	case unix.ETH_P_IPV6:
		return ip[6] == unix.IPPROTO_ICMPV6 && ip[40] < 128
	}
	return false
}

// icmp is how many ICMP errors came in, at all hosts.
func (p *pump) icmp() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.errors {
		n += m
	}
	return n
}

// stalled is the longest time within from and to for which the sender was kept from running.
func (p *pump) stalled(from, to time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.stalls {
		if s.to.After(from) && s.from.Before(to) {
			longest = max(longest, s.to.Sub(s.from))
		}
	}
	return longest
}

// each calls f for the packets of a stream that were sent from one time up to another.
func (p *pump) each(stream int, from, to time.Time, f func(packet)) {
	p.tried(stream, from, to, func(k packet) {
		if !k.unsent {
			f(k)
		}
	})
}

// tried is each with the packets that could not be sent.
func (p *pump) tried(stream int, from, to time.Time, f func(packet)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.streams[stream].packets
	first, _ := slices.BinarySearchFunc(all, from.UnixNano(), func(k packet, t int64) int { return int(min(max(k.sent-t, -1), 1)) })
	for _, k := range all[first:] {
		if k.sent >= to.UnixNano() {
			break
		}
		f(k)
	}
}

// forget drops what was sent before a time.
func (p *pump) forget(before time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.streams {
		n, _ := slices.BinarySearchFunc(s.packets, before.UnixNano(), func(k packet, t int64) int { return int(min(max(k.sent-t, -1), 1)) })
		s.packets = append([]packet(nil), s.packets[n:]...)
		s.base += uint32(n)
	}
	p.stalls = nil
}
