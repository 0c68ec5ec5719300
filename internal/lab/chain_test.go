// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// All routes are different, and none is to a host.
func TestGeneratedRoutes(t *testing.T) {
	seen := make(map[netip.Prefix]bool, MaxRoutes)
	hosts := netip.MustParsePrefix("10.128.0.0/12")
	for n := range MaxRoutes {
		p := generated(n)
		if seen[p] || p != p.Masked() || p.Overlaps(hosts) || !netip.MustParsePrefix("10.0.0.0/8").Contains(p.Addr()) {
			t.Fatalf("route %d is %s", n, p)
		}
		seen[p] = true
	}
}

// Over any number of routers the first host reaches the one behind the last, at both of its addresses,
// and each router takes its part in it.
func TestChain(t *testing.T) {
	const hops, routes = 3, 100
	c, err := NewChain(ChainOptions{Name: "chain", Hops: hops, Routes: routes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for n := 1; n <= hops; n++ {
		for _, to := range []netip.Addr{c.Hosts[n-1].V4.Addr(), c.Switched(n)} {
			out, err := c.First.NS.Run("ping", "-n", "-c", "1", "-W", "2", to.String())
			if want := fmt.Sprintf("ttl=%d ", 64-n); err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v: no %q in %s", to, err, want, out)
			}
		}
		all, err := c.Routers[n-1].NS.Run("ip", "route", "show")
		if got := strings.Count(all, "/28 via"); err != nil || got != routes {
			t.Errorf("router %d has %d routes, want %d (%v)", n, got, routes, err)
		}
	}
	for _, o := range []ChainOptions{{Hops: 0}, {Hops: 10}, {Hops: 1, Routes: -1}, {Hops: 1, Routes: MaxRoutes + 1}} {
		if _, err := NewChain(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// Each label that a router sends is one that the next router takes.
func TestChainTables(t *testing.T) {
	c := &Chain{}
	for n := 1; n <= 3; n++ {
		r := Router{West: End{Device: "west", V4: netip.MustParsePrefix(fmt.Sprintf("198.18.%d.2/24", n-1))}}
		if n < 3 {
			r.East = End{Device: "east", V4: netip.MustParsePrefix(fmt.Sprintf("198.18.%d.1/24", n))}
		}
		c.Routers = append(c.Routers, r)
	}
	want := [][]string{{
		"nhlfe add 2 push 1034 send dev east via inet 198.18.1.2", "ftn add 10.128.2.3/32 nhlfe 2",
		"nhlfe add 102 pop send dev west via inet 10.128.0.3", "ilm add 2033 nhlfe 102",
		"nhlfe add 3 push 1050 send dev east via inet 198.18.1.2", "ftn add 10.128.3.3/32 nhlfe 3",
		"nhlfe add 103 pop send dev west via inet 10.128.0.3", "ilm add 2049 nhlfe 103",
		"space set east 0",
	}, {
		"nhlfe add 2 pop send dev host via inet 10.128.2.3", "ilm add 1034 nhlfe 2",
		"nhlfe add 102 push 2033 send dev west via inet 198.18.1.1", "ftn add 10.128.0.3/32 nhlfe 102",
		"nhlfe add 3 swap 1051 send dev east via inet 198.18.2.2", "ilm add 1050 nhlfe 3",
		"nhlfe add 103 swap 2049 send dev west via inet 198.18.1.1", "ilm add 2050 nhlfe 103",
		"space set west east 0",
	}, {
		"nhlfe add 3 pop send dev host via inet 10.128.3.3", "ilm add 1051 nhlfe 3",
		"nhlfe add 103 push 2050 send dev west via inet 198.18.2.1", "ftn add 10.128.0.3/32 nhlfe 103",
		"space set west 0",
	}}
	for i := range c.Routers {
		if got := c.Tables(i); !slices.Equal(got, want[i]) {
			t.Errorf("router %d:\n%s\nwant\n%s", i+1, strings.Join(got, "\n"), strings.Join(want[i], "\n"))
		}
	}
}
