// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/verdict"
)

// Kernel answers what the data path cannot know: where a packet would go, and what would drop it.
type Kernel interface {
	Route(kernel.Packet) (kernel.Route, error)
	Connection(kernel.Tuple) (kernel.Connection, error)
	Drop(verdict.Packet) (*verdict.Drop, error)
	Interface(index int) string // its name now; "" if it is gone
}

// quiet is for how many seconds no packet comes of a flow that has ended.
const quiet = 2

// causes are answers that only the kernel's tables give. They are no reasons of the data path: a packet
// was counted under what it met there.
var causes = map[string]api.Explanation{
	"to_router": {Words: "it is for this router itself, and ends here",
		Rule: "nothing is forwarded that the kernel would not have forwarded"},
	"no_route": {Words: "the kernel does not forward it: it has no route for it",
		Rule: "the kernel decides; shunt repeats what it does", Remedy: "see what the kernel would do: ip route get DESTINATION from SOURCE iif PORT"},
	"dropped": {Words: "the firewall drops it",
		Rule: "the kernel decides; shunt repeats what it does", Remedy: "if it should pass, change that rule"},
	"ended": {Words: "no packet of it comes any more: it has ended, or pauses",
		Rule: "an entry is a lease: when it ends, the kernel proves it again"},
}

// undecided are reasons that say no more than that no packet came out yet in a way that can be repeated.
var undecided = []string{"learning", "lease_ended", "old_generation", "below_threshold", "local_socket", "unsighted",
	"other_packet", "port_unknown"}

// settle gives an explanation its cause.
func settle(x *api.Explanation, word, detail string) {
	c, ok := causes[word]
	if !ok {
		c = explanation(word)
	}
	x.Reason, x.Words, x.Rule, x.Remedy, x.Detail = word, c.Words, c.Rule, c.Remedy, detail
}

// decide finds the one cause of a flow that is not fast, and of one that is fast in TC alone. Without a
// Kernel it knows nothing better.
func (j *judge) decide(x *api.Explanation, f *dataplane.Flow, deep bool) {
	if j.Kernel == nil {
		return
	}
	if x.Fast {
		if out := j.Ports[f.Out]; x.Flow.Way == api.WayTC {
			x.Detail = cmp.Or(x.Detail, out.Reason, j.Ports[f.Port].Reason)
		}
		return
	}
	if !slices.Contains(undecided, x.Reason) {
		return
	}
	if why, remedy := j.noPort(f.Port, "it comes in by"); why != "" {
		settle(x, "port_unknown", why)
		x.Remedy = remedy
		return
	}
	p := verdict.Packet{Proto: f.Proto, In: j.Ports[f.Port].Name, InIndex: f.Port}
	p.Source, p.Destination = ends(f.Proto, f.In)
	if f.Proto == icmp || f.Proto == icmpv6 {
		p.ICMPType = uint8(f.In.Destination.Port() >> 8)
	}
	if deep && j.decideRoute(x, &p, f.Mark) {
		return
	}
	if last := j.lastPacket(x.Flow, f); x.Reason != "below_threshold" && last > quiet {
		settle(x, "ended", fmt.Sprintf("its last packet came %.0f s ago", last))
		return
	}
	if deep {
		j.decideDrop(x, &p)
	}
}

// lastPacket is for how many seconds at least no packet has come: while an entry is used, packets are not
// dated, so the end of its lease counts as one.
func (j *judge) lastPacket(a *api.Flow, f *dataplane.Flow) float64 {
	last := j.since(f.Seen)
	if a.State == api.FlowExpired && j.passed(f.Lease) {
		last = min(last, j.since(f.Lease))
	}
	return last
}

