// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// TestImposer: the pair is there from the first prefix to the last, and again when somebody has taken
// it away or the daemon has been another one.
func TestImposer(t *testing.T) {
	r, p, s := puntRig(t)
	is := func(when string, outer, heard int) {
		t.Helper()
		want := dataplane.Imposer{}
		if outer != 0 {
			want = dataplane.Imposer{Outer: outer, Inner: outer + 1}
		}
		if r.kernel.pair != outer || r.plane.imposer != want || s.pair != heard {
			t.Errorf("%s: the kernel has %d, the data path %v, and %d is heard; want %d", when, r.kernel.pair, r.plane.imposer, s.pair, outer)
		}
		d := Daemon{labels: r.labels, ports: map[int]*port{1: {decision: eligible.Decision{XDPTransmit: true}}}}
		if d.redirects() != (outer != 0) {
			t.Errorf("%s: what drivers refuse is looked at: %v", when, d.redirects())
		}
	}
	is("before", 0, 0)
	r.must("nhlfe add 21 push 300 " + viaWAN)
	r.plane.refuse = func(u *dataplane.LabelUpdate) error {
		if u.Imposer.Outer != 0 {
			return errPlane
		}
		return nil
	}
	if _, err := r.apply("ftn add 203.0.113.0/24 nhlfe 21"); !errors.Is(err, errPlane) {
		t.Errorf("refused: %v", err)
	}
	is("refused by the data path", 0, 0)
	r.plane.refuse = nil
	r.must("ftn add 203.0.113.0/24 nhlfe 21")
	is("the first prefix", 100, 101)
	r.must("ftn add 2001:db8::/32 nhlfe 21", "ftn del 203.0.113.0/24")
	r.look()
	is("another one", 100, 101)

	r.kernel.change(func() { r.kernel.pair = 200 })
	r.look()
	is("made again by somebody", 200, 201)
	r.kernel.change(func() { r.kernel.neighbours[nextHop] = kernel.Neighbour{MAC: station(9)} })
	r.look()
	is("the neighbour has another MAC", 200, 201)
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	r.labels.punts = p
	p.labels = r.labels
	is("the daemon is another one", 200, 201)

	r.plane.stats.Ports = map[int]dataplane.LabelPortStats{201: {LookupFailures: 2, Reasons: map[string]uint64{"mpls_no_label": 2, dataplane.QueueFull: 1}}}
	stats, err := r.Stats(api.MPLSFilter{})
	want := api.MPLSInterface{Name: kernel.PairInner, Index: 201, Space: -1, Reasons: map[string]uint64{"mpls_no_label": 2, dataplane.QueueFull: 1}}
	if all := stats.Interfaces; err != nil || !maps.Equal(all[0].Reasons, want.Reasons) || all[0].InLabelLookupFailures != 0 ||
		!slices.ContainsFunc(all, func(i api.MPLSInterface) bool { return reflect.DeepEqual(i, want) }) {
		t.Errorf("%v: %+v", err, stats.Interfaces)
	}
	r.kernel.change(func() { r.kernel.err = errors.New("no") })
	if _, err := r.apply("ftn replace 2001:db8::/32 nhlfe 21", "ftn add 203.0.113.0/24 nhlfe 21"); err == nil {
		t.Error("a prefix was taken without the pair")
	}
	r.kernel.change(func() { r.kernel.err = nil })
	r.look()
	r.must("ftn del 2001:db8::/32")
	is("without a prefix", 0, 0)
}

// TestTooLongForLabels: what is due for IP packets that are passed up where they get labels.
func TestTooLongForLabels(t *testing.T) {
	const wan = "4 02:00:00:00:00:02 0x8847 "
	for _, c := range []struct {
		name string
		in   []byte
		want []string
	}{
		{"DF", datagram("10.1.0.9", 97, 0x4000), []string{"route 10.1.0.9 125 bytes"}},
		{"DF, from this host", datagram("10.0.0.1", 97, 0x4000), []string{"route 10.0.0.1 125 bytes"}},
		{"cut", datagram("10.1.0.9", 97, 0), []string{wan + "96 bytes", wan + "29 bytes"}},
		{"fits", datagram("10.1.0.9", 96, 0x4000), nil},
		{"of no prefix", append(datagram("10.1.0.9", 97, 0x4000)[:16], make([]byte, 81)...), nil},
		{"no IP", make([]byte, 97), nil},
		{"cut short", datagram("10.1.0.9", 97, 0x4000)[:96], nil},
		{"nothing", nil, nil},
	} {
		r, p, s := puntRig(t)
		r.must("nhlfe add 21 mtu 100 push 300 "+viaWAN, "ftn add 203.0.113.0/24 nhlfe 21")
		if err := p.takeIP(c.in); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(s.went, c.want) {
			t.Errorf("%s: %q, want %q", c.name, s.went, c.want)
		}
	}
}
