// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// router is a namespace with two ports and a bpffs.
type router struct {
	*lab.Lab
	ns    *lab.NS
	ports [2]int
}

func newRouter(t *testing.T) *router {
	t.Helper()
	l, err := lab.New("plane")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := l.Namespaces("r", "h")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{Lab: l, ns: ns[0]}
	for i, name := range []string{"lan", "wan"} {
		host := lab.End{NS: ns[1], Device: name, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i), 2}}
		port := lab.End{NS: ns[0], Device: name, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i), 1}}
		if err := l.Connect(host, port, lab.Wire, 0); err != nil {
			t.Fatal(err)
		}
		r.do(t, func() error {
			d, err := net.InterfaceByName(name)
			if err == nil {
				r.ports[i] = d.Index
			}
			return err
		})
	}
	return r
}

func (r *router) do(t *testing.T, f func() error) {
	t.Helper()
	if err := r.ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

func (r *router) open(t *testing.T, flows int) (p *Plane) {
	t.Helper()
	r.do(t, func() (err error) {
		p, err = Open(Options{Dir: r.BPFFS(), Flows: flows})
		return err
	})
	return p
}

// want is both ports with everything.
func (r *router) want() []Attach {
	return []Attach{
		{Index: r.ports[0], XDPReceive: true, XDPTransmit: true},
		{Index: r.ports[1], XDPReceive: true, XDPTransmit: true},
	}
}

func (r *router) apply(t *testing.T, p *Plane, want []Attach) {
	t.Helper()
	r.do(t, func() error {
		for _, err := range p.Apply(want) {
			return err
		}
		return nil
	})
}

// attached counts the tcx programs on a port and the XDP programs on all, as the kernel
// and iproute2 tell.
func (r *router) attached(t *testing.T, index int) (n int) {
	t.Helper()
	r.do(t, func() error {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
			if err != nil {
				return err
			}
			n += len(q.Programs)
		}
		return nil
	})
	out, err := r.ns.Run("ip", "link", "show")
	if err != nil {
		t.Fatal(err)
	}
	return n + strings.Count(out, "prog/xdp")
}

// TestTakeOver: what is pinned goes on without the process, and the next one finds it as
// it was: settings, flows, links.
func TestTakeOver(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	if p.TookOver {
		t.Error("took over from nobody")
	}
	p.Configure(Settings{Threshold: 7, Lease: 100, LeaseLive: 200, HZ: 250, TCP: true})
	r.apply(t, p, r.want())
	gen, secret := p.Generation(), p.control().Secret
	s := tcSlot{State: uint8(tcSlotStateSLOT_ARMED)}
	s.Key.Kind = 5 << tcKindKIND_PORT
	if _, err := p.flows.WriteAt(unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s)), 7*int64(tcAbiSLOT_SIZE)); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if n := r.attached(t, r.ports[0]); n != 4 { // two of tcx here, XDP on both
		t.Errorf("%d programs after the process ended, want 4", n)
	}

	q := r.open(t, 1024)
	defer q.Close()
	if !q.TookOver || q.Generation() != gen || q.control().Secret != secret || q.control().Threshold != 7 {
		t.Errorf("took over %v: generation %d, threshold %d", q.TookOver, q.Generation(), q.control().Threshold)
	}
	found := 0
	if err := q.Slots(func(s *Slot) bool { found++; return s.Port() == 5 }); err != nil || found != 1 {
		t.Errorf("%d flows, %v; want the one", found, err)
	}
	r.apply(t, q, r.want())
	if n := r.attached(t, r.ports[0]); n != 4 {
		t.Errorf("%d programs after the new process applied, want 4", n)
	}
}

// TestOtherSizeStartsAfresh: pinned maps that do not fit are not taken over.
func TestOtherSizeStartsAfresh(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	secret := p.control().Secret
	r.apply(t, p, r.want())
	p.Close()
	q := r.open(t, 2048)
	defer q.Close()
	if q.TookOver || q.control().Secret == secret || q.flows.Size() != 2048*uint32(tcAbiSLOT_SIZE) {
		t.Errorf("took over %v, a table of %d bytes", q.TookOver, q.flows.Size())
	}
	if n := r.attached(t, r.ports[0]); n != 0 {
		t.Errorf("%d programs of the old data path are still attached", n)
	}
}

// TestApply: a change raises the generation, the same again does not, and what is not
// wanted any more is gone.
func TestApply(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	defer p.Close()
	r.apply(t, p, r.want())
	gen := p.Generation()
	r.apply(t, p, r.want())
	if p.Generation() != gen {
		t.Error("the same again raised the generation")
	}
	less := r.want()
	less[1].XDPReceive, less[1].XDPTransmit = false, false
	r.apply(t, p, less)
	if p.Generation() == gen {
		t.Error("a port lost XDP, and entries that use it are still good")
	}
	var index uint32
	if err := p.maps["tx"].Lookup(uint32(1), &index); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("redirect map still has %d: %v", index, err)
	}
	for index, err := range p.Apply([]Attach{{Index: 1 << 23}}) {
		if index != 1<<23 || !strings.Contains(err.Error(), "too high") {
			t.Errorf("interface %d: %v", index, err)
		}
	}
	gen = p.Generation()
	r.apply(t, p, nil)
	if n := r.attached(t, r.ports[0]); n != 0 || p.Generation() == gen {
		t.Errorf("%d programs, generation %d after %d", n, p.Generation(), gen)
	}
}

