// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/explain"
)

// TestExplainTable: the busiest first, whoever carries them; and all, with packets that are
// of no flow.
func TestExplainTable(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	const flows = 50
	for i := range uint16(flows) {
		p, q := in, out
		p.Src, q.Src = netip.AddrPortFrom(in.Src.Addr(), 2000+i), netip.AddrPortFrom(in.Src.Addr(), 2000+i)
		s := b.Learned(p, q, b.lease(t))
		s.Packets = uint64(i)
		if i%2 == 1 { // slow ones count as well
			s.State, s.Packets, s.Count, s.Seen = exercise.Seen, 0, uint32(i), b.lease(t)-60*b.HZ
		}
		check(t, b.PutAt(exercise.Place{Bucket: uint32(i)}, s)) // where it is found is not the question
	}
	list, err := b.look(t).Explain(api.ExplainQuery{Top: 10})
	check(t, err)
	for i, x := range list {
		if want := uint16(2000 + flows - 1 - i); x.Flow == nil || x.Flow.Source.Port() != want || x.Fast != (want%2 == 0) {
			t.Errorf("place %d: %+v, want port %d", i, x, want)
		}
	}
	if len(list) != 10 {
		t.Errorf("%d flows, want 10", len(list))
	}
	_, err = b.XDP(b.LANIndex, with(in, func(p *exercise.Packet) { p.TTL = 1 }))
	check(t, err)
	if list, err = b.look(t).Explain(api.ExplainQuery{}); err != nil || len(list) != flows+1 {
		t.Fatalf("%d explanations, %v; want %d", len(list), err, flows+1)
	}
	if x := list[flows]; x.Flow != nil || x.Reason != "ttl" || x.Also[0].Source != in.Src {
		t.Errorf("%+v, want the packet without a flow", x)
	}
	some, err := b.look(t).Flows(api.FlowFilter{Limit: 3, Sort: api.SortPackets, State: api.FlowArmed, Port: "lan"})
	check(t, err)
	if len(some) != 3 || some[0].Packets != 48 || some[1].Packets != 46 || some[2].Packets != 44 {
		t.Errorf("%+v, want the three largest", some)
	}
	n, err := b.look(t).Count()
	if err != nil || n.Armed != flows/2 || n.Seen != flows/2 || n.Idle != 0 {
		t.Errorf("%+v, %v", n, err)
	}
	// without packets the gauges fall, and the flows go out of sight, but not before their leases
	later := func(seconds uint32) *explain.Look { l := b.look(t); l.Now += seconds * l.HZ; return l }
	lease := uint32(some[0].LeaseLeft)
	if lease <= 10 {
		t.Fatalf("a lease of %d s: the test does not test", lease)
	}
	for _, c := range []struct{ seconds, armed, idle uint32 }{{lease - 2, flows / 2, flows / 2}, {lease + 30, 0, flows}, {1 << 20, 0, flows}} {
		l := later(c.seconds)
		if n, err := l.Count(); err != nil || n.Armed != int(c.armed) || n.Seen != 0 || n.Idle != int(c.idle) {
			t.Errorf("after %d s: %+v, %v", c.seconds, n, err)
		}
		live, err := l.Flows(api.FlowFilter{Live: true})
		check(t, err)
		kept, err := l.Flows(api.FlowFilter{})
		check(t, err)
		if len(live) != int(c.armed) || len(kept) != flows {
			t.Errorf("after %d s: %d live flows of %d", c.seconds, len(live), len(kept))
		}
	}
	b.busiest(t, in)
}

// busiest asserts that a flow of which packets come now stands before those that had more.
func (b *bench) busiest(t *testing.T, in exercise.Packet) {
	t.Helper()
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := b.XDP(b.LANIndex, in.Bytes()); err != nil {
				done <- err
				return
			}
		}
	}()
	byRate, err := b.look(t).Flows(api.FlowFilter{Limit: 1, Sort: api.SortRate})
	check(t, err)
	top, err := b.look(t).Explain(api.ExplainQuery{Top: 1})
	check(t, err)
	close(stop)
	check(t, <-done)
	if len(byRate) != 1 || byRate[0].Source != in.Src {
		t.Errorf("the busiest is %+v, want %v", byRate, in.Src)
	}
	if len(top) != 1 || top[0].Flow == nil || top[0].Flow.Source != in.Src {
		t.Errorf("the busiest is %+v, want %v", top, in.Src)
	}
}
