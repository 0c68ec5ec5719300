// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// LSRReport is what `shunt lab lsr` found: frames per second of a label switching router by
// operation, size and cores, beside those of IP.
type LSRReport struct {
	Head
	Sizes   []int       `json:"sizes"`    // of frames without their labels, in bytes of Ethernet without FCS
	Window  float64     `json:"window_s"` // that each phase is measured for
	Results []LSRResult `json:"results"`
	Targets []Target    `json:"targets"`
}

// LSRResult is one operation at one size. Rates are frames per second; ratios are formed within a round.
type LSRResult struct {
	Operation LSROperation `json:"operation"`
	Cores     int          `json:"cores"` // 1: client to server; 2: both directions, each on a core of its own
	Bytes     int          `json:"bytes"` // of the frame without labels
	BytesIn   int          `json:"bytes_in"`
	BytesOut  int          `json:"bytes_out"`
	PPS       Spread       `json:"pps"`
	OfLimit   Spread       `json:"of_limit"`  // over the empty redirect
	OfIP      Spread       `json:"of_ip"`     // over shunt's own IP
	OfKernel  Spread       `json:"of_kernel"` // over the kernel's IP
	Phases    []LSRPhase   `json:"phases"`
}

// LSRPhase is one operation, size and number of cores for one stretch of time.
type LSRPhase struct {
	PPS       float64 `json:"pps"` // frames sunk per second, in all directions
	Sent      uint64  `json:"sent"`
	Sunk      uint64  `json:"sunk"`      // with the right EtherType and label, at the bottom and alone; or without, if so wanted
	Switched  uint64  `json:"switched"`  // by shunt's counter mpls_switched
	Imposed   uint64  `json:"imposed"`   // by mpls_imposed: IP that got a label, which is a hit or forwarded by the kernel besides
	Hits      uint64  `json:"hits"`      // by shunt's counter of IP packets repeated
	Forwarded uint64  `json:"forwarded"` // by the kernel's counter
	Reordered uint64  `json:"reordered"` // frames that came after a later one of their flow

	stats traffic.Stats
}

// LSROperation is what a router is measured at: one of lab's, or one of the two below.
type LSROperation = lab.Operation

// What the operations are compared with.
const (
	LSRLimit  LSROperation = "limit"  // IP by an empty XDP redirect
	LSRKernel LSROperation = "kernel" // IP by the kernel, with nothing attached
)

// LSROperations are all that are measured, in the order of tables.
func LSROperations() []LSROperation {
	return []LSROperation{LSRLimit, LSRKernel, lab.OpIP, lab.OpPush, lab.OpSwap, lab.OpPopSwap, lab.OpPHP}
}

// LSRSize says how much `shunt lab lsr` measures.
type LSRSize struct {
	Sizes []int         // bytes of Ethernet without FCS and labels: 60 to 1500
	Long  time.Duration // each phase
	Warm  time.Duration // before it
}

// LSR measures the router of lab.LSR at all operations. Three of these stand side by side: one with
// shunt, one with nothing, one with an empty redirect. So between two operations there is no more
// than a change of the sink, and those of one size follow on each other.
func LSR(ctx context.Context, o Options, size LSRSize) (*LSRReport, error) {
	if runtime.NumCPU() < 2 {
		return nil, errors.New("bench: this machine has one core; the directions take two")
	}
	report := &LSRReport{Sizes: size.Sizes, Window: size.Long.Seconds(), Head: o.head("lsr", 5,
		"Frames per second of a label switching router by operation and size, beside IP",
		"UDP, one flow; generator, router and sink share a core; with two cores both directions, each on its own; every frame's EtherType, label and stack depth verified; operations in turn; medians")}
	report.Command = fmt.Sprintf("shunt lab lsr --rounds %d", report.Rounds)
	l := lsr{report: report, size: size, say: o.Say, binary: o.Binary}
	defer l.Close()
	if err := l.build(ctx); err != nil {
		return nil, interrupted(ctx, err)
	}
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		if err := l.round(ctx, round); err != nil {
			return nil, interrupted(ctx, err)
		}
		o.Say("\n")
	}
	if err := l.audit(ctx); err != nil {
		return nil, interrupted(ctx, err)
	}
	report.sum()
	return report, l.Close()
}

// lsr is a measurement under way.
type lsr struct {
	report  *LSRReport
	size    LSRSize
	say     func(string, ...any)
	binary  string
	routers map[Mode]*rig
	sent    map[uint32]uint64 // frames by the label that they came in with on top, and by the one beneath
}

