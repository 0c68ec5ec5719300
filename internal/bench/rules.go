// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
)

// RulesReport is what `shunt bench rules` found.
type RulesReport struct {
	Head
	Cases   []RulesResult `json:"cases"`
	Targets []Target      `json:"targets"`
}

// RulesResult is for one number of rules and one of flows. Rates are frames per second.
type RulesResult struct {
	Rules     int     `json:"rules"` // ahead of the one that accepts; none matches
	Flows     int     `json:"flows"`
	KernelPPS Spread  `json:"kernel_pps"`
	ShuntPPS  Spread  `json:"shunt_pps"`
	Speedup   Spread  `json:"speedup"`
	Phases    []Phase `json:"phases"`
}

var (
	ruleCounts     = []int{1, 100, 1000}
	ruleFlowCounts = []int{1, 1000}
)

// Rules measures how the length of the ruleset matters, to the kernel and to shunt.
func Rules(ctx context.Context, o Options) (*RulesReport, error) {
	report := &RulesReport{Head: o.head("rules", 3,
		"Frames per second, 64 bytes of UDP, by number of nft rules ahead of the one that accepts",
		"as bench firewall; a lab for each ruleset, taken in turn")}
	var rigs []*rig
	closeAll := func() (err error) {
		for _, r := range rigs {
			err = errors.Join(err, r.Close())
		}
		rigs = nil
		return err
	}
	defer closeAll()
	for _, rules := range ruleCounts {
		r, err := newPacketRig(o.Binary, rules)
		if err != nil {
			return nil, err
		}
		rigs = append(rigs, r)
	}
	for _, flows := range ruleFlowCounts {
		for _, rules := range ruleCounts {
			report.Cases = append(report.Cases, RulesResult{Rules: rules, Flows: flows})
		}
	}
	for round := range report.Rounds {
		for i := range report.Cases {
			c := &report.Cases[i]
			o.Say("round %d of %d, rules: %d, flows: %d ", round+1, report.Rounds, c.Rules, c.Flows)
			if err := c.round(ctx, o, rigs[i%len(rigs)]); err != nil {
				return nil, err
			}
			o.Say("\n")
		}
	}
	report.sum()
	return report, closeAll()
}

// round measures a case once, and leaves the rig's router to the kernel: a daemon that
// stayed would work beside the next case.
func (c *RulesResult) round(ctx context.Context, o Options, r *rig) (err error) {
	g, err := r.source(64, c.Flows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close(), r.clear()) }()
	for _, mode := range []Mode{Kernel, Shunt} {
		p, err := r.measure(ctx, mode, g, short/2, short)
		if err != nil {
			return err
		}
		c.Phases = append(c.Phases, p)
		o.Say("  %s %.2f M", mode, p.PPS/1e6)
	}
	return nil
}

// sum wants the kernel to be slower with most rules than with one, and shunt not to be:
// 10 % are for noise.
func (f *RulesReport) sum() {
	for i := range f.Cases {
		c := &f.Cases[i]
		kernel, shunt := pps(c.Phases, Kernel), pps(c.Phases, Shunt)
		c.KernelPPS, c.ShuntPPS, c.Speedup = spreadOf(kernel), spreadOf(shunt), spreadOf(ratios(shunt, kernel))
	}
	for i := 0; i < len(f.Cases); i += len(ruleCounts) {
		few, many := f.Cases[i], f.Cases[i+len(ruleCounts)-1]
		ratio := func(pick func(RulesResult) Spread) float64 {
			return median(ratios(pick(many).Samples, pick(few).Samples))
		}
		f.Targets = append(f.Targets,
			atLeast(fmt.Sprintf("shunt, rules: %d over %d, flows: %d", many.Rules, few.Rules, few.Flows),
				ratio(func(c RulesResult) Spread { return c.ShuntPPS }), 0.9),
			atMost(fmt.Sprintf("kernel, rules: %d over %d, flows: %d", many.Rules, few.Rules, few.Flows),
				ratio(func(c RulesResult) Spread { return c.KernelPPS }), 0.9))
	}
}
