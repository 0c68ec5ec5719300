// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"

	"shunt/internal/dataplane/traffic"
)

// labelSizes are lengths of frames in bytes, of Ethernet without FCS.
var labelSizes = []int{64, 128, 256, 512, 1024, 1500}

// What a swap is to reach of an empty redirect, and of a plain IP packet of the same length.
const swapOfLimit, swapOfIP = 0.85, 1

// LabelsBySize is for frames of one length: frames per second on one core.
type LabelsBySize struct {
	Bytes int    `json:"bytes"` // of Ethernet, without FCS
	Limit Spread `json:"limit"` // an empty redirect, of the same frames
	IP    Spread `json:"ip"`    // a fast flow, routed, by a port without a label space
	One   Spread `json:"one"`   // a label is swapped
	All   Spread `json:"all"`   // labels in turn are, of LabelsReport.Labels
	// Of One, the median over the rounds.
	OfLimit float64 `json:"of_limit"`
	OfIP    float64 `json:"of_ip"`
}

// bySize has an empty redirect, plain IP and a swap of each length, one right after the other, so
// that what the machine does beside hits them alike.
func (b *labelBench) bySize(ctx context.Context) error {
	for i := range labelSizes {
		row := &b.report.Sizes[i]
		for _, of := range []struct {
			mode  Mode
			label uint32 // that frames come with
			sink  func() (*traffic.Sink, error)
			to    *Spread
		}{
			{Limit, firstLabel, b.sinkOf(firstLabel), &row.Limit},
			{Shunt, 0, b.sinkOf(0), &row.IP},
			{Shunt, firstLabel, b.sinkOf(traffic.MaxLabel), &row.One},
		} {
			if err := b.enter(ctx, of.mode); err != nil {
				return err
			}
			if of.label != 0 && of.mode == Shunt {
				if err := b.apply(ctx, append(b.lines(0, 1, 0), "space set "+b.top.LAN.Device+" 0")); err != nil {
					return err
				}
			}
			err := b.detachSink()
			if err == nil {
				b.sink, err = of.sink()
			}
			if err != nil {
				return err
			}
			f := b.udp(row.Bytes, 1)
			f.Label = of.label
			if err := b.take(ctx, f, of.to); err != nil {
				return fmt.Errorf("%w (%d bytes)", err, row.Bytes)
			}
		}
	}
	return errors.Join(b.clear(), b.detachSink())
}

// sinkOf is a sink for frames with a label, or without one.
func (b *labelBench) sinkOf(label uint32) func() (*traffic.Sink, error) {
	return func() (*traffic.Sink, error) {
		return traffic.AttachLabelSink(b.top.Server.NS, b.top.Server.Device, 64, label)
	}
}

// take measures frames as they go now, audited.
func (b *labelBench) take(ctx context.Context, f traffic.Frames, to *Spread) error {
	g, err := b.sourceOf(f)
	if err != nil {
		return err
	}
	defer g.Close()
	long := b.size.Long / 5
	p, err := b.measure(ctx, b.mode, g, long/5, long)
	if err == nil {
		to.Samples = append(to.Samples, p.PPS)
	}
	return err
}

// allBySize has frames of each length with all labels switched.
func (b *labelBench) allBySize(ctx context.Context) error {
	for i := range b.report.Sizes {
		row := &b.report.Sizes[i]
		f := b.frames(b.size.Labels)
		f.Size = row.Bytes
		g, err := b.sourceOf(f)
		if err != nil {
			return err
		}
		p, err := b.send(ctx, g, b.size.Long/5)
		b.sent += p.Sent
		if err = errors.Join(err, g.Close()); err == nil {
			err = p.audit()
		}
		if err != nil {
			return fmt.Errorf("%w (%d bytes)", err, row.Bytes)
		}
		row.All.Samples = append(row.All.Samples, p.PPS)
	}
	return nil
}

// sumSizes judges a swap of each length by what is beside it.
func (f *LabelsReport) sumSizes() {
	for i := range f.Sizes {
		row := &f.Sizes[i]
		row.OfLimit = median(ratios(row.One.Samples, row.Limit.Samples))
		row.OfIP = median(ratios(row.One.Samples, row.IP.Samples))
		for _, s := range []*Spread{&row.Limit, &row.IP, &row.One, &row.All} {
			*s = spreadOf(s.Samples)
		}
		f.Targets = append(f.Targets,
			atLeast(fmt.Sprintf("swap of the limit, %d bytes", row.Bytes), row.OfLimit, swapOfLimit),
			atLeast(fmt.Sprintf("swap of plain IP, %d bytes", row.Bytes), row.OfIP, swapOfIP))
	}
}
