// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// lsrWay is one direction through a router: a generator, and the sink that wants what an operation makes of
// its frames. It takes no other frame, so EtherType, label and stack depth are verified of each.
type lsrWay struct {
	*source
	sink     *traffic.Sink
	redirect *traffic.Redirect // back, where the rig's own has nothing
	labels   []uint32          // the frames', the top first
}

// ways are the directions that are used at so many cores: forth on the last core, back on the first. They are
// made, as they are closed, at the same time: most of it is waiting for the kernel.
func (l *lsr) ways(r *rig, of *LSRResult) ([]*lsrWay, error) {
	ways, errs := make([]*lsrWay, of.Cores), make([]error, of.Cores)
	together(of.Cores, func(i int) { ways[i], errs[i] = newLSRWay(r, of, i == 1) })
	return ways, errors.Join(errs...)
}

// closeWays frees those that were made.
func closeWays(ways []*lsrWay) error {
	errs := make([]error, len(ways))
	together(len(ways), func(i int) {
		if ways[i] != nil {
			errs[i] = ways[i].Close()
		}
	})
	return errors.Join(errs...)
}

// together calls do with 0 to n-1, each in a goroutine, and waits for all.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

func newLSRWay(r *rig, of *LSRResult, back bool) (w *lsrWay, err error) {
	from, router, to, beyond, cpu := r.top.Client, r.top.LAN, r.top.Server, lab.BeyondServer, core()
	if back {
		from, router, to, beyond, cpu = r.top.Server, r.top.WAN, r.top.Client, lab.BeyondClient, 0
	}
	in, out := of.Operation.Labels(back)
	f := traffic.Frames{SourceMAC: from.MAC, DestMAC: router.MAC, Protocol: traffic.UDP, Size: of.BytesIn,
		Source: netip.AddrPortFrom(from.V4.Addr(), 1024), Dest: netip.AddrPortFrom(to.V4.Addr(), 9)}
	if of.Operation == lab.OpPush {
		f.Dest = netip.AddrPortFrom(beyond.Addr().Next(), f.Dest.Port())
	}
	if len(in) > 0 {
		f.Label = in[0]
	}
	if len(in) > 1 {
		f.Beneath = in[1]
	}
	w = &lsrWay{labels: in}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
			w = nil
		}
	}()
	g, err := traffic.NewGenerator(traffic.Config{NS: from.NS, Device: from.Device, CPU: cpu, Frames: f})
	if err != nil {
		return w, err
	}
	w.source = &source{Generator: g, size: of.BytesIn}
	if back && r.mode == Limit {
		if w.redirect, err = traffic.AttachRedirect(router.NS, r.top.WAN.Device, r.top.LAN.Device); err != nil {
			return w, err
		}
	}
	w.sink, err = traffic.AttachLabelSink(to.NS, to.Device, 64, out)
	return w, err
}

// Close frees all that there is.
func (w *lsrWay) Close() (err error) {
	if w.source != nil {
		err = w.source.Close()
	}
	if w.redirect != nil {
		err = errors.Join(err, w.redirect.Close())
	}
	if w.sink != nil {
		err = errors.Join(err, w.sink.Close())
	}
	return err
}

// send sends until ctx ends, and counts what came.
func (w *lsrWay) send(ctx context.Context) (p LSRPhase, err error) {
	if err := w.sink.Reset(); err != nil {
		return p, err
	}
	sent, err := w.Loop(ctx)
	if err != nil {
		return p, err
	}
	if p.stats, err = w.sink.Wait(sent.Sent, 200*time.Millisecond); err != nil {
		return p, err
	}
	p.Sent, p.Sunk, p.Reordered = sent.Sent, p.stats.Frames, p.stats.Reordered
	if sent.Duration > 0 {
		p.PPS = float64(p.Sunk) / sent.Duration.Seconds()
	}
	return p, nil
}