// build makes the three routers.
func (l *lsr) build(ctx context.Context) error {
	l.routers, l.sent = map[Mode]*rig{}, map[uint32]uint64{}
	for _, mode := range []Mode{Limit, Kernel, Shunt} {
		top, err := lab.LSR("lsr-"+string(mode), false)
		if err != nil {
			return err
		}
		r := &rig{top: top, binary: l.binary, xdp: "on", mode: Kernel}
		l.routers[mode] = r
		if mode == Shunt {
			file := filepath.Join(top.Dir(), "shunt.toml")
			if err := os.WriteFile(file, []byte(LSRConfig), 0o600); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			r.args = []string{"--config", file}
		}
		if err := r.enter(ctx, mode); err != nil {
			return err
		}
	}
	_, err := l.routers[Shunt].client.MPLSApply(ctx, api.MPLSChange{Lines: l.routers[Shunt].top.LSRTables(), Origin: "lab"})
	return err
}

// LSRConfig is a configuration for a router with few labels and flows.
const LSRConfig = "labels = 1024\nflows = 1024\n"

// Close removes the routers.
func (l *lsr) Close() error {
	var errs []error
	for mode, r := range l.routers {
		errs = append(errs, r.Close())
		delete(l.routers, mode)
	}
	return errors.Join(errs...)
}

// round measures everything once. Every second one goes backwards.
func (l *lsr) round(ctx context.Context, round int) error {
	if round == 0 {
		for _, cores := range []int{1, 2} {
			for _, bytes := range l.size.Sizes {
				for _, op := range LSROperations() {
					l.report.Results = append(l.report.Results, newLSRResult(op, cores, bytes))
				}
			}
		}
	}
	all := l.report.Results
	for i := range all {
		r := &all[i]
		if round%2 == 1 {
			r = &all[len(all)-1-i]
		}
		p, err := l.phase(ctx, r)
		if err != nil {
			return fmt.Errorf("%s, %d bytes, cores: %d: %w", r.Operation, r.Bytes, r.Cores, err)
		}
		r.Phases = append(r.Phases, p)
		if r.Operation == lab.OpSwap {
			l.say(" %d:%.2f", r.Bytes, p.PPS/1e6)
		}
	}
	return nil
}

// newLSRResult says how long the frames are that an operation gets and makes.
func newLSRResult(op LSROperation, cores, bytes int) LSRResult {
	const entry = 4 // bytes of a label
	in, out := op.Labels(false)
	r := LSRResult{Operation: op, Cores: cores, Bytes: bytes, BytesIn: bytes + entry*len(in), BytesOut: bytes}
	if out != 0 {
		r.BytesOut += entry
	}
	return r
}

// modeOf is the router that does an operation.
func modeOf(op LSROperation) Mode {
	switch op {
	case LSRLimit:
		return Limit
	case LSRKernel:
		return Kernel
	}
	return Shunt
}

// phase measures one operation with one size.
func (l *lsr) phase(ctx context.Context, of *LSRResult) (p LSRPhase, err error) {
	r := l.routers[modeOf(of.Operation)]
	ways, err := l.ways(r, of)
	defer func() { err = errors.Join(err, closeWays(ways)) }()
	if err != nil {
		return p, err
	}
	for deadline := time.Now().Add(warmPatience); ; {
		p, err = l.send(ctx, r, ways, l.size.Warm)
		fast := share(p.Hits+p.Switched, p.Sunk)
		switch {
		case err != nil:
			return p, err
		case r.mode != Shunt || fast >= warmHits:
			if p, err = l.send(ctx, r, ways, l.size.Long); err != nil {
				return p, err
			}
			return p, p.audit(of)
		case time.Now().After(deadline):
			return p, fmt.Errorf("bench: of %d frames %d came, and %.0f %% of them were hits, after %v; the daemon's log ends: %s",
				p.Sent, p.Sunk, 100*fast, warmPatience, tail(r.daemon.Log()))
		}
	}
}

// send has all directions send for so long, at the same time, and counts.
func (l *lsr) send(ctx context.Context, r *rig, ways []*lsrWay, long time.Duration) (sum LSRPhase, err error) {
	before, err := countersOf(ctx, r.top.LAN.NS, r.client)
	if err != nil {
		return sum, err
	}
	window, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	phases, errs := make([]LSRPhase, len(ways)), make([]error, len(ways))
	together(len(ways), func(i int) { phases[i], errs[i] = ways[i].send(window) })
	for i, w := range ways {
		sum.add(phases[i])
		for _, label := range w.labels {
			l.sent[label] += phases[i].Sent
		}
	}
	if err := errors.Join(errs...); err != nil {
		return sum, err
	}
	if ctx.Err() != nil {
		return sum, errInterrupted
	}
	after, err := countersOf(ctx, r.top.LAN.NS, r.client)
	sum.Switched, sum.Imposed = after.labels-before.labels, after.imposed-before.imposed
	sum.Hits, sum.Forwarded = after.hits-before.hits-sum.Switched, after.forwarded-before.forwarded
	return sum, err
}

