// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// Load is what keeps the CPUs busy while changes are made.
type Load string

// The loads.
const (
	LoadNone  Load = "nothing"        // of ours
	LoadLoops Load = "loops"          // two ordinary processes a CPU that never sleep
	LoadFlood Load = "loops, packets" // and a flood of packets on each CPU that the router drops
)

// BusyResult is how soon changes were obeyed beside a load, in seconds: from the change to the last
// packet that was sent after it and still got through. Changes during which the sender itself
// stood still are not among the samples.
type BusyResult struct {
	Load    Load      `json:"load"`
	P50     float64   `json:"p50_seconds"`
	P99     float64   `json:"p99_seconds"`
	Max     float64   `json:"max_seconds"`
	Hits    float64   `json:"hit_share"` // of the packets that got through, 0 to 1
	Void    int       `json:"void"`      // changes that are not among the samples
	Samples []float64 `json:"samples_seconds"`
}

const (
	busyPort = 7400
	busyEach = 500 * time.Microsecond // a packet
	// A route is blocked for so long and open for so long, in turn. A change that is not
	// obeyed in the first of these counts as that.
	busyBlocked = 200 * time.Millisecond
	busyOpen    = 100 * time.Millisecond
	// Promised time, at the 99th percentile.
	busyPromise = 0.020
	// The sender stood still if it was so late with a packet.
	busyStill = 3 * time.Millisecond
	// Least hit share: with less, nothing was measured. After each change ten packets pass the kernel,
	// and those until shunt obeys its end.
	busyHits = 0.5
	// Priority of SCHED_RR for what measures: ahead of everything that is measured.
	busyPriority = 10
)

// ChangesBusy measures how soon a route change is obeyed beside each load. changes is their number in a round.
func ChangesBusy(ctx context.Context, o Options, changes int) (*ChangesReport, error) {
	report := &ChangesReport{Head: o.head("changes --busy", 3,
		"How soon a route change is obeyed, in milliseconds, beside busy programs",
		"a flow of 2,000 packets a second, masquerade and a drop policy; its route is blocked and opened in turn; from the change to the last packet that was sent after it and got through; loops: two processes a CPU that never sleep; packets: a flood on each CPU besides, which the router drops")}
	r, err := newRig(o.Binary, lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	r.args = []string{"--lease", "30s"} // no lease hides a change that is not obeyed
	if err := r.enter(ctx, Shunt); err != nil {
		return nil, interrupted(ctx, err)
	}
	loads := []Load{LoadNone, LoadLoops, LoadFlood}
	report.Busy = make([]BusyResult, len(loads))
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		for i, load := range loads {
			b := &report.Busy[i]
			b.Load = load
			if err := b.round(ctx, r, changes); err != nil {
				return nil, interrupted(ctx, err)
			}
			o.Say("  %s %.1f ms", load, 1000*b.worst())
		}
		o.Say("\n")
	}
	for i := range report.Busy {
		b := &report.Busy[i]
		b.Hits /= float64(report.Rounds)
		sorted := slices.Sorted(slices.Values(b.Samples))
		b.P50, b.P99, b.Max = percentile(sorted, 0.5), percentile(sorted, 0.99), b.worst()
		counted := share(uint64(len(b.Samples)), uint64(len(b.Samples)+b.Void))
		report.Targets = append(report.Targets, atLeast(fmt.Sprintf("part of the changes that counts beside %s", b.Load), counted, 0.5), atMost(fmt.Sprintf("p99 in s beside %s", b.Load), b.P99, busyPromise),
			atLeast(fmt.Sprintf("hit share beside %s", b.Load), b.Hits, busyHits))
	}
	return report, r.Close()
}

// worst is the longest sample; 0 without any.
func (b *BusyResult) worst() float64 { return slices.Max(append([]float64{0}, b.Samples...)) }

// round makes changes beside a load.
func (b *BusyResult) round(ctx context.Context, r *rig, changes int) (err error) {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would stop the sender
	stop, err := r.load(ctx, b.Load)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	p, err := r.probe()
	if err != nil {
		return err
	}
	defer p.close()
	before, err := r.counters(ctx)
	if err != nil {
		return err
	}
	gate, err := r.gate(ctx)
	if err != nil {
		return err
	}
	err = p.run(ctx, gate, changes)
	if err := errors.Join(err, gate.close()); err != nil {
		return err
	}
	after, err := r.counters(ctx)
	if err != nil {
		return err
	}
	through, late, err := p.judge()
	b.Samples = append(b.Samples, late...)
	b.Void += changes - len(late)
	b.Hits += share(after.hits-before.hits, through)
	return err
}

// load starts what keeps the CPUs busy.
func (r *rig) load(ctx context.Context, load Load) (stop func() error, err error) {
	if load == LoadNone {
		return func() error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var ends []func() error
	stop = func() (err error) {
		cancel()
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}
	for range 2 * runtime.NumCPU() {
		loop := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("bench: a busy loop: %w", err), stop())
		}
		ends = append(ends, func() error { loop.Wait(); return nil }) // it was killed
	}
	for cpu := range runtime.NumCPU() {
		if load != LoadFlood {
			break
		}
		end, err := r.flood(ctx, cpu)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		ends = append(ends, end)
	}
	return stop, nil
}

