// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

const (
	talkPort    = 40000 // of the first connection; the next one has the next
	talkService = 7100
	talkers     = 50
	talkEvery   = 20 * time.Millisecond
)

// talk is some TCP connections over which honest users ask and are answered all the time.
type talk struct {
	stop    context.CancelFunc
	deaf    func() error
	threads sync.WaitGroup
	ends    []*talker
}

// talker is one of them.
type talker struct {
	conn net.Conn
	last atomic.Int64 // answer, Unix nanoseconds
}

// beginTalk opens the connections.
func beginTalk(client, server lab.End) (*talk, error) {
	ctx, stop := context.WithCancel(context.Background())
	t := &talk{stop: stop}
	at := netip.AddrPortFrom(server.V4.Addr(), talkService)
	var err error
	t.deaf, err = server.NS.ServeTCP(at, func(c *net.TCPConn) { io.Copy(c, c) })
	for i := 0; i < talkers && err == nil; i++ {
		err = client.NS.Do(func() error {
			from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(client.V4.Addr(), talkPort+uint16(i)))
			conn, err := net.DialTCP("tcp4", from, net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			e := &talker{conn: conn}
			t.ends = append(t.ends, e)
			t.threads.Go(func() { e.run(ctx) })
			return nil
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), t.end())
	}
	return t, nil
}

// run asks until it is over, or the connection is.
func (e *talker) run(ctx context.Context) {
	b := make([]byte, 16)
	for ctx.Err() == nil {
		if _, err := e.conn.Write(b); err != nil {
			return
		}
		if _, err := io.ReadFull(e.conn, b); err != nil {
			return
		}
		e.last.Store(time.Now().UnixNano())
		time.Sleep(talkEvery)
	}
}

// alive counts the connections that had an answer since then.
func (t *talk) alive(since time.Time) (n int) {
	for _, e := range t.ends {
		if e.last.Load() >= since.UnixNano() {
			n++
		}
	}
	return n
}

// end closes the connections.
func (t *talk) end() error {
	t.stop()
	for _, e := range t.ends {
		e.conn.Close()
	}
	t.threads.Wait()
	if t.deaf == nil {
		return nil
	}
	if err := t.deaf(); err != nil && !errors.Is(err, unix.EBADF) {
		return err
	}
	return nil
}
