// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestExplainCommand: a living daemon is asked about a flow, a flow that is not there, the
// busiest, and a word.
func TestExplainCommand(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	stop := r.background(r.generator(4, 400))
	r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 4 })
	stop()
	r.eventually("their leases are over", 10*time.Second, func() bool { return len(r.armed()) == 0 })
	time.Sleep(2500 * time.Millisecond) // then they have ended, and do not only pause
	client, server := r.Client.V4.Addr().String(), r.Server.V4.Addr().String()
	flow := func(port int) string { return fmt.Sprintf("%s:%d %s:%d/udp", client, port, server, servicePort) }
	for _, c := range []struct {
		args []string
		want []string
		no   string
	}{
		{[]string{"explain", flow(clientPort)}, []string{flow(clientPort) + ": not fast", "ended: no packet of it comes", "its last packet came", "repeated in XDP", "from "}, "not_seen"},
		{[]string{"explain", flow(9)}, []string{flow(9) + ": not fast", "not_seen", "between the same addresses", flow(clientPort)}, ""},
		{[]string{"explain", "--top", "2"}, []string{"ended"}, "not_seen"},
		{[]string{"explain", "learned"}, []string{"met by", flow(clientPort), "4 at tc-egress on wan"}, "not_seen"},
	} {
		out, errs, code := r.shunt(c.args...)
		if code != 0 {
			t.Errorf("%v: exit %d, %s", c.args, code, errs)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v does not say %q:\n%s", c.args, want, out)
			}
		}
		if c.no != "" && strings.Contains(out, c.no) {
			t.Errorf("%v says %q:\n%s", c.args, c.no, out)
		}
	}
	list, err := r.api.Explain(context.Background(), api.ExplainQuery{Top: 2})
	if err != nil || len(list) != 2 || list[0].Flow == nil || list[0].Flow.Rewrite == nil ||
		list[0].Flow.Rewrite.Source.Addr() != netip.MustParseAddr(r.WAN.V4.Addr().String()) {
		t.Errorf("the two busiest: %+v, %v", list, err)
	}
}

// TestExplainDecides: under traffic that comes in and is not repeated, and after its end, a living daemon
// names the one cause.
func TestExplainDecides(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			r.ip("link add dmz type veth peer name dmz-peer", "link set dmz up", "link set dmz-peer up",
				"address add 203.0.113.1/24 dev dmz", "route add unreachable 192.0.2.0/25", "route add 192.0.2.128/25 dev dmz")
			r.start(program, with("--xdp", mode)...)
			client := r.Client.V4.Addr()
			talk := func(to string, port uint16) (flow string, stop func()) {
				t.Helper()
				from := netip.AddrPortFrom(client, port)
				at := netip.MustParseAddrPort(to)
				c := r.dialUDP(r.Client.NS, from, at)
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					for ctx.Err() == nil {
						c.Write([]byte("x"))
						time.Sleep(5 * time.Millisecond)
					}
				}()
				return fmt.Sprintf("%s %s/udp", from, at), func() { cancel(); <-done }
			}
			cause := func(flow, word, detail string) {
				t.Helper()
				q, err := api.ParseFlow(flow)
				r.must(err)
				var x []api.Explanation
				for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
					x, err = r.api.Explain(context.Background(), api.ExplainQuery{Flow: &q})
					r.must(err)
					if len(x) > 0 && x[0].Reason == word && strings.Contains(x[0].Detail, detail) {
						return
					}
				}
				t.Errorf("%s: %+v; want %s, %q", flow, x, word, detail)
			}
			server := r.Server.V4.Addr().String()
			toRouter, stop1 := talk(r.LAN.V4.Addr().String()+":9", 4001)
			cause(toRouter, "to_router", "")
			noRoute, stop2 := talk("192.0.2.1:9", 4002)
			cause(noRoute, "no_route", "unreachable")
			noPort, stop3 := talk("192.0.2.129:9", 4003)
			cause(noPort, "port_unknown", "dmz, which is no port")
			fast, stop4 := talk(server+":9", 4004)
			cause(fast, "hit", "")
			r.nft("table inet no { chain forward { type filter hook forward priority -10; udp sport 4004 drop; }; }")
			cause(fast, "dropped", "udp sport 4004 drop")
			fresh, stop5 := talk(server+":10", 4005)
			r.nft("table inet no2 { chain forward { type filter hook forward priority -10; udp dport 11 drop; }; }")
			cause(fresh, "hit", "")
			never, stop6 := talk(server+":11", 4006)
			cause(never, "dropped", "udp dport 11 drop")
			stop1()
			stop2()
			stop3()
			cause(toRouter, "to_router", "")
			stop5()
			cause(fresh, "ended", "its last packet came")
			r.ip("link set lan down", "link set lan name lan0", "link set lan0 up")
			cause(fast, "port_unknown", "lan0, which is no port")
			stop4()
			stop6()
		})
	}
}
