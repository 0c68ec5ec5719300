// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// TestWaysOut: what becomes of a link or a neighbour becomes of those who send to it.
func TestWaysOut(t *testing.T) {
	r := newLabelRig(t)
	r.must("space set wan 0", "nhlfe add 7 swap 200 "+viaWAN)
	const up, down = "nhlfe 7: send to 02:00:00:00:00:02 by 4, mtu 1500", "nhlfe 7: send to nowhere"
	const space = "port 4: space 0, 02:00:00:00:00:40"
	set := func(f func(*kernel.Link)) func() {
		return func() {
			l := r.kernel.links["wan"]
			f(&l)
			r.kernel.links["wan"] = l
		}
	}
	neighbour := func(n kernel.Neighbour) func() {
		return func() { r.kernel.neighbours[nextHop] = n }
	}
	well := r.kernel.links["wan"]
	for _, c := range []struct {
		what   string
		change func()
		nhlfe  string
		space  string // "": none
		why    string
	}{
		{"as it was", func() {}, up, space, ""},
		{"another MAC", neighbour(kernel.Neighbour{MAC: station(9)}), "nhlfe 7: send to 02:00:00:00:00:09 by 4, mtu 1500", space, ""},
		{"no answer", neighbour(kernel.Neighbour{Failed: true}), down, space, "the neighbour does not answer"},
		{"asked again", neighbour(kernel.Neighbour{}), down, space, "the neighbour has not answered yet"},
		{"an answer", neighbour(kernel.Neighbour{MAC: station(2)}), up, space, ""},
		{"odd answer", neighbour(kernel.Neighbour{MAC: make([]byte, 8)}), down, space, "the neighbour's link address is no MAC"},
		{"set by hand", neighbour(kernel.Neighbour{MAC: station(2), Static: true}), up, space, ""},
		{"MTU", set(func(l *kernel.Link) { l.MTU = 9000 }), "nhlfe 7: send to 02:00:00:00:00:02 by 4, mtu 9000", space, ""},
		{"down", set(func(l *kernel.Link) { *l = well; l.Up = false }), down, space, "the interface is down"},
		{"no carrier", set(func(l *kernel.Link) { *l = well; l.Carrier = false }), down, space, "the interface has no carrier"},
		{"gone", func() { delete(r.kernel.links, "wan") }, down, "", "no such interface now"},
		{"another of its name", set(func(l *kernel.Link) { *l = well; l.Index, l.MAC = 40, station(99) }),
			"nhlfe 7: send to 02:00:00:00:00:02 by 40, mtu 1500", "port 40: space 0, 02:00:00:00:00:63", ""},
		{"back", set(func(l *kernel.Link) { *l = well }), up, space, ""},
		{"refused", func() { r.fast["wan"] = false }, down, "", "the interface takes no frames by XDP: wan is refused; name another"},
		{"no Ethernet", set(func(l *kernel.Link) { r.fast["wan"] = true; l.Type = kernel.Loopback }), down, "", "the interface is no Ethernet"},
		{"well", set(func(l *kernel.Link) { *l = well }), up, space, ""},
		{"nobody knows", func() { r.kernel.err = errors.New("netlink: no memory") }, up, space, ""},
	} {
		r.kernel.change(c.change)
		r.look()
		want := []string{c.nhlfe}
		if c.space != "" {
			want = append(want, c.space)
		}
		r.inForce(c.what, want...)
		list, err := r.NHLFE(api.MPLSFilter{})
		state, reason := api.MPLSUp, ""
		if c.why != "" {
			state, reason = api.MPLSDown, "dev wan via inet 10.0.0.2: "+c.why
		}
		if err != nil || len(list) != 1 || list[0].State != state || list[0].Reason != reason {
			t.Errorf("%s: %+v, %v", c.what, list, err)
		}
		before := r.plane.updates
		r.look()
		if r.plane.updates != before {
			t.Errorf("%s: nothing is new, and %d updates", c.what, r.plane.updates-before)
		}
	}
	if r.failed == "" {
		t.Error("that nothing could be looked at is not told")
	}
}

