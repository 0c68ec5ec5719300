// SPDX-License-Identifier: Apache-2.0

// Package explain says in the API's words what the data path keeps: which flows there are,
// whether each is fast, by which way and for how long, and if not, why not.
//
// A Look is one look at one data path; the daemon makes one for each question that is
// asked of it. Where many flows are asked for, slots are chosen as they lie in the table,
// and only those that are answered become flows. Packets that no slot remembers are
// known by the samples of bpf/sample.h and, at the last, by the counters of the ports.
//
// Limits: it tells how things stand, from memory that packets write to meanwhile. Two
// answers of one moment may differ by what happened between them.
package explain

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
)

// Look is what the answers are made from: the data path, and what the daemon alone knows.
type Look struct {
	Plane *dataplane.Plane
	Now   uint32       // jiffies
	HZ    uint32       // jiffies in a second
	TCP   bool         // TCP may be repeated
	Ports map[int]Port // by ifindex
	// Because names the rule of the firewall or of the configuration behind a reason that a
	// flow met; "" where there is none. May be nil.
	Because func(f dataplane.Flow, reason string) string
	// Kernel decides between causes. May be nil.
	Kernel Kernel
}

// Port is what must be known of an interface.
type Port struct {
	Name           string
	XDP            bool   // the XDP program is attached
	Refused        bool   // no program is
	Reason, Remedy string // why it is refused, or goes by TC alone
}

// since is how long ago a jiffy was, in seconds; negative in the future.
func (l *Look) since(jiffy uint32) float64 {
	return float64(int32(l.Now-jiffy)) / float64(l.HZ)
}

// passed is bpf/flow.h's: what seems further ahead than a lease can be is of an earlier turn
// of the jiffies.
func (l *Look) passed(jiffy uint32) bool { return (jiffy-l.Now-1)>>ahead != 0 }

const ahead = 17 // bits, AHEAD of bpf/flow.h

// state is what a slot is to the API. gen is the current generation.
func (l *Look) state(s *dataplane.Slot, gen uint32) string {
	switch s.State() {
	case dataplane.StateClosed:
		return api.FlowClosed
	case dataplane.StateSeen:
		return api.FlowSeen
	}
	switch {
	case s.Generation() != gen:
		return api.FlowOld
	case l.passed(s.Lease()):
		return api.FlowExpired
	}
	return api.FlowArmed
}

// deadAfter is for how many seconds no packet comes of a flow that is shown no more. Its slot is given to
// the next flow that needs one.
const deadAfter = 5

// dead reports whether a flow has ended, as far as its slot tells: hits are not dated, but each is within
// a lease.
func (l *Look) dead(s *dataplane.Slot) bool {
	if l.since(s.Seen()) <= deadAfter {
		return false
	}
	return s.State() != dataplane.StateArmed || l.passed(s.Lease()) && (l.since(s.Lease()) > deadAfter || l.since(s.Lease()) < 0)
}

// Count says how full the table is.
func (l *Look) Count() (n api.FlowCount, err error) {
	err = l.Plane.Slots(func(s *dataplane.Slot) bool {
		if l.dead(s) {
			n.Idle++
			return true
		}
		switch s.State() {
		case dataplane.StateArmed:
			n.Armed++
		case dataplane.StateClosed:
			n.Closed++
		default:
			n.Seen++
		}
		return true
	})
	return n, err
}

// Flows returns the flows that a filter chooses, in its order.
func (l *Look) Flows(filter api.FlowFilter) ([]api.Flow, error) {
	gen := l.Plane.Generation()
	chosen := best{limit: filter.Limit}
	measure, err := l.measure(filter.Sort)
	if err != nil {
		return nil, err
	}
	err = l.Plane.Slots(func(s *dataplane.Slot) bool {
		if filter.Live && l.dead(s) || filter.Port != "" && l.Ports[s.Port()].Name != filter.Port ||
			filter.State != "" && l.state(s, gen) != filter.State {
			return true
		}
		if measure == nil {
			chosen.add(0, s)
			return filter.Limit == 0 || len(chosen.all) < filter.Limit
		}
		chosen.offer(measure(s), s)
		return true
	})
	if err != nil {
		return nil, err
	}
	var flows []api.Flow
	for _, c := range chosen.sorted() {
		flows = append(flows, l.flow(&c.slot, gen))
	}
	return flows, nil
}

// measure is what flows are put in order by, the largest first; nil: in no order.
func (l *Look) measure(order string) (func(*dataplane.Slot) float64, error) {
	switch order {
	case api.SortRate:
		return l.rate(rateOver)
	case api.SortPackets:
		return func(s *dataplane.Slot) float64 { packets, _ := s.Repeated(); return float64(packets) }, nil
	case api.SortBytes:
		return func(s *dataplane.Slot) float64 { _, bytes := s.Repeated(); return float64(bytes) }, nil
	case api.SortAge:
		return func(s *dataplane.Slot) float64 {
			if s.State() != dataplane.StateArmed {
				return 0
			}
			return l.since(s.Born())
		}, nil
	}
	return nil, nil
}

