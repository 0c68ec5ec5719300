// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// fakePlane is a data path that holds what it was told, and watches that nothing is named
// that is not there.
type fakePlane struct {
	mu          sync.Mutex
	refuse      func(*dataplane.LabelUpdate) error
	updates     int
	adjacencies map[uint32]dataplane.Adjacency
	nhlfes      map[uint32]*lfib.Form
	sends       map[uint32]uint32 // NHLFE to adjacency
	ilm         map[dataplane.LabelKey][8]uint32
	ftn         map[netip.Prefix]uint32
	maps        map[string]*[64]uint8
	ports       map[int]dataplane.LabelPort
	imposer     dataplane.Imposer
	stats       dataplane.LabelStats
	faults      []string
}

func newFakePlane() *fakePlane {
	p := &fakePlane{}
	p.clear()
	return p
}

// clear is what a whole update begins with: new tables.
func (p *fakePlane) clear() {
	p.adjacencies = map[uint32]dataplane.Adjacency{}
	p.nhlfes, p.sends, p.ilm = map[uint32]*lfib.Form{}, map[uint32]uint32{}, map[dataplane.LabelKey][8]uint32{}
	p.ftn, p.maps, p.ports = map[netip.Prefix]uint32{}, map[string]*[64]uint8{}, map[int]dataplane.LabelPort{}
}

func (p *fakePlane) LabelStats() (dataplane.LabelStats, error) { return p.stats, nil }

func (p *fakePlane) LabelHash([]byte, bool) uint32 { return 0 }

func (p *fakePlane) UpdateLabels(u *dataplane.LabelUpdate) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.updates++
	if p.refuse != nil {
		if err := p.refuse(u); err != nil {
			p.lose(u)
			return err
		}
	}
	if u.Whole {
		p.clear()
	}
	for _, id := range u.Ended {
		delete(p.adjacencies, id)
	}
	for _, a := range u.Adjacencies {
		p.adjacencies[a.ID] = a
	}
	for _, m := range u.Maps {
		put(p.maps, m.Name, m.To, m.To != nil)
	}
	for _, n := range u.NHLFEs {
		put(p.nhlfes, n.ID, n.Form, n.Form != nil)
		if delete(p.sends, n.ID); n.Form != nil && n.Form.Send != nil {
			p.sends[n.ID] = u.AdjacencyOf(n.Form.Send)
		}
	}
	for _, o := range u.ILM {
		put(p.ilm, dataplane.LabelKey{Space: o.Space, Label: o.Label}, o.NHLFE, o.NHLFE != [8]uint32{})
	}
	for _, o := range u.FTN {
		put(p.ftn, o.Prefix, o.NHLFE, o.NHLFE != 0)
	}
	for _, o := range u.Ports {
		put(p.ports, o.Index, o, o.Space >= 0)
	}
	p.imposer = u.Imposer
	p.check()
	return nil
}

// lose is the worst that a failing update may do: nothing of what it is about is left. A whole one
// was made aside.
func (p *fakePlane) lose(u *dataplane.LabelUpdate) {
	if u.Whole {
		return
	}
	for _, n := range u.NHLFEs {
		delete(p.nhlfes, n.ID)
	}
	for _, o := range u.ILM {
		delete(p.ilm, dataplane.LabelKey{Space: o.Space, Label: o.Label})
	}
	for _, o := range u.Ports {
		delete(p.ports, o.Index)
	}
}

func put[K comparable, V any](m map[K]V, key K, value V, there bool) {
	if delete(m, key); there {
		m[key] = value
	}
}

// check finds what is named and not there. Of very many entries that would take most of the
// time.
func (p *fakePlane) check() {
	if len(p.ilm) > 1000 {
		return
	}
	for key, by := range p.ilm {
		for _, id := range by {
			if id != 0 && p.nhlfes[id] == nil {
				p.faults = append(p.faults, fmt.Sprintf("%v: no nhlfe %d", key, id))
			}
		}
	}
	if len(p.ftn) > 0 != (p.imposer != dataplane.Imposer{}) {
		p.faults = append(p.faults, fmt.Sprintf("%d prefixes, and an imposer at %v", len(p.ftn), p.imposer))
	}
	for id, adjacency := range p.sends {
		if _, ok := p.adjacencies[adjacency]; !ok {
			p.faults = append(p.faults, fmt.Sprintf("nhlfe %d: no adjacency %d", id, adjacency))
		}
	}
}

