// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"shunt/internal/vm"
)

// InstructionsReport is what `shunt bench instructions` found. Its kernel and CPU are the
// guest's.
type InstructionsReport struct {
	Head
	Frames  int                `json:"frames"` // that a sample is the count of
	Cases   []InstructionsCase `json:"cases"`
	Skipped []Skipped          `json:"skipped"`
	Targets []Target           `json:"targets"`
}

// InstructionsCase is a way of a frame with a number of flows. Figures are instructions per
// frame; a round's is the mean of the middle half of its samples.
type InstructionsCase struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Flows int    `json:"flows"`
	Bytes int    `json:"bytes"` // of Ethernet, without FCS
	// Over says what Net leaves out: generator and sink, or another case's Net.
	Over      string   `json:"over"`
	Gross     Spread   `json:"gross"` // generator, way and sink
	Net       Spread   `json:"net"`
	Apart     float64  `json:"apart"`                // between the rounds' Net, as a part of it
	OverLimit *float64 `json:"over_limit,omitempty"` // Net less that of the empty redirect, if that was counted
	// Samples are all that were taken of Gross, round by round.
	Samples [][]float64 `json:"samples"`
}

// InstructionsOptions choose what is counted.
type InstructionsOptions struct {
	Options
	Cases []string // by name; none: all
	Flows []int    // none: 1 and 10,000
}

func (o InstructionsOptions) flows() []int {
	if len(o.Flows) == 0 {
		return insnFlows
	}
	return o.Flows
}

// MaxInstructionFlows is the most flows that a case can be counted with: what a long burst has
// more than a short one must have a frame for each.
const MaxInstructionFlows = extra

const (
	// overGenerator is InstructionsCase.Over of most cases.
	overGenerator = "generator and sink"
	// What is wanted of a hit with NAT over an empty redirect, and over the kernel's own
	// fast path; and of rounds, each of which is a boot.
	hitOverLimit, hitOverFlowtable, roundsApart = 220, 0.25, 0.005
	// The same of a swap, over the kernel's own; and with a million labels.
	swapOverLimit, swapOverKernel, swapMillionMore = 150, 0.25, 0.02
	// bootLimit ends a guest that hangs. All cases take about eleven minutes on a quiet machine.
	bootLimit = 30 * time.Minute
)

// Instructions counts, in a virtual machine with one processor whose clock is its
// instructions. Each round is a boot of its own.
func Instructions(ctx context.Context, o InstructionsOptions) (*InstructionsReport, error) {
	cases, err := chosen(o.Cases)
	if err != nil {
		return nil, err
	}
	report := &InstructionsReport{Head: o.head("instructions", 2,
		"Instructions of the kernel per frame, 64 bytes of UDP, over generator and sink",
		fmt.Sprintf("Debian's kernel under QEMU, one processor, one instruction a nanosecond; what %d frames more take, least of %d, mean of the middle half of %d samples; each round is a boot", extra, repeats, samples)),
		Frames: extra}
	if len(o.Flows) > 0 {
		report.Command += " --flows " + strings.Join(decimals(o.Flows), ",")
	}
	report.Command = strings.Join(append([]string{report.Command}, o.Cases...), " ")
	tools := ""
	if slices.ContainsFunc(cases, func(c insnCase) bool { return c.start != nil }) {
		if tools, err = xdpTools(ctx, o.Say); err != nil { // the guest will tell that it has none
			o.Say("%v\n", err)
		}
	}
	var rounds []*Counted
	for round := range report.Rounds {
		o.Say("round %d of %d\n", round+1, report.Rounds)
		counted, err := countInGuest(ctx, o, tools)
		if err != nil {
			return nil, interrupted(ctx, err)
		}
		rounds = append(rounds, counted)
	}
	report.Kernel, report.CPU, report.Cores = rounds[0].Kernel, rounds[0].CPU, 1
	return report, report.sum(cases, o.flows(), rounds)
}