// TestLookIsLate: what was looked up before a change does not undo it.
func TestLookIsLate(t *testing.T) {
	r := newLabelRig(t)
	r.must("space set lan 1", "nhlfe add 7 drop")
	before := r.plane.words()
	seen := map[wayOut]way{{port: "wan", via: nextHop}: {now: dataplane.Adjacency{Index: 4}}}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.takeOver(seen, map[string]dataplane.LabelPort{"lan": {Index: 3, Space: 0, Upstream: -1}, "wan": {Index: 4, Space: 0, Upstream: -1}})
	if err != nil {
		t.Error(err)
	}
	r.inForce("late", before...)
}

// TestWaysAreUsed: the kernel is asked for neighbours and told that they are in use, but for
// those that it would lose by that.
func TestWaysAreUsed(t *testing.T) {
	r := newLabelRig(t)
	absent := netip.MustParseAddr("10.0.0.3")
	r.must("nhlfe add 7 drop")
	ask := r.news.take()
	r.must("nhlfe replace 7 swap 200 send dev wan via inet 10.0.0.3", "nhlfe add 8 swap 200 "+viaWAN,
		"nhlfe add 9 swap 200 send dev wan via inet6 2001:db8::2", "nhlfe add 10 swap 200 send dev lan lladdr 02:00:00:00:00:99")
	if ask = r.news.take(); !ask.all || !ask.use {
		t.Errorf("one that nobody knows is not asked for: %+v", ask)
	}
	r.lookAgain(ask)
	r.kernel.change(func() { r.kernel.neighbours[absent] = kernel.Neighbour{MAC: station(3)} })
	r.news.hear(kernel.Event{Kind: kernel.EventNeighNew, Prefix: netip.PrefixFrom(absent, 32)})
	r.lookAgain(r.news.take())
	r.inForce("once it has answered",
		"nhlfe 7: send to 02:00:00:00:00:03 by 4, mtu 1500", "nhlfe 8: send to 02:00:00:00:00:02 by 4, mtu 1500",
		"nhlfe 9: send to 02:00:00:00:00:06 by 4, mtu 1500", "nhlfe 10: send to 02:00:00:00:00:99 by 3, mtu 1500")
	if diff := cmp.Diff(map[netip.Addr]int{absent: 1, nextHop: 1}, r.kernel.used, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("asked for by one look:\n%s", diff)
	}
}

// TestNews: which events make somebody look, and at what.
func TestNews(t *testing.T) {
	near := netip.PrefixFrom(nextHop, 32)
	for _, c := range []struct {
		e     kernel.Event
		want  string
		wakes bool
	}{
		{kernel.Event{Kind: kernel.EventNeigh, Prefix: near}, "false map[10.0.0.2:true]", true},
		{kernel.Event{Kind: kernel.EventNeighNew, Prefix: near}, "false map[10.0.0.2:true]", true},
		{kernel.Event{Kind: kernel.EventLink, Link: kernel.LinkMTU}, "true map[]", true},
		{kernel.Event{Kind: kernel.EventLink, Deleted: true}, "true map[]", true},
		{kernel.Event{Kind: kernel.EventLink}, "false map[]", false},
		{kernel.Event{Kind: kernel.EventResync}, "true map[]", true},
		{kernel.Event{Kind: kernel.EventRoute}, "false map[]", false},
	} {
		n := newNews()
		n.hear(c.e)
		got := n.take()
		if text := fmt.Sprint(got.all, got.addrs); text != c.want || (len(n.wake) > 0) != c.wakes {
			t.Errorf("%+v: %s, wakes %v; want %s, %v", c.e, text, len(n.wake) > 0, c.want, c.wakes)
		}
	}
	n := newNews()
	for i := range mostNews + 1 {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		n.hear(kernel.Event{Kind: kernel.EventNeigh, Prefix: netip.PrefixFrom(addr, 32)})
	}
	if !n.take().all {
		t.Error("more news than is kept, and not all is looked at")
	}
}

