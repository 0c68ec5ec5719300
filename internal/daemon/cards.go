// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// cards switches features of network cards off, and back on. What it has changed stands in a file
// of the state directory before it is changed: features outlive the daemon, not a reboot.
type cards struct {
	path string
	boot string // id of this boot
	log  *slog.Logger
	get  func(index int) (map[string]kernel.CardFeature, error)
	set  func(index int, on map[string]bool) error
	list []card
}

// card is one interface in the file.
type card struct {
	Index    int              `json:"index"`
	Name     string           `json:"name"`
	MAC      string           `json:"mac"`
	Driver   string           `json:"driver"`
	Features map[string]trace `json:"features"`
}

// trace is what became of one feature.
type trace struct {
	Asked  bool               `json:"asked"`  // else the driver switched it along
	Before kernel.CardFeature `json:"before"` // as it was found
	Left   bool               `json:"left"`   // whether it was on when the daemon was done
}

type cardsFile struct {
	Boot  string `json:"boot"`
	Cards []card `json:"cards"`
}

// openCards reads what an earlier daemon of this boot left switched.
func openCards(path string, log *slog.Logger) (*cards, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("boot id: %w", err)
	}
	c := &cards{path: path, boot: string(bytes.TrimSpace(boot)), log: log, get: kernel.CardFeatures, set: kernel.SetCardFeatures}
	return c, c.load()
}

func (c *cards) load() error {
	text, err := os.ReadFile(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var f cardsFile
	if err := json.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("%s: %w; remove it, and see \"ethtool -k\" for what is switched off", c.path, err)
	}
	if f.Boot != c.boot { // a card that starts anew has its own offloads
		return os.Remove(c.path)
	}
	c.list = f.Cards
	return nil
}

