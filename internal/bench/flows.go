package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// FlowsReport is what `shunt bench flows` found.
type FlowsReport struct {
	Head
	Counts  []FlowsResult `json:"counts"`
	Targets []Target      `json:"targets"`
}

// FlowsResult is for one number of flows. Rates are frames per second over all flows.
type FlowsResult struct {
	Flows       int     `json:"flows"`
	KernelPPS   Spread  `json:"kernel_pps"`
	ShuntPPS    Spread  `json:"shunt_pps"`
	LimitPPS    Spread  `json:"limit_pps"` // of an empty redirect, with as many flows
	OfLimit     Spread  `json:"of_limit"`
	KernelShare Spread  `json:"kernel_share"` // part of the frames that the kernel forwarded, in the mode shunt
	Phases      []Phase `json:"phases"`
}

// flowCases are the numbers of flows, the least part of the limit that is wanted, and how
// long shunt is measured. That is longer than a lease, so that every flow is proved again
// meanwhile: 4 s with 12 % jitter, or up to 30 s when there are so many flows that the
// daemon stretches it.
var flowCases = []struct {
	flows   int
	ofLimit float64
	window  time.Duration
}{{1, 0.75, 5 * time.Second}, {1000, 0.75, 5 * time.Second}, {100000, 0.5, 30 * time.Second}}

const (
	short = time.Second
	// steady is the warm-up of shunt: as long as a lease, so that all flows are learned.
	steady = 5 * time.Second
)

// Flows measures 1, 1,000 and 100,000 flows at the most that the machine takes, with
// the daemon's defaults and armed by nothing but the traffic.
func Flows(ctx context.Context, o Options) (*FlowsReport, error) {
	report := &FlowsReport{Head: o.head("flows", 5,
		"Frames per second, 64 bytes of UDP, and the part that went to the kernel, by number of flows",
		"as bench firewall; frames of all flows in a scattered order, in every mode; fast is measured over more than one lease; limit: an empty XDP redirect of the same flows")}
	r, err := newPacketRig(o.Binary, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	report.Counts = make([]FlowsResult, len(flowCases))
	for round := range report.Rounds {
		for i, c := range flowCases {
			o.Say("round %d of %d, flows: %d ", round+1, report.Rounds, c.flows)
			phases, err := flowsRound(ctx, o, r, c.flows, c.window)
			if err != nil {
				return nil, err
			}
			report.Counts[i].Flows = c.flows
			report.Counts[i].Phases = append(report.Counts[i].Phases, phases...)
			o.Say("\n")
		}
	}
	var all []Phase
	for i := range report.Counts {
		c := &report.Counts[i]
		c.sum()
		report.Targets = append(report.Targets,
			atLeast(fmt.Sprintf("of_limit, flows: %d", c.Flows), c.OfLimit.Median, flowCases[i].ofLimit))
		all = append(all, c.Phases...)
	}
	report.Targets = append(report.Targets, inOrder(all...))
	return report, r.Close()
}

func flowsRound(ctx context.Context, o Options, r *rig, flows int, window time.Duration) (phases []Phase, err error) {
	g, err := r.source(64, flows)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, mode := range []Mode{Kernel, Shunt, Limit} {
		warm, long := short/2, short
		if mode == Shunt {
			warm, long = steady, window
		}
		p, err := r.measure(ctx, mode, g, warm, long)
		if err != nil {
			return nil, err
		}
		phases = append(phases, p)
		o.Say("  %s %.2f M", mode, p.PPS/1e6)
	}
	return phases, nil
}

func (c *FlowsResult) sum() {
	kernel, shunt, limit := pps(c.Phases, Kernel), pps(c.Phases, Shunt), pps(c.Phases, Limit)
	var shares []float64
	for _, p := range c.Phases {
		if p.Mode == Shunt {
			shares = append(shares, p.KernelShare())
		}
	}
	c.KernelPPS, c.ShuntPPS, c.LimitPPS = spreadOf(kernel), spreadOf(shunt), spreadOf(limit)
	c.OfLimit, c.KernelShare = spreadOf(ratios(shunt, limit)), spreadOf(shares)
}
