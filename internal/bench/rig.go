// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// Mode is what is on the router while a phase is measured.
type Mode string

// The modes.
const (
	Kernel   Mode = "kernel"   // nothing is attached
	Attached Mode = "attached" // the daemon, with a threshold that no flow reaches
	Shunt    Mode = "shunt"    // the daemon
	Limit    Mode = "limit"    // an empty XDP redirect instead
	Beside   Mode = "beside"   // the daemon, but not where frames come in
)

const (
	unreachable = "4294967295" // threshold
	// A warm-up ends when this part of a burst was hits, or with patience.
	warmBurst    = 100 * time.Millisecond
	warmHits     = 0.9
	warmPatience = 20 * time.Second
)

// rig is a firewall lab that can be switched between modes. The sink stays. It is for
// one goroutine.
type rig struct {
	top      *lab.Topology
	binary   string
	xdp      string   // the daemon's --xdp
	args     []string // more of its arguments
	sink     *traffic.Sink
	mode     Mode
	daemon   *lab.Daemon
	client   *api.Client
	redirect *traffic.Redirect
}

// newRig makes a lab of the given kind. Close removes it.
func newRig(binary string, o lab.FirewallOptions) (*rig, error) {
	top, err := lab.Firewall(o)
	if err != nil {
		return nil, err
	}
	return &rig{top: top, binary: binary, xdp: "auto", mode: Kernel}, nil
}

// newPacketRig makes the lab that frames are counted in: masquerade and a drop policy,
// with a sink at the server and every neighbour known.
func newPacketRig(binary string, fillers int) (*rig, error) {
	r, err := newRig(binary, lab.FirewallOptions{
		Name: "bench", NAT: lab.NATMasquerade, Neighbours: true, Fillers: fillers,
	})
	if err != nil {
		return nil, err
	}
	return r, r.attachSink()
}

// attachSink takes the server's device away from its stack. If it fails, the lab is removed.
func (r *rig) attachSink() (err error) {
	if r.sink, err = traffic.AttachSink(r.top.Server.NS, r.top.Server.Device, 64); err != nil {
		return errors.Join(err, r.Close())
	}
	return nil
}

// detachSink gives the server its device back.
func (r *rig) detachSink() error {
	if r.sink == nil {
		return nil
	}
	err := r.sink.Close()
	r.sink = nil
	return err
}

// Close removes all.
func (r *rig) Close() error {
	return errors.Join(r.clear(), r.detachSink(), r.top.Close())
}

// core is the CPU that generator, router and sink share. The first one has most of the
// machine's interrupts.
func core() int { return runtime.NumCPU() - 1 }

// source is a generator that remembers how long its frames are.
type source struct {
	*traffic.Generator
	size  int // bytes of Ethernet, without FCS
	flows int
}

// source makes UDP frames of size bytes from client to server, on the one core.
func (r *rig) source(size, flows int) (*source, error) {
	return r.sourceOf(r.udp(size, flows))
}

// udp lays out the frames of source.
func (r *rig) udp(size, flows int) traffic.Frames {
	return traffic.Frames{
		SourceMAC: r.top.Client.MAC, DestMAC: r.top.LAN.MAC, Protocol: traffic.UDP, Size: size, Flows: flows, Scatter: true,
		Source: netip.AddrPortFrom(r.top.Client.V4.Addr(), 1024), Dest: netip.AddrPortFrom(r.top.Server.V4.Addr(), 9),
	}
}

// sourceOf is a generator of any frames at the client, on the one core.
func (r *rig) sourceOf(f traffic.Frames) (*source, error) {
	g, err := traffic.NewGenerator(traffic.Config{
		NS: r.top.Client.NS, Device: r.top.Client.Device, CPU: core(), Frames: f,
	})
	return &source{g, f.Size, f.Flows}, err
}

// clear returns the router to the kernel alone: really detached, not paused.
func (r *rig) clear() (err error) {
	if r.daemon != nil {
		err = errors.Join(r.daemon.Stop(), r.detached())
		r.daemon, r.client = nil, nil
	}
	if r.redirect != nil {
		err = errors.Join(err, r.redirect.Close())
		r.redirect = nil
	}
	r.mode = Kernel
	return err
}

// detached waits until the router's ports have no XDP program: the kernel frees a link
// that was pinned after a grace period (bpf_free_inode, bpf_link_put).
func (r *rig) detached() error {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		out, err := r.top.LAN.NS.Run("ip", "link", "show")
		if err != nil || !strings.Contains(out, "prog/xdp") {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("bench: the daemon has ended and its XDP programs are still attached")
		}
	}
}

// enter switches the router to a mode; already being in it costs nothing.
func (r *rig) enter(ctx context.Context, mode Mode) error {
	if mode == r.mode {
		return nil
	}
	if err := r.clear(); err != nil {
		return err
	}
	switch mode {
	case Limit:
		var err error
		if r.redirect, err = traffic.AttachRedirect(r.top.LAN.NS, r.top.LAN.Device, r.top.WAN.Device); err != nil {
			return err
		}
	case Attached:
		// nothing would be repeated, and for that xdp = "auto" attaches no XDP to a veth
		if err := r.start(ctx, "--port", r.top.LAN.Device, "--threshold", unreachable, "--xdp", "on"); err != nil {
			return err
		}
	case Shunt:
		if err := r.start(ctx, "--port", r.top.LAN.Device); err != nil {
			return err
		}
	case Beside:
		if err := r.start(ctx); err != nil {
			return err
		}
	}
	r.mode = mode
	return nil
}

// start runs the daemon on the port where frames go out.
func (r *rig) start(ctx context.Context, args ...string) (err error) {
	args = append([]string{"--port", r.top.WAN.Device, "--xdp", r.xdp}, append(args, r.args...)...)
	if r.daemon, err = r.top.StartDaemon(ctx, r.top.LAN.NS, r.binary, args...); err != nil {
		return err
	}
	r.client = api.NewClient(r.daemon.Socket())
	return nil
}

// warm sends what will be measured until the router behaves as it will from then on, and
// for another while: until the daemon attaches XDP, and
// until most frames are hits if they are to be.
func (r *rig) warm(ctx context.Context, g *source, more time.Duration) error {
	// Between two bursts the whole flow table is counted, which takes longer than a flow may be idle
	// before it counts from zero again: each must be long enough for every flow to be learned.
	burst := max(warmBurst, time.Duration(g.flows*hellos)*time.Microsecond/2)
	patience := warmPatience + 10*burst
	for deadline := time.Now().Add(patience); r.daemon != nil; {
		p, err := r.send(ctx, g, burst)
		if err != nil {
			return err
		}
		fast, err := r.xdpAttached(ctx)
		if err != nil {
			return err
		}
		if fast && (r.mode == Attached || p.HitShare() >= warmHits) {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("bench: %s: the daemon does not become fast in %v (XDP attached: %t, hits: %.0f %%); its log ends: %s",
				r.mode, patience, fast, 100*p.HitShare(), tail(r.daemon.Log()))
		}
	}
	_, err := r.send(ctx, g, more)
	return err
}

func (r *rig) xdpAttached(ctx context.Context) (bool, error) {
	if r.xdp == "off" {
		return true, nil
	}
	ports, err := r.client.Ports(ctx)
	for _, p := range ports {
		if p.Name == r.top.LAN.Device {
			return p.XDPReceive, err
		}
	}
	return false, err
}

// tail is the last line of a log.
func tail(log string) string {
	lines := splitLines(log)
	if len(lines) == 0 {
		return "(empty)"
	}
	return lines[len(lines)-1]
}