// save writes the file so that a crash leaves the old one or the new one.
func (c *cards) save() error {
	if len(c.list) == 0 {
		err := os.Remove(c.path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return err
	}
	text, err := json.MarshalIndent(cardsFile{c.boot, c.list}, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(c.path), filepath.Base(c.path)+".")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// of returns the entry of an interface, a new one if it has none.
func (c *cards) of(l kernel.Link) *card {
	for i := range c.list {
		if e := &c.list[i]; e.is(l) {
			return e
		}
	}
	// An index belongs to one interface: an entry of another one that had it is void.
	c.list = slices.DeleteFunc(c.list, func(e card) bool { return e.Index == l.Index })
	c.list = append(c.list, card{Index: l.Index, Name: l.Name, MAC: l.Burned.String(), Driver: l.Driver, Features: map[string]trace{}})
	return &c.list[len(c.list)-1]
}

func (e *card) is(l kernel.Link) bool {
	return e.Index == l.Index && e.Driver == l.Driver && e.MAC == l.Burned.String()
}

// has reports whether something of a card is switched.
func (c *cards) has(l kernel.Link) bool {
	return slices.ContainsFunc(c.list, func(e card) bool { return e.is(l) })
}

// off switches features off, and notes what else the driver switched with them.
func (c *cards) off(l kernel.Link, names []string) error {
	before, err := c.get(l.Index)
	if err != nil {
		return err
	}
	e, ask := c.of(l), map[string]bool{}
	for _, name := range names {
		ask[name] = false
		e.note(name, trace{Asked: true, Before: before[name]})
	}
	if err := c.save(); err != nil { // before the first change
		return fmt.Errorf("record of the cards: %w", err)
	}
	if err := c.set(l.Index, ask); err != nil {
		return err
	}
	after, err := c.get(l.Index)
	if err != nil {
		return err
	}
	along := kernel.Differing(before, after)
	along = slices.DeleteFunc(along, func(name string) bool { return slices.Contains(names, name) })
	for _, name := range along {
		e.note(name, trace{Before: before[name], Left: after[name].Active})
	}
	var refused []string
	for _, name := range names {
		if after[name].Active {
			refused = append(refused, name)
		}
	}
	c.log.Info("offloads are off while shunt runs", "port", l.Name, "driver", l.Driver,
		"features", strings.Join(names, " "), "switched-along", strings.Join(along, " "))
	if err := c.save(); err != nil {
		return fmt.Errorf("record of the cards: %w", err)
	}
	if refused != nil {
		return fmt.Errorf("driver %s leaves %s on", l.Driver, strings.Join(refused, ", "))
	}
	return nil
}

// note keeps what a feature was when shunt touched it first.
func (e *card) note(name string, t trace) {
	if old, known := e.Features[name]; known {
		t.Before, t.Asked = old.Before, old.Asked || t.Asked
	}
	e.Features[name] = t
}

// restore puts back what is in the file, except for cards that are in use, and except for what
// somebody else has switched since. Interfaces that are gone took their features along.
func (c *cards) restore(links []kernel.Link, inUse func(kernel.Link) bool) error {
	var errs []error
	var keep []card
	for _, e := range c.list {
		at := slices.IndexFunc(links, e.is)
		switch {
		case at < 0:
		case inUse(links[at]):
			keep = append(keep, e)
		default:
			if err := c.putBack(links[at], &e); err != nil {
				errs = append(errs, fmt.Errorf("offloads of %s: %w", e.Name, err))
			}
		}
	}
	if len(keep) == len(c.list) {
		return nil
	}
	c.list = keep
	return errors.Join(append(errs, c.save())...)
}

// putBack restores one card. First what was asked for, since the driver switches along with it
// what it did before; then what still differs.
func (c *cards) putBack(l kernel.Link, e *card) error {
	now, err := c.get(l.Index)
	if err != nil {
		return err
	}
	ours := maps.Clone(e.Features)
	maps.DeleteFunc(ours, func(name string, t trace) bool { return now[name].Active != t.Left })
	var touched []string
	for _, asked := range []bool{true, false} {
		want := map[string]bool{}
		for name, t := range ours {
			if (t.Asked || !asked) && now[name].Active != t.Before.Active {
				want[name] = t.Before.Active
				touched = append(touched, name)
			}
		}
		if now, err = c.put(l.Index, want, now); err != nil {
			return err
		}
	}
	if len(touched) == 0 {
		return nil
	}
	slices.Sort(touched)
	c.log.Info("offloads are as they were", "port", l.Name, "features", strings.Join(slices.Compact(touched), " "))
	for name, t := range ours {
		if now[name].Active != t.Before.Active {
			return fmt.Errorf("%s stays %s; switch it with ethtool -K %s", name, onOff(now[name].Active), l.Name)
		}
	}
	return nil
}

// put switches features. A request for what is wanted already does nothing, although it is not so
// (ethnl_set_features()): then the opposite comes first.
func (c *cards) put(index int, want map[string]bool, now map[string]kernel.CardFeature) (map[string]kernel.CardFeature, error) {
	if len(want) == 0 {
		return now, nil
	}
	opposite := map[string]bool{}
	for name, on := range want {
		if now[name].Wanted == on {
			opposite[name] = !on
		}
	}
	for _, request := range []map[string]bool{opposite, want} {
		if len(request) == 0 {
			continue
		}
		if err := c.set(index, request); err != nil {
			return now, err
		}
	}
	return c.get(index)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// returnCards puts back what an earlier daemon or an earlier configuration has had switched, of cards
// that are not for XDP any more.
func (d *Daemon) returnCards() {
	links, err := kernel.Links()
	if err == nil {
		err = d.cards.restore(links, d.holdsCard)
	}
	if err != nil {
		d.log.Warn("offloads could not be put back", "err", err)
	}
}

// holdsCard reports whether a link has the XDP program, or will have it again (prove).
func (d *Daemon) holdsCard(l kernel.Link) bool {
	p := d.ports[l.Index]
	return p != nil && (p.decision.XDPReceive || p.proof.lost > 0)
}

// restoreCards puts everything back, after the programs are detached.
func (d *Daemon) restoreCards() error { return d.cards.restoreAll() }

// restoreCards does so for a daemon that died.
func restoreCards(path string, log *slog.Logger) error {
	c, err := openCards(path, log)
	if err != nil {
		return err
	}
	return c.restoreAll()
}

func (c *cards) restoreAll() error {
	if len(c.list) == 0 {
		return nil
	}
	links, err := kernel.Links()
	if err != nil {
		return err
	}
	return c.restore(links, func(kernel.Link) bool { return false })
}

// carrierPatience is how long the start waits for a link that attaching took down.
const carrierPatience = 10 * time.Second

// awaitCarrier returns when a port that had a carrier has it again, so that no two links of a router
// are down at once.
func (d *Daemon) awaitCarrier(index int) {
	p := d.ports[index]
	if p == nil || !p.link.Carrier || !eligible.ResetsLink(p.link) {
		return
	}
	for deadline := time.Now().Add(carrierPatience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if up, err := kernel.HasCarrier(index); up || err != nil {
			return
		}
	}
	d.log.Warn("no carrier since the XDP program was attached", "port", p.link.Name, "after", carrierPatience)
}
