// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// router is a lab and a daemon for its two ports that has looked at them once. Nobody
// runs its loop: the test is the loop.
func router(t *testing.T) (*Daemon, *lab.Topology) {
	t.Helper()
	top, err := lab.Firewall(lab.FirewallOptions{Name: "daemon"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := top.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := config.Default()
	cfg.Ports, cfg.XDP, cfg.Flows = []string{"lan", "wan"}, config.XDPOn, 1024
	var d *Daemon
	if err := top.LAN.NS.Do(func() error {
		if d, err = open(config.Effective{Config: cfg}, config.Paths{State: top.State(), BPFFS: top.BPFFS()}); err != nil {
			return err
		}
		t.Cleanup(func() { d.plane.Close() })
		return d.review()
	}); err != nil {
		t.Fatal(err)
	}
	return d, top
}

// states are the ports' states by name.
func states(t *testing.T, d *Daemon) map[string]string {
	t.Helper()
	ports, err := d.Ports()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, p := range ports {
		found[p.Name] = p.State
	}
	return found
}

// TestSlowKernel: while the kernel is asked about ports, the API answers as of before.
func TestSlowKernel(t *testing.T) {
	d, top := router(t)
	asked, answer := make(chan bool, 2), make(chan bool)
	d.hooks = func(l kernel.Link) ([]string, error) {
		asked <- true
		<-answer
		return []string{"something slow"}, nil
	}
	d.hooksChanged()
	reviewed := make(chan error, 1)
	go func() { reviewed <- top.LAN.NS.Do(func() error { return d.review() }) }()
	<-asked

	answered := make(chan error, 1)
	go func() {
		_, err := d.Status()
		if err == nil {
			_, err = d.Ports()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
		if s := states(t, d); s["lan"] != api.PortXDPAndTC || s["wan"] != api.PortXDPAndTC {
			t.Errorf("before the answer: %v", s)
		}
	case <-time.After(5 * time.Second):
		t.Error("the API waits for the kernel")
	}
	close(answer)
	if err := <-reviewed; err != nil {
		t.Fatal(err)
	}
	if s := states(t, d); s["lan"] != api.PortRefused || s["wan"] != api.PortRefused {
		t.Errorf("after the answer: %v", s)
	}
}

// TestPortGoesUnderReview: a port that goes while the kernel is asked is gone, and the
// others are looked at all the same.
func TestPortGoesUnderReview(t *testing.T) {
	d, top := router(t)
	d.hooks = func(l kernel.Link) ([]string, error) {
		if l.Name == "lan" {
			if out, err := top.LAN.NS.Run("ip", "link", "del", "wan"); err != nil {
				t.Errorf("%v: %s", err, strings.TrimSpace(out))
			}
			return []string{"something new"}, nil
		}
		return kernel.Hooks(l)
	}
	d.hooksChanged()
	if err := top.LAN.NS.Do(func() error { return d.review() }); err != nil {
		t.Error(err)
	}
	if s := states(t, d); s["lan"] != api.PortRefused || s["wan"] != api.PortAbsent {
		t.Errorf("lan and wan are %v; want refused and absent", s)
	}
}

// TestObeyedMeanwhile: a change that is announced while the kernel is slow to answer about
// ports is obeyed all the same.
func TestObeyedMeanwhile(t *testing.T) {
	d, top := router(t)
	asked, answer := make(chan bool, 2), make(chan bool)
	d.hooks = func(kernel.Link) ([]string, error) {
		asked <- true
		<-answer
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	events, look, ended := make(chan kernel.Event), make(chan bool, 1), make(chan error, 2)
	go func() { d.follow(ctx, from(ctx, events), look); ended <- nil }()
	go func() { ended <- top.LAN.NS.Do(func() error { return d.loop(ctx, look) }) }()
	defer func() {
		close(answer)
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	events <- kernel.Event{Kind: kernel.EventNftables}
	<-asked
	before := d.plane.Generation()
	soon := time.After(5 * time.Second)
	select {
	case events <- kernel.Event{Kind: kernel.EventRoute}:
	case <-soon:
		t.Fatal("nobody hears of a change while the kernel is asked")
	}
	for d.plane.Generation() == before {
		select {
		case <-soon:
			t.Fatal("a change was heard of, and is not obeyed while the kernel is asked")
		case <-time.After(time.Millisecond):
		}
	}
}

// from reads events from a channel instead of the kernel.
func from(ctx context.Context, events <-chan kernel.Event) next {
	return func(until time.Time) (kernel.Event, bool) {
		var timeout <-chan time.Time
		if !until.IsZero() {
			timeout = time.After(time.Until(until))
		}
		select {
		case e := <-events:
			return e, true
		case <-timeout:
		case <-ctx.Done():
		}
		return kernel.Event{}, false
	}
}
