// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"shunt/internal/kernel"
)

// fakeCard answers as a driver does: what is asked for becomes wanted, and fix makes of that what
// is active (ndo_fix_features).
type fakeCard struct {
	state    map[string]kernel.CardFeature
	fix      func(wanted map[string]bool) // changes it into what is active
	requests []string
	seen     func() // at each request
}

func newFakeCard(on string, fix func(map[string]bool)) *fakeCard {
	f := &fakeCard{state: map[string]kernel.CardFeature{}, fix: fix}
	for _, name := range []string{kernel.RxVLAN, kernel.RxLRO, kernel.RxGROHW, "tx-vlan-hw-insert", "rx-gro"} {
		is := slices.Contains(strings.Fields(on), name)
		f.state[name] = kernel.CardFeature{Wanted: is, Active: is}
	}
	return f
}

func (f *fakeCard) get(int) (map[string]kernel.CardFeature, error) {
	now := map[string]kernel.CardFeature{}
	for name, s := range f.state {
		now[name] = s
	}
	return now, nil
}

// set does nothing where everything is wanted already, as ethnl_set_features().
func (f *fakeCard) set(_ int, on map[string]bool) error {
	if f.seen != nil {
		f.seen()
	}
	var words []string
	changed := false
	for name, value := range on {
		words = append(words, fmt.Sprintf("%s=%t", name, value))
		s := f.state[name]
		changed = changed || s.Wanted != value
		s.Wanted = value
		f.state[name] = s
	}
	slices.Sort(words)
	f.requests = append(f.requests, strings.Join(words, " "))
	if changed {
		f.update()
	}
	return nil
}

func (f *fakeCard) update() {
	active := map[string]bool{}
	for name, s := range f.state {
		active[name] = s.Wanted
	}
	if f.fix != nil {
		f.fix(active)
	}
	for name, s := range f.state {
		s.Active = active[name]
		f.state[name] = s
	}
}

func (f *fakeCard) active() string {
	var on []string
	for name, s := range f.state {
		if s.Active {
			on = append(on, name)
		}
	}
	slices.Sort(on)
	return strings.Join(on, " ")
}

