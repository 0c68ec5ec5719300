// SPDX-License-Identifier: Apache-2.0

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

	"shunt/internal/dataplane/traffic"
)

// ChangesReport is what `shunt bench changes` found: how fast flows stay while the routing
// table changes all the time in places that do not concern them.
type ChangesReport struct {
	Head
	Flows   int             `json:"flows"`
	Rate    int             `json:"rate"`    // frames per second that were sent, over all flows
	Changes int             `json:"changes"` // of routes, per second, that were wanted
	Seconds float64         `json:"seconds"` // of each phase
	Modes   []ChangesResult `json:"modes"`
	Busy    []BusyResult    `json:"busy,omitempty"` // with --busy, and then nothing of the above
	Targets []Target        `json:"targets"`
}

// ChangesResult is the rounds with changes, or those without.
type ChangesResult struct {
	Changing  bool    `json:"changing"`
	HitShare  Spread  `json:"hit_share"`  // of the frames, 0 to 1
	DaemonCPU Spread  `json:"daemon_cpu"` // of one CPU, 0 to 1
	Made      Spread  `json:"made"`       // changes per second
	Reordered uint64  `json:"reordered"`  // frames that came after a later one of their flow
	Phases    []Phase `json:"phases"`
}

const (
	changesFlows = 1000
	changesRate  = 100_000
	changesEach  = time.Millisecond // one change of a route
	// The least part of the frames that must be hits all the same.
	changesHits = 0.95
)

// Changes measures 1,000 flows of 100,000 frames a second in total, for so long, without and
// with 1,000 route changes a second that concern none of them.
func Changes(ctx context.Context, o Options, long time.Duration) (*ChangesReport, error) {
	report := &ChangesReport{Head: o.head("changes", 3,
		"Part of the frames that are repeated, and the daemon's CPU time, without and with 1,000 route changes a second",
		"1,000 flows of 64-byte UDP, 100,000 frames a second in all, masquerade and a drop policy; routes to hosts that nobody talks to are added and deleted by ip; in turn; medians"),
		Flows: changesFlows, Rate: changesRate, Changes: int(time.Second / changesEach), Seconds: long.Seconds(),
		Modes: []ChangesResult{{Changing: false}, {Changing: true}}}
	r, err := newPacketRig(o.Binary, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	g, err := r.paced(changesFlows, changesRate)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	if err := r.enter(ctx, Shunt); err != nil {
		return nil, interrupted(ctx, err)
	}
	if err := r.warm(ctx, g, min(steady, long)); err != nil {
		return nil, interrupted(ctx, err)
	}
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		for i := range report.Modes {
			m := &report.Modes[i]
			if err := m.round(ctx, r, g, long); err != nil {
				return nil, interrupted(ctx, err)
			}
			o.Say("  %.0f changes/s: %.2f %% hits, daemon %.2f %%", last(m.Made), 100*last(m.HitShare), 100*last(m.DaemonCPU))
		}
		o.Say("\n")
	}
	report.sum()
	return report, r.Close()
}

func last(s Spread) float64 { return s.Samples[len(s.Samples)-1] }

// paced is a source that sends at a rate.
func (r *rig) paced(flows int, rate float64) (*source, error) {
	f := r.udp(64, flows)
	g, err := traffic.NewGenerator(traffic.Config{
		NS: r.top.Client.NS, Device: r.top.Client.Device, CPU: core(), Rate: rate, Frames: f,
	})
	return &source{g, f.Size, f.Flows}, err
}

// round measures once.
func (m *ChangesResult) round(ctx context.Context, r *rig, g *source, long time.Duration) error {
	stop := func() (int, error) { return 0, nil }
	if m.Changing {
		var err error
		if stop, err = r.changeRoutes(ctx); err != nil {
			return err
		}
	}
	before, err := cpuOf(r.daemon.PID())
	begin := time.Now()
	p, failed := r.send(ctx, g, long)
	seconds := time.Since(begin).Seconds()
	after, err2 := cpuOf(r.daemon.PID())
	made, err3 := stop()
	if err := errors.Join(failed, err, err2, err3); err != nil {
		return err
	}
	if err := p.audit(); err != nil {
		return err
	}
	m.Phases = append(m.Phases, p)
	m.Reordered += p.Reordered
	m.HitShare.Samples = append(m.HitShare.Samples, p.HitShare())
	m.DaemonCPU.Samples = append(m.DaemonCPU.Samples, (after-before).Seconds()/seconds)
	m.Made.Samples = append(m.Made.Samples, float64(made)/seconds)
	return nil
}

// changeRoutes adds and deletes a route to a host that no flow goes to, in turn, by one ip
// command that is fed. stop ends it and returns how many changes were made; one that fails is an
// error, since ip ends with the first.
func (r *rig) changeRoutes(ctx context.Context) (stop func() (int, error), err error) {
	cmd := r.top.LAN.NS.Command(ctx, "ip", "-batch", "-")
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: ip: %w", err)
	}
	ending, made := make(chan struct{}), make(chan int)
	go func() {
		runtime.LockOSThread() // sleepUntil blocks it
		defer runtime.UnlockOSThread()
		n, due := 0, time.Now()
		for {
			select {
			case <-ending:
				in.Close()
				made <- n
				return
			default:
			}
			sleepUntil(due)
			due = due.Add(changesEach)
			if _, err := fmt.Fprintln(in, r.unrelated(n)); err == nil {
				n++
			}
		}
	}()
	return func() (int, error) {
		close(ending)
		n := <-made
		if err := cmd.Wait(); err != nil {
			return n, fmt.Errorf("bench: ip -batch: %w: %s", err, strings.TrimSpace(errs.String()))
		}
		return n, nil
	}, nil
}

// unrelated is the n-th change: an even one adds a route, an odd one deletes it again.
func (r *rig) unrelated(n int) string {
	verb := "add"
	if n%2 == 1 {
		verb = "del"
	}
	host := netip.AddrFrom4([4]byte{203, 0, 113, byte(n / 2)}) // for documentation (RFC 5737)
	return fmt.Sprintf("route %s %s/32 via %s dev %s", verb, host, r.top.Server.V4.Addr(), r.top.WAN.Device)
}

// cpuOf is how long a process ran so far, by the scheduler's clock: ticks would miss what is
// done in time with them.
func cpuOf(pid int) (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("bench: no /proc/%d/task/*/schedstat (%v); the kernel needs CONFIG_SCHED_INFO", pid, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // that thread has ended
		}
		if err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		word, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("bench: %s: %w", file, err)
		}
		sum += time.Duration(n)
	}
	return sum, nil
}

func (f *ChangesReport) sum() {
	for i := range f.Modes {
		m := &f.Modes[i]
		m.HitShare, m.DaemonCPU, m.Made = spreadOf(m.HitShare.Samples), spreadOf(m.DaemonCPU.Samples), spreadOf(m.Made.Samples)
	}
	changing := &f.Modes[1]
	f.Targets = []Target{
		atLeast("hit share while routes change", changing.HitShare.Median, changesHits),
		atLeast("changes a second", changing.Made.Median, 0.95*float64(f.Changes)),
	}
}
