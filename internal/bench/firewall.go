// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"time"
)

// FirewallReport is what `shunt bench firewall` found. Rates are frames per second,
// medians of the rounds; ratios are medians of each round's ratio.
type FirewallReport struct {
	Head
	KernelPPS   float64 `json:"kernel_pps"`
	AttachedPPS float64 `json:"attached_pps"`
	ShuntPPS    float64 `json:"shunt_pps"`
	LimitPPS    float64 `json:"limit_pps"`
	Speedup     float64 `json:"speedup"`       // shunt over kernel
	OfLimit     float64 `json:"of_limit"`      // shunt over the empty redirect
	SlowPathTax float64 `json:"slow_path_tax"` // part of its rate that the kernel loses by programs attached for nothing
	HitShare    float64 `json:"hit_share"`     // of the frames of the mode shunt

	Spread  map[string]Spread `json:"spread"` // of the figures above, by name
	Phases  []Phase           `json:"phases"` // as they were measured
	Targets []Target          `json:"targets"`
}

// firewallModes are the order of the first round. Every second one goes backwards, so that
// a machine that gets slower does not favour whoever comes first.
var firewallModes = []Mode{Kernel, Attached, Shunt, Limit}

// settled is the warm-up of every mode: a daemon that has just started is still at work on the
// other core, which is not what a router's days are like.
const settled = time.Second

// Firewall measures one UDP flow of 64-byte frames through a stateful firewall with
// masquerade, in all four modes. Each phase is sent for so long, after a warm-up.
func Firewall(ctx context.Context, o Options, long time.Duration) (*FirewallReport, error) {
	report := &FirewallReport{Head: o.head("firewall", 15,
		"Frames per second, 64 bytes of UDP, one flow, through conntrack, masquerade and a drop policy",
		"generator, router and sink on one core; nothing attached, attached with the threshold out of reach, fast, and an empty XDP redirect, in turn; medians")}
	r, err := newPacketRig(o.Binary, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	g, err := r.source(64, 1)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		modes := slices.Clone(firewallModes)
		if round%2 == 1 {
			slices.Reverse(modes)
		}
		for _, mode := range modes {
			p, err := r.measure(ctx, mode, g, settled, long)
			if err != nil {
				return nil, err
			}
			report.Phases = append(report.Phases, p)
			o.Say("  %s %.2f M", mode, p.PPS/1e6)
		}
		o.Say("\n")
	}
	report.sum()
	return report, r.Close()
}

// pps collects a mode's rates, one a round.
func pps(phases []Phase, mode Mode) (rates []float64) {
	for _, p := range phases {
		if p.Mode == mode {
			rates = append(rates, p.PPS)
		}
	}
	return rates
}

// sum fills in all figures from the phases.
func (f *FirewallReport) sum() {
	kernel, attached := pps(f.Phases, Kernel), pps(f.Phases, Attached)
	shunt, limit := pps(f.Phases, Shunt), pps(f.Phases, Limit)
	tax := ratios(attached, kernel)
	for i, x := range tax {
		tax[i] = 1 - x
	}
	var hits []float64
	for _, p := range f.Phases {
		if p.Mode == Shunt {
			hits = append(hits, p.HitShare())
		}
	}
	f.Spread = map[string]Spread{}
	figure := func(name string, samples []float64) float64 {
		f.Spread[name] = spreadOf(samples)
		return f.Spread[name].Median
	}
	f.KernelPPS = figure("kernel_pps", kernel)
	f.AttachedPPS = figure("attached_pps", attached)
	f.ShuntPPS = figure("shunt_pps", shunt)
	f.LimitPPS = figure("limit_pps", limit)
	f.Speedup = figure("speedup", ratios(shunt, kernel))
	f.OfLimit = figure("of_limit", ratios(shunt, limit))
	f.SlowPathTax = figure("slow_path_tax", tax)
	f.HitShare = figure("hit_share", hits)
	f.Targets = []Target{
		atLeast("speedup", f.Speedup, 5.5),
		atLeast("of_limit", f.OfLimit, 0.85),
		atLeast("attached over kernel", 1-f.SlowPathTax, 0.92),
		inOrder(f.Phases...),
	}
}
