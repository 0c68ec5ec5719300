// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// labelled sends small UDP frames with a label from the client, on a CPU.
func (r *rig) labelled(cpu int, label uint32, rate float64) *traffic.Generator {
	r.t.Helper()
	g, err := traffic.NewGenerator(traffic.Config{
		NS: r.Client.NS, Device: r.Client.Device, CPU: cpu, Rate: rate,
		Frames: traffic.Frames{
			SourceMAC: r.Client.MAC, DestMAC: r.LAN.MAC, Protocol: traffic.UDP, Size: 64, Flows: 20, Label: label,
			Source: netip.AddrPortFrom(r.Client.V4.Addr(), uint16(clientPort+1000*cpu)),
			Dest:   netip.AddrPortFrom(r.Server.V4.Addr(), servicePort),
		},
	})
	r.must(err)
	r.t.Cleanup(func() { g.Close() })
	return g
}

// labelSink takes in the frames that come to the server with label 200.
func (r *rig) labelSink() *traffic.Sink {
	r.t.Helper()
	s, err := traffic.AttachLabelSink(r.Server.NS, r.Server.Device, 16, 200)
	r.must(err)
	r.t.Cleanup(func() { s.Close() })
	return s
}

// swapToServer are the tables that swap 100 for 200.
func (r *rig) swapToServer() []string {
	return []string{"nhlfe add 7 swap 200 send dev wan via inet " + r.Server.V4.Addr().String(), "ilm add 100 nhlfe 7", "space set lan 0"}
}

// TestLabelsUnderTraffic: whatever happens to the daemon, no frame with a label is lost, and
// what an earlier one had loaded goes. After stop nothing is left.
func TestLabelsUnderTraffic(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	args := with("--xdp", "on")
	r.start(program, args...)
	r.labelsApply(r.swapToServer()...)
	sink := r.labelSink()
	stop := r.background(r.labelled(1, 100, 20000))
	time.Sleep(200 * time.Millisecond)
	mine := r.loaded()
	if n := len(mine["map"]); n < 10 || len(mine["prog"]) < 3 {
		t.Fatalf("the daemon has loaded %v", mine)
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"killed", func() { r.daemon.Kill9(); time.Sleep(300 * time.Millisecond); r.start(program, args...) }},
		{"terminated", func() { r.terminate(); r.start(program, args...) }},
		{"upgraded", func() { r.terminate(); r.start(upgrade, args...) }},
		{"replaced", func() {
			r.labelsApply("nhlfe replace 7 swap 200 set-tc 3 send dev wan via inet "+r.Server.V4.Addr().String(), "ilm add 101 tc 3 nhlfe 7")
		}},
		{"killed again", func() { r.daemon.Kill9(); r.start(upgrade, args...) }},
	} {
		before, err := sink.Stats()
		r.must(err)
		step.do()
		time.Sleep(200 * time.Millisecond)
		after, err := sink.Stats()
		r.must(err)
		if after.Frames-before.Frames < 2000 || after.Lost > 0 {
			t.Errorf("%s: from %+v to %+v", step.name, before, after)
		}
		now := r.loaded()
		for kind, ids := range now {
			mine[kind] = append(mine[kind], ids...)
		}
		r.eventually(step.name+": only the tables in use are there", patience, func() bool {
			there := r.there(mine)
			for kind, ids := range there {
				for _, id := range ids {
					if !slices.Contains(now[kind], id) {
						return false
					}
				}
			}
			return true
		})
	}
	sent := stop()
	r.whole("over all daemons", sink, sent.Sent)
	r.must(r.daemon.Stop())
	r.nothing()
	r.eventually("no map and no program is left", patience, func() bool {
		left := r.there(mine)
		return len(left["map"])+len(left["prog"]) == 0
	})
}

var loadedID = regexp.MustCompile(`(?m)^(map|prog)_id:\s*(\d+)$`)

