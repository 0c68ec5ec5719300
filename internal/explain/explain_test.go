// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane"
)

// TestWord: an armed flow is fast unless its packets differ from what was learned, and one
// that the kernel does not prove again is slow for what the kernel does to it.
func TestWord(t *testing.T) {
	const udp = 17
	for _, c := range []struct {
		state string
		flow  dataplane.Flow
		judge judge
		want  string
	}{
		{api.FlowArmed, dataplane.Flow{Why: "renewed"}, judge{}, "hit"},
		{api.FlowArmed, dataplane.Flow{Why: "lease_ended"}, judge{}, "hit"},
		{api.FlowArmed, dataplane.Flow{Why: "learned"}, judge{paused: true}, "paused"},
		{api.FlowArmed, dataplane.Flow{Why: "learned", Proto: tcp}, judge{}, "tcp_off"},
		{api.FlowArmed, dataplane.Flow{Why: "learned", Busy: true}, judge{}, "busy"},
		{api.FlowArmed, dataplane.Flow{Why: "learned", Waiting: true, Seen: 98}, judge{}, "draining"},
		{api.FlowArmed, dataplane.Flow{Why: "learned", Waiting: true, Seen: 97}, judge{}, "hit"},
		{api.FlowArmed, dataplane.Flow{Why: "mac_differs"}, judge{}, "mac_differs"},
		{api.FlowArmed, dataplane.Flow{Why: "dscp_differs"}, judge{}, "dscp_differs"},
		{api.FlowArmed, dataplane.Flow{Why: "label_differs"}, judge{}, "label_differs"},
		{api.FlowArmed, dataplane.Flow{Why: "over_mtu"}, judge{}, "over_mtu"},
		{api.FlowExpired, dataplane.Flow{Why: "over_mtu"}, judge{}, "lease_ended"},
		{api.FlowExpired, dataplane.Flow{Why: "no_conntrack"}, judge{}, "no_conntrack"},
		{api.FlowOld, dataplane.Flow{Why: "learned"}, judge{}, "old_generation"},
		{api.FlowOld, dataplane.Flow{Why: "port_unknown"}, judge{}, "port_unknown"},
		{api.FlowClosed, dataplane.Flow{Why: "tcp_close"}, judge{}, "closed"},
		{api.FlowSeen, dataplane.Flow{Why: "ct_helper"}, judge{}, "ct_helper"},
	} {
		c.judge.Look = &Look{Now: 100}
		if c.flow.Proto == 0 {
			c.flow.Proto = udp
		}
		if got := c.judge.word(&api.Flow{State: c.state}, &c.flow); got != c.want {
			t.Errorf("%s, %+v: %s, want %s", c.state, c.flow, got, c.want)
		}
	}
}

// TestBest: the largest are kept, whatever their order, in bounded room.
func TestBest(t *testing.T) {
	for _, step := range []int{1, 7, 99} { // all coprime to 100: every number comes once
		b := best{limit: 3}
		for i := range 100 {
			b.offer(float64(i*step%100), &dataplane.Slot{})
			if len(b.all) > 2*b.limit {
				t.Fatalf("%d are kept", len(b.all))
			}
		}
		got := b.sorted()
		if len(got) != 3 || got[0].measure != 99 || got[1].measure != 98 || got[2].measure != 97 {
			t.Errorf("step %d: %v", step, got)
		}
	}
	all := best{}
	for i := range 10 {
		all.offer(float64(i), &dataplane.Slot{})
	}
	if got := all.sorted(); len(got) != 10 || got[0].measure != 9 {
		t.Errorf("without a limit: %v", got)
	}
}
