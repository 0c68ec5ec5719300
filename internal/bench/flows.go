// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"shunt/internal/lab"
)

// FlowsReport is what `shunt bench flows` found.
type FlowsReport struct {
	Head
	ConntrackBytes int           `json:"conntrack_bytes"` // of one connection in the kernel, without its extensions; 0: not told
	Counts         []FlowsResult `json:"counts"`
	Targets        []Target      `json:"targets"`
}

// FlowsResult is for one number of flows. Rates are frames per second over all flows.
type FlowsResult struct {
	Flows       int     `json:"flows"`
	Routed      bool    `json:"routed"` // no rules and no conntrack, which may not hold so many
	KernelPPS   Spread  `json:"kernel_pps"`
	ShuntPPS    Spread  `json:"shunt_pps"`
	LimitPPS    Spread  `json:"limit_pps"` // of an empty redirect, with as many flows
	OfLimit     Spread  `json:"of_limit"`
	KernelShare Spread  `json:"kernel_share"` // part of the frames that the kernel forwarded, in the mode shunt
	Slots       int     `json:"slots"`        // of the flow table
	MapBytes    uint64  `json:"map_bytes"`    // memory of all of shunt's maps, nearly all of it the flow table
	Armed       Spread  `json:"armed"`        // flows, after the mode shunt was measured
	Phases      []Phase `json:"phases"`
}

// BytesPer is the memory of shunt's maps for each of so many: of the slots, or of the flows
// that are armed, which a table is seldom full of.
func (c *FlowsResult) BytesPer(n float64) float64 {
	if n == 0 {
		return 0
	}
	return float64(c.MapBytes) / n
}

// flowCase is a number of flows to be measured.
type flowCase struct {
	flows   int
	ofLimit float64 // the least part of the limit that is wanted; 0: none is
	// window is how long shunt is measured: longer than a lease, so that every flow is proved
	// again meanwhile. That is 4 s with 12 % jitter, or up to 30 s when there are so many
	// flows that the daemon stretches it.
	window time.Duration
	slots  int  // of the flow table; 0: the daemon's own number
	once   bool // in the first round alone
	// newcomers are the flows that come at a time; 0: all at once. A flow that is idle for a
	// second is counted anew, so there must not be more new ones than the kernel forwards in
	// a second.
	newcomers int
}

var flowCases = []flowCase{
	{flows: 1, ofLimit: 0.75, window: 5 * time.Second},
	{flows: 1000, ofLimit: 0.75, window: 5 * time.Second},
	{flows: 100_000, ofLimit: 0.5, window: 30 * time.Second},
	{flows: 1_000_000, window: 30 * time.Second, slots: 1 << 21, once: true, newcomers: 100_000},
}

const (
	short = time.Second
	// steady is the warm-up of shunt: as long as a lease, so that all flows are learned.
	steady = 5 * time.Second
	// hellos are the frames of each flow when some come: the threshold and a few more.
	hellos = 12
	// firstFrame is what the first frame of a flow may take in the kernel.
	firstFrame = 4 * time.Microsecond
)

// Flows measures 1 to 1,000,000 flows at the most that the machine takes, with the
// daemon's threshold and lease and armed by nothing but the traffic.
func Flows(ctx context.Context, o Options) (*FlowsReport, error) {
	report := &FlowsReport{Head: o.head("flows", 5,
		"Frames per second, 64 bytes of UDP, and the part that went to the kernel, by number of flows",
		"as bench firewall; frames of all flows in a scattered order, in every mode; fast is measured over more than one lease; limit: an empty XDP redirect of the same flows")}
	report.Counts = make([]FlowsResult, len(flowCases))
	for round := range report.Rounds {
		for i, c := range flowCases {
			if c.once && round > 0 {
				continue
			}
			o.Say("round %d of %d, flows: %d ", round+1, report.Rounds, c.flows)
			if err := report.Counts[i].round(ctx, o, c); err != nil {
				return nil, err
			}
			o.Say("\n")
		}
	}
	var all []Phase
	for i := range report.Counts {
		c := &report.Counts[i]
		c.sum()
		if want := flowCases[i].ofLimit; want > 0 {
			report.Targets = append(report.Targets, atLeast(fmt.Sprintf("of_limit, flows: %d", c.Flows), c.OfLimit.Median, want))
		}
		all = append(all, c.Phases...)
	}
	report.Targets = append(report.Targets, inOrder(all...))
	if slabs, err := os.ReadFile("/proc/slabinfo"); err == nil {
		report.ConntrackBytes = conntrackBytes(string(slabs))
	}
	return report, nil
}

