// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/dataplane/traffic"
)

// How a case is counted once it is warm. A burst is one call of BPF_PROG_RUN, and what it takes is the clock's
// difference. A sample is what a long burst takes more than a short one, for each of the frames that it has more:
// what a burst takes by itself (the pages of its batch, the calls around it) is in neither.
const (
	// A short burst's frames, and how many a long one has more: 6 to 160 ms of virtual time. All are full bulks.
	brief, extra = 4000, 20000
	// Each burst is sent so often, and the least counts: now and then the kernel has other things to do.
	repeats = 2
	// samples are counted of each case in a boot, each with so many more sk_buffs held (see heldSkbs).
	samples, skbsStep = 16, 2
	// A sample is taken again if some of it went another way, as it does when a lease ends: so often in all.
	spares = 12
	// After this the daemon's threads have seen that they are to stop, and our own garbage collector rests.
	stopPause = 10 * time.Millisecond
)

// sample counts several times. The first is left out: in it is what the kernel puts off when a daemon begins.
func (r *rig) sample(ctx context.Context, w way, g *source) (counts []float64, err error) {
	held, err := holdSkbs()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, held.release()) }()
	for left := spares; len(counts) < 1+samples; {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		if _, err := g.Run(ctx, batches); err != nil {
			return nil, err
		}
		count, err := r.once(ctx, w, g)
		var other astray
		switch {
		case errors.As(err, &other) && left > 0:
			left--
			continue
		case err != nil:
			return nil, err
		}
		counts = append(counts, count)
		if err := held.more(skbsStep); err != nil {
			return nil, err
		}
	}
	return counts[1:], nil
}

// once counts one sample. All frames of its bursts must go by the same way.
func (r *rig) once(ctx context.Context, w way, g *source) (float64, error) {
	before, err := r.ways(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.sink.Reset(); err != nil {
		return 0, err
	}
	short, long := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range repeats {
		took, err := r.alone(g, brief)
		if err != nil {
			return 0, err
		}
		short = min(short, took)
		if took, err = r.alone(g, brief+extra); err != nil {
			return 0, err
		}
		long = min(long, took)
	}
	const sent = repeats * (brief + brief + extra)
	stats, err := r.sink.Wait(sent, 200*time.Millisecond)
	if err != nil {
		return 0, err
	}
	after, err := r.ways(ctx)
	if err != nil {
		return 0, err
	}
	return float64((long - short).Nanoseconds()) / extra, went(w, sent, stats, after.less(before))
}

// alone sends a burst while nothing else of ours wants the processor: no garbage is collected, and the
// daemon is stopped. The clock then has all that became of the frames: the kernel's own measure of
// BPF_PROG_RUN leaves out what ksoftirqd does, and that takes over the rest of a batch whenever a timer
// tick comes in the middle of it (handle_softirqs), by chance 2 to 10 instructions a frame.
func (r *rig) alone(g *source, frames uint32) (took time.Duration, err error) {
	runtime.GC()
	if r.daemon != nil {
		if err := r.daemon.Signal(unix.SIGSTOP); err != nil {
			return 0, fmt.Errorf("bench: stop the daemon: %w", err)
		}
		defer func() { err = errors.Join(err, r.daemon.Signal(unix.SIGCONT)) }()
	}
	time.Sleep(stopPause)
	return g.Burst(frames)
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

// astray says what became of frames that did not all go the way that is counted.
type astray string

func (a astray) Error() string { return string(a) }

// went says what of a sample is not as it must be: every frame there, and by its way.
func went(w way, frames uint64, s traffic.Stats, got ways) error {
	want := map[way]ways{
		byKernel:   {counters: counters{forwarded: frames}},
		byXDP:      {counters: counters{hits: frames, xdp: frames}, redirected: frames},
		byTC:       {counters: counters{hits: frames}},
		byLabels:   {counters: counters{hits: frames, labels: frames}, redirected: frames},
		byRedirect: {redirected: frames},
		byOther:    {},
	}[w]
	switch {
	case s.Frames != frames:
		return astray(fmt.Sprintf("%d frames were sent and %d sunk, %d others came", frames, s.Frames, s.Foreign))
	case got != want:
		return astray(fmt.Sprintf("%d frames should go by %s; %d were hits at XDP, %d at TC, %d switched, %d redirected, %d forwarded by the kernel",
			frames, w, got.xdp, got.hits-got.xdp-got.labels, got.labels, got.redirected, got.forwarded))
	case s.Bad()+s.Duplicates+s.Lost+s.Reordered > 0:
		return astray(fmt.Sprintf("of %d frames %d verified ones are bad, %d came twice, %d were lost, %d came late",
			frames, s.Bad(), s.Duplicates, s.Lost, s.Reordered))
	}
	return nil
}
