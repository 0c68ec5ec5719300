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
	client, server := r.Client.V4.Addr().String(), r.Server.V4.Addr().String()
	flow := func(port int) string { return fmt.Sprintf("%s:%d %s:%d/udp", client, port, server, servicePort) }
	for _, c := range []struct {
		args []string
		want []string
		no   string
	}{
		{[]string{"explain", flow(clientPort)}, []string{flow(clientPort) + ": not fast", "lease_ended", "repeated in XDP", "from "}, "not_seen"},
		{[]string{"explain", flow(9)}, []string{flow(9) + ": not fast", "not_seen", "between the same addresses", flow(clientPort)}, ""},
		{[]string{"explain", "--top", "2"}, []string{"lease_ended"}, "not_seen"},
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
