// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"encoding/binary"
	"fmt"
	"time"

	"shunt/internal/nft"
)

// Clocks are times T after which the kernel forgets something unless packets come. Repeated packets
// wind no clock, but leases of at most T/2 keep it running. Of a flow whose packets come every p,
// less than T apart, the kernel sees each one if p is over T/2. Otherwise it sees the first one
// behind the lease, T/2 + p after the last one that it saw at the most: within T.
//
// That holds for rules whose packets only keep something alive: one packet leaves it as many do.
// Packets that do more to state that a rule asks feed it (named.go) and stay with the kernel. Their
// clocks bound no lease.

// Clock is such a time, and whose. The zero value is none.
type Clock struct {
	Time  time.Duration
	Owner string // the rule that winds it, or the next-hop group
	What  string // what ends, in words
}

// ShortestClock is the least time that leases keep. A rule with a shorter one looks at each packet.
const ShortestClock = 400 * time.Millisecond

// String says it for people: "ip fw f handle 4: elements of set ok end after 2s without a packet".
func (c Clock) String() string { return c.Owner + ": " + c.ends() }

func (c Clock) ends() string { return fmt.Sprintf("%s after %v without a packet", c.What, c.Time) }

func (c Clock) tooShort() bool { return c.Time > 0 && c.Time < ShortestClock }

// sooner returns the one that runs out first.
func (c Clock) sooner(o Clock) Clock {
	if c.Time == 0 || o.Time != 0 && o.Time < c.Time {
		return o
	}
	return c
}

// Wind notes a clock that packets of any flow may wind.
func (r *Report) Wind(c Clock) {
	if c.tooShort() {
		r.Enforcing = append(r.Enforcing, Finding{Rule: c.Owner, Why: c.ends(), Touches: []Match{{States: AnyState}}})
		return
	}
	r.Clock = r.Clock.sooner(c)
}

// wind notes the clock of a rule that forwarded packets reach.
func (w *walk) wind(r *rule, ctx Match) {
	reach, _ := w.here(r.reach, r.stateful)
	if _, ok := ctx.both(reach); !ok || reach.In.loopback() || reach.Out.loopback() {
		return
	}
	for _, k := range r.keeps {
		w.report.Elements = w.report.Elements || k.own
	}
	if !r.clock.tooShort() {
		w.report.Clock = w.report.Clock.sooner(r.clock)
	}
}

// keep is something that runs out unless the packets of a rule come.
type keep struct {
	what string        // Clock.What
	time time.Duration // 0: never, as far as the rule tells

	set    string        // nftables: its elements, by the name that the rule adds to
	renews bool          // set: "update", which restarts the time of an element
	given  time.Duration // set: the rule's timeout; 0: none
	own    bool          // set: an element's own timeout counts

	ipset   bool // readIPSets sets time
	ipsetID uint16
}

// keep notes what the rule keeps from running out, and which packets come so far.
func (r *rule) keep(k keep, at Match) {
	if r.never {
		return
	}
	r.reached(at)
	r.keeps = append(r.keeps, k)
}

// element is what a "dynset" keeps. A rule that gives no time takes the element's own, or the set's
// (nft_dynset_eval(), nft_dynset_new()).
func (m *machine) element(e *nft.Expr, renews bool) keep {
	k := keep{what: fmt.Sprintf("elements of set %s end", e.Set), set: m.setName(e.Set), renews: renews, given: e.Timeout, time: e.Timeout}
	if e.Timeout == 0 {
		own := m.sets.inside(m.n, nft.Ref{Table: m.table, Name: e.Set})
		k.own, k.time = true, soonest(m.set(e.Set).Timeout, own.timeout)
	}
	return k
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// setClocks sets the clock of each rule, once all rules are known. A rule at any hook may make an
// element with its own timeout, so the least timeout of a set counts for all rules that add to it.
// Two rules that renew with different timeouts do more than keep alive: the last packet decides.
func (w *walk) setClocks() {
	least, given, differ := map[string]time.Duration{}, map[string]time.Duration{}, map[string]bool{}
	for _, n := range w.named {
		for _, k := range n.rule.keeps {
			least[k.set] = soonest(least[k.set], k.time)
			if !k.renews {
				continue
			}
			before, known := given[k.set]
			differ[k.set] = differ[k.set] || known && before != k.given
			given[k.set] = k.given
		}
	}
	for i := range w.named {
		n := &w.named[i]
		for _, k := range n.rule.keeps {
			t := k.time
			if k.set != "" {
				t = least[k.set]
			}
			n.rule.clock = n.rule.clock.sooner(Clock{t, n.chain.name.String() + " " + n.rule.where, k.what})
			if k.renews && differ[k.set] {
				n.rule.feeds = append(n.rule.feeds, k.set)
			}
		}
	}
}

func seconds(info []byte) time.Duration {
	return time.Duration(binary.NativeEndian.Uint32(info)) * time.Second
}

// ipsetMember is what a SET target adds: struct xt_set_info_target_v1 and its successors, of which
// version 2 has a timeout behind the flags, and version 3 a set to map by in front of them.
func ipsetMember(revision int, info []byte) keep {
	const itsOwn = 0xffffffff
	k := keep{what: "members of an ipset end", ipset: true, ipsetID: binary.NativeEndian.Uint16(info)}
	at := map[int]int{2: 12, 3: 16}[revision]
	if at > 0 && len(info) >= at+4 && binary.NativeEndian.Uint32(info[at:]) != itsOwn {
		k.ipset, k.time = false, seconds(info[at:])
	}
	return k
}

// readIPSets asks the kernel for the timeouts of ipsets, if some rule needs one.
func (w *walk) readIPSets() error {
	var timeouts map[uint16]time.Duration
	for _, n := range w.named {
		for i := range n.rule.keeps {
			k := &n.rule.keeps[i]
			if !k.ipset {
				continue
			}
			if timeouts == nil {
				var err error
				if timeouts, err = nft.IPSetTimeouts(); err != nil {
					return err
				}
			}
			k.time = timeouts[k.ipsetID]
		}
	}
	return nil
}
