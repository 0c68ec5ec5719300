// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

const (
	// A client address has 28,232 ports for each port of the server, and a closed
	// connection holds its own for a minute: 5,000 a second take 300,000.
	serverPort  = 7000
	serverPorts = 32
	// Connections are opened by threads that block, each in the client's namespace.
	workers = 16
	// question and answer of a connection, in bytes.
	question, answer = 64, 512
)

// serve answers connections in a namespace until the returned function is called.
func serve(n *lab.NS, address netip.Addr) (stop func(), err error) {
	var closers []func() error
	stop = func() {
		for _, c := range closers {
			c()
		}
	}
	for i := range serverPorts {
		c, err := n.ServeTCP(netip.AddrPortFrom(address, uint16(serverPort+i)), reply)
		if err != nil {
			stop()
			return nil, err
		}
		closers = append(closers, c)
	}
	return stop, nil
}

// reply is the server's side of a connection.
func reply(c *net.TCPConn) {
	buffer := make([]byte, answer)
	if _, err := io.ReadFull(c, buffer[:question]); err == nil {
		c.Write(buffer)
		io.Copy(io.Discard, c) // until the client closes
	}
}

// churned is what became of the connections that were opened.
type churned struct {
	// seconds are the nanoseconds from connect to the end of the answer of each connection
	// that was not reset, by the second that it was due in.
	seconds [][]int64
	resets  int
}

// churn opens connections at a rate, evenly spaced, one after the other on each worker's
// thread. Resets are counted; all else that fails ends it.
func churn(ctx context.Context, n *lab.NS, server netip.Addr, rate int, long time.Duration) (churned, error) {
	// This program is client and server: its garbage can wait until nobody measures.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var (
		wg    sync.WaitGroup
		done  [workers]churned
		fails [workers]error
	)
	begin := time.Now()
	apart := time.Second * workers / time.Duration(rate)
	for w := range workers {
		wg.Go(func() {
			fails[w] = n.Do(func() error {
				due := begin.Add(apart * time.Duration(w) / workers)
				for i := w; due.Sub(begin) < long && ctx.Err() == nil; i++ {
					sleepUntil(due)
					port := uint16(serverPort + i%serverPorts)
					t, err := connection(netip.AddrPortFrom(server, port))
					switch {
					case err == nil:
						done[w].took(int(due.Sub(begin)/time.Second), t.Nanoseconds())
					case errors.Is(err, errReset):
						done[w].resets++
					default:
						return err
					}
					due = due.Add(apart)
				}
				return nil
			})
		})
	}
	wg.Wait()
	var all churned
	for _, c := range done {
		all.add(c)
	}
	return all, errors.Join(fails[:]...)
}

func (c *churned) took(second int, t ...int64) {
	for len(c.seconds) <= second {
		c.seconds = append(c.seconds, nil)
	}
	c.seconds[second] = append(c.seconds[second], t...)
}

func (c *churned) add(more churned) {
	for second, t := range more.seconds {
		c.took(second, t...)
	}
	c.resets += more.resets
}

// answered are the connections that were not reset.
func (c *churned) answered() (n int) {
	for _, t := range c.seconds {
		n += len(t)
	}
	return n
}

// sleepUntil blocks the thread. time.Sleep wakes up at whole milliseconds (the runtime waits
// in epoll_wait), for five connections at a time, which then wait for each other.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		t := unix.NsecToTimespec(left.Nanoseconds())
		unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &t, nil) // a signal of the runtime ends it early
	}
}

// errReset is the end of a connection that was established and then reset. One in some ten
// thousand is, by the server's own kernel and with no shunt anywhere: when the last packet of
// the handshake and the question arrive on two CPUs at the same time, one of them finds
// neither the request nor the new socket.
var errReset = errors.New("reset")

// resetOr is errReset for what a reset makes of a call on an open connection.
func resetOr(err error) error {
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return errReset
	}
	return err
}

// connection is one: connect, ask, read the answer, close.
func connection(server netip.AddrPort) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("bench: socket: %w", err)
	}
	defer unix.Close(fd)
	patience := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return 0, fmt.Errorf("bench: socket: %w", err)
	}
	begin := time.Now()
	if err := retry(func() error {
		return unix.Connect(fd, &unix.SockaddrInet4{Port: int(server.Port()), Addr: server.Addr().As4()})
	}); err != nil {
		return 0, fmt.Errorf("bench: connect to %v: %w", server, err)
	}
	var buffer [answer]byte
	if _, err := unix.Write(fd, buffer[:question]); err != nil {
		return 0, fmt.Errorf("bench: ask %v: %w", server, resetOr(err))
	}
	for got := 0; got < answer; {
		var n int
		err := retry(func() (err error) { n, err = unix.Read(fd, buffer[got:]); return err })
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("bench: %v answered %d bytes of %d: %w", server, got, answer, resetOr(err))
		}
		got += n
	}
	return time.Since(begin), nil
}

// retry repeats a call that a signal of the Go scheduler interrupted.
func retry(call func() error) error {
	for {
		switch err := call(); err {
		case unix.EINTR, unix.EALREADY:
		case unix.EISCONN:
			return nil
		default:
			return err
		}
	}
}
