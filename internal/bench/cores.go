// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// CoresReport is what `shunt bench cores` found: how throughput grows with CPUs.
type CoresReport struct {
	Head
	Points  []CoresPoint `json:"points"`
	Targets []Target     `json:"targets"`
}

// CoresPoint is one number of CPUs. Rates are frames per second of all of them together.
type CoresPoint struct {
	NAT      bool    `json:"nat"`
	CPUs     int     `json:"cpus"`
	Kernel   Spread  `json:"kernel_pps"`
	Shunt    Spread  `json:"shunt_pps"`
	Limit    Spread  `json:"limit_pps"`
	HitShare Spread  `json:"hit_share"` // in the mode shunt
	Speedup  Spread  `json:"speedup"`
	Phases   []Phase `json:"phases"`
}

// The least part of the frames that must be hits.
const coresHits = 0.99

// cores is a lab with a queue, and a generator, for each CPU.
type cores struct {
	*rig
	sources []*source // by CPU
}

// Cores measures 1, 2, 4 and so on CPUs, each with a flow of its own whose generator, router and
// sink share the CPU.
func Cores(ctx context.Context, o Options, long time.Duration) (*CoresReport, error) {
	n := runtime.NumCPU()
	report := &CoresReport{Head: o.head("cores", 3,
		"Frames per second, 64 bytes of UDP, by number of CPUs",
		"a flow for each CPU, whose generator, router and sink are pinned to it; veths with a queue for each; which CPUs they are is rotated, and the order of modes is reversed, round by round; each CPU must sink what it sent; with masquerade, then without")}
	for _, nat := range []bool{true, false} {
		first := len(report.Points)
		for cpus := 1; ; cpus = min(2*cpus, n) {
			report.Points = append(report.Points, CoresPoint{NAT: nat, CPUs: cpus})
			if cpus == n {
				break
			}
		}
		if err := measureCores(ctx, o, report.Points[first:], nat, report.Rounds, long); err != nil {
			return nil, interrupted(ctx, err)
		}
	}
	report.sum()
	return report, nil
}

// measureCores fills the points with NAT, or those without.
func measureCores(ctx context.Context, o Options, points []CoresPoint, nat bool, rounds int, long time.Duration) (err error) {
	c, err := newCores(o.Binary, nat)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for round := range rounds {
		modes := []Mode{Kernel, Shunt, Limit}
		if round%2 == 1 {
			slices.Reverse(modes)
		}
		o.Say("round %d of %d, NAT %t:", round+1, rounds, nat)
		for _, mode := range modes {
			if err := c.enter(ctx, mode); err != nil {
				return err
			}
			for i := range points {
				p, err := c.phase(ctx, points[i].CPUs, round, long)
				if err != nil {
					return err
				}
				points[i].Phases = append(points[i].Phases, p)
				o.Say("  %s x%d %.2f M", mode, points[i].CPUs, p.PPS/1e6)
			}
		}
		o.Say("\n")
	}
	return nil
}

func newCores(binary string, nat bool) (*cores, error) {
	options := lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true, Queues: runtime.NumCPU()}
	if !nat {
		options.NAT = lab.NATNone
	}
	r, err := newRig(binary, options)
	if err != nil {
		return nil, err
	}
	r.xdp = "on"
	c := &cores{rig: r}
	if err := c.attachSink(); err != nil {
		return nil, err
	}
	for cpu := range runtime.NumCPU() {
		f := c.udp(64, 1)
		f.First = cpu
		g, err := traffic.NewGenerator(traffic.Config{NS: c.top.Client.NS, Device: c.top.Client.Device, CPU: cpu, Frames: f})
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.sources = append(c.sources, &source{g, f.Size, f.Flows})
	}
	return c, nil
}

// Close removes all.
func (c *cores) Close() (err error) {
	for _, s := range c.sources {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, c.rig.Close())
}

// phase warms the CPUs of a round up, measures them, and audits.
func (c *cores) phase(ctx context.Context, cpus, round int, long time.Duration) (Phase, error) {
	set := make([]int, cpus)
	for i := range set {
		set[i] = (i + round) % len(c.sources)
	}
	for deadline := time.Now().Add(warmPatience); ; {
		p, err := c.all(ctx, set, warmBurst)
		if err != nil {
			return p, err
		}
		if c.mode != Shunt || p.HitShare() >= coresHits {
			break
		}
		if time.Now().After(deadline) {
			return p, fmt.Errorf("bench: %d CPUs: the daemon does not become fast in %v (hits: %.0f %%); its log ends: %s",
				cpus, warmPatience, 100*p.HitShare(), tail(c.daemon.Log()))
		}
	}
	p, err := c.all(ctx, set, long)
	if err != nil {
		return p, err
	}
	return p, p.audit()
}

// all sends on all CPUs of a set at once, and compares what each has sent and sunk.
func (c *cores) all(ctx context.Context, set []int, long time.Duration) (Phase, error) {
	p := Phase{Mode: c.mode, size: c.sources[0].size}
	before, err := c.counters(ctx)
	if err != nil {
		return p, err
	}
	if err := c.sink.Reset(); err != nil {
		return p, err
	}
	window, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	sent, errs := make([]traffic.Result, len(set)), make([]error, len(set))
	together(len(set), func(i int) { sent[i], errs[i] = c.sources[set[i]].Loop(window) })
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return p, err
	}
	for _, s := range sent {
		p.Sent += s.Sent
		p.Seconds = max(p.Seconds, s.Duration.Seconds())
		p.PPS += s.Rate()
	}
	if p.stats, err = c.sink.Wait(p.Sent, 200*time.Millisecond); err != nil {
		return p, err
	}
	after, err := c.counters(ctx)
	if err != nil {
		return p, err
	}
	p.Sunk, p.Reordered = p.stats.Frames, p.stats.Reordered
	p.Hits, p.Forwarded = after.hits-before.hits, after.forwarded-before.forwarded
	sunk, err := c.sink.ByCPU()
	for i, cpu := range set {
		if err == nil && sunk[cpu] != sent[i].Sent {
			err = fmt.Errorf("bench: %s: CPU %d sent %d frames and sunk %d: they went by another CPU, or another program is at work on this machine",
				c.mode, cpu, sent[i].Sent, sunk[cpu])
		}
	}
	return p, err
}

func (f *CoresReport) sum() {
	var all []Phase
	for i := range f.Points {
		p := &f.Points[i]
		var hits []float64
		for _, phase := range p.Phases {
			if phase.Mode == Shunt {
				hits = append(hits, phase.HitShare())
			}
		}
		kernel, shunt := pps(p.Phases, Kernel), pps(p.Phases, Shunt)
		p.Kernel, p.Shunt, p.Limit = spreadOf(kernel), spreadOf(shunt), spreadOf(pps(p.Phases, Limit))
		p.HitShare, p.Speedup = spreadOf(hits), spreadOf(ratios(shunt, kernel))
		f.Targets = append(f.Targets, atLeast(fmt.Sprintf("hits, %d CPUs, NAT %t", p.CPUs, p.NAT), p.HitShare.Min, coresHits))
		all = append(all, p.Phases...)
	}
	f.Targets = append(f.Targets, inOrder(all...))
}
