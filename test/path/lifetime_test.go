// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"testing"
)

// TestRouteLifetime: an entry ends with the IPv6 route that it was learned by. A route that ends later, or
// never, leaves it its lease.
func TestRouteLifetime(t *testing.T) {
	ways(t, func(t *testing.T, b *bench, first string) {
		in, out := b.udp6()
		const lease = 30 // seconds, of the rig
		for _, c := range []struct {
			route       string
			least, most uint32 // seconds
		}{
			{"", lease * 7 / 8, lease*9/8 + 1},
			{"expires 3", 1, 3},
			{"expires 3000", lease * 7 / 8, lease*9/8 + 1},
			{fmt.Sprint("expires ", 1<<31/b.HZ+lease), lease * 7 / 8, lease*9/8 + 1}, // as 30 days are with 1000 jiffies a second
		} {
			check(t, b.Clear())
			if c.route != "" {
				check(t, b.LAN.NS.IP("route replace 2001:2:0:19::2/128 dev wan "+c.route))
			}
			b.forth(t, first+"learned", in.Bytes(), out.Bytes())
			now, err := b.Now()
			check(t, err)
			if left := b.slotOf(t, in).Lease - now; left < c.least*b.HZ || left > c.most*b.HZ {
				t.Errorf("route %q: a lease of %.1f s", c.route, float64(left)/float64(b.HZ))
			}
		}
	})
}
