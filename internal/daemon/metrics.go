// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/export"
	"shunt/internal/kernel"
)

// Flows are counted once in a while and slowly, so that a scrape never waits for a million of them:
// a table of a million slots takes five seconds, and a fiftieth of a CPU meanwhile.
const (
	censusEvery = 10 * time.Second
	censusRest  = 5 * time.Millisecond // after every 1024 slots
)

// census is what was counted last.
type census struct {
	flows map[string]int
	at    time.Time
}

// loading is when the configuration in force was read, and whether a later one was refused.
type loading struct {
	at      time.Time
	refused bool
}

// metrics serves Prometheus, while the configuration wants it, until ctx ends.
func (d *Daemon) metrics(ctx context.Context) {
	go d.countFlows(ctx)
	export.Serve(ctx, d.log, d.metricsListen, export.Handler(d.figures))
}

func (d *Daemon) metricsListen() string { return d.cfg.Load().MetricsListen }

// countFlows counts while somebody may ask for it.
func (d *Daemon) countFlows(ctx context.Context) {
	for wait := time.Duration(0); ; wait = censusEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if d.metricsListen() == "" {
			d.census.Store(nil)
			continue
		}
		flows, err := d.look().Census(censusRest, d.clock)
		if err != nil {
			d.log.Error("flows could not be counted", "err", err)
			continue
		}
		d.census.Store(&census{flows, time.Now()})
	}
}

// clock is the data path's of now, by the last heartbeat.
func (d *Daemon) clock() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.beaten.jiffies + d.jiffies(time.Since(d.beaten.at))
}

// figures are what a scrape is answered with: rows of counters, and what this process knows.
func (d *Daemon) figures() (export.Figures, error) {
	cfg := d.cfg.Load()
	f := export.Figures{
		Version: api.Version(), Started: d.started, Paused: d.plane.Paused(), Threshold: cfg.Threshold,
		Lease: cfg.Lease, Slots: cfg.Config.Flows, Changes: map[string]uint64{},
	}
	if v, err := kernel.Version(); err == nil {
		f.Kernel = v.Text
	}
	d.mu.Lock()
	f.Beaten, f.LeaseLive = d.beaten.at, max(d.lease.now, cfg.Lease)
	f.Reloaded, f.Refused = d.loading.at, d.loading.refused
	for kind, n := range d.events {
		f.Changes[kind] = n
	}
	d.mu.Unlock()
	if c := d.census.Load(); c != nil {
		f.Flows, f.Counted = c.flows, c.at
	}
	out, err := d.plane.Totals(dataplane.StageTCEgress)
	if err != nil {
		return f, err
	}
	f.Learned, f.Renewed, f.Changed = out.Of("learned"), out.Of("renewed"), out.Of("changed")
	f.Mismatches = d.differences.count(f.Changed)
	if f.Policed, err = d.plane.Policed(); err != nil {
		return f, err
	}
	f.Ports, err = d.portFigures()
	return f, err
}

func (d *Daemon) portFigures() ([]export.Port, error) {
	ports, err := d.Ports()
	if err != nil {
		return nil, err
	}
	var all []export.Port
	for _, p := range ports {
		x := export.Port{Port: p, Packets: map[string]map[string]uint64{}}
		for stage, word := range dataplane.Stages {
			if p.State == api.PortAbsent {
				break
			}
			c, err := d.plane.Counters(stage, p.Index)
			if err != nil {
				return nil, err
			}
			x.Packets[word] = map[string]uint64{}
			for i, n := range c.Packets {
				x.Packets[word][dataplane.Reasons[i]] = n
			}
		}
		all = append(all, x)
	}
	return all, nil
}