// round measures all modes, in a lab of its own.
func (c *FlowsResult) round(ctx context.Context, o Options, of flowCase) (err error) {
	c.Flows, c.Routed = of.flows, of.flows > conntrackMax()
	r, err := of.rig(o.Binary, c.Routed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	g, err := r.source(64, of.flows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, mode := range []Mode{Kernel, Shunt, Limit} {
		warm, long := max(short/2, time.Duration(of.flows)*firstFrame), short
		if mode == Shunt {
			warm, long = steady, of.window
			if err := of.introduce(ctx, r); err != nil {
				return interrupted(ctx, err)
			}
		}
		p, err := r.measure(ctx, mode, g, warm, long)
		if err != nil {
			return err
		}
		c.Phases = append(c.Phases, p)
		o.Say("  %s %.2f M", mode, p.PPS/1e6)
		if mode == Shunt {
			if err := c.look(ctx, r); err != nil {
				return interrupted(ctx, err)
			}
		}
	}
	return nil
}

// rig is the lab of bench firewall, or one that only routes.
func (of flowCase) rig(binary string, routed bool) (*rig, error) {
	options := lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true}
	if routed {
		options.NAT, options.Open = lab.NATNone, true
	}
	r, err := newRig(binary, options)
	if err != nil {
		return nil, err
	}
	if of.slots > 0 {
		file := filepath.Join(r.top.Dir(), "shunt.toml")
		keys := fmt.Appendf(nil, "flows = %d\nsource_flows = 0\n", of.slots) // one sender has them all
		if err := os.WriteFile(file, keys, 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("bench: %w", err), r.Close())
		}
		r.args = []string{"--config", file}
	}
	return r, r.attachSink()
}

// introduce lets the flows come one lot after the other, while those that have come go on.
func (of flowCase) introduce(ctx context.Context, r *rig) error {
	if of.newcomers == 0 {
		return nil
	}
	if err := r.enter(ctx, Shunt); err != nil {
		return err
	}
	for n := 0; n <= of.flows; n += of.newcomers {
		g, err := r.source(64, max(n, 1))
		if err != nil {
			return err
		}
		if n == 0 { // one, until the daemon is fast
			err = r.warm(ctx, g, 0)
		} else {
			_, err = g.Run(ctx, uint64(n)*hellos)
		}
		if err := errors.Join(err, g.Close(), ctx.Err()); err != nil {
			return err
		}
	}
	return nil
}

// look asks how many flows are armed, and what that takes.
func (c *FlowsResult) look(ctx context.Context, r *rig) error {
	s, err := r.client.Status(ctx)
	if err != nil {
		return err
	}
	c.Slots = s.Flows.Slots
	c.Armed.Samples = append(c.Armed.Samples, float64(s.Flows.Armed))
	c.MapBytes, err = mapBytes(r.daemon.PID())
	return err
}

// conntrackMax is how many connections a namespace may have, 0 without conntrack. It is one
// value for the whole machine, which a bench leaves alone.
func conntrackMax() int {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// mapBytes is the memory of all BPF maps that a process holds, by the kernel's account.
func mapBytes(pid int) (sum uint64, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		if id, bytes := mapInfo(string(text)); id != "" && !seen[id] {
			seen[id] = true
			sum += bytes
		}
	}
	return sum, nil
}

// mapInfo reads the fdinfo of a BPF map (bpf_map_show_fdinfo); of anything else, id is "".
func mapInfo(text string) (id string, bytes uint64) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "map_id":
			id = value
		case "memlock":
			bytes, _ = strconv.ParseUint(value, 10, 64)
		}
	}
	return id, bytes
}

// conntrackBytes finds the size of a connection in /proc/slabinfo: name, objects in use,
// objects, size. 0: it is merged with another cache.
func conntrackBytes(slabs string) int {
	for line := range strings.Lines(slabs) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[0] == "nf_conntrack" {
			n, _ := strconv.Atoi(fields[3])
			return n
		}
	}
	return 0
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
	c.Armed = spreadOf(c.Armed.Samples)
	c.OfLimit, c.KernelShare = spreadOf(ratios(shunt, limit)), spreadOf(shares)
}
