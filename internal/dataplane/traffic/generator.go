// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

const (
	// chunk is the most frames one call of BPF_PROG_RUN sends. It takes 2 to
	// 50 ms, which is how soon Run notices that its context has ended.
	chunk = 1 << 14
	// batch frames are made before softirqs may run. A veth queues 256.
	batch = 64
	// tick is how often a generator with a rate sends.
	tick = time.Millisecond
)

// Config says what a generator sends, where, and how.
type Config struct {
	NS     *lab.NS
	Device string  // in NS, where frames go out
	CPU    int     // the thread that sends is pinned to it; softirqs follow. -1: not pinned
	Rate   float64 // frames per second; 0: as fast as it goes
	Start  uint64  // frames of the same flows that were sent before, by another generator
	Smooth bool    // with a rate: never sleep, for a router on another CPU that is to be kept busy evenly
	Frames
}

// Generator sends frames. It keeps its place: a second Run goes on with the
// next flow and sequence number. It is not safe for concurrent use.
type Generator struct {
	config  Config
	frame   []byte
	objects generatorObjects
	tap     *os.File
	link    link.Link
}

type generatorObjects struct {
	Program *ebpf.Program  `ebpf:"traffic_generate"`
	Out     *ebpf.Map      `ebpf:"traffic_out"`
	Cursor  *ebpf.Variable `ebpf:"traffic_cursor"`
}

// Result is what one Run did.
type Result struct {
	Sent     uint64 // frames handed to the device; it may still drop them
	Duration time.Duration
}

// Rate is frames per second.
func (r Result) Rate() float64 { return float64(r.Sent) / r.Duration.Seconds() }

// NewGenerator loads a generator. Close frees it.
func NewGenerator(c Config) (*Generator, error) {
	if err := c.Frames.check(); err != nil {
		return nil, err
	}
	frame, template := c.Frames.template()
	return load(c, frame, template)
}

func load(c Config, frame []byte, template bpfFrameTemplate) (*Generator, error) {
	g := &Generator{config: c, frame: append(make([]byte, c.Room), frame...)}
	flows := uint64(c.Flows)
	err := loadProgram(&g.objects, map[string]any{
		bpfVarTrafficTemplate: template,
		bpfVarTrafficCursor:   bpfCursor{Flow: uint32(c.Start % flows * uint64(c.step()) % flows), Seq: uint32(c.Start / flows)},
	})
	if err != nil {
		return nil, err
	}
	if err = sendTo(c.NS, c.Device, g.objects.Out); err == nil {
		err = g.register()
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// register keeps the program in the kernel's XDP dispatcher between calls of
// BPF_PROG_RUN, by attaching it to a tap that is never up and goes with the
// generator. Otherwise each call would put it in and take it out again, and wait
// for an RCU grace period both times (bpf_dispatcher_update): 25 ms in all.
func (g *Generator) register() error {
	return g.config.NS.Do(func() error {
		// The tap is made in the namespace of the thread that opens the device.
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("traffic: /dev/net/tun: %w; the kernel needs CONFIG_TUN", err)
		}
		g.tap = os.NewFile(uintptr(fd), "/dev/net/tun")
		request, err := unix.NewIfreq("generator%d")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return fmt.Errorf("traffic: make a tap: %w", err)
		}
		g.link, err = attachHere(request.Name(), g.objects.Program)
		return err
	})
}

// Close frees the program. Frames under way are not affected.
func (g *Generator) Close() error {
	if g.link != nil {
		g.link.Close()
	}
	if g.tap != nil {
		g.tap.Close()
	}
	g.objects.Program.Close()
	return g.objects.Out.Close()
}

// Run sends count frames, or fewer if ctx ends before; that is no error.
func (g *Generator) Run(ctx context.Context, count uint64) (Result, error) {
	var r Result
	err := g.config.NS.Do(func() error {
		err := g.pin()
		if err != nil {
			return err
		}
		r, err = g.send(ctx, count)
		return err
	})
	return r, err
}

// Burst sends n frames in one call of the kernel and returns how long it took by the clock. Run
// would make several, each of which allocates the pages of its batch anew.
func (g *Generator) Burst(n uint32) (took time.Duration, err error) {
	err = g.config.NS.Do(func() error {
		if err := g.pin(); err != nil {
			return err
		}
		start := time.Now()
		err := g.burst(uint64(n))
		took = time.Since(start)
		return err
	})
	return took, err
}

// pin keeps this thread on the configured CPU, and the goroutine on this thread for good:
// the thread goes with its affinity.
func (g *Generator) pin() error {
	if g.config.CPU < 0 {
		return nil
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(g.config.CPU)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("traffic: pin to CPU %d: %w", g.config.CPU, err)
	}
	return nil
}

// Loop sends until ctx ends: load in the background.
func (g *Generator) Loop(ctx context.Context) (Result, error) {
	return g.Run(ctx, 1<<63)
}

// send sends chunk by chunk, and sleeps between them if there is a rate.
func (g *Generator) send(ctx context.Context, count uint64) (Result, error) {
	var r Result
	start := time.Now()
	for r.Sent < count && ctx.Err() == nil {
		n := min(count-r.Sent, chunk)
		if g.config.Rate > 0 {
			due := uint64(time.Since(start).Seconds() * g.config.Rate)
			if g.config.Smooth && due < min(r.Sent+batch, count) {
				continue
			}
			if due <= r.Sent {
				time.Sleep(tick)
				continue
			}
			n = min(n, due-r.Sent)
		}
		if err := g.burst(n); err != nil {
			return r, err
		}
		r.Sent += n
		r.Duration = time.Since(start)
	}
	return r, nil
}

// burst sends exactly n frames.
func (g *Generator) burst(n uint64) error {
	// The kernel starts over when a signal comes: the program counts for itself.
	if err := g.arm(n); err != nil {
		return err
	}
	_, err := g.objects.Program.Run(&ebpf.RunOptions{
		Data:      g.frame,
		Repeat:    uint32(n),
		BatchSize: batch,
		Flags:     unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	})
	if err != nil {
		return fmt.Errorf("traffic: run the generator: %w", err)
	}
	return nil
}

// arm lets the program send n frames from where it stands.
func (g *Generator) arm(n uint64) error {
	var c bpfCursor
	err := g.objects.Cursor.Get(&c)
	if err == nil {
		c.Left = n
		err = g.objects.Cursor.Set(c)
	}
	if err != nil {
		return fmt.Errorf("traffic: cursor: %w", err)
	}
	return nil
}
