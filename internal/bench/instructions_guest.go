package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
)

const (
	// burst is how many frames are counted at a time: 50 to 400 ms of virtual time.
	burst = 50000
	// samples are counted of each case in a boot, each with so many more sk_buffs held.
	samples, skbsStep = 12, 3
	// insnConfig is the daemon's. The lease is long enough for warming up and all samples,
	// as a renewal is none of a hit's cost; it is half of what conntrack gives UDP without a
	// reply (30 s), and so the most. The table is that of a machine with 8 GB, not of the guest.
	insnConfig = "lease = \"15s\"\nflows = 262144\n"
	// A burst is sent again if some of it went another way, as it does when a lease ends.
	tries = 18
	// A million labels need a daemon and a guest with room for them.
	manyConfig, manyMemory = "labels = 1048576\n", 6144
	// Warming up: frames beside those of each flow, and pauses.
	batches      = 1024
	heatPause    = 100 * time.Millisecond
	heatPatience = 10 * time.Second
	daemons      = 5 // are tried
	// After this the daemon's threads have seen that they are to stop.
	stopPause = 10 * time.Millisecond
)

// Counted is what one boot counted.
type Counted struct {
	Kernel  string        `json:"kernel"` // release
	CPU     string        `json:"cpu"`
	Cases   []CountedCase `json:"cases"`
	Skipped []Skipped     `json:"skipped"`
}

// CountedCase is one case with one number of flows. Samples are instructions per frame.
type CountedCase struct {
	Name  string    `json:"name"`
	Flows int       `json:"flows"`
	Bytes int       `json:"bytes"` // of Ethernet, without FCS
	Gross []float64 `json:"gross"` // generator, way and sink
	Floor []float64 `json:"floor"` // generator and sink
}

// Skipped is a case that cannot be counted, with the probe that failed.
type Skipped struct {
	Name  string `json:"name"`
	Probe string `json:"probe"`
}

// CountInside counts on this machine, which must be the guest: there, a nanosecond is an
// instruction. Elsewhere its figures are times.
func CountInside(ctx context.Context, o InstructionsOptions) (*Counted, error) {
	cases, err := chosen(o.Cases)
	if err != nil {
		return nil, err
	}
	head := o.head("instructions", 1, "", "")
	b := &boot{options: o.Options, flows: o.flows(), counted: Counted{Kernel: head.Kernel, CPU: head.CPU}, floors: map[floorKey][]float64{}}
	defer b.leave()
	for _, c := range cases {
		if err := b.count(ctx, c); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", c.name, interrupted(ctx, err))
		}
	}
	return &b.counted, b.leave()
}

// boot is the guest at work.
type boot struct {
	options Options
	flows   []int
	counted Counted
	floors  map[floorKey][]float64

	rig *rig
}

type floorKey struct {
	frames frameKind
	flows  int
}

// count does one case with all numbers of flows.
func (b *boot) count(ctx context.Context, c insnCase) error {
	if c.probe != nil {
		if err := c.probe(); err != nil {
			b.options.Say("%s: skipped: %v\n", c.name, err)
			b.counted.Skipped = append(b.counted.Skipped, Skipped{c.name, err.Error()})
			return nil
		}
	}
	if err := b.enter(c); err != nil {
		return err
	}
	for _, flows := range b.flows {
		if c.alone && flows > 1 {
			continue
		}
		b.options.Say("%s, flows: %d:", c.name, flows)
		if err := b.countFlows(ctx, c, flows); err != nil {
			return err
		}
		b.options.Say("\n")
	}
	return nil
}

// enter makes the lab of a case, a new one: what earlier cases left in the kernel (connections, entries
// of flow tables) moves a figure by up to 65 instructions.
func (b *boot) enter(c insnCase) (err error) {
	if err := b.leave(); err != nil {
		return err
	}
	if b.rig, err = newRig(b.options.Binary, c.lab); err != nil {
		return err
	}
	if c.labels != "" {
		if err := b.rig.top.Labels(c.labels); err != nil {
			return err
		}
	}
	text := insnConfig
	if c.more > 0 {
		text += manyConfig
	}
	config := filepath.Join(b.rig.top.Dir(), "shunt.toml")
	b.rig.args = []string{"--config", config}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

func (b *boot) leave() (err error) {
	if b.rig != nil {
		err = b.rig.Close()
		b.rig = nil
	}
	return err
}

// countFlows does one case with one number of flows.
func (b *boot) countFlows(ctx context.Context, c insnCase, flows int) (err error) {
	r := b.rig
	g, err := r.sourceOf(c.frameOf(r, flows))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	floor, err := b.floor(ctx, c, flows)
	if err != nil {
		return err
	}
	if r.sink, err = traffic.AttachLabelSink(r.top.Server.NS, r.top.Server.Device, 64, c.out); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.detachSink()) }()
	r.xdp = c.xdp
	if err := r.ready(ctx, c); err != nil {
		return err
	}
	if c.start != nil {
		stop, err := c.start(r)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err := r.heat(ctx, c, g, flows); err != nil {
		return err
	}
	gross, err := r.sample(ctx, c.way, g)
	if err != nil {
		return err
	}
	b.options.Say(" %.0f gross, %.0f over generator and sink", midmean(gross), midmean(gross)-midmean(floor))
	b.counted.Cases = append(b.counted.Cases, CountedCase{c.name, flows, g.size, gross, floor})
	return nil
}

