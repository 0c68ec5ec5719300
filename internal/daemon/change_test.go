// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"shunt/internal/kernel"
)

const udp = 17

// words lists what is touched.
func (t *touched) words() string {
	var words []string
	for word, is := range map[string]bool{"all": t.all, "ports": t.ports, "unheard": t.unheard} {
		if is {
			words = append(words, word)
		}
	}
	for a := range t.adjacencies {
		words = append(words, fmt.Sprintf("%d/%v", a.port, net.HardwareAddr(a.mac)))
	}
	for p := range t.prefixes {
		words = append(words, p.String())
	}
	for _, d := range t.ended {
		words = append(words, fmt.Sprintf("%d %v>%v", d.Proto, d.Tuple.Source, d.Tuple.Destination))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// TestTouched: what each kind of event can have made wrong. Interface 1 is a port, 9 a
// device above one.
func TestTouched(t *testing.T) {
	isPort := func(index int) bool { return index == 1 }
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	link := func(index int, c kernel.LinkChange) kernel.Event {
		return kernel.Event{Kind: kernel.EventLink, Index: index, Link: c}
	}
	neigh := func(index int, mac net.HardwareAddr) kernel.Event {
		return kernel.Event{Kind: kernel.EventNeigh, Index: index, MAC: mac}
	}
	route := func(prefix string) kernel.Event {
		return kernel.Event{Kind: kernel.EventRoute, Prefix: netip.MustParsePrefix(prefix)}
	}
	prefixes := func(words ...string) (list []netip.Prefix) {
		for _, p := range words {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	elements := func(words ...string) kernel.Event {
		return kernel.Event{Kind: kernel.EventNftables, Elements: prefixes(words...)}
	}
	apart := func(e kernel.Event, near ...int) kernel.Event {
		e.Near = near
		if e.Routes == nil {
			e.Routes = []netip.Prefix{}
		}
		return e
	}
	tuple := func(proto uint8, from, to string) kernel.Tuple {
		c := kernel.Tuple{Proto: proto, Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to)}
		if proto != udp {
			c.Echo = 77
		}
		return c
	}
	ended := func(proto uint8, from, to, natted string) kernel.Event {
		return kernel.Event{Kind: kernel.EventConntrack, Ended: [2]kernel.Tuple{tuple(proto, from, to), tuple(proto, to, natted)}}
	}
	for _, c := range []struct {
		name   string
		events []kernel.Event
		want   string
	}{
		{"nothing", nil, ""},
		{"loss", []kernel.Event{{Kind: kernel.EventResync}}, "all, ports"},
		{"rule", []kernel.Event{{Kind: kernel.EventRule}}, "all"},
		{"address", []kernel.Event{{Kind: kernel.EventAddr}}, "all"},
		{"forwarding", []kernel.Event{{Kind: kernel.EventNetconf}}, "all"},
		{"next hop", []kernel.Event{{Kind: kernel.EventNexthop}}, "all"},
		{"IPsec", []kernel.Event{{Kind: kernel.EventXFRM}}, "all"},
		{"qdisc", []kernel.Event{{Kind: kernel.EventQdisc, Index: 1}}, "ports"},
		{"filter", []kernel.Event{{Kind: kernel.EventFilter, Index: 1}}, "ports"},
		{"features", []kernel.Event{{Kind: kernel.EventXDPFeatures, Index: 1}}, "ports"},
		{"link: new", []kernel.Event{link(5, kernel.LinkNew)}, "ports"},
		{"link: nothing that matters", []kernel.Event{link(1, 0)}, "ports"},
		{"link: MTU of a port", []kernel.Event{link(1, kernel.LinkMTU)}, "1/, ports"},
		{"link: MTU of another", []kernel.Event{link(9, kernel.LinkMTU)}, "all, ports"},
		{"link: MTU and more", []kernel.Event{link(1, kernel.LinkMTU|kernel.LinkState)}, "all, ports"},
		{"link: MAC", []kernel.Event{link(1, kernel.LinkMAC)}, "all, ports"},
		{"link: bridge port", []kernel.Event{link(1, kernel.LinkBridgePort)}, "all, ports"},
		{"link: gone", []kernel.Event{{Kind: kernel.EventLink, Index: 5, Deleted: true}}, "all, ports"},
		{"link apart: gone", []kernel.Event{apart(kernel.Event{Kind: kernel.EventLink, Index: 5, Deleted: true}, 5, 6)}, "ports"},
		{"link apart: gone, with routes", []kernel.Event{apart(kernel.Event{Kind: kernel.EventLink, Index: 5, Deleted: true, Routes: prefixes("10.1.2.0/24", "fe80::/64", "ff00::/8")}, 5)},
			"10.1.2.0/24, ports"},
		{"link apart: down, the default route by it", []kernel.Event{apart(kernel.Event{Kind: kernel.EventLink, Index: 5, Link: kernel.LinkState, Routes: prefixes("0.0.0.0/0")}, 5)}, "all, ports"},
		{"link apart: its routes unknown", []kernel.Event{{Kind: kernel.EventLink, Index: 5, Deleted: true, Near: []int{5}}}, "all, ports"},
		{"link apart: all else of it", []kernel.Event{apart(kernel.Event{Kind: kernel.EventLink, Index: 5, Link: kernel.LinkMaster | kernel.LinkMAC | kernel.LinkMTU | kernel.LinkSettings}, 5)}, "ports"},
		{"link beside a port: gone", []kernel.Event{apart(kernel.Event{Kind: kernel.EventLink, Index: 5, Deleted: true}, 5, 1)}, "all, ports"},
		{"forwarding of a link apart", []kernel.Event{apart(kernel.Event{Kind: kernel.EventNetconf, Index: 5}, 5)}, ""},
		{"forwarding of a link beside a port", []kernel.Event{apart(kernel.Event{Kind: kernel.EventNetconf, Index: 5}, 1, 5)}, "all"},
		{"address of a link apart", []kernel.Event{apart(kernel.Event{Kind: kernel.EventAddr, Index: 5, Prefix: netip.MustParsePrefix("192.0.2.1/24")}, 5)}, "all"},
		{"link-local address of a link apart", []kernel.Event{apart(kernel.Event{Kind: kernel.EventAddr, Index: 5, Prefix: netip.MustParsePrefix("fe80::1/64")}, 5)}, ""},
		{"link-local address of a port", []kernel.Event{apart(kernel.Event{Kind: kernel.EventAddr, Index: 1, Prefix: netip.MustParsePrefix("fe80::1/64")}, 1)}, "all"},
		{"neighbour", []kernel.Event{neigh(1, mac)}, "1/02:00:00:00:00:07"},
		{"neighbour above a port", []kernel.Event{neigh(9, mac)}, "0/02:00:00:00:00:07"},
		{"neighbour without a MAC", []kernel.Event{neigh(1, nil)}, "1/"},
		{"neighbour without a MAC above a port", []kernel.Event{neigh(9, nil)}, "all"},
		{"neighbour forgotten", []kernel.Event{{Kind: kernel.EventNeigh, Index: 1, MAC: mac, Deleted: true}}, ""},
		{"forwarding database", []kernel.Event{{Kind: kernel.EventFDB, Index: 1, MAC: mac, Deleted: true}}, "0/02:00:00:00:00:07"},
		{"routes", []kernel.Event{route("10.1.2.0/24"), route("10.1.2.0/24"), route("2001:db8::/32")}, "10.1.2.0/24, 2001:db8::/32"},
		{"default route", []kernel.Event{route("0.0.0.0/0")}, "all"},
		{"short route", []kernel.Event{route("2000::/3")}, "all"},
		{"ruleset", []kernel.Event{elements()}, "all, ports"},
		{"ban list", []kernel.Event{elements("192.0.2.1/32", "192.0.2.0/30")}, "192.0.2.0/30, 192.0.2.1/32"},
		{"ban list with a range of everything", []kernel.Event{elements("192.0.2.1/32", "0.0.0.0/0")}, "192.0.2.1/32, all"},
		{"connection", []kernel.Event{ended(udp, "10.0.0.1:1", "192.0.2.1:2", "203.0.113.1:3")},
			"17 10.0.0.1:1>192.0.2.1:2, 17 192.0.2.1:2>203.0.113.1:3"},
		{"ping", []kernel.Event{ended(1, "10.0.0.1:0", "192.0.2.1:0", "203.0.113.1:0")},
			"1 10.0.0.1:77>192.0.2.1:0, 1 192.0.2.1:77>203.0.113.1:0"},
		{"ping of IPv6", []kernel.Event{ended(58, "[2001:db8::1]:0", "[2001:db8::2]:0", "[2001:db8::1]:0")},
			"58 [2001:db8::1]:77>[2001:db8::2]:0, 58 [2001:db8::2]:77>[2001:db8::1]:0"},
		{"connections unheard of", []kernel.Event{{Kind: kernel.EventConntrackLost}}, "unheard"},
		{"several", []kernel.Event{neigh(1, mac), route("10.0.0.0/8"), {Kind: kernel.EventQdisc}},
			"1/02:00:00:00:00:07, 10.0.0.0/8, ports"},
	} {
		var got touched
		for _, e := range c.events {
			got.add(e, isPort)
		}
		if got.words() != c.want || got.nothing() != (c.want == "") {
			t.Errorf("%s: %q, nothing %v; want %q", c.name, got.words(), got.nothing(), c.want)
		}
	}
}

// TestTooMuch: what is remembered of a window is bounded.
func TestTooMuch(t *testing.T) {
	for name, event := range map[string]func(i int) kernel.Event{
		"neighbours": func(i int) kernel.Event {
			return kernel.Event{Kind: kernel.EventNeigh, Index: 1, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}}
		},
		"routes": func(i int) kernel.Event {
			return kernel.Event{Kind: kernel.EventRoute, Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}
		},
		"connections": func(i int) kernel.Event {
			return kernel.Event{Kind: kernel.EventConntrack}
		},
	} {
		var got touched
		for i := range mostScoped {
			got.add(event(i), func(int) bool { return true })
			if got.all && i < mostScoped/2 {
				t.Fatalf("%s: everything, after %d", name, i)
			}
		}
		got.add(event(mostScoped), func(int) bool { return true })
		if n := len(got.adjacencies) + len(got.prefixes) + len(got.ended); !got.all || n > mostScoped {
			t.Errorf("%s: all %v, %d remembered", name, got.all, n)
		}
	}
}

// TestBudget: changes of everything are obeyed one by one, but not for long.
func TestBudget(t *testing.T) {
	var b budget
	now, n := time.Unix(1000, 0), 0
	for range 1000 { // ten seconds of windows
		if b.take(now) {
			n++
		}
		now = now.Add(coalesce)
	}
	if want := bumpsAtOnce + int(1000*coalesce/bumpsApart); n < want-1 || n > want {
		t.Errorf("%d in ten seconds, want %d", n, want)
	}
	now = now.Add(time.Minute)
	for i := range bumpsAtOnce {
		if !b.take(now) {
			t.Errorf("after a quiet minute only %d at once", i)
		}
	}
	if b.take(now) {
		t.Error("as many at once as come")
	}
}

// TestSearches: looking through many flows is done at once, but takes its share at most in the
// long run.
func TestSearches(t *testing.T) {
	const each = 30 * time.Millisecond // 100,000 flows
	var a allowance
	now, n := time.Unix(1000, 0), 0
	for start := now; now.Sub(start) < 10*time.Second; now = now.Add(coalesce) {
		if a.wait(now) == 0 {
			a.left -= each
			n++
		}
	}
	if want := int((searchAtOnce + 10*time.Second/searchShare) / each); n < want-1 || n > want+1 {
		t.Errorf("%d searches in ten seconds, want %d", n, want)
	}
	now = now.Add(time.Minute)
	for i := range int(searchAtOnce / each) {
		if d := a.wait(now); d != 0 {
			t.Errorf("search %d after a quiet minute waits %v", i, d)
		}
		a.left -= each
	}
	a.left = -each
	if d := a.wait(now); d != each*searchShare {
		t.Errorf("overdrawn by %v it waits %v", each, d)
	}
}

// window runs a window of events through a daemon's data path.
func window(d *Daemon, c *change, events ...kernel.Event) (raised uint32, looked bool) {
	before, look := d.plane.Generation(), make(chan bool, 1)
	for _, e := range events {
		d.announce(e, c)
	}
	for range 2 { // it ends, and what was heard is ripe
		d.tick(c, look)
	}
	return d.plane.Generation() - before, len(look) > 0
}

// TestWindows: events that come together cost one raise; a flood of those that touch everything
// costs no more than the budget, and does not hold up others.
func TestWindows(t *testing.T) {
	d, _ := router(t)
	rule := kernel.Event{Kind: kernel.EventRule}
	route := kernel.Event{Kind: kernel.EventRoute, Prefix: netip.MustParsePrefix("10.0.0.0/24")}
	c := newChange(time.Hour)
	if n, looked := window(d, c, rule, rule, route, rule); n != 1 || looked || !c.nothing() {
		t.Errorf("raised %d times, looked %v, left %q", n, looked, c.words())
	}
	if n, looked := window(d, c, kernel.Event{Kind: kernel.EventQdisc}); n != 0 || !looked || !c.nothing() {
		t.Errorf("a qdisc: raised %d times, looked %v, left %q", n, looked, c.words())
	}
	for c.budget.take(time.Now()) {
	}
	if n, _ := window(d, c, rule); n != 0 || c.words() != "all" {
		t.Errorf("over the budget: raised %d times, left %q", n, c.words())
	}
	window(d, c, route)
	if c.words() != "all" || c.search.left >= searchAtOnce {
		t.Errorf("over the budget, a route: left %q, to search %v", c.words(), c.search.left)
	}
	c.search.left = -time.Hour
	ended := kernel.Event{Kind: kernel.EventConntrack}
	if window(d, c, route, ended); c.words() != "10.0.0.0/24, all" {
		t.Errorf("after long searches: left %q", c.words())
	}
	c.budget = budget{}
	if n, _ := window(d, c); n != 1 || !c.nothing() {
		t.Errorf("everything, after long searches: raised %d times, left %q", n, c.words())
	}
}

// TestRipening: what is heard just before changes are obeyed is not among them.
func TestRipening(t *testing.T) {
	d, _ := router(t)
	c, look := newChange(time.Hour), make(chan bool, 1)
	before := d.plane.Generation()
	for i, want := range []uint32{0, 1, 1, 2} {
		if i < 2 { // in a window, and behind its end
			d.announce(kernel.Event{Kind: kernel.EventRule}, c)
		}
		d.tick(c, look)
		if n := d.plane.Generation() - before; n != want {
			t.Errorf("tick %d: raised %d times, want %d", i, n, want)
		}
	}
	if !c.nothing() || !c.fresh.nothing() || c.window || c.ripening {
		t.Errorf("left %q and %q, window %v, ripening %v", c.words(), c.fresh.words(), c.window, c.ripening)
	}
}

// TestUnheard: connections that ended unheard of make everything prove itself, once a lease.
func TestUnheard(t *testing.T) {
	d, _ := router(t)
	lost := kernel.Event{Kind: kernel.EventConntrackLost}
	c := newChange(time.Hour)
	if n, _ := window(d, c, lost); n != 1 || !c.nothing() {
		t.Errorf("raised %d times, left %q", n, c.words())
	}
	if n, _ := window(d, c, lost); n != 0 || c.words() != "unheard" {
		t.Errorf("once more: raised %d times, left %q", n, c.words())
	}
	c.made = c.made.Add(-c.lease)
	if n, _ := window(d, c); n != 1 || !c.nothing() {
		t.Errorf("a lease later: raised %d times, left %q", n, c.words())
	}
}

// TestEventsCounted: status tells how many of each kind were heard, losses among them.
func TestEventsCounted(t *testing.T) {
	d, _ := router(t)
	before := maps.Clone(d.events)
	c := newChange(time.Hour)
	window(d, c, kernel.Event{Kind: kernel.EventResync}, kernel.Event{Kind: kernel.EventConntrackLost}, kernel.Event{Kind: kernel.EventResync})
	for word, n := range map[string]uint64{"resync": 2, "conntrack-lost": 1} {
		if got := d.events[word] - before[word]; got != n {
			t.Errorf("%s: %d, want %d", word, got, n)
		}
	}
}