// words is what is in force, one thing a line.
func (p *fakePlane) words() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for id, f := range p.nhlfes {
		line := fmt.Sprintf("nhlfe %d: %s", id, f.Does)
		if f.Send != nil {
			a := p.adjacencies[p.sends[id]]
			line += fmt.Sprintf(" to %v by %d, mtu %d", net.HardwareAddr(a.Destination[:]), a.Index, a.MTU)
			if a.Index == 0 {
				line = fmt.Sprintf("nhlfe %d: send to nowhere", id)
			}
		}
		all = append(all, line)
	}
	for key, by := range p.ilm {
		all = append(all, fmt.Sprintf("ilm %d/%d: %d", key.Space, key.Label, by))
	}
	for prefix, id := range p.ftn {
		all = append(all, fmt.Sprintf("ftn %v: %d", prefix, id))
	}
	for name, m := range p.maps {
		all = append(all, fmt.Sprintf("map %s: %v", name, m[:8]))
	}
	for index, o := range p.ports {
		upstream := ""
		if o.Upstream >= 0 {
			upstream = fmt.Sprintf(" upstream %d", o.Upstream)
		}
		all = append(all, fmt.Sprintf("port %d: space %d%s, %v", index, o.Space, upstream, net.HardwareAddr(o.MAC[:])))
	}
	slices.Sort(all)
	return all
}

// fakeKernel is a kernel of some links and neighbours.
type fakeKernel struct {
	mu         sync.Mutex
	links      map[string]kernel.Link
	neighbours map[netip.Addr]kernel.Neighbour
	used       map[netip.Addr]int
	pair       int // ifindex of the outer end; 0: it is not there
	err        error
}

func (k *fakeKernel) Link(name string) (kernel.Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, ok := k.links[name]; ok || k.err != nil {
		return l, k.err
	}
	return kernel.Link{}, kernel.ErrNoLink
}

func (k *fakeKernel) Neighbour(_ int, addr netip.Addr) (kernel.Neighbour, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.neighbours[addr], k.err
}

func (k *fakeKernel) Use(_ int, addr netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used[addr]++
	return k.err
}

func (k *fakeKernel) MakePair() (outer, inner int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pair == 0 {
		k.pair = 100
	}
	return k.pair, k.pair + 1, k.err
}

func (k *fakeKernel) RemovePair() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pair = 0
	return nil
}

// change changes the kernel.
func (k *fakeKernel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

var (
	nextHop  = netip.MustParseAddr("10.0.0.2")
	nextHop6 = netip.MustParseAddr("2001:db8::2")
)

func station(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }

// labelRig is labels between a kernel and a data path.
type labelRig struct {
	*labels
	t      *testing.T
	kernel *fakeKernel
	plane  *fakePlane
	path   string
	fast   map[string]bool // ports
	change func(port string, d *eligible.Decision)
}

// newLabelRig has two ports, lan and wan, and a neighbour on wan.
func newLabelRig(t *testing.T) *labelRig {
	t.Helper()
	link := func(index int, name string) kernel.Link {
		return kernel.Link{Index: index, Name: name, Type: kernel.Ethernet, MTU: 1500, MAC: station(byte(16 * index)), Up: true, Carrier: true}
	}
	r := &labelRig{t: t, plane: newFakePlane(), path: filepath.Join(t.TempDir(), "journal"), fast: map[string]bool{"lan": true, "wan": true},
		kernel: &fakeKernel{
			links:      map[string]kernel.Link{"lan": link(3, "lan"), "wan": link(4, "wan")},
			neighbours: map[netip.Addr]kernel.Neighbour{nextHop: {MAC: station(2)}, nextHop6: {MAC: station(6), Static: true}},
			used:       map[netip.Addr]int{},
		}}
	t.Cleanup(func() {
		for _, fault := range r.plane.faults {
			t.Error(fault)
		}
	})
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// start is the start of a daemon, the first or another one.
func (r *labelRig) start() error {
	if r.labels != nil {
		r.labels.end()
	}
	r.labels = newLabels(slog.New(slog.DiscardHandler), r.plane, r.showing, func() []string { return []string{"lan", "wan", "wan9"} })
	r.t.Cleanup(r.labels.end)
	return r.labels.begin(r.path, r.kernel)
}

func (r *labelRig) showing() (all []shown) {
	r.kernel.mu.Lock()
	defer r.kernel.mu.Unlock()
	for name, l := range r.kernel.links {
		d := eligible.Decision{Attach: true, XDPReceive: true, XDPTransmit: true}
		if !r.fast[name] {
			d = eligible.Decision{Reason: name + " is refused", Remedy: "name another"}
		}
		if r.change != nil {
			r.change(name, &d)
		}
		all = append(all, shown{link: l, decision: d})
	}
	return all
}

func (r *labelRig) apply(lines ...string) (api.MPLSDone, error) {
	return r.labels.Apply(api.MPLSChange{Lines: lines, Origin: "test"})
}

func (r *labelRig) must(lines ...string) {
	r.t.Helper()
	if _, err := r.apply(lines...); err != nil {
		r.t.Fatal(err)
	}
}

// inForce compares what the data path has.
func (r *labelRig) inForce(when string, want ...string) {
	r.t.Helper()
	slices.Sort(want)
	if got := r.plane.words(); !slices.Equal(got, want) {
		r.t.Errorf("%s:\n got %s\nwant %s", when, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// look is one look of run's, of everything.
func (r *labelRig) look() { r.lookAgain(found{all: true, use: true}) }

var errPlane = errors.New("no room")
