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

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// LabelsReport is what `shunt bench labels` found: what a million labels take, and what one takes.
type LabelsReport struct {
	Head
	Labels     int            `json:"labels"`              // each with an NHLFE of its own that swaps it
	Load       Spread         `json:"load_s"`              // until all are in force that one transaction brings
	Replace    Spread         `json:"replaced_per_second"` // NHLFEs, by one transaction that replaces all
	Changes    Spread         `json:"changes_per_second"`  // by many transactions of Batch changes each
	Singly     Spread         `json:"singly_per_second"`   // by transactions of one change each
	Batch      int            `json:"batch"`
	Rate       int            `json:"rate"`        // frames per second while labels are changed
	MapBytes   uint64         `json:"map_bytes"`   // memory of all of shunt's maps
	EmptyBytes uint64         `json:"empty_bytes"` // of the daemon's own, before there were labels
	OwnBytes   uint64         `json:"own_bytes"`   // and with all of them
	Counts     []LabelsResult `json:"counts"`
	Sizes      []LabelsBySize `json:"sizes"`
	Targets    []Target       `json:"targets"`
}

// LabelsResult is for frames with one label, or with all of them in turn.
type LabelsResult struct {
	Labels int     `json:"labels"`
	PPS    Spread  `json:"pps"`
	Phases []Phase `json:"phases"`
}

// LabelsSize says how much `shunt bench labels` does.
type LabelsSize struct {
	Labels int           // at most 1,000,000
	Long   time.Duration // each phase
}

const (
	firstLabel  = 16
	labelsBatch = 100
	labelsRate  = 100_000
	// Wanted for a million labels; RFC 7325 says nothing of it.
	labelsLoad    = 20 * time.Second
	labelsChanges = 10_000
)

// Labels measures one label, then as many as it is told: how soon they are there, what they take,
// how fast frames with them are, and how fast they can be changed while frames are switched.
func Labels(ctx context.Context, o Options, size LabelsSize) (*LabelsReport, error) {
	report := &LabelsReport{Head: o.head("labels", 3,
		"Time and memory for a million labels, frames per second by the number of labels and by size, and changes per second while frames are switched",
		"72-byte UDP with one label, which is swapped; an NHLFE for each label; all by the daemon's API; a daemon for each round"),
		Labels: size.Labels, Batch: labelsBatch, Rate: labelsRate, Counts: []LabelsResult{{Labels: 1}, {Labels: size.Labels}}}
	for _, bytes := range labelSizes {
		report.Sizes = append(report.Sizes, LabelsBySize{Bytes: bytes})
	}
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		b := labelBench{report: report, size: size, say: o.Say}
		if err := b.round(ctx, o.Binary); err != nil {
			return nil, interrupted(ctx, err)
		}
		o.Say("\n")
	}
	report.sum()
	return report, nil
}

// labelBench is one round.
type labelBench struct {
	*rig
	report *LabelsReport
	size   LabelsSize
	say    func(string, ...any)
	sent   uint64 // frames, since the daemon began
	next   int    // change
}

