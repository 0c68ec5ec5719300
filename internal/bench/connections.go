// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// ConnectionsReport is what `shunt bench connections` found: the price of connections
// that are too short to be repeated.
type ConnectionsReport struct {
	Head
	Rate    int                `json:"rate"`    // connections per second that were wanted
	Seconds float64            `json:"seconds"` // of each phase
	Modes   []ConnectionsMode  `json:"modes"`
	Ratios  map[string]Spread  `json:"ratios"` // shunt over kernel, by the name of the figure
	Samples []ConnectionsPhase `json:"samples"`
	Targets []Target           `json:"targets"`
}

// ConnectionsMode is what the rounds of one mode had.
type ConnectionsMode struct {
	Mode        Mode              `json:"mode"`
	Connections int               `json:"connections"` // in all rounds, the reset ones included
	Resets      int               `json:"resets"`      // of these
	Figures     map[string]Spread `json:"figures"`
}

// ConnectionsPhase is what one mode had of one round.
type ConnectionsPhase struct {
	Mode        Mode    `json:"mode"`
	Seconds     float64 `json:"seconds"`
	Connections int     `json:"connections"` // the reset ones included
	Resets      int     `json:"resets"`      // by the server's kernel, after the handshake
	CPU         float64 `json:"cpu_s"`       // seconds that the machine's CPUs were neither idle nor another machine's
	P50         float64 `json:"p50_seconds"` // of connect, question and answer: of the middle second
	P99         float64 `json:"p99_seconds"` // likewise
	P99All      float64 `json:"p99_all_seconds"`
	XDP         bool    `json:"xdp"` // shunt had XDP on the client's port at the end of the last turn; else TC alone

	seconds [][]int64 // churned.seconds of all turns
}

// connectionFigures are the ones that are compared, in this order.
var connectionFigures = []struct {
	Name string
	of   func(ConnectionsPhase) float64
}{
	{"cpu_s", func(p ConnectionsPhase) float64 { return p.CPU }},
	{"p50_seconds", func(p ConnectionsPhase) float64 { return p.P50 }},
	{"p99_seconds", func(p ConnectionsPhase) float64 { return p.P99 }},
}

// connectionTurns are the parts of a round, in sixths of what each mode gets: the middle of
// all turns of one mode is the middle of those of the other, so what drifts evenly hits both
// alike.
var connectionTurns = []int{1, 2, 2, 2, 2, 2, 1}

const (
	connectionRate = 5000
	connectionLong = 30 * time.Second
	// A closed connection stays in the router's conntrack for so many seconds: as long
	// as usual, and the table is full.
	timeWait = "5"
	// A closed connection holds the client's port for a minute (load.go) only while the kernel
	// keeps so many.
	timeWaits = "400000"
	// What shunt may add.
	connectionTax = 1.05
	// One reset may be in so many connections, and shunt may have more than the kernel by so
	// many standard deviations of what is chance between two counts of the same rare thing.
	resetOf         = 5000
	resetDeviations = 3
)

// ConnectionsOptions say how many connections are made, for how long in each mode and round.
type ConnectionsOptions struct {
	Options
	Rate int           // a second; 0: 5,000
	Long time.Duration // 0: 30 s
}

func (o ConnectionsOptions) or(rate int, long time.Duration) ConnectionsOptions {
	if o.Rate == 0 {
		o.Rate = rate
	}
	if o.Long == 0 {
		o.Long = long
	}
	return o
}

