package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
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
	var listeners []net.Listener
	stop = func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	err = n.Do(func() error {
		for i := range serverPorts {
			l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, uint16(serverPort+i))))
			if err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			listeners = append(listeners, l)
		}
		return nil
	})
	if err != nil {
		stop()
		return nil, err
	}
	for _, l := range listeners { // a socket stays in the namespace that it was made in
		go accept(l)
	}
	return stop, nil
}

// accept answers until the listener is closed.
func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buffer := make([]byte, answer)
			if _, err := io.ReadFull(c, buffer[:question]); err == nil {
				c.Write(buffer)
				io.Copy(io.Discard, c) // until the client closes
			}
		}()
	}
}

// churn opens connections at a rate, one after the other on each worker's thread, and
// returns how long each took from connect to the end of the answer, sorted.
func churn(ctx context.Context, n *lab.NS, server netip.Addr, rate int, long time.Duration) ([]int64, error) {
	var (
		wg    sync.WaitGroup
		took  [workers][]int64
		fails [workers]error
	)
	begin := time.Now()
	apart := time.Second * workers / time.Duration(rate)
	for w := range workers {
		wg.Go(func() {
			fails[w] = n.Do(func() error {
				due := begin.Add(apart * time.Duration(w) / workers)
				for i := w; due.Sub(begin) < long && ctx.Err() == nil; i++ {
					time.Sleep(time.Until(due))
					port := uint16(serverPort + i%serverPorts)
					t, err := connection(netip.AddrPortFrom(server, port))
					if err != nil {
						return err
					}
					took[w] = append(took[w], t.Nanoseconds())
					due = due.Add(apart)
				}
				return nil
			})
		})
	}
	wg.Wait()
	return slices.Sorted(slices.Values(slices.Concat(took[:]...))), errors.Join(fails[:]...)
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
		return 0, fmt.Errorf("bench: ask %v: %w", server, err)
	}
	for got := 0; got < answer; {
		var n int
		err := retry(func() (err error) { n, err = unix.Read(fd, buffer[got:]); return err })
		if err != nil || n == 0 {
			return 0, fmt.Errorf("bench: %v answered %d bytes of %d: %v", server, got, answer, err)
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
