package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

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
	Mode    Mode              `json:"mode"`
	Figures map[string]Spread `json:"figures"`
}

// ConnectionsPhase is one stretch of time in one mode.
type ConnectionsPhase struct {
	Mode    Mode    `json:"mode"`
	Rate    float64 `json:"rate"`        // connections per second that were had
	CPU     float64 `json:"cpu_s"`       // seconds that the machine's CPUs were not idle
	SoftIRQ float64 `json:"softirq_s"`   // of these, in softirq
	P50     float64 `json:"p50_seconds"` // of connect, question and answer
	P99     float64 `json:"p99_seconds"`
}

// connectionFigures are the ones that are compared, in this order.
var connectionFigures = []struct {
	Name string
	of   func(ConnectionsPhase) float64
}{
	{"cpu_s", func(p ConnectionsPhase) float64 { return p.CPU }},
	{"softirq_s", func(p ConnectionsPhase) float64 { return p.SoftIRQ }},
	{"p50_seconds", func(p ConnectionsPhase) float64 { return p.P50 }},
	{"p99_seconds", func(p ConnectionsPhase) float64 { return p.P99 }},
}

const (
	connectionRate = 5000
	// A closed connection stays in the router's conntrack for so many seconds: as long
	// as usual, and the table is full.
	timeWait = "5"
	// A closed connection holds the client's port for a minute (load.go) only while the kernel
	// keeps so many.
	timeWaits = "400000"
	// What shunt may add.
	connectionTax = 1.05
)

// Connections measures 5,000 short TCP connections a second, each phase for so long.
func Connections(ctx context.Context, o Options, long time.Duration) (*ConnectionsReport, error) {
	report := &ConnectionsReport{Head: o.head("connections", 3,
		"CPU seconds of the whole machine, and latency, of 5,000 short TCP connections a second",
		"connect, 64 bytes, 512 bytes back, close; client and server are threads of this program; with and without shunt, in turn; medians"),
		Rate: connectionRate, Seconds: long.Seconds()}
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
		modes := []Mode{Kernel, Shunt}
		if round%2 == 1 { // neither always has the other's leftovers
			modes[0], modes[1] = modes[1], modes[0]
		}
		o.Say("round %d of %d:", round+1, report.Rounds)
		for _, mode := range modes {
			p, err := r.connections(ctx, mode, connectionRate, long)
			if err != nil {
				return nil, interrupted(ctx, err)
			}
			report.Samples = append(report.Samples, p)
			o.Say("  %s %.1f CPU s, p50 %.0f us, p99 %.0f us", mode, p.CPU, p.P50*1e6, p.P99*1e6)
		}
		o.Say("\n")
	}
	report.sum()
	return report, errors.Join(r.Close())
}

// connections measures one phase, after two seconds that do not count: in them the daemon
// finds out what the client is.
func (r *rig) connections(ctx context.Context, mode Mode, rate int, long time.Duration) (ConnectionsPhase, error) {
	p := ConnectionsPhase{Mode: mode}
	if err := r.enter(ctx, mode); err != nil {
		return p, err
	}
	server := r.top.Server.V4.Addr()
	if _, err := churn(ctx, r.top.Client.NS, server, rate, min(long, 3*time.Second)); err != nil {
		return p, err
	}
	before, err := cpuTimes()
	if err != nil {
		return p, err
	}
	begin := time.Now()
	took, err := churn(ctx, r.top.Client.NS, server, rate, long)
	if err != nil {
		return p, err
	}
	if ctx.Err() != nil {
		return p, errInterrupted
	}
	seconds := time.Since(begin).Seconds()
	after, err := cpuTimes()
	if err != nil {
		return p, err
	}
	p.Rate = float64(len(took)) / seconds
	p.CPU, p.SoftIRQ = after.busy-before.busy, after.softirq-before.softirq
	p.P50, p.P99 = float64(percentile(took, 0.5))/1e9, float64(percentile(took, 0.99))/1e9
	if p.Rate < 0.98*float64(rate) {
		return p, fmt.Errorf("bench: %s: %.0f connections a second instead of %d; the machine is too busy or too slow", mode, p.Rate, rate)
	}
	return p, nil
}

// cpuSeconds are what all CPUs together spent since boot.
type cpuSeconds struct{ busy, softirq float64 }

// userHZ is the unit of /proc/stat: 1/100 s on all architectures but alpha and ia64.
const userHZ = 100

func cpuTimes() (cpuSeconds, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuSeconds{}, fmt.Errorf("bench: %w", err)
	}
	return parseCPU(string(text))
}

// parseCPU reads the first line of /proc/stat (proc(5)): user, nice, system, idle, iowait,
// irq, softirq and steal; guest times are within user.
func parseCPU(stat string) (cpuSeconds, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return cpuSeconds{}, fmt.Errorf("bench: /proc/stat begins with %q", line)
	}
	var c cpuSeconds
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return c, fmt.Errorf("bench: /proc/stat: %w", err)
		}
		seconds := float64(ticks) / userHZ
		switch i {
		case 3, 4, 7: // nobody's, or another machine's
		case 6:
			c.softirq = seconds
			c.busy += seconds
		default:
			c.busy += seconds
		}
	}
	return c, nil
}

func (f *ConnectionsReport) sum() {
	figures := map[Mode]map[string][]float64{Kernel: {}, Shunt: {}}
	for _, p := range f.Samples {
		for _, figure := range connectionFigures {
			figures[p.Mode][figure.Name] = append(figures[p.Mode][figure.Name], figure.of(p))
		}
	}
	for _, mode := range []Mode{Kernel, Shunt} {
		m := ConnectionsMode{Mode: mode, Figures: map[string]Spread{}}
		for name, samples := range figures[mode] {
			m.Figures[name] = spreadOf(samples)
		}
		f.Modes = append(f.Modes, m)
	}
	f.Ratios = map[string]Spread{}
	for _, figure := range connectionFigures {
		ratio := spreadOf(ratios(figures[Shunt][figure.Name], figures[Kernel][figure.Name]))
		f.Ratios[figure.Name] = ratio
		if figure.Name != "softirq_s" { // part of CPU, and shown beside it
			f.Targets = append(f.Targets, atMost(figure.Name+", shunt over kernel", ratio.Median, connectionTax))
		}
	}
}
