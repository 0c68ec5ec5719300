// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

const patience = 20 * time.Second

// listen watches for the length of the test.
func listen(t *testing.T) <-chan Event {
	t.Helper()
	w, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return channel(w)
}

// channel sends what a Watcher returns, and is closed when that ends.
func channel(w *Watcher) <-chan Event {
	events := make(chan Event)
	go func() {
		defer close(events)
		for e, ok := w.Next(time.Time{}); ok; e, ok = w.Next(time.Time{}) {
			select {
			case events <- e:
			case <-w.ctx.Done():
			}
		}
	}()
	return events
}

// await returns the next event of a kind, and drops others.
func await(t *testing.T, events <-chan Event, kind EventKind) Event {
	t.Helper()
	return awaitThat(t, events, kind.String(), func(e Event) bool { return e.Kind == kind })
}

func awaitThat(t *testing.T, events <-chan Event, what string, is func(Event) bool) Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("%s: the channel was closed before the event", what)
			}
			if is(e) {
				return e
			}
		case <-timeout:
			t.Fatalf("%s: no such event", what)
		}
	}
}

// until returns the events of a kind that come before a fence: a policy rule, set
// now, whose event the same socket delivers after all earlier ones.
func until(t *testing.T, events <-chan Event, kind EventKind) (got []Event) {
	t.Helper()
	nltest.Run(t, `
		ip rule add pref 4711 lookup main
		ip rule del pref 4711`)
	timeout := time.After(patience)
	for {
		select {
		case e := <-events:
			if e.Kind == EventRule && e.Deleted {
				return got
			}
			if e.Kind == kind {
				got = append(got, e)
			}
		case <-timeout:
			t.Fatal("no event of the fence")
		}
	}
}

func TestWatchNeighbours(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up
		ip addr add 10.0.0.1/24 dev va
		ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 nud reachable dev va`)
	va := index(t, "va")
	events := listen(t)
	for _, c := range []struct {
		command, old string // "": no event
		deleted      bool
	}{
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:02 nud stale dev va", "", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:02 nud delay dev va", "", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:02 nud reachable dev va", "", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:03 nud reachable dev va", "02:00:00:00:00:02", false},
		{"ip neigh change 10.0.0.2 nud failed dev va", "02:00:00:00:00:03", false},
		{"ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:04 nud reachable dev va", "", false},
		{"ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 nud reachable dev va", "", false},
		{"ip neigh del 10.0.0.9 dev va", "02:00:00:00:00:09", false}, // made to fail, then deleted
		{"ip neigh add proxy 10.0.0.7 dev va", "", false},
		{"ip neigh add fe80::2 lladdr 02:00:00:00:00:02 nud reachable dev va", "", false},
		{"ip neigh change fe80::2 lladdr 02:00:00:00:00:05 nud stale dev va", "02:00:00:00:00:02", false},
		{"ip neigh add ff02::99 lladdr 33:33:00:00:00:99 nud reachable dev va", "", false},
		{"ip neigh change ff02::99 lladdr 33:33:00:00:00:98 nud reachable dev va", "", false},
	} {
		nltest.Run(t, c.command)
		got := until(t, events, EventNeigh)
		switch {
		case c.old == "" && len(got) > 0:
			t.Errorf("%s: %+v, want no event", c.command, got)
		case c.old != "" && (len(got) != 1 || got[0].MAC.String() != c.old || got[0].Index != va || got[0].Deleted != c.deleted ||
			!strings.Contains(c.command, got[0].Prefix.Addr().String())):
			t.Errorf("%s: %+v, want one event with %s", c.command, got, c.old)
		}
	}
}

func TestWatchAddressesAndRoutes(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up`)
	va := index(t, "va")
	events := listen(t)
	for _, c := range []struct {
		command string
		kind    EventKind
		prefix  string // "": no event
		deleted bool
	}{
		{"ip addr add 10.0.0.1/24 dev va valid_lft 1000 preferred_lft 1000", EventAddr, "10.0.0.1/24", false},
		{"ip addr change 10.0.0.1/24 dev va valid_lft 2000 preferred_lft 2000", EventAddr, "", false},
		{"ip addr add 10.0.0.3/24 dev va", EventAddr, "10.0.0.3/24", false},
		{"ip addr del 10.0.0.3/24 dev va", EventAddr, "10.0.0.3/24", true},
		{"ip addr add 2001:db8::1/64 dev va nodad", EventAddr, "2001:db8::1/64", false},
		{"ip addr del 2001:db8::1/64 dev va", EventAddr, "2001:db8::1/64", true},
		{"ip route add 10.9.0.0/16 via 10.0.0.2", EventRoute, "10.9.0.0/16", false},
		{"ip route replace 10.9.0.0/16 via 10.0.0.4", EventRoute, "10.9.0.0/16", false},
		{"ip route del 10.9.0.0/16", EventRoute, "10.9.0.0/16", true},
		{"ip route add default via 10.0.0.2 table 7", EventRoute, "0.0.0.0/0", false},
		{"ip route add 10.8.0.0/16 via 10.0.0.2 table 7000", EventRoute, "10.8.0.0/16", false},
		{"ip -6 route add 2001:db8:9::/48 dev va", EventRoute, "2001:db8:9::/48", false},
	} {
		nltest.Run(t, c.command)
		if c.prefix == "" {
			if got := until(t, events, c.kind); len(got) > 0 {
				t.Errorf("%s: %+v, want no event", c.command, got)
			}
			continue
		}
		// No fence here: IPv6 addresses are announced by a worker (addrconf_dad_work).
		awaitThat(t, events, c.command, func(e Event) bool {
			return e.Kind == c.kind && e.Prefix.String() == c.prefix && e.Deleted == c.deleted && e.Index == va &&
				(e.Table == tableOf(c.command) || e.Kind != EventRoute)
		})
	}
}