// noPort says why an interface is no port, and what helps; "" if it is one.
func (j *judge) noPort(index int, comes string) (why, remedy string) {
	p, known := j.Ports[index]
	if known && !p.Refused {
		return "", ""
	}
	name := j.Kernel.Interface(index)
	switch {
	case name == "":
		return fmt.Sprintf("%s interface number %d, which is gone", comes, index), "none: what comes by another interface is another flow"
	case known:
		return fmt.Sprintf("%s %s, which is refused: %s", comes, name, p.Reason), p.Remedy
	}
	return fmt.Sprintf("%s %s, which is no port", comes, name), fmt.Sprintf("add --port %s; if a port was renamed, name it anew", name)
}

// decideRoute asks conntrack what NAT makes of the packet, and the kernel where it goes. It fills in the
// packet.
func (j *judge) decideRoute(x *api.Explanation, p *verdict.Packet, mark uint32) (decided bool) {
	p.NATSource, p.NATDest = p.Source, p.Destination
	switch c, err := j.Kernel.Connection(connection(p)); {
	case err == nil:
		back := c.Reply // of a packet in the original direction the reply is what it looks like, turned round
		if p.Proto == icmp || p.Proto == icmpv6 {
			if c.Original.Source.Addr() != p.Source.Addr() || c.Original.Destination.Addr() != p.Destination.Addr() {
				back = c.Original
			}
			p.NATDest, p.NATSource = withPort(back.Source, p.Destination), withPort(back.Destination, p.Source)
		} else {
			if c.Original.Source != p.Source || c.Original.Destination != p.Destination {
				back = c.Original
			}
			p.NATDest, p.NATSource = back.Source, back.Destination
		}
		p.New = c.Status&kernel.StatusSeenReply == 0
	case errors.Is(err, kernel.ErrNoConnection):
		p.New = true
	default:
		p.Untracked = true
	}
	r, err := j.Kernel.Route(kernel.Packet{Proto: p.Proto, Source: p.Source, Destination: p.NATDest, In: p.InIndex, Mark: mark})
	switch {
	case err != nil:
		return false
	case r.Local:
		settle(x, "to_router", "")
		return true
	case r.Why != "":
		settle(x, "no_route", r.Why)
		return true
	}
	p.Out, p.OutIndex = j.Kernel.Interface(r.Out), r.Out
	if why, remedy := j.noPort(r.Out, "the kernel sends it out by"); why != "" {
		settle(x, "port_unknown", why)
		x.Remedy = remedy
		return true
	}
	return false
}

// decideDrop asks the ruleset.
func (j *judge) decideDrop(x *api.Explanation, p *verdict.Packet) {
	d, err := j.Kernel.Drop(*p)
	if err != nil || d == nil {
		return
	}
	detail := d.Rule
	if !d.Sure {
		if x.Reason == "below_threshold" {
			return // so far it has come out, perhaps
		}
		detail = "perhaps " + detail
	}
	settle(x, "dropped", detail)
}

// decideNothing is about a flow of which nothing is kept: it may come in where nobody looks.
func (j *judge) decideNothing(x *api.Explanation, q *api.FlowQuery) {
	if j.Kernel == nil {
		return
	}
	// where answers would go is where its packets come in
	back, err := j.Kernel.Route(kernel.Packet{Proto: q.Proto, Source: q.Destination, Destination: q.Source})
	switch {
	case err != nil || back.Why != "":
	case back.Local:
		settle(x, "local_socket", "")
	default:
		if why, remedy := j.noPort(back.Out, "by the routes it comes in by"); why != "" {
			counted := x.Counted
			settle(x, "port_unknown", why)
			x.Remedy, x.Counted = remedy, counted
		}
	}
}

// connection is the packet as conntrack asks for it.
func connection(p *verdict.Packet) kernel.Tuple {
	t := kernel.Tuple{Proto: p.Proto, Source: p.Source, Destination: p.Destination}
	if p.Proto == icmp || p.Proto == icmpv6 {
		t.Echo, t.Type = p.Source.Port(), p.ICMPType
	}
	return t
}

func withPort(a, port netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port.Port())
}