// countInGuest runs this program in the guest, with a directory more in PATH, and takes its
// figures from a file.
func countInGuest(ctx context.Context, o InstructionsOptions, tools string) (*Counted, error) {
	share, err := os.MkdirTemp("", "shunt-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(share)
	const file = "counted.json"
	command := []string{o.Binary, "bench", "instructions", "--inside", filepath.Join(vm.ShareDir, file),
		"--flows", strings.Join(decimals(o.flows()), ",")}
	var env []string
	if tools != "" {
		env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:" + tools}
	}
	cases, err := chosen(o.Cases)
	if err != nil {
		return nil, err
	}
	memory := 0 // as it is by default
	if slices.ContainsFunc(cases, func(c insnCase) bool { return c.more > 0 }) {
		memory = manyMemory
	}
	out := &guestOutput{say: o.Say}
	exit, err := vm.Run(ctx, vm.Options{
		Command: append(command, o.Cases...), Dir: "/", Env: env,
		ICount: true, Modules: []string{"tun", "veth", "nf_conntrack"}, Share: share, MemoryMB: memory,
		Timeout: bootLimit, Output: out, Progress: out,
	})
	if err != nil {
		return nil, err
	}
	if exit != 0 {
		return nil, fmt.Errorf("bench: in the guest: exit code %d: %s", exit, strings.TrimPrefix(tail(out.text.String()), "shunt: bench: "))
	}
	text, err := os.ReadFile(filepath.Join(share, file))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	counted := &Counted{}
	if err := json.Unmarshal(text, counted); err != nil {
		return nil, fmt.Errorf("bench: the guest wrote %d bytes that are no figures: %w", len(text), err)
	}
	return counted, nil
}

func decimals(numbers []int) (words []string) {
	for _, n := range numbers {
		words = append(words, strconv.Itoa(n))
	}
	return words
}

// guestOutput passes on what the guest says, and keeps it for an error.
type guestOutput struct {
	say  func(format string, args ...any)
	text bytes.Buffer
}

func (g *guestOutput) Write(b []byte) (int, error) {
	g.say("%s", b)
	return g.text.Write(b)
}

// sum makes figures of what the rounds counted. All must have counted the same cases.
func (f *InstructionsReport) sum(cases []insnCase, flows []int, rounds []*Counted) error {
	f.Skipped = append([]Skipped{}, rounds[0].Skipped...)
	for _, c := range cases {
		if skipped(f.Skipped, c.name) {
			continue
		}
		for _, n := range flows {
			if c.alone && n > 1 {
				continue
			}
			row := InstructionsCase{Name: c.name, Title: c.title, Flows: n, Over: overGenerator}
			if c.over != "" {
				row.Over = c.over
			}
			var gross, net []float64
			for _, round := range rounds {
				mine := round.find(c.name, n)
				if mine == nil {
					return fmt.Errorf("bench: a round did not count %s with flows: %d; which others did", c.name, n)
				}
				row.Bytes = mine.Bytes
				row.Samples = append(row.Samples, mine.Gross)
				gross = append(gross, midmean(mine.Gross))
				over := midmean(mine.Gross) - midmean(mine.Floor)
				if other := round.find(c.over, n); other != nil {
					over -= midmean(other.Gross) - midmean(other.Floor)
				}
				net = append(net, over)
			}
			row.Gross, row.Net = spreadOf(gross), spreadOf(net)
			if row.Net.Median > 0 {
				row.Apart = (row.Net.Max - row.Net.Min) / row.Net.Median
			}
			f.Cases = append(f.Cases, row)
		}
	}
	f.overLimit()
	f.judge()
	return nil
}

// find is a case of a round; nil if it has none of that name.
func (c *Counted) find(name string, flows int) *CountedCase {
	for i := range c.Cases {
		if c.Cases[i].Name == name && c.Cases[i].Flows == flows {
			return &c.Cases[i]
		}
	}
	return nil
}

// Find is a case of the report; nil if it has none of that name.
func (f *InstructionsReport) Find(name string, flows int) *InstructionsCase {
	for i := range f.Cases {
		if f.Cases[i].Name == name && f.Cases[i].Flows == flows {
			return &f.Cases[i]
		}
	}
	return nil
}

func skipped(all []Skipped, name string) bool {
	for _, s := range all {
		if s.Name == name {
			return true
		}
	}
	return false
}

// overLimit compares with the empty redirect what goes the same way.
func (f *InstructionsReport) overLimit() {
	for i := range f.Cases {
		c := &f.Cases[i]
		limit := f.Find("limit", c.Flows)
		if limit != nil && c.Name != "limit" && c.Over == overGenerator {
			over := c.Net.Median - limit.Net.Median
			c.OverLimit = &over
		}
	}
}

// judge makes targets of what was counted.
func (f *InstructionsReport) judge() {
	apart := 0.0
	for _, c := range f.Cases {
		apart = max(apart, c.Apart)
		if c.Name == "shunt-swap" {
			f.judgeSwap(c)
		}
		if c.Name != "shunt-xdp" {
			continue
		}
		if c.OverLimit != nil {
			f.Targets = append(f.Targets, atMost(fmt.Sprintf("shunt-xdp less limit, flows: %d", c.Flows), *c.OverLimit, hitOverLimit))
		}
		if table := f.Find("flowtable", c.Flows); table != nil {
			f.Targets = append(f.Targets, atMost(fmt.Sprintf("shunt-xdp over flowtable, flows: %d", c.Flows),
				c.Net.Median/table.Net.Median, hitOverFlowtable))
		}
	}
	if f.Rounds > 1 {
		f.Targets = append(f.Targets, atMost("largest difference between rounds", apart, roundsApart))
	}
	f.Targets = append(f.Targets, atMost("cases skipped", float64(len(f.Skipped)), 0))
}

// judgeSwap makes targets of a swap and what it is held against, as far as that was counted.
func (f *InstructionsReport) judgeSwap(c InstructionsCase) {
	of := fmt.Sprintf(", flows: %d", c.Flows)
	if c.OverLimit != nil {
		f.Targets = append(f.Targets, atMost("shunt-swap less limit"+of, *c.OverLimit, swapOverLimit))
	}
	if kernel := f.Find("mpls-swap", c.Flows); kernel != nil && kernel.OverLimit != nil {
		f.Targets = append(f.Targets, atMost("shunt-swap over mpls-swap, both less limit"+of, *c.OverLimit / *kernel.OverLimit, swapOverKernel))
	}
	// with more flows the generator writes a label for each, which is in the figure (see floor)
	if million := f.Find("shunt-swap-million", c.Flows); million != nil && c.Flows == 1 {
		f.Targets = append(f.Targets, atMost("shunt-swap-million over shunt-swap, less 1"+of, million.Net.Median/c.Net.Median-1, swapMillionMore))
	}
}

// errNoFigures is for a bench that was to write a file and has counted nothing for it.
var errNoFigures = errors.New("bench: nothing was counted")

// String is how a skipped case is told.
func (s Skipped) String() string { return s.Name + ": " + strings.TrimSpace(s.Probe) }
