// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"os"
	"slices"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
	"shunt/internal/eligible"
	"shunt/internal/explain"
	"shunt/internal/kernel"
)

// Status implements api.Backend.
func (d *Daemon) Status() (api.Status, error) {
	cfg := d.cfg.Load()
	s := api.Status{
		Version: api.Version(), ABI: dataplane.ABIVersion, PID: os.Getpid(), Started: d.started,
		Paused: d.plane.Paused(), Generation: d.plane.Generation(), Threshold: cfg.Threshold,
		Counters: map[string]map[string]uint64{}, Events: map[string]uint64{},
	}
	if v, err := kernel.Version(); err == nil {
		s.Kernel = v.Text
	}
	d.mu.Lock()
	s.LeaseSeconds = d.lease.least().Seconds()
	s.LeaseLiveSeconds = max(d.lease.now, d.lease.least()).Seconds()
	for k, n := range d.events {
		s.Events[k] = n
	}
	d.mu.Unlock()
	if err := addCounters(&s, d.plane); err != nil {
		return s, err
	}
	s.Differences = d.differences.count(s.Counters[api.StageTCEgress]["changed"])
	ports, err := d.Ports()
	if err != nil {
		return s, err
	}
	s.Problems = problems(ports, d.unmatched())
	s.State = state(s.Paused, s.Problems)
	s.Flows, err = d.look().Count()
	s.Flows.Slots = cfg.Config.Flows
	return s, err
}

// Ports implements api.Backend.
func (d *Daemon) Ports() ([]api.Port, error) {
	var list []api.Port
	lacking := d.labels.lacking()
	for _, p := range d.showing() {
		a, err := d.port(p)
		if err != nil {
			return nil, err
		}
		if lack, ok := lacking[a.Name]; ok {
			a.Labels = lack.String()
		}
		list = append(list, a)
	}
	for _, name := range d.cfg.Load().Exact() {
		if !slices.ContainsFunc(list, func(p api.Port) bool { return p.Name == name }) {
			list = append(list, api.Port{Name: name, State: api.PortAbsent, Reason: "no such interface now", Remedy: awaited})
		}
	}
	slices.SortFunc(list, func(a, b api.Port) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (d *Daemon) showing() []shown {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shown
}

// port is a port in the API's words, with its counters of now.
func (d *Daemon) port(p shown) (api.Port, error) {
	index := p.link.Index
	a := api.Port{
		Name: p.link.Name, Index: index, Driver: p.link.Driver, MTU: p.link.MTU, Qdisc: p.link.Qdisc,
		State: api.PortTC, Reason: p.decision.Reason, Remedy: p.decision.Remedy,
		XDPReceive: p.decision.XDPReceive, XDPTransmit: p.decision.XDPTransmit, Above: p.link.Uppers,
	}
	switch {
	case !p.decision.Attach:
		a.State = api.PortRefused
	case p.decision.XDPReceive:
		a.State = api.PortXDPAndTC
	}
	return a, addFigures(&a, d.plane)
}

// addFigures adds what the data path counted on a port.
func addFigures(a *api.Port, plane *dataplane.Plane) error {
	x, err := plane.Counters(dataplane.StageXDP, a.Index)
	if err != nil {
		return err
	}
	c, err := plane.Counters(dataplane.StageTCIngress, a.Index)
	if err != nil {
		return err
	}
	a.Hits = x.Of("hit") + c.Of("hit")
	a.Punts = c.Punts()
	if t, err := plane.Transmit(a.Index); err == nil {
		a.Sent, a.Drops, a.Errors = t.Sent, t.Drops, t.Errors
	}
	return nil
}

// look is one look at the data path, to answer from.
func (d *Daemon) look() *explain.Look {
	l := &explain.Look{Plane: d.plane, HZ: d.hz, TCP: d.cfg.Load().TCP, Ports: map[int]explain.Port{}, Because: d.because, Kernel: asker{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	l.Now = d.beaten.jiffies + d.jiffies(time.Since(d.beaten.at))
	for _, p := range d.shown {
		l.Ports[p.link.Index] = explain.Port{Name: p.link.Name, XDP: p.decision.XDPReceive, Refused: !p.decision.Attach,
			Reason: p.decision.Reason, Remedy: p.decision.Remedy}
	}
	return l
}

// because names what is behind a reason that a flow met: the parts that look deeper, by the ports that
// they stand at, or a rule. A flow that was never learned does not tell its way out.
func (d *Daemon) because(f dataplane.Flow, reason string) string {
	if reason != "queue_looks_deeper" {
		return d.rules.because(f, reason)
	}
	var parts []string
	for _, p := range d.showing() {
		if p.decision.LooksDeeper {
			parts = append(parts, p.link.Name+": "+p.queue.LooksDeeper)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// Flows implements api.Backend.
func (d *Daemon) Flows(filter api.FlowFilter) ([]api.Flow, error) { return d.look().Flows(filter) }

// Explain implements api.Backend.
func (d *Daemon) Explain(q api.ExplainQuery) ([]api.Explanation, error) { return d.look().Explain(q) }

// Doctor implements api.Backend.
func (d *Daemon) Doctor() ([]api.Check, error) {
	checks, err := doctor.RunFor(d.paths, d.cfg.Load().Ports, func(port string) eligible.Mode { return eligible.Mode(d.cfg.Load().XDPFor(port)) }, d.rules.known())
	checks = append(checks, doctor.RealTime(d.refused))
	return append(checks, d.labels.checks()...), err
}

// Config implements api.Backend.
func (d *Daemon) Config() ([]api.Setting, error) { return api.SettingsOf(d.cfg.Load()), nil }

// Pause implements api.Backend.
func (d *Daemon) Pause(paused bool) error {
	d.plane.Pause(paused)
	word := "resumed"
	if paused {
		word = "paused"
	}
	d.log.Info(word)
	return nil
}

// Stop implements api.Backend.
func (d *Daemon) Stop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		// a moment for the answer to reach the client
		time.AfterFunc(20*time.Millisecond, func() { close(d.stop) })
	}
	return nil
}

// MPLS implements api.Backend.
func (d *Daemon) MPLS() api.MPLS { return d.labels }
