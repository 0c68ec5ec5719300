// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

// connection adds one to conntrack: UDP from 10.0.0.1, whose address is translated.
func connection(t *testing.T, port, seconds int) {
	t.Helper()
	nltest.Run(t, fmt.Sprintf("conntrack -I -p udp -s 10.0.0.1 -d 192.0.2.1 --sport %d --dport 53 -r 192.0.2.1 -q 203.0.113.1 "+
		"--reply-port-src 53 --reply-port-dst %d -t %d", port, port+1, seconds))
}

// TestWatchConntrack: a connection that is deleted is told with both its directions; one
// that comes to its end is not.
func TestWatchConntrack(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	events := listen(t)
	connection(t, 1000, 1)
	connection(t, 2000, 100)
	connection(t, 3000, 100)
	time.Sleep(1100 * time.Millisecond)
	nltest.Run(t, `
		conntrack -L
		conntrack -D -p udp --sport 2000
		conntrack -F`)
	for _, port := range []uint16{2000, 3000} {
		e := await(t, events, EventConntrack)
		want := [2]Tuple{
			{Proto: unix.IPPROTO_UDP, Source: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), Destination: netip.MustParseAddrPort("192.0.2.1:53")},
			{Proto: unix.IPPROTO_UDP, Source: netip.MustParseAddrPort("192.0.2.1:53"), Destination: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), port+1)},
		}
		if e.Ended != want || !e.Deleted {
			t.Errorf("%+v, want %+v", e.Ended, want)
		}
	}
}

// TestWatchManyDeleted: deletions that are not heard of are no reason to read everything.
func TestWatchManyDeleted(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	w, err := watch(t.Context(), 4<<10) // bytes: a few messages
	if err != nil {
		t.Fatal(err)
	}
	events := channel(w)
	for i := range 50 {
		connection(t, 1000+2*i, 100)
	}
	nltest.Run(t, `conntrack -F`)
	awaitThat(t, events, "loss", func(e Event) bool {
		if e.Kind == EventResync {
			t.Error("a resync")
		}
		return e.Kind == EventConntrackLost
	})
	// The socket that was opened behind the first loss may overflow too, before the flush is over.
	for lost := true; lost; {
		connection(t, 5000, 100)
		nltest.Run(t, `conntrack -F`)
		lost = awaitThat(t, events, "conntrack or loss", func(e Event) bool {
			return e.Kind == EventConntrackLost || e.Kind == EventConntrack && e.Ended[0].Source.Port() == 5000
		}).Kind == EventConntrackLost
	}
}

// TestPace: a burst is let through, a flood is slowed to the rate.
func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(1000, 0)
	for i := range paceBurst {
		if d := p.wait(now); d != 0 {
			t.Fatalf("message %d of a burst waits %v", i, d)
		}
	}
	start, n := now, 0
	for now.Sub(start) < time.Second {
		now = now.Add(p.wait(now) + 10*time.Microsecond)
		n++
	}
	if n < paceRate*9/10 || n > paceRate*11/10 {
		t.Errorf("%d messages in a second, want about %d", n, paceRate)
	}
}