func (b *labelBench) round(ctx context.Context, binary string) (err error) {
	if b.rig, err = newRig(binary, lab.FirewallOptions{Name: "bench", Neighbours: true, Open: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	file := filepath.Join(b.top.Dir(), "shunt.toml")
	if err := os.WriteFile(file, []byte("labels = 1048576\nflows = 1024\n"), 0o600); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	b.args, b.xdp = []string{"--config", file}, "on"
	if err := b.bySize(ctx); err != nil {
		return err
	}
	if b.sink, err = traffic.AttachLabelsSink(b.top.Server.NS, b.top.Server.Device, 64, traffic.MaxLabel); err != nil {
		return err
	}
	if err := b.enter(ctx, Shunt); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{b.one, b.load, b.all, b.allBySize, b.change, b.replace, b.audit} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// one has frames with one label switched, before there are others.
func (b *labelBench) one(ctx context.Context) (err error) {
	if b.report.EmptyBytes, err = ownBytes(b.daemon.PID()); err != nil {
		return err
	}
	if err := b.apply(ctx, append(b.lines(0, 1, 0), "space set "+b.top.LAN.Device+" 0")); err != nil {
		return err
	}
	return b.measureLabels(ctx, &b.report.Counts[0])
}

// load brings all labels by one transaction.
func (b *labelBench) load(ctx context.Context) (err error) {
	lines := b.lines(1, b.size.Labels, 0)
	begin := time.Now()
	if err := b.apply(ctx, lines); err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	b.report.Load.Samples = append(b.report.Load.Samples, took)
	b.say(" loaded in %.1f s", took)
	b.report.MapBytes, err = mapBytes(b.daemon.PID())
	return err
}

// all has frames with all labels switched. Meanwhile the daemon gives back what loading took.
func (b *labelBench) all(ctx context.Context) error {
	err := b.measureLabels(ctx, &b.report.Counts[1])
	if err == nil {
		b.report.OwnBytes, err = ownBytes(b.daemon.PID())
	}
	return err
}

// change makes small transactions for so long, and then as small ones as there can be.
func (b *labelBench) change(ctx context.Context) error {
	for _, of := range []struct {
		lines int
		to    *Spread
	}{{labelsBatch, &b.report.Changes}, {1, &b.report.Singly}} {
		made := 0
		took, err := b.meanwhile(ctx, func(ctx context.Context) error {
			for end := time.Now().Add(b.size.Long); time.Now().Before(end); made += of.lines {
				if err := b.apply(ctx, b.someChanges(of.lines)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		of.to.Samples = append(of.to.Samples, float64(made)/took.Seconds())
		b.say(", %.0f changes/s by %d", last(*of.to), of.lines)
	}
	return nil
}

// replace changes all NHLFEs by one transaction.
func (b *labelBench) replace(ctx context.Context) error {
	lines := make([]string, b.size.Labels)
	for n := range lines {
		lines[n] = b.nhlfe(n, 2)
	}
	took, err := b.meanwhile(ctx, func(ctx context.Context) error { return b.apply(ctx, lines) })
	b.report.Replace.Samples = append(b.report.Replace.Samples, float64(len(lines))/took.Seconds())
	b.say(", %.0f/s at once", last(b.report.Replace))
	return err
}

// meanwhile does something while frames with all labels are switched, of which none may be lost.
func (b *labelBench) meanwhile(ctx context.Context, do func(context.Context) error) (took time.Duration, err error) {
	f := b.frames(b.size.Labels)
	g, err := traffic.NewGenerator(traffic.Config{NS: b.top.Client.NS, Device: b.top.Client.Device, CPU: core(), Rate: labelsRate, Frames: f})
	if err != nil {
		return 0, err
	}
	defer g.Close()
	sending, over := context.WithCancel(ctx)
	type ended struct {
		sent traffic.Result
		err  error
	}
	ends := make(chan ended, 1)
	if err := b.sink.Reset(); err != nil {
		over()
		return 0, err
	}
	go func() {
		sent, err := g.Loop(sending)
		ends <- ended{sent, err}
	}()
	begin := time.Now()
	err = do(ctx)
	took = time.Since(begin)
	over()
	end := <-ends
	if err := errors.Join(err, end.err); err != nil {
		return took, err
	}
	got, err := b.sink.Wait(end.sent.Sent, time.Second)
	if err == nil && (got.Frames != end.sent.Sent || got.Bad()+got.Lost+got.Duplicates > 0) {
		err = fmt.Errorf("bench: %d frames were sent while labels changed, and came as %+v", end.sent.Sent, got)
	}
	b.sent += end.sent.Sent
	return took, err
}

// frames have so many labels in turn.
func (b *labelBench) frames(labels int) traffic.Frames {
	f := b.udp(72, labels)
	f.Label, f.Labels = firstLabel, true
	return f
}

// measureLabels measures the frames per second, audited.
func (b *labelBench) measureLabels(ctx context.Context, to *LabelsResult) error {
	g, err := b.sourceOf(b.frames(to.Labels))
	if err != nil {
		return err
	}
	defer g.Close()
	for _, long := range []time.Duration{b.size.Long / 5, b.size.Long} {
		p, err := b.send(ctx, g, long)
		b.sent += p.Sent
		if err != nil {
			return err
		}
		if err := p.audit(); err != nil {
			return err
		}
		if long == b.size.Long {
			to.Phases = append(to.Phases, p)
			b.say(" %.2f M frames/s", p.PPS/1e6)
		}
	}
	return nil
}

// audit wants that the counters of all labels, and those of all NHLFEs, add up to the frames that
// were sent since the daemon began.
func (b *labelBench) audit(ctx context.Context) error {
	s, err := b.client.MPLSStats(ctx, api.MPLSFilter{})
	if err != nil {
		return err
	}
	var in, out, wrong uint64
	for i := range s.InSegments {
		in += s.InSegments[i].Packets
		wrong += s.InSegments[i].Errors + s.InSegments[i].Discards
	}
	for i := range s.OutSegments {
		out += s.OutSegments[i].Packets
	}
	if in != b.sent || out != b.sent || wrong != 0 || len(s.InSegments) != b.size.Labels {
		return fmt.Errorf("bench: counters disagree: %d frames were sent, the %d in-segments have %d and %d errors, the %d out-segments %d",
			b.sent, len(s.InSegments), in, wrong, len(s.OutSegments), out)
	}
	return nil
}

func (b *labelBench) apply(ctx context.Context, lines []string) error {
	_, err := b.client.MPLSApply(ctx, api.MPLSChange{Lines: lines, Origin: "bench"})
	return err
}

// lines make labels, by their numbers from 0 on.
func (b *labelBench) lines(from, to, kind int) []string {
	lines := make([]string, 0, 2*(to-from))
	for n := from; n < to; n++ {
		lines = append(lines, b.nhlfe(n, kind), fmt.Sprintf("ilm add %d nhlfe %d", firstLabel+n, n+1))
	}
	return lines
}

// nhlfe swaps a label for the one that the sink wants, in one of several ways.
func (b *labelBench) nhlfe(n, kind int) string {
	tc := ""
	if kind > 0 {
		tc = fmt.Sprintf(" set-tc %d", kind)
	}
	return fmt.Sprintf("nhlfe replace %d swap %d%s send dev %s via inet %s", n+1, traffic.MaxLabel-n, tc, b.top.WAN.Device, b.top.Server.V4.Addr())
}

// someChanges are the next NHLFEs, replaced.
func (b *labelBench) someChanges(count int) []string {
	lines := make([]string, count)
	for i := range lines {
		lines[i] = b.nhlfe(b.next%b.size.Labels, 3+b.next/b.size.Labels%2)
		b.next++
	}
	return lines
}

// ownBytes is the memory of a process that is in no file and in no map.
func ownBytes(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("bench: /proc/%d/status has no RssAnon", pid)
}

func (f *LabelsReport) sum() {
	for _, s := range []*Spread{&f.Load, &f.Replace, &f.Changes, &f.Singly} {
		*s = spreadOf(s.Samples)
	}
	for i := range f.Counts {
		f.Counts[i].PPS = spreadOf(pps(f.Counts[i].Phases, Shunt))
	}
	f.Targets = []Target{
		atMost("seconds to load", f.Load.Median, labelsLoad.Seconds()),
		atLeast("changes a second", f.Changes.Median, labelsChanges),
	}
	f.sumSizes()
}