// flood sends from the server as much as a CPU can, to nowhere: not by the port that the measured
// flow comes in by, whose queue would lose that, too.
func (r *rig) flood(ctx context.Context, cpu int) (end func() error, err error) {
	nowhere := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + cpu)}), 9) // for documentation (RFC 5737)
	if err := r.top.LAN.NS.IP(fmt.Sprintf("route replace blackhole %s/32", nowhere.Addr())); err != nil {
		return nil, err
	}
	g, err := traffic.NewGenerator(traffic.Config{NS: r.top.Server.NS, Device: r.top.Server.Device, CPU: cpu, Frames: traffic.Frames{
		SourceMAC: r.top.Server.MAC, DestMAC: r.top.WAN.MAC, Protocol: traffic.UDP, Size: 64, Flows: 64,
		Source: netip.AddrPortFrom(r.top.Server.V4.Addr(), 1024), Dest: nowhere,
	}})
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := g.Loop(ctx)
		done <- err
	}()
	return func() error { return errors.Join(<-done, g.Close()) }, nil
}

// promptly calls do on a thread of its own ahead of everything that is measured.
func promptly(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock the thread, and its priority, end with this goroutine
		err := prompt(0)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// prompt puts a thread ahead of everything that is measured. 0 is the calling one.
func prompt(pid int) error {
	a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: busyPriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	if err := unix.SchedSetAttr(pid, &a, 0); err != nil {
		return fmt.Errorf("bench: SCHED_RR: %w", err)
	}
	return nil
}

// gate blocks and opens the route to the server.
type gate struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	errs   strings.Builder
	server netip.Addr
}

func (r *rig) gate(ctx context.Context) (*gate, error) {
	g := &gate{server: r.top.Server.V4.Addr()}
	g.cmd = r.top.LAN.NS.Command(ctx, "ip", "-batch", "-")
	g.cmd.Stderr = &g.errs
	var err error
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: ip: %w", err)
	}
	return g, prompt(g.cmd.Process.Pid)
}

// turn makes one change.
func (g *gate) turn(verb string) error {
	_, err := fmt.Fprintf(g.in, "route %s blackhole %s/32\n", verb, g.server)
	return err
}

func (g *gate) close() error {
	g.in.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("bench: ip -batch: %w: %s", err, strings.TrimSpace(g.errs.String()))
	}
	return nil
}

// probe is a flow of numbered packets from client to server.
type probe struct {
	out, in int     // sockets
	sent    []int64 // when, by number; monotonic
	blocked []span  // when the route was
}

// span is a time from and to, monotonic.
type span struct{ from, to int64 }

func (r *rig) probe() (*probe, error) {
	p := &probe{out: -1, in: -1}
	to := &unix.SockaddrInet4{Port: busyPort, Addr: r.top.Server.V4.Addr().As4()}
	err := r.top.Server.NS.Do(func() (err error) {
		if p.in, err = udpSocket(to, nil); err == nil {
			err = unix.SetsockoptInt(p.in, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20) // read when all is over
		}
		return err
	})
	if err == nil {
		err = r.top.Client.NS.Do(func() (err error) {
			p.out, err = udpSocket(&unix.SockaddrInet4{Port: busyPort, Addr: r.top.Client.V4.Addr().As4()}, to)
			return err
		})
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("bench: %w", err)
	}
	return p, nil
}

func (p *probe) close() {
	for _, fd := range []int{p.out, p.in} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// run sends while the route is blocked and opened again, as often as there are changes.
func (p *probe) run(ctx context.Context, g *gate, changes int) error {
	return promptly(func() error {
		period := busyBlocked + busyOpen
		begin := time.Now().Add(time.Second) // the flow is learned
		due, turns := time.Now(), 0
		for turns < 2*changes && ctx.Err() == nil {
			sleepUntil(due)
			due = due.Add(busyEach)
			if at := begin.Add(time.Duration(turns/2)*period + time.Duration(turns%2)*busyBlocked); !time.Now().Before(at) {
				if err := p.turn(g, turns); err != nil {
					return err
				}
				turns++
			}
			p.sent = append(p.sent, monotonic())
			number := binary.NativeEndian.AppendUint64(make([]byte, 0, 16), uint64(len(p.sent)-1))
			if _, err := unix.Write(p.out, number); err != nil && !passing(err) {
				return fmt.Errorf("bench: send: %w", err)
			}
		}
		return ctx.Err()
	})
}

// turn blocks the route, or opens it.
func (p *probe) turn(g *gate, n int) error {
	verb := "add"
	if n%2 == 1 {
		verb = "del"
	}
	now := monotonic()
	if err := g.turn(verb); err != nil {
		return err
	}
	if n%2 == 1 {
		p.blocked[len(p.blocked)-1].to = now
	} else {
		p.blocked = append(p.blocked, span{from: now})
	}
	return nil
}

// judge reads what came and returns how much that was, and for each change until when packets got
// through, in seconds.
func (p *probe) judge() (through uint64, late []float64, err error) {
	last := make([]int64, len(p.blocked)) // zero: none
	b := make([]byte, 64)
	for {
		n, _, err := unix.Recvfrom(p.in, b, 0) // until nothing came for the time that udpSocket sets
		if err == unix.EINTR {
			continue
		}
		if err != nil || n < 8 {
			break
		}
		through++
		at := p.sent[binary.NativeEndian.Uint64(b)]
		for i, s := range p.blocked {
			if at >= s.from && at < s.to {
				last[i] = at - s.from
			}
		}
	}
	if through == 0 {
		return 0, nil, errors.New("bench: nothing came")
	}
	for i, t := range last {
		if !p.stood(p.blocked[i].from, p.blocked[i].from+t) {
			late = append(late, float64(t)/1e9)
		}
	}
	return through, late, nil
}

// stood reports whether the sender stood still between two times, or just before or after them.
func (p *probe) stood(from, to int64) bool {
	first, _ := slices.BinarySearch(p.sent, from)
	end, _ := slices.BinarySearch(p.sent, to+1)
	for i := max(first, 1); i <= min(end, len(p.sent)-1); i++ {
		if p.sent[i]-p.sent[i-1] > int64(busyStill) {
			return true
		}
	}
	return false
}
