// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestMarkBehindVeth: the way out is a veth whose other end is in the router's own namespace, a leg into a
// bridge. The kernel keeps the mark across such a pair, so whatever stands behind it sees the
// mark of each packet, by TC, XDP and auto; flows without a mark still go by XDP.
func TestMarkBehindVeth(t *testing.T) {
	for _, mode := range []string{"off", "on", "auto"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{Open: true}) // br_netfilter shows its rules bridged packets, too
			// server - far (bridge br0) leg - wan
			r.ip("link set wan name far", "address flush dev far", "link add wan type veth peer name leg",
				"link add br0 type bridge forward_delay 0", "link set far master br0", "link set leg master br0",
				"link set br0 up", "link set leg up", "address add 198.19.0.1/24 dev wan", "address add 2001:2:0:19::1/64 dev wan nodad",
				"link set wan address 02:00:00:00:13:77", "link set wan up")
			for _, device := range []string{"wan", "leg"} {
				r.exec("ethtool", "-K", device, "tx", "off", "gro", "on", "tso", "off", "gso", "off")
			}
			r.nft(`table inet m { chain f { type filter hook forward priority 0; oifname "wan" udp dport 6000 meta mark set 5; }; }
				table netdev n {
					counter five { }
					counter other { }
					chain i { type filter hook ingress device "leg" priority 0;
						udp dport 6000 meta mark 5 counter name five accept
						udp dport 6000 counter name other
					}
				}`)
			r.start(program, with("--xdp", mode)...)
			const n = 600
			for _, v := range []struct{ client, server netip.Addr }{
				{r.Client.V4.Addr(), r.Server.V4.Addr()}, {r.Client.V6.Addr(), r.Server.V6.Addr()},
			} {
				got := map[uint16]int{}
				for _, port := range []uint16{6000, 6001} {
					at := netip.AddrPortFrom(v.server, port)
					var to, from *net.UDPConn
					r.must(r.Server.NS.Do(func() (err error) { to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }))
					r.must(r.Client.NS.Do(func() (err error) { from, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at)); return err }))
					b := make([]byte, 100)
					before := r.status().Hits
					for range n {
						from.Write([]byte("marked"))
						to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
						if _, err := to.Read(b); err == nil {
							got[port]++
						}
					}
					if hits := r.status().Hits - before; hits < n*3/4 {
						t.Errorf("%v: %d hits of %d packets", at, hits, n)
					}
					for _, f := range r.armed() {
						if f.Destination == at && mode == "on" && (f.Way == api.WayXDP) != (port == 6001) {
							t.Errorf("%v goes by %s", at, f.Way)
						}
					}
					to.Close()
					from.Close()
				}
				if got[6000] < n-5 || got[6001] < n-5 {
					t.Errorf("%v: of %d packets each arrived %v", v.server, n, got)
				}
			}
			out, _, _ := r.exec("nft", "list", "counters")
			seen := map[string]int{}
			for _, m := range regexp.MustCompile(`counter (\w+) \{\s+packets (\d+)`).FindAllStringSubmatch(out, -1) {
				seen[m[1]], _ = strconv.Atoi(m[2])
			}
			if seen["five"] < 2*n-10 || seen["other"] > 0 {
				t.Errorf("behind the pair, of %d packets: %v", 2*n, seen)
			}
			if p := r.port("wan"); mode == "on" && p.Reason == "" {
				t.Errorf("port wan says nothing of marks: %+v", p)
			}
		})
	}
}
