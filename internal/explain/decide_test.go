// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/netip"
	"strings"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/verdict"
)

// router is a kernel that answers with what it holds.
type router struct {
	route kernel.Route
	back  kernel.Route // of what this asks about answers
	conn  *kernel.Connection
	drop  *verdict.Drop
	names map[int]string

	routed kernel.Packet
	judged *verdict.Packet
}

func (r *router) Route(p kernel.Packet) (kernel.Route, error) {
	if p.In == 0 {
		return r.back, nil
	}
	r.routed = p
	return r.route, nil
}

func (r *router) Connection(kernel.Tuple) (kernel.Connection, error) {
	if r.conn == nil {
		return kernel.Connection{}, kernel.ErrNoConnection
	}
	return *r.conn, nil
}

func (r *router) Drop(p verdict.Packet) (*verdict.Drop, error) { r.judged = &p; return r.drop, nil }
func (r *router) Interface(index int) string                   { return r.names[index] }

// TestDecide: of each situation one cause, with what it comes from.
func TestDecide(t *testing.T) {
	const lan, wan, dmz, now = 3, 5, 7, 1000
	ap := netip.MustParseAddrPort
	names := map[int]string{lan: "lan", wan: "wan", dmz: "dmz"}
	wire := dataplane.Tuple{Source: ap("10.0.0.2:4000"), Destination: ap("192.0.2.1:80")}
	flow := func(why string, seen uint32) dataplane.Flow {
		return dataplane.Flow{Port: lan, Proto: 17, In: wire, NAT: wire, Why: why, Seen: seen, State: dataplane.StateSeen}
	}
	armed := func(why string, seen, lease uint32) dataplane.Flow {
		f := flow(why, seen)
		f.State, f.Out, f.Lease = dataplane.StateArmed, wan, lease
		return f
	}
	rule := &verdict.Drop{Rule: "rule inet filter forward handle 7: udp dport 80 drop", Sure: true}
	natted := &kernel.Connection{Original: kernel.Tuple{Source: wire.Source, Destination: wire.Destination},
		Reply: kernel.Tuple{Source: ap("10.1.0.7:8080"), Destination: ap("10.0.0.2:4000")}, Status: kernel.StatusSeenReply}
	for _, c := range []struct {
		name   string
		state  string
		flow   dataplane.Flow
		kernel router
		ports  map[int]Port // beside lan and wan
		want   string
		detail string
		remedy string
	}{
		{"to the router itself", api.FlowSeen, flow("local_socket", now), router{route: kernel.Route{Local: true}}, nil, "to_router", "", ""},
		{"to the router, and over", api.FlowSeen, flow("learning", now-900), router{route: kernel.Route{Local: true}}, nil, "to_router", "", ""},
		{"no route", api.FlowSeen, flow("learning", now), router{route: kernel.Route{Why: "unreachable"}}, nil, "no_route", "unreachable", "ip route get"},
		{"dropped by a rule", api.FlowOld, armed("renewed", now, now+10), router{route: kernel.Route{Out: wan}, drop: rule}, nil, "dropped", "handle 7: udp dport 80 drop", "rule"},
		{"dropped from the first packet on", api.FlowSeen, flow("below_threshold", now), router{route: kernel.Route{Out: wan}, drop: rule}, nil, "dropped", "handle 7", "rule"},
		{"perhaps dropped", api.FlowExpired, armed("lease_ended", now, now-10), router{route: kernel.Route{Out: wan}, drop: &verdict.Drop{Rule: "rule x"}}, nil, "dropped", "perhaps rule x", "rule"},
		{"not confirmed", api.FlowSeen, flow("ct_unconfirmed", now), router{}, nil, "ct_unconfirmed", "", ""},
		{"below the threshold", api.FlowSeen, flow("below_threshold", now), router{route: kernel.Route{Out: wan}}, nil, "below_threshold", "", "threshold"},
		{"below the threshold, and over", api.FlowSeen, flow("below_threshold", now-900), router{route: kernel.Route{Out: wan}}, nil, "below_threshold", "", "threshold"},
		{"out by no port", api.FlowSeen, flow("learning", now), router{route: kernel.Route{Out: dmz}}, nil, "port_unknown", "sends it out by dmz, which is no port", "--port dmz"},
		{"out by a refused port", api.FlowSeen, flow("learning", now), router{route: kernel.Route{Out: dmz}},
			map[int]Port{dmz: {Name: "dmz", Refused: true, Reason: "dmz is a bridge", Remedy: "name only physical ports"}}, "port_unknown", "dmz, which is refused: dmz is a bridge", "physical ports"},
		{"in by what was renamed", api.FlowOld, func() dataplane.Flow { f := armed("renewed", now, now+10); f.Port = dmz; return f }(), router{}, nil,
			"port_unknown", "comes in by dmz, which is no port", "--port dmz"},
		{"in by what is gone", api.FlowOld, func() dataplane.Flow { f := armed("renewed", now, now+10); f.Port = 99; return f }(), router{}, nil,
			"port_unknown", "interface number 99, which is gone", "none"},
		{"ended with its lease", api.FlowExpired, armed("renewed", now-900, now-500), router{route: kernel.Route{Out: wan}, drop: rule}, nil, "ended", "its last packet came 5 s ago", ""},
		{"ended before a change", api.FlowOld, armed("renewed", now-900, now+100), router{route: kernel.Route{Out: wan}}, nil, "ended", "9 s ago", ""},
		{"ended before it was learned", api.FlowSeen, flow("learning", now-900), router{route: kernel.Route{Out: wan}}, nil, "ended", "9 s ago", ""},
		{"at the end of its lease", api.FlowExpired, armed("renewed", now-400, now-1), router{route: kernel.Route{Out: wan}}, nil, "lease_ended", "", ""},
		{"just changed", api.FlowOld, armed("renewed", now-100, now+100), router{route: kernel.Route{Out: wan}}, nil, "old_generation", "", ""},
		{"excluded", api.FlowSeen, flow("excluded", now), router{route: kernel.Route{Local: true}}, nil, "excluded", "[[exclude]] number 1", ""},
		{"per packet", api.FlowSeen, flow("per_packet_rule", now), router{drop: rule}, nil, "per_packet_rule", "handle 3 (limit)", ""},
		{"fast in XDP", api.FlowArmed, func() dataplane.Flow { f := armed("renewed", now, now+10); f.XDP = true; return f }(), router{}, nil, "hit", "", ""},
		{"fast in TC for a queueing policy", api.FlowArmed, armed("renewed", now, now+10), router{},
			map[int]Port{wan: {Name: "wan", Reason: "wan has the queueing policy htb, which XDP would bypass: flows to it go by TC"}}, "hit", "wan has the queueing policy htb", ""},
		{"behind NAT", api.FlowSeen, flow("learning", now), router{route: kernel.Route{Out: wan}, conn: natted, drop: rule}, nil, "dropped", "handle 7", ""},
	} {
		k := c.kernel
		k.names = names
		ports := map[int]Port{lan: {Name: "lan", XDP: true}, wan: {Name: "wan"}}
		for index, p := range c.ports {
			ports[index] = p
		}
		l := &Look{Now: now, HZ: 100, TCP: true, Ports: ports, Kernel: &k}
		j := judge{Look: l}
		a := api.Flow{State: c.state, Way: api.WayTC}
		if c.flow.XDP {
			a.Way = api.WayXDP
		}
		word := j.word(&a, &c.flow)
		x := explanation(word)
		x.Flow, x.Fast = &a, word == "hit"
		switch word { // as the daemon names the rule
		case "excluded":
			x.Detail = "[[exclude]] number 1 of the configuration"
		case "per_packet_rule":
			x.Detail = "inet filter forward handle 3 (limit)"
		}
		j.decide(&x, &c.flow, true)
		if x.Reason != c.want || !strings.Contains(x.Detail, c.detail) || (c.detail == "") != (x.Detail == "") ||
			!strings.Contains(x.Remedy, c.remedy) || x.Words == "" || x.Rule == "" {
			t.Errorf("%s: %s, %q, remedy %q; want %s, %q", c.name, x.Reason, x.Detail, x.Remedy, c.want, c.detail)
		}
		if x.Fast != (c.want == "hit") {
			t.Errorf("%s: fast %v", c.name, x.Fast)
		}
		if c.name == "behind NAT" && (k.routed.Destination != ap("10.1.0.7:8080") || k.judged.NATDest != ap("10.1.0.7:8080") || k.judged.New || k.judged.Out != "wan") {
			t.Errorf("behind NAT the kernel is asked about %+v and %+v", k.routed, *k.judged)
		}
	}
}

// TestDecideNothing: a flow of which nothing is kept comes in where nobody looks, or not at all.
func TestDecideNothing(t *testing.T) {
	q := api.FlowQuery{Proto: 17, Source: netip.MustParseAddrPort("10.0.0.2:1"), Destination: netip.MustParseAddrPort("192.0.2.1:2")}
	for _, c := range []struct {
		name string
		back kernel.Route
		want string
	}{
		{"by a port", kernel.Route{Out: 3}, "not_seen"},
		{"by no port", kernel.Route{Out: 7}, "port_unknown"},
		{"from this host", kernel.Route{Local: true}, "local_socket"},
		{"from nowhere", kernel.Route{Why: "no route"}, "not_seen"},
	} {
		j := judge{Look: &Look{Ports: map[int]Port{3: {Name: "lan"}}, Kernel: &router{back: c.back, names: map[int]string{3: "lan", 7: "dmz"}}}}
		x := notSeen
		j.decideNothing(&x, &q)
		if x.Reason != c.want || c.want == "port_unknown" && (!strings.Contains(x.Detail, "dmz") || !strings.Contains(x.Remedy, "--port dmz")) {
			t.Errorf("%s: %+v, want %s", c.name, x, c.want)
		}
	}
}
