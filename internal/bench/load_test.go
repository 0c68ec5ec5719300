// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// Every connection that is due is made and answered, through the router.
func TestChurn(t *testing.T) {
	r, err := newRig("", lab.FirewallOptions{Name: "churn", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	server := r.top.Server.V4.Addr()
	if _, err := churn(context.Background(), r.top.Client.NS, server, 100, 20*time.Millisecond); err == nil {
		t.Error("connected to a server that is not there")
	}
	stop, err := serve(r.top.Server.NS, server)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	before, err := r.counters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	c, err := churn(context.Background(), r.top.Client.NS, server, 500, 1200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.answered(); n+c.resets != 600 || len(c.seconds) != 2 || len(c.seconds[1])+c.resets < 100 {
		t.Errorf("%d connections in %d seconds, and %d resets; want 600, of which 100 in a second one", n, len(c.seconds), c.resets)
	}
	if quickest := slices.Min(slices.Concat(c.seconds...)); quickest <= 0 {
		t.Errorf("a connection in %d ns", quickest)
	}
	after, err := r.counters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// Handshake, question, answer and two FINs: no connection takes fewer packets.
	if n := after.forwarded - before.forwarded; n < 600*7 {
		t.Errorf("the router forwarded %d packets for 600 connections", n)
	}
}

// A reset of an open connection is told from all else that goes wrong.
func TestReset(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	server := l.Addr().(*net.TCPAddr).AddrPort()
	for _, reset := range []bool{true, false} {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			io.ReadFull(c, make([]byte, question)) // what is not read would make any close a reset
			if reset {
				c.(*net.TCPConn).SetLinger(0)
			}
		}()
		if _, err := connection(server); err == nil || errors.Is(err, errReset) != reset {
			t.Errorf("reset %t: %v", reset, err)
		}
	}
	l.Close()
	if _, err := connection(server); !errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, errReset) {
		t.Errorf("refused: %v", err)
	}
}

// Bulk TCP through the kernel alone: iperf3 is understood.
func TestIperf(t *testing.T) {
	r, err := newRig("", lab.FirewallOptions{Name: "iperf", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, kind := range []transfer{{seconds: 1}, {udp: true, packet: largePacket, seconds: 1}} {
		bits, err := r.iperf(context.Background(), kind)
		if err != nil || bits < 1e6 {
			t.Errorf("%+v: %.0f bit/s, %v", kind, bits, err)
		}
	}
}
