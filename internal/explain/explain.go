// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"net/netip"
	"slices"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/reason"
)

const (
	tcp       = 6
	nearMax   = 5  // other flows between the same addresses that are told
	whoMax    = 20 // who met a reason that was asked for
	drainMost = 2  // jiffies that hits wait for packets on their way to TC ingress: flow_drained()
)

// notSeen is the answer about a flow of which nothing is kept. It is no reason of the data
// path: every packet of the flow was counted under the reason that it met.
var notSeen = api.Explanation{
	Reason: "not_seen",
	Words:  "no packet of it was seen lately; what the ports counted that belongs to no flow stands below",
	Rule:   "the first packets of every flow take the kernel's way, and are watched",
	Remedy: "send traffic, then ask again; see that it comes in by a port (shunt ports)",
}

func explanation(word string) api.Explanation {
	words, rule, remedy := reason.Words(word)
	return api.Explanation{Reason: word, Words: words, Rule: rule, Remedy: remedy}
}

// Explain answers a question about a conversation, a reason or the whole table.
func (l *Look) Explain(q api.ExplainQuery) ([]api.Explanation, error) {
	switch {
	case q.Flow != nil:
		return l.conversation(*q.Flow)
	case q.Reason != "":
		return l.reason(q.Reason)
	}
	return l.table(q.Top)
}

// judge knows what concerns all flows.
type judge struct {
	*Look
	gen    uint32
	paused bool
}

func (l *Look) judge() judge { return judge{l, l.Plane.Generation(), l.Plane.Paused()} }

// all is the reason that every packet of a protocol meets before its flow is looked for;
// "" if there is none.
func (j *judge) all(proto uint8) string {
	switch {
	case j.paused:
		return "paused"
	case proto == tcp && !j.TCP:
		return "tcp_off"
	}
	return ""
}

// differs are the reasons for which packets of an armed flow go to the kernel. Every
// renewal of the flow sets its reason anew, so one of these is how it stands.
var differs = []string{"mac_differs", "dscp_differs", "label_differs", "over_mtu"}

// atEgress tells of a reason whether the kernel let a packet out, and why that was not
// learned.
func atEgress(word string) bool {
	return slices.Index(dataplane.Reasons, word) > slices.Index(dataplane.Reasons, "changed")
}

// word is what the next ordinary packet of a flow would meet.
func (j *judge) word(a *api.Flow, f *dataplane.Flow) string {
	switch {
	case j.all(f.Proto) != "":
		return j.all(f.Proto)
	case f.Busy:
		return "busy"
	case a.State == api.FlowClosed:
		return "closed"
	case a.State == api.FlowSeen:
		return f.Why
	case a.State == api.FlowArmed && slices.Contains(differs, f.Why):
		return f.Why
	case a.State == api.FlowArmed && f.Waiting && int32(j.Now-f.Seen) <= drainMost:
		return "draining"
	case a.State == api.FlowArmed:
		return "hit"
	case atEgress(f.Why): // the kernel forwards it still, but not in a way to be repeated
		return f.Why
	case a.State == api.FlowOld:
		return "old_generation"
	}
	return "lease_ended"
}

// explain is about a flow in the table.
// With deep, the kernel's tables are asked.
func (j *judge) explain(s *dataplane.Slot, deep bool) api.Explanation {
	f, a := s.Flow(), j.flow(s, j.gen)
	word := j.word(&a, &f)
	e := explanation(word)
	e.Flow, e.Fast = &a, word == "hit" || word == "draining"
	if j.Because != nil {
		e.Detail = j.Because(f, word)
	}
	if e.Fast && a.Way == api.WayTC && j.Ports[f.Port].XDP {
		e.Also = append(e.Also, also("tc_way"))
	}
	j.decide(&e, &f, deep)
	if f.Why != e.Reason {
		last := also(f.Why)
		last.Ago = a.Idle
		e.Also = append(e.Also, last)
	}
	return e
}

