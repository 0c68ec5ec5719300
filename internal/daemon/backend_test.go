package daemon

import (
	"testing"

	"shunt/internal/api"
)

// TestExplain: an armed flow is fast unless its packets differ from what was learned.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		state, why string
		paused     bool
		want       string
	}{
		{api.FlowArmed, "hit", false, "hit"},
		{api.FlowArmed, "lease_ended", false, "hit"},
		{api.FlowArmed, "hit", true, "paused"},
		{api.FlowArmed, "mac_differs", false, "mac_differs"},
		{api.FlowArmed, "dscp_differs", false, "dscp_differs"},
		{api.FlowArmed, "label_differs", false, "label_differs"},
		{api.FlowArmed, "over_mtu", false, "over_mtu"},
		{api.FlowExpired, "over_mtu", false, "lease_ended"},
		{api.FlowOld, "hit", false, "old_generation"},
		{api.FlowClosed, "tcp_close", false, "closed"},
		{api.FlowSeen, "ct_helper", false, "ct_helper"},
	} {
		e := explain(api.Flow{State: c.state, Why: c.why}, c.paused)
		if e.Reason != c.want || e.Fast != (c.want == "hit") || e.Words == "" || e.Flow == nil {
			t.Errorf("%s, %s, paused %v: %+v, want %s", c.state, c.why, c.paused, e, c.want)
		}
	}
}