// floor counts generator and sink alone, with the sink at the router's first port. The sink takes one
// label: to write a second one, or one for each flow, takes the generator a few instructions more, which count
// as the way's.
func (b *boot) floor(ctx context.Context, c insnCase, flows int) (counts []float64, err error) {
	c.more = 0
	if c.frames == stacked {
		c.frames = labeled
	}
	key := floorKey{c.frames, flows}
	if known := b.floors[key]; known != nil {
		return known, nil
	}
	r := b.rig
	if err := r.clear(); err != nil {
		return nil, err
	}
	g, err := r.sourceOf(c.frameOf(r, flows))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if r.sink, err = traffic.AttachLabelSink(r.top.LAN.NS, r.top.LAN.Device, 64, c.frames.label); err != nil {
		return nil, err
	}
	if err := r.heat(ctx, insnCase{mode: Kernel}, g, 1); err != nil {
		return nil, errors.Join(err, r.detachSink())
	}
	b.floors[key], err = r.sample(ctx, byOther, g)
	return b.floors[key], errors.Join(err, r.detachSink())
}

// ready is the router in the mode of a case, with its labels.
func (r *rig) ready(ctx context.Context, c insnCase) error {
	if err := r.enter(ctx, c.mode); err != nil || c.tables == nil {
		return err
	}
	return r.applyTables(ctx, c.lines())
}

// heat sends until the case is as it will be counted. Between bursts it sleeps: in the
// guest, time without work passes at once, and the daemon needs some to know the client.
// Every flow must be fast: one that finds all its slots taken (a full bucket means slow, never
// wrong) is a few instructions in the mean of ten thousand. Another daemon has other hashes.
func (r *rig) heat(ctx context.Context, c insnCase, g *source, flows int) error {
	left := daemons
	for deadline := time.Now().Add(heatPatience); ; time.Sleep(heatPause) {
		before, err := r.counters(ctx)
		if err != nil {
			return err
		}
		// Two frames of each flow: of the first the kernel makes a connection, with the
		// second it puts it into its flow table.
		sent, err := g.Run(ctx, uint64(2*flows+batches))
		if err != nil {
			return err
		}
		if r.daemon == nil {
			break
		}
		after, err := r.counters(ctx)
		if err != nil {
			return err
		}
		ready, err := r.xdpAttached(ctx)
		if err != nil {
			return err
		}
		if ready && (c.mode == Attached || after.hits-before.hits >= sent.Sent) {
			break
		}
		if !time.Now().After(deadline) {
			continue
		}
		if left--; left == 0 {
			return fmt.Errorf("%d daemons did not become fast, each in %v (XDP attached: %t, hits: %d of %d frames); the last one's log ends: %s",
				daemons, heatPatience, ready, after.hits-before.hits, sent.Sent, tail(r.daemon.Log()))
		}
		if err := r.clear(); err != nil {
			return err
		}
		if err := r.ready(ctx, c); err != nil {
			return err
		}
		deadline = time.Now().Add(heatPatience)
	}
	if c.check != nil {
		return c.check(r, flows)
	}
	return nil
}

// applyTables replaces the daemon's label tables.
func (r *rig) applyTables(ctx context.Context, lines []string) error {
	var old strings.Builder
	if err := r.client.MPLSSave(ctx, &old); err != nil {
		return err
	}
	if old.Len() > 0 { // of another number of flows: a daemon begins with none
		if err := r.clear(); err != nil {
			return err
		}
		if err := r.enter(ctx, Shunt); err != nil {
			return err
		}
	}
	_, err := r.client.MPLSApply(ctx, api.MPLSChange{Lines: lines, Origin: "bench"})
	return err
}

