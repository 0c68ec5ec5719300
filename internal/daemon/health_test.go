// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"testing"

	"shunt/internal/api"
)

// TestProblems: what keeps flows from being fast, the worst first, and the state that comes of it.
func TestProblems(t *testing.T) {
	fast := func(name string) api.Port { return api.Port{Name: name, State: api.PortTC} }
	refused := api.Port{Name: "wan", State: api.PortRefused, Reason: "wan belongs to bridge br0", Remedy: "take it out"}
	absent := api.Port{Name: "ppp0", State: api.PortAbsent, Reason: "no such interface now", Remedy: awaited}
	lacking := api.Port{Name: "mpls", State: api.PortTC, Labels: "labels do not leave by it: mpls has the queueing policy htb"}
	for _, c := range []struct {
		name      string
		ports     []api.Port
		unmatched []string
		state     string
		first     string
		all       int
	}{
		{"two", []api.Port{fast("lan"), fast("wan")}, nil, api.StateRunning, "", 0},
		{"one side", []api.Port{fast("lan")}, nil, api.StateDegraded, "only lan is attached", 1},
		{"one refused", []api.Port{fast("lan"), refused}, nil, api.StateDegraded, "only lan is attached", 2},
		{"one of three refused", []api.Port{fast("lan"), fast("dmz"), refused}, nil, api.StateDegraded, "wan belongs to bridge br0", 1},
		{"not there", []api.Port{fast("lan"), fast("dmz"), absent}, nil, api.StateDegraded, "ppp0: no such interface now", 1},
		{"all refused", []api.Port{refused}, nil, api.StateDegraded, "no flow can be fast", 2},
		{"none", nil, []string{"lan*"}, api.StateDegraded, "no flow can be fast", 2},
		{"a wildcard", []api.Port{fast("lan"), fast("dmz")}, []string{"usb*"}, api.StateDegraded, "no interface matches usb*", 1},
		{"a router on a stick", []api.Port{fast("lan"), {Name: "wan", State: api.PortTC, Above: []string{"wan.7", "wan.8"}}}, nil, api.StateDegraded, "wan.7, wan.8 stand on wan", 1},
		{"labels", []api.Port{fast("lan"), lacking}, nil, api.StateDegraded, "labels do not leave by it", 1},
	} {
		found := problems(c.ports, c.unmatched)
		if len(found) != c.all || c.all > 0 && !strings.Contains(found[0].Finding, c.first) {
			t.Errorf("%s: %+v; want %d, the first %q", c.name, found, c.all, c.first)
		}
		if got := state(false, found); got != c.state {
			t.Errorf("%s: %s, want %s", c.name, got, c.state)
		}
	}
	if got := state(true, problems(nil, nil)); got != api.StatePaused {
		t.Errorf("paused: %s", got)
	}
}