// rateOver is how long packets are counted for a rate.
const rateOver = 250 * time.Millisecond

// carried are the packets of a flow so far, whoever had them.
func carried(s *dataplane.Slot) uint64 {
	packets, _ := s.Repeated()
	return packets + uint64(s.Sighted())
}

// rate is the order of the busiest flows: by the packets that came while it was waited for, and those that
// had none by all that ever came. A flow whose counters began anew in that time counts from zero.
func (l *Look) rate(over time.Duration) (func(*dataplane.Slot) float64, error) {
	before := make([]uint64, l.Plane.SlotCount())
	if err := l.Plane.Slots(func(s *dataplane.Slot) bool { before[s.Place()] = carried(s); return true }); err != nil {
		return nil, err
	}
	time.Sleep(over)
	return func(s *dataplane.Slot) float64 {
		now, was := carried(s), before[s.Place()]
		if now < was {
			was = 0
		}
		return float64(now-was) + float64(now)/(1<<63)
	}, nil
}

// best keeps the slots with the largest measures, as many as limit says (0: all), in at most
// twice the room.
type best struct {
	limit int
	all   []ranked
	least float64 // once some were left out: what is no larger than this is not among the best
	full  bool
}

type ranked struct {
	measure float64
	slot    dataplane.Slot
}

func (b *best) add(measure float64, s *dataplane.Slot) { b.all = append(b.all, ranked{measure, *s}) }

func (b *best) offer(measure float64, s *dataplane.Slot) {
	if b.full && measure <= b.least {
		return
	}
	b.add(measure, s)
	if b.limit > 0 && len(b.all) >= 2*b.limit {
		b.all = b.sorted()
		b.least, b.full = b.all[len(b.all)-1].measure, true
	}
}

// sorted is what was kept, the largest first. Ties come in the order of the table.
func (b *best) sorted() []ranked {
	slices.SortStableFunc(b.all, func(x, y ranked) int { return cmp.Compare(y.measure, x.measure) })
	if b.limit > 0 && len(b.all) > b.limit {
		return b.all[:b.limit]
	}
	return b.all
}

const icmp, icmpv6, gre, esp = 1, 58, 47, 50

// ends are the two ends of a tuple as the API writes them: an echo's id at both of them,
// nothing where a key or SPI stands in place of ports.
func ends(proto uint8, t dataplane.Tuple) (source, dest netip.AddrPort) {
	switch proto {
	case icmp, icmpv6: // the type stands where the destination port would
		return t.Source, netip.AddrPortFrom(t.Destination.Addr(), t.Source.Port())
	case gre, esp:
		return netip.AddrPortFrom(t.Source.Addr(), 0), netip.AddrPortFrom(t.Destination.Addr(), 0)
	}
	return t.Source, t.Destination
}

// flow is a slot in the API's words.
func (l *Look) flow(s *dataplane.Slot, gen uint32) api.Flow {
	f := s.Flow()
	a := api.Flow{
		Port: l.Ports[f.Port].Name, Family: 6, Proto: api.ProtoName(f.Proto),
		State: l.state(s, gen), Why: f.Why, DSCPIn: f.DSCPIn, DSCPOut: f.DSCPOut, Generation: f.Generation,
		Conntrack: f.Conntrack, Renewals: f.Renewals, Packets: f.Packets, Bytes: f.Bytes, Sighted: f.Count,
		Idle: max(0, l.since(f.Seen)),
	}
	a.Source, a.Destination = ends(f.Proto, f.In)
	if f.In.Source.Addr().Is4() {
		a.Family = 4
	}
	switch f.Proto {
	case icmp, icmpv6:
		t := uint8(f.In.Destination.Port() >> 8)
		a.ICMPType = &t
	case gre, esp:
		a.Key = uint32(f.In.Source.Port())<<16 | uint32(f.In.Destination.Port())
	}
	if f.State != dataplane.StateArmed {
		return a
	}
	if !l.passed(f.Lease) {
		a.LeaseLeft = -l.since(f.Lease)
	}
	a.Age = max(0, l.since(f.Born))
	a.Out, a.MTU, a.LSP = l.Ports[f.Out].Name, f.MTU, f.LSP
	a.DestMAC, a.SourceMAC = f.MACOut[0].String(), f.MACOut[1].String()
	a.Way = api.WayTC
	if f.XDP {
		a.Way = api.WayXDP
	}
	if f.Translated {
		a.Rewrite = &api.Rewrite{}
		a.Rewrite.Source, a.Rewrite.Destination = ends(f.Proto, f.NAT)
	}
	return a
}
