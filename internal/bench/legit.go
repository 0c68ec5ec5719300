// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// Legit is what became of the traffic of honest users during an attack: UDP flows of real
// sockets, whose packets the server answers.
type Legit struct {
	Sent     int     `json:"sent"`
	Answered int     `json:"answered"` // at most a fifth of a second after the end
	P50      float64 `json:"p50_seconds"`
	P99      float64 `json:"p99_seconds"` // of the round trips
}

// Share is the part that was answered, 0 to 1.
func (l Legit) Share() float64 { return share(uint64(l.Answered), uint64(l.Sent)) }

const (
	legitPort    = 20000 // of the first flow; the next one has the next
	legitService = 7000
	legitFlows   = 100
	legitRate    = 5000 // packets a second, of all flows
	stragglers   = 200 * time.Millisecond
)

// honest sends and takes in that traffic, each on a thread that the attack's does not keep
// waiting: what is measured is the router.
type honest struct {
	sockets []int // client's
	server  int
	flows   atomic.Int32 // that are in use
	stop    atomic.Bool
	threads sync.WaitGroup

	mu     sync.Mutex
	window byte // packets carry the number of the window that they are sent in
	asked  byte // answers of this one count
	sent   int
	trips  []int64 // ns
	err    error
}

// beHonest begins with some of the flows.
func beHonest(client, server lab.End, flows int) (*honest, error) {
	h := &honest{server: -1}
	h.flows.Store(int32(flows))
	err := server.NS.Do(func() (err error) {
		h.server, err = udpSocket(&unix.SockaddrInet4{Port: legitService, Addr: server.V4.Addr().As4()}, nil)
		return err
	})
	to := &unix.SockaddrInet4{Port: legitService, Addr: server.V4.Addr().As4()}
	for i := 0; i < legitFlows && err == nil; i++ {
		err = client.NS.Do(func() error {
			fd, err := udpSocket(&unix.SockaddrInet4{Port: legitPort + i, Addr: client.V4.Addr().As4()}, to)
			h.sockets = append(h.sockets, fd)
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), h.end())
	}
	for _, work := range []func() error{h.answer, h.send, h.receive} {
		h.threads.Add(1)
		go func() {
			defer h.threads.Done()
			runtime.LockOSThread() // never unlocked: the thread ends, and its priority with it
			err := unix.Setpriority(unix.PRIO_PROCESS, 0, -15)
			if err == nil {
				err = work()
			}
			h.mu.Lock()
			h.err = errors.Join(h.err, err)
			h.mu.Unlock()
		}()
	}
	return h, nil
}

func udpSocket(at, to *unix.SockaddrInet4) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := unix.NsecToTimeval(int64(50 * time.Millisecond)) // until the threads ask whether to stop
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience), unix.Bind(fd, at))
	if err == nil && to != nil {
		err = unix.Connect(fd, to)
	}
	return fd, err
}

// end stops the traffic.
func (h *honest) end() error {
	h.stop.Store(true)
	h.threads.Wait()
	for _, fd := range append(h.sockets, h.server) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return h.err
}

// passing are errors that an attack may cause, or the end of patience.
func passing(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNREFUSED) ||
		errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EHOSTUNREACH)
}

func (h *honest) answer() error {
	b := make([]byte, 64)
	for !h.stop.Load() {
		n, from, err := unix.Recvfrom(h.server, b, 0)
		if err == nil {
			err = unix.Sendto(h.server, b[:n], 0, from)
		}
		if err != nil && !passing(err) {
			return fmt.Errorf("bench: answer: %w", err)
		}
	}
	return nil
}

// monotonic is the time in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

func (h *honest) send() error {
	b := make([]byte, 18) // a byte for the window, eight for the time
	due := time.Now()
	for i := 0; !h.stop.Load(); i++ {
		sleepUntil(due)
		due = due.Add(time.Second / legitRate)
		h.mu.Lock()
		b[0] = h.window
		h.sent++
		h.mu.Unlock()
		binary.NativeEndian.PutUint64(b[1:], uint64(monotonic()))
		fd := h.sockets[i%int(h.flows.Load())]
		if _, err := unix.Write(fd, b); err != nil && !passing(err) {
			return fmt.Errorf("bench: send: %w", err)
		}
	}
	return nil
}

func (h *honest) receive() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bench: epoll: %w", err)
	}
	defer unix.Close(epoll)
	for _, fd := range h.sockets {
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return fmt.Errorf("bench: epoll: %w", err)
		}
	}
	events, b := make([]unix.EpollEvent, legitFlows), make([]byte, 64)
	for !h.stop.Load() {
		n, err := unix.EpollWait(epoll, events, 50)
		if err != nil && !passing(err) {
			return fmt.Errorf("bench: epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			size, _, err := unix.Recvfrom(int(e.Fd), b, unix.MSG_DONTWAIT)
			if err != nil && !passing(err) {
				return fmt.Errorf("bench: receive: %w", err)
			}
			if err == nil && size >= 9 {
				h.note(b[0], monotonic()-int64(binary.NativeEndian.Uint64(b[1:])))
			}
		}
	}
	return nil
}

func (h *honest) note(window byte, trip int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if window == h.asked {
		h.trips = append(h.trips, trip)
	}
}

// begin opens a window: what was sent before it counts no more.
func (h *honest) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.window++
	h.asked = h.window
	h.sent, h.trips = 0, nil
}

// result ends the window and waits for the last answers of what was sent in it.
func (h *honest) result() Legit {
	h.mu.Lock()
	sent := h.sent
	h.window++
	h.mu.Unlock()
	time.Sleep(stragglers)
	h.mu.Lock()
	defer h.mu.Unlock()
	trips := slices.Sorted(slices.Values(h.trips))
	return Legit{
		Sent: sent, Answered: len(trips),
		P50: float64(percentile(trips, 0.5)) / 1e9, P99: float64(percentile(trips, 0.99)) / 1e9,
	}
}