// loaded are the IDs of all maps and programs that the daemon holds.
func (r *rig) loaded() map[string][]string {
	r.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", r.daemon.PID()))
	r.must(err)
	ids := map[string][]string{}
	for _, file := range files {
		text, _ := os.ReadFile(file) // some are closed by now
		for _, m := range loadedID.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(ids[m[1]], m[2]) {
				ids[m[1]] = append(ids[m[1]], m[2])
			}
		}
	}
	return ids
}

// there are those of them that the kernel still has. Their numbers are asked for alone: to open a
// table that is about to go, as bpftool does, makes it stay for ever if that is done twice before
// the kernel's worker comes to it (prog_array_map_clear() takes a reference each time).
func (r *rig) there(ids map[string][]string) map[string][]string {
	r.t.Helper()
	left := map[string][]string{}
	for kind, next := range map[string]uintptr{"prog": unix.BPF_PROG_GET_NEXT_ID, "map": unix.BPF_MAP_GET_NEXT_ID} {
		var from struct{ start, next, flags uint32 } // union bpf_attr
		for {
			_, _, errno := unix.Syscall(unix.SYS_BPF, next, uintptr(unsafe.Pointer(&from)), unsafe.Sizeof(from))
			if errno == unix.ENOENT {
				break
			}
			if errno != 0 {
				r.t.Fatalf("numbers of %ss: %v", kind, errno)
			}
			if id := fmt.Sprint(from.next); slices.Contains(ids[kind], id) {
				left[kind] = append(left[kind], id)
			}
			from.start = from.next
		}
	}
	return left
}

// TestLabelCountersOnAllQueues: two CPUs send to two queues as fast as they can, and all counters
// are those of the frames, to the packet. A veth's queue holds 256 frames and loses what comes
// while it is full, so what came in and went out is what the kernel's own counters say.
func TestLabelCountersOnAllQueues(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.twoQueues()
	r.start(program, with("--xdp", "on")...)
	r.labelsApply(r.swapToServer()...)
	sink := r.labelSink()
	const n = 1_000_000
	r.both(n, func(cpu int) *traffic.Generator { return r.labelled(cpu, 100, 0) })
	came := r.settled(r.LAN, "rx", "xdp_redirect")
	const strays = 50_000
	r.both(strays, func(cpu int) *traffic.Generator { return r.labelled(cpu, 999, 0) })
	strayed := r.settled(r.LAN, "rx", "xdp_drops").sum
	t.Logf("of %d frames and %d strays %d and %d came", 2*n, 2*strays, came.sum, strayed)
	if came.sum < n/10 || strayed < strays/10 || len(came.queues) != 2 || slices.Min(came.queues) < n/100 {
		t.Fatalf("too few frames came: %+v, and %d strays", came, strayed)
	}
	if all := r.settled(r.LAN, "rx", "xdp_packets").sum; all-came.sum-strayed > 100 { // the stack's own
		t.Errorf("of %d frames %d were passed up", all, all-came.sum-strayed)
	}

	left := r.settled(r.WAN, "tx", "xdp_xmit")
	lost := r.settled(r.WAN, "tx", "xdp_xmit_errors")
	got, err := sink.Wait(left.sum, patience)
	r.must(err)
	if got.Frames != left.sum || left.sum+lost.sum != came.sum || got.Bad() > 0 {
		t.Errorf("%d came, %d left, %d did not fit into the next queue, arrived: %+v", came.sum, left.sum, lost.sum, got)
	}
	if no := r.count("mpls_no_label"); no != strayed {
		t.Errorf("%d strays came, %d are counted", strayed, no)
	}
	s, err := r.api.MPLSStats(context.Background(), api.MPLSFilter{})
	r.must(err)
	octets := came.sum * (64 - 14)
	in, out := s.InSegments[0], s.OutSegments[0]
	if in.Packets != came.sum || in.HCOctets != octets || in.Errors+in.Discards > 0 {
		t.Errorf("in-segment: %+v", in)
	}
	if out.Packets != came.sum || out.HCOctets != octets || out.Errors+out.Discards > 0 {
		t.Errorf("out-segment: %+v", out)
	}
	for _, i := range s.Interfaces[:2] { // the platform, and lan
		if i.InLabelLookupFailures != strayed || i.Reasons["mpls_no_label"] != strayed || len(i.Reasons) != 1 {
			t.Errorf("%s: %+v", i.Name, i)
		}
	}
	if switched := r.count("mpls_switched"); switched != came.sum {
		t.Errorf("%d switched", switched)
	}
}