func book(t *testing.T, dir string, f *fakeCard) *cards {
	t.Helper()
	c, err := openCards(filepath.Join(dir, "cards.json"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c.get, c.set = f.get, f.set
	return c
}

var eth0 = kernel.Link{Index: 4, Name: "eth0", Driver: "vmxnet3", Burned: net.HardwareAddr{2, 0, 0, 0, 0, 1}}

func unused(kernel.Link) bool { return false }

// TestCards: what is switched off is put back as it was, whatever the driver does along with it.
func TestCards(t *testing.T) {
	const stock = kernel.RxVLAN + " " + kernel.RxLRO + " rx-gro tx-vlan-hw-insert"
	for _, c := range []struct {
		name, on string
		names    []string
		fix      func(map[string]bool)
		during   func(*fakeCard) // what somebody else does meanwhile
		off, end string          // what is active while shunt runs, and in the end
	}{
		{"plain", stock, []string{kernel.RxVLAN, kernel.RxLRO}, nil, nil, "rx-gro tx-vlan-hw-insert", stock},
		{"switches along", stock, []string{kernel.RxVLAN}, func(on map[string]bool) { // e1000_fix_features()
			if !on[kernel.RxVLAN] {
				on["tx-vlan-hw-insert"] = false
			}
		}, nil, "rx-gro rx-lro", stock},
		{"moves along for good", stock, []string{kernel.RxVLAN}, nil, func(f *fakeCard) {}, "rx-gro rx-lro tx-vlan-hw-insert", stock},
		{"switched on again by somebody", stock, []string{kernel.RxVLAN, kernel.RxLRO}, nil,
			func(f *fakeCard) { f.set(0, map[string]bool{kernel.RxVLAN: true}) }, "rx-gro tx-vlan-hw-insert", stock},
		{"something else switched by somebody", stock, []string{kernel.RxVLAN}, nil,
			func(f *fakeCard) { f.set(0, map[string]bool{"rx-gro": false}) }, "rx-gro rx-lro tx-vlan-hw-insert", "rx-lro rx-vlan-hw-parse tx-vlan-hw-insert"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f := newFakeCard(c.on, c.fix)
			before := f.active()
			b := book(t, dir, f)
			f.seen = func() { // a crash at that moment must not lose what was on
				if text, err := os.ReadFile(b.path); err != nil || !strings.Contains(string(text), kernel.RxVLAN) {
					t.Errorf("the file before the first change: %q, %v", text, err)
				}
				f.seen = nil
			}
			if err := b.off(eth0, c.names); err != nil {
				t.Fatal(err)
			}
			if got := f.active(); got != sorted(c.off) {
				t.Errorf("active while shunt runs: %q, want %q", got, c.off)
			}
			if len(f.requests) != 1 {
				t.Errorf("%d requests: %q", len(f.requests), f.requests)
			}
			if c.during != nil {
				c.during(f)
			}
			// by the next daemon, as after a crash
			b = book(t, dir, f)
			if err := b.restore([]kernel.Link{eth0}, unused); err != nil {
				t.Fatal(err)
			}
			if got := f.active(); got != sorted(c.end) {
				t.Errorf("in the end: %q, want %q; before %q", got, c.end, before)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func sorted(words string) string {
	list := strings.Fields(words)
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestCardsWantedAlready: vmxnet3 switches LRO off when a program is attached, and does not switch it on
// when it is detached, although it is still wanted. The request for it would do nothing.
func TestCardsWantedAlready(t *testing.T) {
	program := false
	f := newFakeCard(kernel.RxVLAN+" "+kernel.RxLRO, func(on map[string]bool) {
		if program {
			on[kernel.RxLRO] = false
		}
	})
	b := book(t, t.TempDir(), f)
	program = true
	if err := b.off(eth0, []string{kernel.RxVLAN}); err != nil {
		t.Fatal(err)
	}
	if f.state[kernel.RxLRO] != (kernel.CardFeature{Wanted: true}) {
		t.Fatalf("LRO: %+v", f.state[kernel.RxLRO])
	}
	program = false
	if err := b.restore([]kernel.Link{eth0}, unused); err != nil {
		t.Fatal(err)
	}
	if got := f.active(); got != kernel.RxLRO+" "+kernel.RxVLAN {
		t.Errorf("in the end: %q; requests %q", got, f.requests)
	}
	f.state[kernel.RxLRO] = kernel.CardFeature{Wanted: true}
	if _, err := b.put(4, map[string]bool{kernel.RxLRO: true}, f.state); err != nil || !f.state[kernel.RxLRO].Active {
		t.Errorf("LRO that was wanted already: %+v, %v", f.state[kernel.RxLRO], err)
	}
}

// TestCardsRefused: a driver that leaves a feature on is named; so is one that does not put it back.
func TestCardsRefused(t *testing.T) {
	stuck := true
	f := newFakeCard(kernel.RxVLAN, func(on map[string]bool) { on[kernel.RxVLAN] = stuck })
	b := book(t, t.TempDir(), f)
	if err := b.off(eth0, []string{kernel.RxVLAN}); err == nil || !strings.Contains(err.Error(), "driver vmxnet3 leaves rx-vlan-hw-parse on") {
		t.Errorf("%v", err)
	}
	stuck = false
	f.update()
	if err := b.off(eth0, []string{kernel.RxVLAN}); err != nil {
		t.Fatal(err)
	}
	f.fix = func(on map[string]bool) { on[kernel.RxVLAN] = false }
	err := b.restore([]kernel.Link{eth0}, unused)
	if err == nil || !strings.Contains(err.Error(), "offloads of eth0: rx-vlan-hw-parse stays off; switch it with ethtool -K eth0") {
		t.Errorf("%v", err)
	}
}

// TestCardsOf: cards in use keep their entries; those that are gone, or are another card by now, and those of
// an earlier boot are left alone.
func TestCardsOf(t *testing.T) {
	dir := t.TempDir()
	f := newFakeCard(kernel.RxVLAN, nil)
	b := book(t, dir, f)
	if err := b.off(eth0, []string{kernel.RxVLAN}); err != nil {
		t.Fatal(err)
	}
	if err := b.restore([]kernel.Link{eth0}, func(kernel.Link) bool { return true }); err != nil || len(b.list) != 1 || len(f.requests) != 1 {
		t.Errorf("in use: %v, %d entries, %q", err, len(b.list), f.requests)
	}
	other := eth0
	other.Burned = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	if err := book(t, dir, f).restore([]kernel.Link{other}, unused); err != nil || len(f.requests) != 1 {
		t.Errorf("another card: %v, %q", err, f.requests)
	}
	if err := b.save(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(b.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.path, []byte(strings.Replace(string(text), b.boot, "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := book(t, dir, f); len(c.list) != 0 {
		t.Errorf("of another boot: %+v", c.list)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left of another boot: %v", left)
	}
	if err := os.WriteFile(b.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openCards(b.path, slog.Default()); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a broken file: %v", err)
	}
}

// TestProof: a program is proven when it counts; it is lost when the driver counts and it does not.
func TestProof(t *testing.T) {
	start := time.Now()
	type step struct {
		at           time.Duration
		tally, rx    uint64
		lost, proven bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"counts", []step{{0, 0, 5, false, false}, {1, 1, 6, false, true}, {2, 1, 6, false, true}, {3, 1, 6, false, true}}},
		{"redirected frames are not in rx", []step{{0, 0, 0, false, false}, {1, 90, 0, false, true}, {2, 200, 0, false, true}}},
		{"never ran", []step{{0, 0, 5, false, false}, {1, 0, 15, false, false}, {2, 0, 40, true, false}}},
		{"lost in silence", []step{{0, 100, 100, false, true}, {1, 100, 1000, false, true}, {2, 100, 2000, true, false}}},
		{"some frames before the first look", []step{{0, 0, 1000, false, false}, {1, 0, 1010, false, false}}},
		{"few packets", []step{{0, 1, 1, false, true}, {1, 1, 5, false, true}, {100, 1, 15, false, true}, {101, 1, 30, true, false}}},
		{"the driver's counter began anew", []step{{0, 0, 1000, false, false}, {1, 0, 10, false, false}, {2, 0, 20, false, false}, {3, 0, 30, true, false}}},
		{"runs again", []step{{0, 0, 0, false, false}, {1, 0, 100, true, false}, {2, 50, 200, false, true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p proof
			for i, s := range c.steps {
				lost, err := p.look(start.Add(s.at*time.Second), reading(s.tally), reading(s.rx))
				if lost != s.lost || p.proven != s.proven || err != nil {
					t.Fatalf("step %d: lost %t, proven %t, %v", i, lost, p.proven, err)
				}
			}
		})
	}
	// what came in between two readings
	var p proof
	p.look(start, reading(0), reading(0))
	n := uint64(0)
	if lost, err := p.look(start.Add(time.Minute), func() (uint64, error) { n += 50; return n - 50, nil }, reading(100)); lost || err != nil || !p.proven {
		t.Errorf("a burst while it looks: lost %t, proven %t, %v", lost, p.proven, err)
	}
	tally := p.tally
	if _, err := p.look(start, reading(tally), func() (uint64, error) { return 0, errors.New("gone") }); err == nil {
		t.Error("the driver's error is lost")
	}
}

func reading(n uint64) func() (uint64, error) { return func() (uint64, error) { return n, nil } }

// TestProofBars: a driver that does not run the program gets it again, but not for ever.
func TestProofBars(t *testing.T) {
	now := time.Now()
	var p proof
	for n := 1; n <= lossesInARow; n++ {
		p.look(now, reading(0), reading(0))
		now = now.Add(time.Minute)
		if lost, _ := p.look(now, reading(0), reading(100)); !lost || !p.barred() {
			t.Fatalf("loss %d: %t, or not barred", n, lost)
		}
		if p.barred() != (n == lossesInARow) {
			t.Errorf("after loss %d it is barred: %t", n, n != lossesInARow)
		}
	}
	p.look(now, reading(1), reading(100))
	if p.barred() || !p.proven {
		t.Error("barred although it counts")
	}
}
