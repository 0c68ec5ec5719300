// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestPeerStopsTakingFrames: a veth whose peer stops polling refuses every redirected
// frame. Its flows must be back on the TC way long before a lease ends; with -strict, within 100 ms.
func TestPeerStopsTakingFrames(t *testing.T) {
	limit := 2 * time.Second
	if *strict {
		limit = 100 * time.Millisecond
	}
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	at := netip.AddrPortFrom(r.Server.V4.Addr(), 7000)
	server := r.listenUDP(r.Server.NS, at)
	r.must(timestamps(server))
	client := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), 6000), at)

	quit, sent := make(chan bool), make(chan uint64, 1)
	go func() {
		var n uint64
		for {
			select {
			case <-quit:
				sent <- n
				return
			case <-time.After(500 * time.Microsecond):
				client.Write(binary.BigEndian.AppendUint64(nil, n))
				n++
			}
		}
	}()
	arrivals := make(chan []arrival, 1)
	go func() { arrivals <- receive(server) }()
	way := func(want string) func() bool {
		return func() bool {
			return slices.ContainsFunc(r.armed(), func(f api.Flow) bool { return f.Way == want })
		}
	}
	r.eventually("the flow is armed in XDP", patience, way(api.WayXDP))
	time.Sleep(500 * time.Millisecond)

	changed := time.Now()
	if out, err := r.Server.NS.Run("ethtool", "-K", r.Server.Device, "gro", "off"); err != nil {
		t.Fatal(err, out)
	}
	done := time.Now()
	r.eventually("the flow is armed in TC", patience, way(api.WayTC))
	time.Sleep(500 * time.Millisecond)
	if p := r.port("wan"); p.XDPTransmit || p.Reason == "" {
		t.Errorf("port wan: %+v; want a reason and no XDP transmit", p)
	}
	quit <- true
	n := <-sent
	time.Sleep(50 * time.Millisecond)
	server.SetReadDeadline(time.Now())
	got := <-arrivals

	before, gap := longestGap(got, time.Time{}, changed), time.Duration(0)
	gap = longestGap(got, changed.Add(-5*time.Millisecond), done.Add(max(limit, 400*time.Millisecond)))
	t.Logf("sent %d, arrived %d; longest gap %v, before the change %v; ethtool took %v", n, len(got), gap, before, done.Sub(changed))
	if gap > limit+before {
		t.Errorf("nothing arrived for %v after the peer stopped polling; at most %v is right (%v without the change)", gap, limit, before)
	}
	if !slices.IsSortedFunc(got, func(a, b arrival) int { return int(a.number) - int(b.number) }) {
		t.Error("packets overtook each other")
	}
}

type arrival struct {
	number uint64
	at     time.Time // the kernel's stamp
}

func longestGap(got []arrival, from, to time.Time) (longest time.Duration) {
	for i := 1; i < len(got); i++ {
		if got[i-1].at.After(from) && got[i-1].at.Before(to) {
			longest = max(longest, got[i].at.Sub(got[i-1].at))
		}
	}
	return longest
}

// timestamps asks the kernel to say when each datagram came.
func timestamps(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	})
	return errors.Join(err, set)
}

// receive reads numbered datagrams until the deadline.
func receive(c *net.UDPConn) (got []arrival) {
	b, oob := make([]byte, 100), make([]byte, 100)
	for {
		n, m, _, _, err := c.ReadMsgUDPAddrPort(b, oob)
		if err != nil {
			return got
		}
		messages, err := unix.ParseSocketControlMessage(oob[:m])
		if n != 8 || err != nil || len(messages) != 1 || len(messages[0].Data) < 16 {
			continue
		}
		sec := binary.NativeEndian.Uint64(messages[0].Data)
		nsec := binary.NativeEndian.Uint64(messages[0].Data[8:])
		got = append(got, arrival{binary.BigEndian.Uint64(b), time.Unix(int64(sec), int64(nsec))})
	}
}