// Connections measures short TCP connections.
func Connections(ctx context.Context, o ConnectionsOptions) (*ConnectionsReport, error) {
	o = o.or(connectionRate, connectionLong)
	report := &ConnectionsReport{Head: o.head("connections", 3,
		fmt.Sprintf("CPU seconds of the whole machine, and latency, of %s short TCP connections a second", Thousands(float64(o.Rate))),
		"connect, 64 bytes, 512 bytes back, close; client and server are threads of this program; with and without shunt in turn, seven times in each round; latencies are those of the middle second; medians"),
		Rate: o.Rate, Seconds: o.Long.Seconds()}
	report.Command = o.command(report.Command, connectionRate, connectionLong)
	r, err := newRig(o.Binary, lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.top.LAN.NS.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", timeWait); err != nil {
		return nil, err
	}
	if err := r.top.Client.NS.Sysctl("net.ipv4.tcp_max_tw_buckets", timeWaits); err != nil {
		return nil, err
	}
	stop, err := serve(r.top.Server.NS, r.top.Server.V4.Addr())
	if err != nil {
		return nil, err
	}
	defer stop()
	for round := range report.Rounds {
		modes := [2]Mode{Kernel, Shunt}
		if round%2 == 1 {
			modes[0], modes[1] = modes[1], modes[0]
		}
		o.Say("round %d of %d:", round+1, report.Rounds)
		phases, err := r.connectionRound(ctx, modes, o.Rate, o.Long)
		if err != nil {
			return nil, interrupted(ctx, err)
		}
		for _, p := range phases {
			o.Say("  %s %.1f CPU s, p50 %.0f us, p99 %.0f us (of all %.0f us), %d resets, XDP: %t", p.Mode, p.CPU, p.P50*1e6, p.P99*1e6, p.P99All*1e6, p.Resets, p.XDP)
		}
		report.Samples = append(report.Samples, phases[:]...)
		o.Say("\n")
	}
	report.sum()
	return report, errors.Join(r.Close())
}

// connectionRound measures both modes for so long, in several turns.
func (r *rig) connectionRound(ctx context.Context, modes [2]Mode, rate int, long time.Duration) (phases [2]ConnectionsPhase, err error) {
	for i, mode := range modes {
		phases[i].Mode = mode
	}
	for turn, sixths := range connectionTurns {
		if err := r.connections(ctx, &phases[turn%2], rate, long*time.Duration(sixths)/6); err != nil {
			return phases, err
		}
	}
	for i := range phases {
		p := &phases[i]
		p.latency()
		if got := float64(p.Connections) / p.Seconds; got < 0.98*float64(rate) {
			return phases, fmt.Errorf("bench: %s: %.0f connections a second instead of %d; the machine is too busy or too slow", p.Mode, got, rate)
		}
	}
	return phases, nil
}

// latency takes the percentiles of each second, and then of those the median: when another
// machine takes a CPU for a while, the hundredth part of all is what that hit.
func (p *ConnectionsPhase) latency() {
	var p50, p99 []float64
	for _, t := range p.seconds {
		slices.Sort(t)
		p50 = append(p50, float64(percentile(t, 0.5))/1e9)
		p99 = append(p99, float64(percentile(t, 0.99))/1e9)
	}
	p.P50, p.P99 = spreadOf(p50).Median, spreadOf(p99).Median
	all := slices.Concat(p.seconds...)
	slices.Sort(all)
	p.P99All = float64(percentile(all, 0.99)) / 1e9
}

// connections adds one turn to a phase, after some connections that do not count.
func (r *rig) connections(ctx context.Context, p *ConnectionsPhase, rate int, long time.Duration) error {
	if err := r.enter(ctx, p.Mode); err != nil {
		return err
	}
	server := r.top.Server.V4.Addr()
	if _, err := churn(ctx, r.top.Client.NS, server, rate, min(long, 3*time.Second)); err != nil {
		return err
	}
	seen, err := r.synsSeen(ctx)
	if err != nil {
		return err
	}
	before, err := cpuTimes()
	if err != nil {
		return err
	}
	begin := time.Now()
	c, err := churn(ctx, r.top.Client.NS, server, rate, long)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errInterrupted
	}
	seconds := time.Since(begin).Seconds()
	after, err := cpuTimes()
	if err != nil {
		return err
	}
	last, err := r.synsSeen(ctx)
	if err != nil {
		return err
	}
	if r.daemon != nil {
		if p.XDP, err = r.xdpAttached(ctx); err != nil {
			return err
		}
		if got, want := last-seen, 2*uint64(c.answered()); got < want {
			return fmt.Errorf("bench: shunt saw %d SYNs of %d: the connections did not go by it", got, want)
		}
	}
	p.Seconds += seconds
	p.CPU += seconds*float64(after.cpus) - (after.free - before.free)
	p.Connections += c.answered() + c.resets
	p.Resets += c.resets
	p.seconds = append(p.seconds, c.seconds...)
	return nil
}