// TestWayIDs: an ID is given again only when many others have been free for less time.
func TestWayIDs(t *testing.T) {
	w := newWays()
	to := func(n int) *wayOut { return &wayOut{port: "wan", mac: [6]byte{2, 0, 0, 0, byte(n >> 8), byte(n)}} }
	resolve := func(k wayOut) (dataplane.Adjacency, string) {
		return dataplane.Adjacency{Index: 4, Destination: k.mac}, ""
	}
	last := map[uint32]int{}
	for n := range 1000 {
		idle := map[*way]bool{}
		fresh := w.send(1, to(n), resolve, idle)
		if fresh == nil || len(idle) > 1 {
			t.Fatalf("%d: %v, %v", n, fresh, idle)
		}
		if before, ok := last[fresh.now.ID]; ok && n-before < idsApart {
			t.Fatalf("ID %d again after %d", fresh.now.ID, n-before)
		}
		last[fresh.now.ID] = n
		w.end(idle)
	}
	if len(last) > 2*idsApart || len(w.at) != 1 {
		t.Errorf("%d IDs for one way at a time, %d ways", len(last), len(w.at))
	}
}

// TestLabelAnswers: what filters choose.
func TestLabelAnswers(t *testing.T) {
	r := newLabelRig(t)
	r.must("map add gold dscp-to-tc 46:5 0:0", "map add back tc-to-dscp 5:46", "nhlfe add 7 mtu 1400 ttl pipe pop "+viaWAN, "nhlfe add 8 push 16 "+viaWAN, "nhlfe add 9 pop deliver",
		"ilm add 100 nhlfe 7", "ilm add 100 tc 0 nhlfe 9", "ilm add 100 space 254 nhlfe 9", "ilm add 17 nhlfe 9",
		"ftn add 192.0.2.0/24 nhlfe 8", "ftn add 2001:db8::/32 nhlfe 8", "space set lan 0 upstream 254", "space set wan9 3")
	zero, label, id, space, prefix := 0, uint32(100), uint32(9), 254, netip.MustParsePrefix("2001:db8::/32")
	const pop, push, deliver = "pop " + viaWAN, "push 16 " + viaWAN, "pop deliver"
	ilm := []api.MPLSILM{
		{Space: 0, Label: 17, NHLFE: 9, List: deliver}, {Space: 0, Label: 100, NHLFE: 7, List: pop},
		{Space: 0, Label: 100, TC: &zero, NHLFE: 9, List: deliver}, {Space: 254, Label: 100, NHLFE: 9, List: deliver},
	}
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", what, err, diff)
		}
	}
	for _, c := range []struct {
		f    api.MPLSFilter
		want []api.MPLSILM
	}{
		{api.MPLSFilter{}, ilm}, {api.MPLSFilter{Label: &label}, ilm[1:]}, {api.MPLSFilter{Space: &space}, ilm[3:]},
		{api.MPLSFilter{Label: &label, Space: &zero}, ilm[1:3]}, {api.MPLSFilter{Limit: 2}, ilm[:2]}, {api.MPLSFilter{Label: &id}, nil},
	} {
		got, err := r.ILM(c.f)
		check(fmt.Sprintf("ilm %+v", c.f), got, err, c.want)
	}
	nhlfe := []api.MPLSNHLFE{{ID: 7, MTU: 1400, TTL: api.MPLSPipe, List: pop, State: api.MPLSUp},
		{ID: 8, TTL: api.MPLSUniform, List: push, State: api.MPLSUp}, {ID: 9, TTL: api.MPLSUniform, List: deliver}}
	gotN, err := r.NHLFE(api.MPLSFilter{})
	check("nhlfe", gotN, err, nhlfe)
	gotN, err = r.NHLFE(api.MPLSFilter{ID: &id})
	check("nhlfe 9", gotN, err, nhlfe[2:])
	ftn := []api.MPLSFTN{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), NHLFE: 8, List: push}, {Prefix: prefix, NHLFE: 8, List: push}}
	gotF, err := r.FTN(api.MPLSFilter{})
	check("ftn", gotF, err, ftn)
	gotF, err = r.FTN(api.MPLSFilter{Prefix: &prefix})
	check("ftn IPv6", gotF, err, ftn[1:])
	maps := []api.MPLSMap{{Name: "back", Kind: api.MPLSToDSCP, To: map[int]int{5: 46}}, {Name: "gold", Kind: api.MPLSToTC, To: map[int]int{46: 5, 0: 0}}}
	gotM, err := r.Map(api.MPLSFilter{})
	check("map", gotM, err, maps)
	gotM, err = r.Map(api.MPLSFilter{Name: "gold"})
	check("map gold", gotM, err, maps[1:])
	spaces := []api.MPLSSpace{{Port: "lan", Index: 3, Space: 0, Upstream: &space, State: api.MPLSUp},
		{Port: "wan9", Space: 3, State: api.MPLSDown, Reason: "there is no such interface now", Remedy: "what is said of its labels waits for it"}}
	gotS, err := r.Space(api.MPLSFilter{})
	check("space", gotS, err, spaces)
	gotS, err = r.Space(api.MPLSFilter{Port: "wan9"})
	check("space wan9", gotS, err, spaces[1:])
	lines, err := r.Save()
	check("save", lines, err, r.table.Save())
}