// sample counts several bursts, each with all its frames by the same way. The first is left out: in it
// is what the kernel puts off when a daemon begins.
func (r *rig) sample(ctx context.Context, w way, g *source) (counts []float64, err error) {
	held, err := holdSkbs()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, held.release()) }()
	var last error
	for range tries {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		if err := held.more(skbsStep); err != nil {
			return nil, err
		}
		if _, err := g.Run(ctx, batches); err != nil {
			return nil, err
		}
		var count float64
		if count, last = r.burst(ctx, w, g); last == nil {
			counts = append(counts, count)
		}
		if len(counts) > samples {
			return counts[1:], nil
		}
	}
	return nil, fmt.Errorf("only %d bursts of %d went all one way: %w", len(counts), tries, last)
}

// burst counts one: instructions per frame.
func (r *rig) burst(ctx context.Context, w way, g *source) (float64, error) {
	before, err := r.ways(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.sink.Reset(); err != nil {
		return 0, err
	}
	took, err := r.alone(g)
	if err != nil {
		return 0, err
	}
	stats, err := r.sink.Wait(burst, 200*time.Millisecond)
	if err != nil {
		return 0, err
	}
	after, err := r.ways(ctx)
	if err != nil {
		return 0, err
	}
	return float64(took.Nanoseconds()) / burst, went(w, stats, after.less(before))
}

// alone sends a burst while nothing else of ours wants the processor: no garbage is collected, and the
// daemon is stopped. The clock then has all that became of the frames: the kernel's own measure of
// BPF_PROG_RUN leaves out what ksoftirqd does, and that takes over the rest of a batch whenever a timer
// tick comes in the middle of it (handle_softirqs), by chance 2 to 10 instructions a frame.
func (r *rig) alone(g *source) (took time.Duration, err error) {
	runtime.GC()
	if r.daemon != nil {
		if err := r.daemon.Signal(unix.SIGSTOP); err != nil {
			return 0, fmt.Errorf("bench: stop the daemon: %w", err)
		}
		defer func() { err = errors.Join(err, r.daemon.Signal(unix.SIGCONT)) }()
		time.Sleep(stopPause)
	}
	return g.Burst(burst)
}

// ways are the counters that tell how frames went, shunt's own and others' judgement of it.
type ways struct {
	counters
	redirected uint64 // by XDP at the router's first port, as its driver counts
}

func (a ways) less(b ways) ways {
	return ways{counters{a.hits - b.hits, a.xdp - b.xdp, a.labels - b.labels, a.forwarded - b.forwarded}, a.redirected - b.redirected}
}

func (r *rig) ways(ctx context.Context) (w ways, err error) {
	if w.counters, err = r.counters(ctx); err != nil {
		return w, err
	}
	out, err := r.top.LAN.NS.Run("ethtool", "-S", r.top.LAN.Device)
	if err == nil {
		w.redirected, err = redirects(out)
	}
	return w, err
}

// redirects adds up what a veth's receive queues redirected, of what ethtool -S prints.
func redirects(stats string) (sum uint64, err error) {
	for _, line := range splitLines(stats) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !strings.HasSuffix(name, "_xdp_redirect") {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("bench: ethtool: %s: %w", name, err)
		}
		sum += n
	}
	return sum, nil
}

// went says what of a burst is not as it must be: every frame there, and by its way.
func went(w way, s traffic.Stats, got ways) error {
	want := map[way]ways{
		byKernel:   {counters: counters{forwarded: burst}},
		byXDP:      {counters: counters{hits: burst, xdp: burst}, redirected: burst},
		byTC:       {counters: counters{hits: burst}},
		byLabels:   {counters: counters{hits: burst, labels: burst}, redirected: burst},
		byRedirect: {redirected: burst},
		byOther:    {},
	}[w]
	switch {
	case s.Frames != burst:
		return fmt.Errorf("%d frames were sent and %d sunk, %d others came", burst, s.Frames, s.Foreign)
	case got != want:
		return fmt.Errorf("%d frames should go by %s; %d were hits at XDP, %d at TC, %d switched, %d redirected, %d forwarded by the kernel",
			burst, w, got.xdp, got.hits-got.xdp-got.labels, got.labels, got.redirected, got.forwarded)
	case s.Bad()+s.Duplicates+s.Lost+s.Reordered > 0:
		return fmt.Errorf("of %d frames %d verified ones are bad, %d came twice, %d were lost, %d came late",
			burst, s.Bad(), s.Duplicates, s.Lost, s.Reordered)
	}
	return nil
}

// addr puts another address before a port.
func addr(p netip.Prefix, port netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(p.Addr(), port.Port())
}
