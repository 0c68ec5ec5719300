// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

// TestSettle: timer and flags become what is asked for, of this connection and by either of its directions, and of
// nothing else.
func TestSettle(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.NFT(t, `
		table inet x {
			chain zones { type filter hook output priority raw; tcp dport 7000-8000 ct zone set 5; }
			chain out { type filter hook output priority 0; ct state new ct mark set 77; }
		}`)
	c, err := OpenConntrack()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const second = time.Second
	timers, err := ReadTCPTimers()
	if want := (TCPTimers{432000 * second, 300 * second, 300 * second}); err != nil || timers != want {
		t.Errorf("timers %v, %v, want %v", timers, err, want)
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		tuple, other := connect(t, host), connect(t, host)
		reply := tuple
		reply.Source, reply.Destination = tuple.Destination, tuple.Source
		before, beside := find(t, c, tuple), find(t, c, other)
		for _, step := range []struct {
			u    Unacknowledged
			left time.Duration // 0: as before
			want time.Duration
		}{
			{Unacknowledged{Original: true}, 200 * second, 200 * second},
			{Unacknowledged{Reply: true}, 0, 200 * second},
			{Unacknowledged{}, 400000 * second, 400000 * second},
		} {
			if err := c.Settle(reply, step.u, step.left); err != nil {
				t.Fatal(err)
			}
			after, err := c.Get(reply)
			if err != nil {
				t.Fatal(err)
			}
			got := Unacknowledged{after.FlagsOriginal&TCPUnacknowledged != 0, after.FlagsReply&TCPUnacknowledged != 0}
			if got != step.u || after.Timeout > step.want || after.Timeout < step.want-2*second {
				t.Errorf("%s: %+v: %+v", host, step, after)
			}
			const rest = ^uint8(TCPUnacknowledged)
			after.Timeout = before.Timeout
			after.FlagsOriginal = after.FlagsOriginal&rest | before.FlagsOriginal&^rest
			after.FlagsReply = after.FlagsReply&rest | before.FlagsReply&^rest
			if after != before {
				t.Errorf("%s: %+v: more changed: %+v, then %+v", host, step, before, after)
			}
		}
		if got := find(t, c, other); got.FlagsOriginal != beside.FlagsOriginal || got.Timeout < 431000*second {
			t.Errorf("%s: another connection: %+v, then %+v", host, beside, got)
		}
		tuple.Source = netip.AddrPortFrom(tuple.Source.Addr(), 1)
		if err := c.Settle(tuple, Unacknowledged{}, 0); !errors.Is(err, ErrNoConnection) {
			t.Errorf("%s: unknown connection: %v, want ErrNoConnection", host, err)
		}
		if _, err := c.Get(tuple); !errors.Is(err, ErrNoConnection) {
			t.Errorf("%s: unknown connection: %v, want ErrNoConnection", host, err)
		}
	}
	if _, err := c.Get(Tuple{Proto: unix.IPPROTO_TCP}); err == nil || errors.Is(err, ErrNoConnection) {
		t.Errorf("no addresses: %v, want a refusal", err)
	}
}

// TestSettleOnce: who listens to conntrack hears one event of a settlement, and none of a question.
func TestSettleOnce(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.NFT(t, `table inet x { chain out { type filter hook output priority 0; ct state new accept; }; }`)
	c, err := OpenConntrack()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// the kernel keeps events for connections that began while somebody listened
	cmd := exec.Command("timeout", "3", "conntrack", "-E", "-e", "UPDATES")
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond)
	tuple, other := connect(t, "127.0.0.1"), connect(t, "127.0.0.1")
	for range 3 {
		if _, err := c.Get(tuple); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Settle(tuple, Unacknowledged{}, 1000*time.Second); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	events := func(t Tuple) int { return strings.Count(out.String(), fmt.Sprintf(" sport=%d ", t.Source.Port())) }
	if n, others := events(tuple), events(other); n != others+1 {
		t.Errorf("%d events, of a connection that is not settled %d: %s", n, others, out.String())
	}
}