// add takes in what another direction did meanwhile.
func (p *LSRPhase) add(q LSRPhase) {
	p.PPS += q.PPS
	p.Sent, p.Sunk, p.Reordered = p.Sent+q.Sent, p.Sunk+q.Sunk, p.Reordered+q.Reordered
	a, b := &p.stats, q.stats
	a.Bytes, a.Foreign, a.Verified = a.Bytes+b.Bytes, a.Foreign+b.Foreign, a.Verified+b.Verified
	a.Lost, a.Duplicates = a.Lost+b.Lost, a.Duplicates+b.Duplicates
	a.BadLength, a.BadIP = a.BadLength+b.BadLength, a.BadIP+b.BadIP
	a.BadL4, a.BadPayload = a.BadL4+b.BadL4, a.BadPayload+b.BadPayload
}

// audit says what does not add up: all frames that were sent must have come, whole, as the operation
// makes them, and by the way that it is about.
func (p *LSRPhase) audit(of *LSRResult) error {
	s := p.stats
	want := LSRPhase{Switched: p.Sunk}
	switch of.Operation {
	case LSRLimit:
		want = LSRPhase{}
	case LSRKernel:
		want = LSRPhase{Forwarded: p.Sunk}
	case lab.OpIP, lab.OpPush: // whoever proves a lease goes by the kernel
		want = LSRPhase{Forwarded: p.Forwarded, Hits: p.Sunk - p.Forwarded}
	}
	if of.Operation == lab.OpPush {
		want.Imposed = p.Sunk
	}
	switch {
	case p.Sent == 0:
		return errors.New("bench: nothing was sent")
	case p.Sunk != p.Sent:
		return fmt.Errorf("bench: %d frames were sent, %d came as they should and %d otherwise; is another program at work on this machine?", p.Sent, p.Sunk, s.Foreign)
	case p.Switched != want.Switched || p.Imposed != want.Imposed || p.Hits != want.Hits || p.Forwarded != want.Forwarded:
		return fmt.Errorf("bench: counters disagree: %d frames sunk, %d switched, %d imposed, %d hits and %d forwarded by the kernel",
			p.Sunk, p.Switched, p.Imposed, p.Hits, p.Forwarded)
	case s.Bytes != p.Sunk*uint64(of.BytesOut):
		return fmt.Errorf("bench: %d frames of %d bytes were sunk with %d bytes", p.Sunk, of.BytesOut, s.Bytes)
	case s.Verified == 0 || s.Bad()+s.Duplicates+s.Lost > 0:
		return fmt.Errorf("bench: of %d frames %d were verified and %d found bad, %d came twice and %d are lost", p.Sunk, s.Verified, s.Bad(), s.Duplicates, s.Lost)
	}
	return nil
}

// audit wants that the counters of each label have all frames that were sent with it.
func (l *lsr) audit(ctx context.Context) error {
	stats, err := l.routers[Shunt].client.MPLSStats(ctx, api.MPLSFilter{})
	if err != nil {
		return err
	}
	for _, s := range stats.InSegments {
		if s.Packets != l.sent[s.Label] || s.Errors+s.Discards > 0 {
			return fmt.Errorf("bench: counters disagree: %d frames were sent with label %d, its counter has %d, %d errors and %d discards",
				l.sent[s.Label], s.Label, s.Packets, s.Errors, s.Discards)
		}
	}
	return nil
}

func (f *LSRReport) sum() {
	rates := func(op LSROperation, of *LSRResult) (rates []float64) {
		for _, r := range f.Results {
			if r.Operation == op && r.Cores == of.Cores && r.Bytes == of.Bytes {
				for _, p := range r.Phases {
					rates = append(rates, p.PPS)
				}
			}
		}
		return rates
	}
	late := 0.0
	for i := range f.Results {
		r := &f.Results[i]
		own := rates(r.Operation, r)
		r.PPS = spreadOf(own)
		r.OfLimit = spreadOf(ratios(own, rates(LSRLimit, r)))
		r.OfIP = spreadOf(ratios(own, rates(lab.OpIP, r)))
		r.OfKernel = spreadOf(ratios(own, rates(LSRKernel, r)))
		for _, p := range r.Phases {
			late += float64(p.Reordered)
		}
		if r.Operation == lab.OpSwap && r.Cores == 1 {
			f.Targets = append(f.Targets, atLeast(fmt.Sprintf("swap over IP, %d bytes", r.Bytes), r.OfIP.Median, 1))
			if r.Bytes == f.Sizes[0] {
				f.Targets = append(f.Targets, atLeast("swap over the limit", r.OfLimit.Median, 0.85))
			}
		}
	}
	f.Targets = append(f.Targets, atMost("frames out of order", late, 0))
}

// Find is the result for an operation, or nil.
func (f *LSRReport) Find(op LSROperation, cores, bytes int) *LSRResult {
	for i := range f.Results {
		if r := &f.Results[i]; r.Operation == op && r.Cores == cores && r.Bytes == bytes {
			return r
		}
	}
	return nil
}