// TestLabelStats: counters go to their rows, and labels in use are counted as RFC 3813 says.
func TestLabelStats(t *testing.T) {
	r := newLabelRig(t)
	since := time.Unix(1e9, 0)
	r.must("space set lan 0", "nhlfe add 7 swap 200 push 300 "+viaWAN, "nhlfe add 8 swap 300 "+viaWAN, "nhlfe add 9 push 301 "+viaWAN, "nhlfe add 10 pop "+viaWAN,
		"nhlfe add 11 push 17 by-hash 9 10", "ilm add 100 nhlfe 7", "ilm add 100 tc 3 nhlfe 8", "ilm add 101 nhlfe 8", "ilm add 100 space 3 nhlfe 11")
	r.plane.stats = dataplane.LabelStats{
		In: map[dataplane.LabelKey]dataplane.Segment{{Label: 101}: {Packets: 5, Octets: 1<<32 + 7, Errors: 1, Discards: 2, Since: since},
			{Space: 9, Label: 999}: {Packets: 1}},
		Out:   map[uint32]dataplane.Segment{8: {Packets: 4, Octets: 500, Since: since}, 77: {Packets: 1}},
		Ports: map[int]dataplane.LabelPortStats{3: {LookupFailures: 12, Reasons: map[string]uint64{"mpls_ttl": 1}}, 4: {Fragmented: 3}},
	}
	got, err := r.Stats(api.MPLSFilter{})
	want := api.MPLSStats{
		Interfaces: []api.MPLSInterface{
			{Name: "platform", InLabelsInUse: 2, InLabelLookupFailures: 12, OutLabelsInUse: 2, OutFragmentedPkts: 3, Reasons: map[string]uint64{"mpls_ttl": 1}},
			{Name: "lan", Index: 3, InLabelsInUse: 2, InLabelLookupFailures: 12, Reasons: map[string]uint64{"mpls_ttl": 1}},
			{Name: "wan", Index: 4, Space: -1, OutLabelsInUse: 2, OutFragmentedPkts: 3, Reasons: map[string]uint64{}},
		},
		InSegments: []api.MPLSInSegment{
			{Label: 101, Packets: 5, Octets: 7, HCOctets: 1<<32 + 7, Errors: 1, Discards: 2, DiscontinuityTime: since}, {Label: 100}, {Space: 3, Label: 100},
		},
		OutSegments: []api.MPLSOutSegment{{NHLFE: 8, Port: "wan", Packets: 4, Octets: 500, HCOctets: 500, DiscontinuityTime: since},
			{NHLFE: 7, Port: "wan"}, {NHLFE: 9, Port: "wan"}, {NHLFE: 10, Port: "wan"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err = r.Stats(api.MPLSFilter{Limit: 1}); err != nil || len(got.InSegments) != 1 || len(got.OutSegments) != 1 || len(got.Interfaces) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	r.must("ilm del 101", "space set wan 3", "nhlfe add 12 push 17 by-hash 8 9")
	if got, _ = r.Stats(api.MPLSFilter{}); got.Interfaces[1].InLabelsInUse != 1 || got.Interfaces[2].InLabelsInUse != 1 || got.Interfaces[2].Space != 3 {
		t.Errorf("after a change: %+v", got.Interfaces)
	}
	if _, ok := r.inUse.out["wan"][lfib.Label(17)]; ok {
		t.Error("a label under another one is counted as the one on top")
	}
}