// TestTaken: a port with other people's XDP is reported and goes by TC, the other one is
// done. The same again does not flap, and something else wanted is tried.
func TestTaken(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	defer p.Close()
	var foreign link.Link
	r.do(t, func() (err error) {
		foreign, err = link.AttachXDP(link.XDPOptions{Program: p.xdp, Interface: r.ports[0], Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { foreign.Close() })
		}
		return err
	})
	var failed map[int]error
	r.do(t, func() error { failed = p.Apply(r.want()); return nil })
	check := func(when string) {
		t.Helper()
		var xdp *XDPError
		if len(failed) != 1 || !errors.Is(failed[r.ports[0]], ErrTaken) || !errors.As(failed[r.ports[0]], &xdp) {
			t.Errorf("%s: failed: %v", when, failed)
		}
		if n := r.attached(t, r.ports[0]); n != 4 { // two of tcx here, a foreign XDP, our own on the other
			t.Errorf("%s: %d programs, want 4", when, n)
		}
		if l := p.links[linkName(r.ports[0], "ingress")]; l == nil || l.prog != p.in {
			t.Errorf("%s: the port's ingress program is not the one for ports without XDP", when)
		}
		var port tcPort
		if err := p.maps["ports"].Lookup(uint32(r.ports[0]), &port); err != nil || port.Flags&uint32(tcPortFlagPORT_XDP_RX) != 0 {
			t.Errorf("%s: port table: %v, flags %d", when, err, port.Flags)
		}
	}
	check("first")
	gen := p.Generation()
	r.do(t, func() error { failed = p.Apply(r.want()); return nil })
	check("again")
	if p.Generation() != gen {
		t.Error("the same again raised the generation")
	}
	foreign.Close()
	other := r.want()
	other[0].XDPTransmit = false
	r.apply(t, p, other)
}

// TestIndexUsedAgain: an interface that comes back under the index of one that is gone
// gets programs of its own.
func TestIndexUsedAgain(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	defer p.Close()
	r.apply(t, p, r.want())
	for _, command := range [][]string{
		{"ip", "link", "del", "lan"},
		{"ip", "link", "add", "lan", "index", strconv.Itoa(r.ports[0]), "type", "veth", "peer", "name", "other"},
	} {
		if out, err := r.ns.Run(command...); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	r.apply(t, p, r.want())
	if n := r.attached(t, r.ports[0]); n != 4 {
		t.Errorf("%d programs, want 4", n)
	}
}

// TestHeld: a directory belongs to one process, for opening and for removing.
func TestHeld(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	second, err := Open(Options{Dir: r.BPFFS(), Flows: 1024})
	if err == nil {
		second.Close()
	}
	for what, err := range map[string]error{"open": err, "remove": Remove(r.BPFFS())} {
		if err == nil || !strings.Contains(err.Error(), r.BPFFS()) || !strings.Contains(err.Error(), "--bpffs") {
			t.Errorf("%s while it is held: %v", what, err)
		}
	}
	if err := errors.Join(p.Remove(), p.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.BPFFS()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", r.BPFFS(), err)
	}
}

// TestRemove: nothing is left, and nothing that is not shunt's is touched.
func TestRemove(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	r.apply(t, p, r.want())
	p.Close()
	if err := Remove(r.BPFFS()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.BPFFS()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", r.BPFFS(), err)
	}
	if n := r.attached(t, r.ports[0]); n != 0 {
		t.Errorf("%d programs still attached", n)
	}
	if err := Remove(r.BPFFS()); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestHalfRemoved: what a removal left over because it failed sends nothing, and is not
// taken over: it was paused so that nothing would be lost, not for the operator.
func TestHalfRemoved(t *testing.T) {
	for _, c := range []struct {
		name   string
		remove func(*router, *Plane) error
	}{
		{"by its own process", func(_ *router, p *Plane) error {
			err := p.Remove()
			return errors.Join(err, p.Close())
		}},
		{"by another one", func(r *router, p *Plane) error {
			return errors.Join(p.Close(), Remove(r.BPFFS()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRouter(t)
			p := r.open(t, 1024)
			r.apply(t, p, r.want())
			control, err := p.maps[controlMap].Clone()
			if err != nil {
				t.Fatal(err)
			}
			defer control.Close()
			foreign := filepath.Join(r.BPFFS(), "links", "foreign")
			if err := os.MkdirAll(filepath.Join(foreign, "er"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.remove(r, p); err == nil || !strings.Contains(err.Error(), foreign) {
				t.Errorf("removed beside %s: %v", foreign, err)
			}
			var left tcControl
			if err := control.Lookup(uint32(0), &left); err != nil || left.Paused == 0 {
				t.Errorf("what is left goes on: %v, paused %d", err, left.Paused)
			}
			if err := os.RemoveAll(foreign); err != nil {
				t.Fatal(err)
			}
			q := r.open(t, 1024)
			defer q.Close()
			if q.TookOver || q.Paused() {
				t.Errorf("took over %v, paused %v", q.TookOver, q.Paused())
			}
			if n := r.attached(t, r.ports[0]); n != 0 {
				t.Errorf("%d programs of the old data path are still attached", n)
			}
		})
	}
}

// TestPauseStays: a pause is the operator's, and outlasts the daemon.
func TestPauseStays(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	p.Pause(true)
	p.Close()
	q := r.open(t, 1024)
	defer q.Close()
	if !q.TookOver || !q.Paused() {
		t.Errorf("took over %v, paused %v", q.TookOver, q.Paused())
	}
}

// TestNoBPFFS: one line that names the directory and the fix, and nothing is left there.
func TestNoBPFFS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shunt")
	p, err := Open(Options{Dir: dir, Flows: 1024})
	if err == nil {
		p.Close()
		t.Fatal("opened on an ordinary directory")
	}
	if s := err.Error(); !strings.Contains(s, dir) || !strings.Contains(s, "mount") || strings.Contains(s, "\n") {
		t.Errorf("error %q", s)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was left behind", dir)
	}
}
