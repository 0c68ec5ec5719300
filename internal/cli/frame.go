// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"shunt/internal/api"
)

// topState is what one frame of top shows.
type topState struct {
	status      api.Status
	hits, punts float64   // packets a second
	flows       []topFlow // fastest first
}

// topFlow is a flow with its rates.
type topFlow struct {
	api.Flow
	packets, bytes float64 // a second
}

// flowID tells flows apart between two polls.
type flowID struct {
	port, proto  string
	source, dest netip.AddrPort
	key          uint32
	icmpType     uint8
}

func idOf(f *api.Flow) flowID {
	id := flowID{f.Port, f.Proto, f.Source, f.Destination, f.Key, 0}
	if f.ICMPType != nil {
		id.icmpType = *f.ICMPType
	}
	return id
}

// topPoller asks the daemon and remembers its last answer: rates are the difference.
type topPoller struct {
	env    *env
	at     time.Time
	status api.Status
	flows  map[flowID]api.Flow
}

func (t *topPoller) poll(ctx context.Context) (topState, error) {
	status, err := t.env.status(ctx)
	if err != nil {
		return topState{}, err
	}
	flows, err := t.env.flows(ctx, api.FlowFilter{Limit: topCandidates, Sort: api.SortRate, Live: true})
	if err != nil {
		return topState{}, err
	}
	return t.advance(status, flows, now()), nil
}

// advance makes rates of what changed since the last poll. The first poll has none.
func (t *topPoller) advance(status api.Status, flows []api.Flow, at time.Time) topState {
	seconds := at.Sub(t.at).Seconds()
	first := t.at.IsZero() || seconds <= 0
	state := topState{status: status}
	if !first {
		state.hits = rate(t.status.Hits, status.Hits, seconds)
		state.punts = rate(t.status.Punts, status.Punts, seconds)
	}
	seen := make(map[flowID]api.Flow, len(flows))
	for i := range flows {
		f := &flows[i]
		id := idOf(f)
		before, known := t.flows[id]
		seen[id] = *f
		row := topFlow{Flow: *f}
		// A flow that was not there counts from zero if it is young enough to be new.
		if !first && (known || f.Age <= seconds) {
			row.packets = rate(before.Packets, f.Packets, seconds)
			row.bytes = rate(before.Bytes, f.Bytes, seconds)
		}
		state.flows = append(state.flows, row)
	}
	slices.SortStableFunc(state.flows, func(a, b topFlow) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(b.Packets, a.Packets))
	})
	t.at, t.status, t.flows = at, status, seen
	return state
}

// rate is a counter's rise per second. One that fell began again from zero.
func rate(before, after uint64, seconds float64) float64 {
	if after < before {
		before = 0
	}
	return float64(after-before) / seconds
}

// render draws a frame of at most height lines of at most width characters; a width of 0
// is no limit. Every line ends with a newline.
func render(s topState, width, height int) string {
	var p page
	p.line("shunt %s, %s", s.status.Version, upWords(s.status))
	p.line("repeated %spps, the kernel has %spps: %s fast", rateWords(s.hits), rateWords(s.punts), part(s.hits, s.punts))
	p.line("flows: %s armed, %s seen, of %s slots; generation %s", count(uint64(s.status.Flows.Armed)),
		count(uint64(s.status.Flows.Seen)), count(uint64(s.status.Flows.Slots)), count(uint64(s.status.Generation)))
	p.line("")
	t := newTable(">PPS", ">BIT/S", "WAY", "STATE", "IN", "OUT", "SOURCE", "DESTINATION")
	for _, f := range s.flows[:min(len(s.flows), max(0, height))] {
		source, dest := f.Query().Ends()
		t.add(si(f.packets), si(8*f.bytes), or(f.Way, "-"), f.State, f.Port, or(f.Out, "-"), source, dest)
	}
	p.table(t)
	return crop(p.String(), width, height)
}

// upWords says how the daemon is.
func upWords(s api.Status) string {
	if s.State == api.StateUnattended {
		return "NO DAEMON ANSWERS, what the last one left goes on"
	}
	words := "up " + span(now().Sub(s.Started).Seconds())
	if s.Paused {
		return words + ", PAUSED"
	}
	if s.State == api.StateDegraded {
		return words + ", DEGRADED (shunt status says why)"
	}
	return words
}

// rateWords leaves the unit to be appended: "2.81 M", "640 ".
func rateWords(n float64) string {
	s := si(n)
	if !strings.Contains(s, " ") {
		s += " "
	}
	return s
}

func part(hits, punts float64) string {
	if hits+punts == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.1f %%", 100*hits/(hits+punts))
}

// crop cuts a text to a number of lines and characters.
func crop(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), max(height, 0))]
	var b strings.Builder
	for _, line := range lines {
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