// synsSeen are the SYNs that shunt counted, two for each connection; 0 without shunt.
func (r *rig) synsSeen(ctx context.Context) (n uint64, err error) {
	if r.daemon == nil {
		return 0, nil
	}
	s, err := r.client.Status(ctx)
	return s.Counters[api.StageXDP]["tcp_syn"] + s.Counters[api.StageTCIngress]["tcp_syn"], err
}

// cpuSeconds are what all CPUs together spent since boot without work: idle, or stolen by the
// machine that hosts this one. The kernel takes the time of that; what the CPUs do otherwise it
// only samples, with ticks (CONFIG_TICK_CPU_ACCOUNTING), and misses most of what is done in
// time with them.
type cpuSeconds struct {
	cpus int
	free float64
}

// userHZ is the unit of /proc/stat: 1/100 s on all architectures but alpha and ia64.
const userHZ = 100

func cpuTimes() (cpuSeconds, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuSeconds{}, fmt.Errorf("bench: %w", err)
	}
	return parseCPU(string(text))
}

// parseCPU reads /proc/stat (proc(5)): a line for all CPUs with user, nice, system, idle,
// iowait, irq, softirq and steal, then one for each.
func parseCPU(stat string) (cpuSeconds, error) {
	var c cpuSeconds
	lines := splitLines(stat)
	for _, line := range lines {
		if strings.HasPrefix(line, "cpu") {
			c.cpus++
		}
	}
	c.cpus-- // the line for all
	if c.cpus < 1 {
		return c, errors.New("bench: /proc/stat has no CPUs")
	}
	fields := strings.Fields(lines[0])
	if len(fields) < 9 || fields[0] != "cpu" {
		return c, fmt.Errorf("bench: /proc/stat begins with %q", lines[0])
	}
	for _, i := range []int{4, 5, 8} {
		ticks, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return c, fmt.Errorf("bench: /proc/stat: %w", err)
		}
		c.free += float64(ticks) / userHZ
	}
	return c, nil
}

func (f *ConnectionsReport) sum() {
	figures := map[Mode]map[string][]float64{Kernel: {}, Shunt: {}}
	all, resets := map[Mode]int{}, map[Mode]int{}
	for _, p := range f.Samples {
		all[p.Mode] += p.Connections
		resets[p.Mode] += p.Resets
		for _, figure := range connectionFigures {
			figures[p.Mode][figure.Name] = append(figures[p.Mode][figure.Name], figure.of(p))
		}
	}
	for _, mode := range []Mode{Kernel, Shunt} {
		m := ConnectionsMode{Mode: mode, Connections: all[mode], Resets: resets[mode], Figures: map[string]Spread{}}
		for name, samples := range figures[mode] {
			m.Figures[name] = spreadOf(samples)
		}
		f.Modes = append(f.Modes, m)
	}
	f.Ratios = map[string]Spread{}
	for _, figure := range connectionFigures {
		ratio := spreadOf(ratios(figures[Shunt][figure.Name], figures[Kernel][figure.Name]))
		f.Ratios[figure.Name] = ratio
		f.Targets = append(f.Targets, atMost(figure.Name+", shunt over kernel", ratio.Median, connectionTax))
	}
	f.Targets = append(f.Targets, resetTargets(resets[Kernel], resets[Shunt], all[Shunt])...)
}

// resetTargets judge shunt's resets, in so many connections, beside the kernel's in as many.
// The variance of a count of rare events is the count, and that of a difference the sum.
func resetTargets(kernel, shunt, connections int) []Target {
	deviations := 0.0
	if shunt > kernel {
		deviations = float64(shunt-kernel) / math.Sqrt(float64(shunt+kernel))
	}
	return []Target{
		atMost("resets with shunt, of 5,000 connections", resetOf*share(uint64(shunt), uint64(connections)), 1),
		atMost("more resets than the kernel, in standard deviations", deviations, resetDeviations),
	}
}
