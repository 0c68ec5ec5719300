// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Outcomes are taken from what was sent in `window`, and had `flight` to arrive.
	window = 60 * time.Millisecond
	flight = 30 * time.Millisecond
)

// view is the one outcome that each stream's packets have at a time.
type view []outcome

// look is the view of the last moment; or none, and the stream that had several outcomes, or
// whose turn has not come because the machine stood still. What could not be sent is lost.
func (p *pump) look() (view, int) {
	to := time.Now().Add(-flight)
	v := make(view, len(p.streams))
	for i := range v {
		seen := map[outcome]int{}
		p.tried(i, to.Add(-window), to, func(k packet) { seen[k.outcome]++ })
		if len(seen) != 1 {
			return nil, i
		}
		for o := range seen {
			v[i] = o
		}
	}
	return v, -1
}

// steady waits until every stream has one outcome.
func (r *rig) steady(when string) view {
	r.t.Helper()
	time.Sleep(window + flight)
	for deadline := time.Now().Add(inTheEnd); ; time.Sleep(5 * time.Millisecond) {
		v, unsteady := r.pump.look()
		if v != nil {
			return v
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %s has no steady outcome:%s", when, r.pump.streams[unsteady].name, r.outcomes(unsteady))
		}
	}
}

// forwarded waits until every stream has one outcome, and is not lost.
func (r *rig) forwarded() view {
	r.t.Helper()
	for deadline := time.Now().Add(inTheEnd); ; {
		v := r.steady("before the change, without shunt")
		missing := slices.Index(v, lost)
		if missing < 0 {
			return v
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("without shunt and without any change, %s is lost", r.pump.streams[missing].name)
		}
	}
}

// reach waits until every stream has the outcome that is wanted, and returns when that had
// begun at the latest.
func (r *rig) reach(when string, want view, limit time.Duration) time.Time {
	r.t.Helper()
	for deadline := time.Now().Add(limit + window + flight); ; time.Sleep(5 * time.Millisecond) {
		v, wrong := r.pump.look()
		if v != nil {
			if wrong = firstDifference(v, want); wrong < 0 {
				return time.Now().Add(-window - flight)
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s, %s: %s is not as without shunt within %v.\nWanted: %s\nHad:%s\n%s", r.way, when,
				r.pump.streams[wrong].name, limit, r.pump.name(want[wrong]), r.outcomes(wrong), r.known(wrong))
		}
	}
}

// known is what shunt, if it lives, and conntrack say of a stream, for those who must find out.
func (r *rig) known(stream int) string {
	shunt := "no daemon"
	if _, err := r.api.Status(context.Background()); err == nil {
		shunt = r.why(stream)
	}
	list, err := r.LAN.NS.Run("conntrack", "-L")
	if err != nil {
		return shunt + "\n" + err.Error()
	}
	return "shunt: " + shunt + "\n" + list
}

func firstDifference(a, b view) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// outcomes lists what became of a stream's last packets.
func (r *rig) outcomes(stream int) string {
	seen := map[outcome]int{}
	r.pump.each(stream, time.Now().Add(-flight-4*window), time.Now().Add(-flight), func(k packet) { seen[k.outcome]++ })
	var text strings.Builder
	for o, n := range seen {
		fmt.Fprintf(&text, "\n%6d %s", n, r.pump.name(o))
	}
	return text.String()
}

// model is what the kernel alone did about a change.
type model struct {
	before, after view
	between       []map[outcome]bool // by stream: outcomes on the way from one to the other
	errors        bool               // ICMP errors came
	losses        int
}

// changed is how many streams have another outcome after it.
func (m *model) changed() (n int) {
	for i := range m.before {
		if m.before[i] != m.after[i] {
			n++
		}
	}
	return n
}

// sample is what shunt did about it, once.
type sample struct {
	late   time.Duration // from the change to the last packet that was treated as before it
	losses int           // packets of streams that are forwarded before and after it
	words  []string      // of what announced it
}

// account looks at all packets that were sent from the change on, until the end: after the
// time at which all was settled, nothing may be as before; before that, only what the kernel
// did itself. It returns how late the last packet came out that was treated as before, and how
// many are lost of those flows that should not lose any: a full queue of a busy machine loses
// some too, and an interface that is made anew is not there for as long as that takes. So these are
// listed, and judged only if they are most of those that were sent once the change was made.
func (r *rig) account(m *model, from, changed, settled, end time.Time) (s sample) {
	r.t.Helper()
	for i := range r.pump.streams {
		wrong, behind, losses := map[outcome]int{}, 0, 0
		r.pump.each(i, from, end, func(k packet) {
			old, sent := k.outcome == m.before[i], time.Unix(0, k.sent)
			if sent.After(changed) {
				behind++
			}
			switch {
			case k.outcome == m.after[i]:
			case k.outcome == lost:
				if m.before[i] == lost || m.after[i] == lost {
					break
				}
				s.losses++
				if sent.After(changed) {
					losses++
				}
			case sent.After(settled):
				wrong[k.outcome]++
			case old && m.after[i] != m.before[i]:
				s.late = max(s.late, time.Unix(0, k.got).Sub(changed))
			case !old && !m.between[i][k.outcome]:
				wrong[k.outcome]++
			}
		})
		if losses > behind/2 {
			r.t.Errorf("%s: %d of %d packets of %s are lost", r.way, losses, behind, r.pump.streams[i].name)
		}
		for o, n := range wrong {
			r.t.Errorf("%s: %d packets of %s, %v after the change: %s.\nBefore it: %s\nAfter it, without shunt: %s", r.way, n,
				r.pump.streams[i].name, end.Sub(changed).Round(time.Millisecond), r.pump.name(o), r.pump.name(m.before[i]), r.pump.name(m.after[i]))
		}
	}
	return s
}

// transient are the outcomes of each stream that are neither the one before nor the one after.
func (r *rig) transient(before, after view, from, to time.Time) (all []map[outcome]bool, losses int) {
	for i := range before {
		seen := map[outcome]bool{}
		r.pump.each(i, from, to, func(k packet) {
			seen[k.outcome] = true
			if k.outcome == lost && before[i] != lost && after[i] != lost {
				losses++
			}
		})
		all = append(all, seen)
	}
	return all, losses
}

// percentile is the nearest rank; the samples need not be sorted.
func percentile(samples []time.Duration, percent int) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	rank := (len(sorted)*percent + 99) / 100
	return sorted[max(rank, 1)-1]
}