// twoQueues has what comes to the router, and to the server, queue by the CPU it was sent on.
func (r *rig) twoQueues() {
	r.t.Helper()
	for _, e := range []lab.End{r.LAN, r.Server} {
		_, err := e.NS.Run("ethtool", "-L", e.Device, "rx", "2")
		r.must(err)
	}
}

// queues is one of the kernel's counters of a veth.
type queues struct {
	sum    uint64
	queues []uint64
}

// settled reads a counter of all queues of one direction once it stands still.
func (r *rig) settled(e lab.End, direction, counter string) (now queues) {
	r.t.Helper()
	line := regexp.MustCompile(`(?m)^\s*` + direction + `_queue_\d+_` + counter + `: (\d+)$`)
	last, same := uint64(0), 0
	r.eventually(e.Device+" stands still", patience, func() bool {
		text, err := e.NS.Run("ethtool", "-S", e.Device)
		r.must(err)
		now = queues{}
		for _, m := range line.FindAllStringSubmatch(text, -1) {
			n, err := strconv.ParseUint(m[1], 10, 64)
			r.must(err)
			now.sum += n
			now.queues = append(now.queues, n)
		}
		if same++; now.sum != last {
			same = 0
		}
		last = now.sum
		return same == 20
	})
	if len(now.queues) == 0 {
		r.t.Fatalf("%s has no counter %s", e.Device, counter)
	}
	return now
}

// both sends n frames from each of two CPUs at a time.
func (r *rig) both(n uint64, generator func(cpu int) *traffic.Generator) {
	r.t.Helper()
	var all sync.WaitGroup
	for cpu := range 2 {
		g := generator(cpu)
		all.Go(func() {
			if sent, err := g.Run(context.Background(), n); err != nil || sent.Sent != n {
				r.t.Errorf("CPU %d sent %d: %v", cpu, sent.Sent, err)
			}
		})
	}
	all.Wait()
}

// TestLabelsEnd: without a label space frames are the kernel's, which drops them, and the space's
// table goes with its last label, if it is not space 0.
func TestLabelsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	in7 := []string{r.swapToServer()[0], "ilm add 100 space 7 nhlfe 7", "space set lan 7"}
	r.labelsApply(in7...)
	sink, g := r.labelSink(), r.labelled(1, 100, 0)
	const n = 1000
	r.send(g, n)
	r.whole("with a space", sink, n)
	maps := len(r.loaded()["map"])

	r.labelsApply("space set lan off")
	r.send(g, n)
	r.eventually("frames are the kernel's", patience, func() bool { return r.count("mpls_off") == n })
	r.labelsApply("ilm del 100 space 7", "nhlfe del 7")
	// the daemon's own view of the table goes with its garbage; the kernel's is what counts
	if now := len(r.loaded()["map"]); now != maps-1 {
		t.Errorf("%d maps with a label space, %d without", maps, now)
	}
	if got, err := sink.Stats(); err != nil || got.Frames != n {
		t.Errorf("%+v, %v", got, err)
	}
	r.labelsApply(in7...)
	r.must(sink.Reset())
	r.send(g, n)
	r.whole("with a space again", sink, n)
	r.must(r.daemon.Stop())
	r.nothing()
}
