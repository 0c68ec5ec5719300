// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
)

const (
	// insnConfig is the daemon's. The lease is long enough for warming up and all samples,
	// as a renewal is none of a hit's cost. It is the longest there is, and at most half of what conntrack
	// gives a connection (UDP without a reply, as it is counted: 30 s if nobody says otherwise, as we do).
	// The table is that of a machine with 8 GB, not of the guest.
	insnConfig = "lease = \"60s\"\nflows = 262144\n"
	udpTimeout = "120"
	// A million labels need a daemon and a guest with room for them.
	manyConfig, manyMemory = "labels = 1048576\n", 6144
	// Warming up: frames beside those of each flow, and pauses.
	batches      = 1024
	heatPause    = 100 * time.Millisecond
	heatPatience = 10 * time.Second
	daemons      = 5 // are tried
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
	if err := growNeighbours(); err != nil {
		return nil, err
	}
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
	mode   Mode
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

// enter makes the lab of a case, a new one for each figure: what others left in the kernel (connections,
// entries of flow tables) moves it by up to 65 instructions.
func (b *boot) enter(c insnCase) (err error) {
	if err := b.leave(); err != nil {
		return err
	}
	if b.rig, err = newRig(b.options.Binary, c.lab); err != nil {
		return err
	}
	if err := b.rig.top.LAN.NS.Sysctl("net.netfilter.nf_conntrack_udp_timeout", udpTimeout); err != nil {
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
	floor, err := b.floor(ctx, c, flows)
	if err != nil {
		return err
	}
	if err := b.enter(c); err != nil {
		return err
	}
	r := b.rig
	g, err := r.sourceOf(c.frameOf(r, flows))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
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
// as the way's. Where a case has a daemon there is one, too: it watches what the whole machine redirects, and
// that is the generator's frames as well.
func (b *boot) floor(ctx context.Context, c insnCase, flows int) (counts []float64, err error) {
	c.more = 0
	if c.frames == stacked {
		c.frames = labeled
	}
	key := floorKey{c.frames, flows, Kernel}
	if c.mode == Shunt || c.mode == Attached {
		key.mode = Beside
	}
	if known := b.floors[key]; known != nil {
		return known, nil
	}
	if err := b.enter(c); err != nil {
		return nil, err
	}
	r := b.rig
	r.xdp = "off"
	if err := r.enter(ctx, key.mode); err != nil {
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
	b.floors[key], err = r.sample(ctx, byOther, g)
	return b.floors[key], errors.Join(err, r.detachSink())
}

// ready is the router in the mode of a case, with its labels.
func (r *rig) ready(ctx context.Context, c insnCase) error {
	if err := r.enter(ctx, c.mode); err != nil || c.tables == nil {
		return err
	}
	_, err := r.client.MPLSApply(ctx, api.MPLSChange{Lines: c.lines(), Origin: "bench"})
	return err
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

// addr puts another address before a port.
func addr(p netip.Prefix, port netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(p.Addr(), port.Port())
}