// tableOf is the routing table that a command names.
func tableOf(command string) uint32 {
	table := uint32(unix.RT_TABLE_MAIN)
	if _, number, ok := strings.Cut(command, " table "); ok {
		fmt.Sscan(number, &table)
	}
	return table
}

func TestWatchTheRest(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up`)
	events := listen(t)
	for _, c := range []struct {
		command string
		kind    EventKind
		link    string // "": not of one interface
		deleted bool
	}{
		{"ip link set va mtu 1400", EventLink, "va", false},
		{"ip link add name vc type veth peer name vd", EventLink, "vc", false},
		{"ethtool -K vb gro on", EventXDPFeatures, "va", false},
		{"ethtool -K vb gro off", EventXDPFeatures, "va", false},
		{"tc qdisc add dev va root handle 1: htb", EventQdisc, "va", false},
		{"tc class add dev va parent 1: classid 1:1 htb rate 1mbit", EventQdisc, "va", false},
		{"tc qdisc del dev va root", EventQdisc, "va", true},
		{"tc qdisc add dev va clsact", EventQdisc, "va", false},
		{"tc chain add dev va ingress chain 3", EventFilter, "va", false},
		{"ip rule add pref 99 lookup 9", EventRule, "", false},
		{"sysctl -q net.ipv4.conf.va.forwarding=1", EventNetconf, "va", false},
		{"sysctl -q net.ipv4.conf.va.rp_filter=1", EventNetconf, "va", false},
		{"sysctl -q net.ipv6.conf.all.forwarding=1", EventNetconf, "", false},
		{"ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out", EventXFRM, "", false},
		{"nft add table inet x", EventNftables, "", false},
	} {
		nltest.Run(t, c.command)
		want := 0
		if c.link != "" {
			want = index(t, c.link)
		}
		awaitThat(t, events, c.command, func(e Event) bool {
			return e.Kind == c.kind && e.Index == want && e.Deleted == c.deleted
		})
	}
}

// One transaction is one event, however many rules it has.
func TestWatchCountsTransactions(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	events := listen(t)
	for range 2 {
		nltest.NFT(t, "flush ruleset; table inet x { chain c { type filter hook forward priority 0; ct state established accept; tcp dport 22 accept; }; }")
	}
	for range 2 {
		if e := await(t, events, EventNftables); e.Name != "nft" {
			t.Errorf("%+v, want the name of the program", e)
		}
	}
	select {
	case e := <-events:
		t.Errorf("%+v after two transactions", e)
	case <-time.After(100 * time.Millisecond):
	}
}

// A reader that does not keep up is told so, and the watch goes on.
func TestWatchOverrun(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `ip link add name va type veth peer name vb`)
	nltest.Run(t, `ip neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 nud permanent dev va`)
	w, err := watch(t.Context(), 32<<10) // bytes: some dozens of messages
	if err != nil {
		t.Fatal(err)
	}
	events := channel(w)
	var batch strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&batch, "route add blackhole 10.%d.%d.0/24\n", i/256, i%256)
	}
	batch.WriteString("neigh change 10.0.0.2 lladdr 02:00:00:00:00:03 nud permanent dev va\n")
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await(t, events, EventResync)
	until(t, events, EventResync)
	// The MAC whose change was lost is the known one now.
	nltest.Run(t, `ip neigh change 10.0.0.2 lladdr 02:00:00:00:00:04 nud permanent dev va`)
	if e := await(t, events, EventNeigh); e.MAC.String() != "02:00:00:00:00:03" {
		t.Errorf("after the overrun: %+v", e)
	}
}

// A socket that fails is replaced, and what was missed meanwhile is said.
func TestWatchReopens(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	w, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	route := w.sources[0]
	w.replace(route)
	events := channel(w)
	await(t, events, EventResync)
	nltest.Run(t, `ip link add name va type veth peer name vb`)
	await(t, events, EventLink)
}

func TestWatchEnds(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	events := channel(w)
	cancel()
	select {
	case e, ok := <-events:
		if ok {
			t.Errorf("%+v after the end", e)
		}
	case <-time.After(patience):
		t.Error("the channel stays open")
	}
}

// Next returns at its time if nothing happens, and an event before that if something does.
func TestWatchUntil(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	w, err := Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(50 * time.Millisecond)
	for {
		e, ok := w.Next(until)
		if !ok {
			break
		}
		t.Logf("%+v", e)
	}
	if early := time.Until(until); early > 0 {
		t.Errorf("returned %v before its time", early)
	}
	nltest.Run(t, `ip rule add pref 4711 lookup main`)
	for {
		e, ok := w.Next(time.Now().Add(patience))
		if !ok {
			t.Fatal("no event of the rule")
		}
		if e.Kind == EventRule {
			break
		}
	}
}