func also(word string) api.Also {
	words, _, remedy := reason.Words(word)
	return api.Also{Reason: word, Words: words, Remedy: remedy}
}

// sampled is a sample in the API's words.
func (l *Look) sampled(s *dataplane.Sample) api.Also {
	a := also(s.Reason)
	a.Port, a.Proto, a.VLAN, a.Packets = l.Ports[s.Port].Name, api.ProtoName(s.Proto), s.VLAN, s.Packets
	a.Ago = max(0, l.since(s.Seen))
	a.Source, a.Destination = ends(s.Proto, s.In)
	return a
}

// conversation is about the flows of both directions, or about whatever is known instead.
func (l *Look) conversation(q api.FlowQuery) ([]api.Explanation, error) {
	j := l.judge()
	var exact, near []api.Explanation
	err := l.Plane.Slots(func(s *dataplane.Slot) bool {
		if !s.Between(q.Source.Addr(), q.Destination.Addr()) {
			return true
		}
		if matches(&q, s) {
			exact = append(exact, j.explain(s, len(exact) < nearMax))
		} else if len(near) < nearMax {
			e := j.explain(s, false)
			e.Near = true
			near = append(near, e)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	samples, err := l.samples(func(s *dataplane.Sample, a *api.Also) bool {
		q := q
		q.AnyID = q.AnyID || s.Portless
		return q.Match(&api.Flow{Proto: a.Proto, Source: a.Source, Destination: a.Destination})
	})
	if err != nil {
		return nil, err
	}
	exact = j.spread(exact, samples, direction)
	if len(exact) == 0 {
		e, err := j.nothing(q.Proto)
		if e.Reason == notSeen.Reason {
			j.decideNothing(&e, &q)
		}
		return append([]api.Explanation{e}, near...), err
	}
	return append(exact, near...), nil
}

// matches tells whether a slot is of a conversation, from either end and on either side of a NAT.
func matches(q *api.FlowQuery, s *dataplane.Slot) bool {
	in, out := s.Ends()
	f, nat := api.Flow{Proto: api.ProtoName(s.Proto())}, api.Rewrite{}
	f.Source, f.Destination = ends(s.Proto(), in)
	nat.Source, nat.Destination = ends(s.Proto(), out)
	f.Rewrite = &nat
	return q.Match(&f)
}

// nothing is about a flow that neither a slot nor a sample remembers.
func (j *judge) nothing(proto uint8) (api.Explanation, error) {
	if word := j.all(proto); word != "" {
		return explanation(word), nil
	}
	e := notSeen
	var err error
	e.Counted, err = j.counted(slotless)
	return e, err
}

// samples are those that keep chooses, the latest first.
func (l *Look) samples(keep func(*dataplane.Sample, *api.Also) bool) ([]api.Also, error) {
	all, err := l.Plane.Samples()
	if err != nil {
		return nil, err
	}
	type kind struct {
		reason, port, proto string
		source, dest        netip.AddrPort
		vlan                int
	}
	var found []api.Also
	at := map[kind]int{} // each CPU keeps samples of its own
	for i := range all {
		a := l.sampled(&all[i])
		if !keep(&all[i], &a) {
			continue
		}
		k := kind{a.Reason, a.Port, a.Proto, a.Source, a.Destination, a.VLAN}
		if same, known := at[k]; known {
			found[same].Packets += a.Packets
			found[same].Ago = min(found[same].Ago, a.Ago)
			continue
		}
		at[k] = len(found)
		found = append(found, a)
	}
	slices.SortStableFunc(found, func(a, b api.Also) int { return cmp.Compare(a.Ago, b.Ago) })
	return found, nil
}

// spread gives each sample to the flow that it is of, by what whose says of their ends. Those
// without a flow get an explanation of their own, by the latest of them.
func (j *judge) spread(found []api.Explanation, samples []api.Also, whose func(from, to netip.AddrPort) tuple) []api.Explanation {
	type wire struct {
		proto string
		tuple
	}
	of := map[wire]int{}
	for i, e := range found {
		of[wire{e.Flow.Proto, whose(e.Flow.Source, e.Flow.Destination)}] = i
	}
	for _, s := range samples {
		key := wire{s.Proto, whose(s.Source, s.Destination)}
		at, there := of[key]
		if !there {
			proto, _ := api.ProtoNumber(s.Proto)
			at = len(found)
			of[key], found = at, append(found, explanation(cmp.Or(j.all(proto), s.Reason)))
		}
		found[at].Also = append(found[at].Also, s)
	}
	return found
}

type tuple struct{ from, to netip.AddrPort }

// direction is whose within a conversation; wire is it in the whole table.
func direction(from, to netip.AddrPort) tuple {
	return tuple{netip.AddrPortFrom(from.Addr(), 0), netip.AddrPortFrom(to.Addr(), 0)}
}

func wire(from, to netip.AddrPort) tuple { return tuple{from, to} }

// table is about the busiest flows; 0: about all, and about packets without any.
func (l *Look) table(top int) ([]api.Explanation, error) {
	j := l.judge()
	chosen := best{limit: top}
	order := func(s *dataplane.Slot) float64 { return float64(carried(s)) }
	if top > 0 {
		var err error
		if order, err = l.rate(rateOver); err != nil {
			return nil, err
		}
	}
	if err := l.Plane.Slots(func(s *dataplane.Slot) bool {
		if top == 0 || !l.dead(s) {
			chosen.offer(order(s), s)
		}
		return true
	}); err != nil {
		return nil, err
	}
	var found []api.Explanation
	for _, c := range chosen.sorted() {
		found = append(found, j.explain(&c.slot, false))
	}
	if top > 0 {
		return found, nil
	}
	samples, err := l.samples(func(*dataplane.Sample, *api.Also) bool { return true })
	return j.spread(found, samples, wire), err
}

// reason is about a word: what it means, where it was counted, and who met it lately.
func (l *Look) reason(word string) ([]api.Explanation, error) {
	e := explanation(word)
	var err error
	if e.Counted, err = l.counted(func(w string) bool { return w == word }); err != nil {
		return nil, err
	}
	if e.Also, err = l.samples(func(s *dataplane.Sample, _ *api.Also) bool { return s.Reason == word }); err != nil {
		return nil, err
	}
	gen := l.Plane.Generation()
	err = l.Plane.Slots(func(s *dataplane.Slot) bool {
		if s.Why() == word {
			a := l.flow(s, gen)
			e.Also = append(e.Also, api.Also{Reason: word, Words: e.Words, Remedy: e.Remedy, Port: a.Port, Proto: a.Proto,
				Source: a.Source, Destination: a.Destination, Packets: a.Sighted, Ago: a.Idle})
		}
		return len(e.Also) < whoMax
	})
	e.Also = e.Also[:min(len(e.Also), whoMax)]
	return []api.Explanation{e}, err
}

// slotless tells of a reason whether packets may leave by it that are of no flow.
func slotless(word string) bool {
	at := func(word string) int { return slices.Index(dataplane.Reasons, word) }
	return word == "table_full" || at(word) > at("paused") && at(word) < at("judged")
}

// counted is where packets left by the reasons that keep chooses, the largest numbers first.
func (l *Look) counted(keep func(word string) bool) ([]api.Counted, error) {
	var found []api.Counted
	for index, port := range l.Ports {
		for stage, name := range dataplane.Stages {
			c, err := l.Plane.Counters(stage, index)
			if err != nil {
				return nil, err
			}
			for i, n := range c.Packets {
				if n > 0 && keep(dataplane.Reasons[i]) {
					found = append(found, api.Counted{Port: port.Name, Stage: name, Reason: dataplane.Reasons[i], Packets: n})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b api.Counted) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Reason, b.Reason))
	})
	return found, nil
}
