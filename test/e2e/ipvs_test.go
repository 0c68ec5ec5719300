// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestIPVS: a director balances each datagram by itself (one-packet scheduling), or each connection by a table
// of its own. Both servers get what they get without shunt, and the reason is told.
func TestIPVS(t *testing.T) {
	for _, mode := range []string{"off", "on", "auto"} {
		for _, scheduling := range []string{"--ops", ""} {
			t.Run(mode+scheduling, func(t *testing.T) {
				r := newRig(t, lab.FirewallOptions{Open: true, Neighbours: true})
				if _, errs, code := r.exec("ipvsadm", "-L"); code != 0 {
					t.Skipf("this kernel has no IPVS: %s", errs)
				}
				r.must(r.Server.NS.IP("address add 198.19.0.3/24 dev eth0", "address add 2001:2:0:19::3/64 dev eth0 nodad"))
				r.ip("address add 198.18.0.100/32 dev lan", "address add 2001:2:0:18::100/128 dev lan nodad",
					"neighbour replace 198.19.0.3 lladdr "+r.Server.MAC.String()+" dev wan nud permanent",
					"neighbour replace 2001:2:0:19::3 lladdr "+r.Server.MAC.String()+" dev wan nud permanent")
				r.start(program, with("--xdp", mode)...)
				for _, v := range []struct{ client, virtual, one, other string }{
					{"198.18.0.2", "198.18.0.100", "198.19.0.2", "198.19.0.3"},
					{"2001:2:0:18::2", "2001:2:0:18::100", "2001:2:0:19::2", "2001:2:0:19::3"},
				} {
					at := func(s string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(s), 6000) }
					lines := []string{fmt.Sprintf("-A -u %s -s rr %s", at(v.virtual), scheduling)}
					for _, s := range []string{v.one, v.other} {
						lines = append(lines, fmt.Sprintf("-a -u %s -r %s -m", at(v.virtual), at(s)))
					}
					for _, line := range lines {
						if _, errs, code := r.exec(append([]string{"ipvsadm"}, strings.Fields(line)...)...); code != 0 {
							t.Fatalf("ipvsadm %s: %s", line, errs)
						}
					}
					var servers [2]*net.UDPConn
					for i, s := range []string{v.one, v.other} {
						r.must(r.Server.NS.Do(func() (err error) { servers[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at(s))); return err }))
						defer servers[i].Close()
					}
					var client net.Conn
					r.must(r.Client.NS.Do(func() (err error) { client, err = net.Dial("udp", at(v.virtual).String()); return err }))
					defer client.Close()
					hits, kept := r.status().Hits, r.count("ipvs")
					const n = 200
					for range n {
						client.Write([]byte("datagram"))
						time.Sleep(2 * time.Millisecond)
					}
					var got [2]int
					b := make([]byte, 100)
					for i, c := range servers {
						for c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); ; got[i]++ {
							if _, err := c.Read(b); err != nil {
								break
							}
						}
					}
					if got[0]+got[1] < n-5 || scheduling != "" && (got[0] < n/2-5 || got[1] < n/2-5) {
						t.Errorf("%s: of %d datagrams the servers got %v", v.virtual, n, got)
					}
					if h, k := r.status().Hits-hits, r.count("ipvs")-kept; h > 0 || k < n*3/4 {
						t.Errorf("%s: %d hits, %d packets kept for IPVS", v.virtual, h, k)
					}
				}
			})
		}
	}
}
