// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// Sink counts, checks and drops the marked frames that come to a device, and
// leaves all others to the stack.
type Sink struct {
	objects sinkObjects
	link    link.Link
}

type sinkObjects struct {
	Program *ebpf.Program  `ebpf:"traffic_sink"`
	Totals  *ebpf.Map      `ebpf:"traffic_totals"`
	Flows   *ebpf.Map      `ebpf:"traffic_flows"`
	Epoch   *ebpf.Variable `ebpf:"traffic_epoch"`
}

// Stats is what a sink has met since it was attached or reset. Frames that are
// lost at the very beginning or end of a flow are in no gap: compare Frames with
// what was sent.
type Stats struct {
	Frames  uint64 // marked frames
	Bytes   uint64 // of Ethernet, without FCS
	Foreign uint64 // other frames
	Flows   uint64 // flows met

	Lost       uint64 // sequence numbers jumped over and not seen later
	Reordered  uint64 // frames that came after a later one
	Duplicates uint64 // frames that came twice within the last 64 numbers
	Latest     uint64 // numbers by which the most reordered frame was behind

	Verified   uint64 // frames looked at byte by byte; the following are among these
	BadLength  uint64 // IP and L4 say other than the frame
	BadIP      uint64 // wrong IPv4 header checksum
	BadL4      uint64 // wrong L4 checksum
	BadPayload uint64 // not the generator's pattern
}

// Bad is how many faults were found in verified frames.
func (s Stats) Bad() uint64 { return s.BadLength + s.BadIP + s.BadL4 + s.BadPayload }

// FlowStats is what a sink has met of one flow.
type FlowStats struct {
	Packets, Lost, Reordered, Duplicates uint64
	Last                                 uint32 // highest sequence number, the first one being 0
}

// AttachSink puts a sink on a device, in native mode. It verifies one frame in
// sample; 0 means 64. Close takes it away. On a veth it switches the peer's TSO off.
func AttachSink(n *lab.NS, device string, sample int) (*Sink, error) {
	return AttachLabelSink(n, device, sample, 0)
}

// AttachLabelSink puts a sink on a device that takes in frames with this MPLS label, at the
// bottom of the stack and alone; all others are foreign to it. 0: frames without a label.
func AttachLabelSink(n *lab.NS, device string, sample int, label uint32) (*Sink, error) {
	return newSink(n, device, sample, label, 0)
}

// AttachLabelsSink puts a sink on a device that takes in frames with this label if they are of
// flow 0, with the one before it if they are of flow 1, and so on.
func AttachLabelsSink(n *lab.NS, device string, sample int, label uint32) (*Sink, error) {
	return newSink(n, device, sample, label, 1)
}

func newSink(n *lab.NS, device string, sample int, label, labels uint32) (*Sink, error) {
	if sample == 0 {
		sample = 64
	}
	s := &Sink{}
	err := loadProgram(&s.objects, map[string]any{
		bpfVarTrafficSample: uint32(sample), bpfVarTrafficLabel: label, bpfVarTrafficLabels: labels,
	})
	if err != nil {
		return nil, err
	}
	if s.link, err = attach(n, device, s.objects.Program); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close detaches and frees the sink.
func (s *Sink) Close() error {
	var err error
	if s.link != nil {
		err = s.link.Close()
	}
	s.objects.Program.Close()
	s.objects.Totals.Close()
	s.objects.Flows.Close()
	return err
}

// Reset makes all figures zero, of flows too.
func (s *Sink) Reset() error {
	epoch, err := s.epoch()
	if err != nil {
		return err
	}
	return s.objects.Epoch.Set(epoch + 1)
}

func (s *Sink) epoch() (uint32, error) {
	var epoch uint32
	err := s.objects.Epoch.Get(&epoch)
	return epoch, err
}

// rows are the figures of each CPU.
func (s *Sink) rows() (rows []bpfTotals, epoch uint32, err error) {
	if epoch, err = s.epoch(); err == nil {
		err = s.objects.Totals.Lookup(uint32(0), &rows)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("traffic: sink: %w", err)
	}
	return rows, epoch, nil
}

// ByCPU returns how many marked frames each CPU has counted.
func (s *Sink) ByCPU() ([]uint64, error) {
	rows, epoch, err := s.rows()
	frames := make([]uint64, len(rows))
	for cpu, r := range rows {
		if r.Epoch == epoch {
			frames[cpu] = r.Frames
		}
	}
	return frames, err
}

// Stats adds up what all CPUs have counted.
func (s *Sink) Stats() (Stats, error) {
	rows, epoch, err := s.rows()
	if err != nil {
		return Stats{}, err
	}
	var sum Stats
	for _, r := range rows {
		if r.Epoch != epoch {
			continue
		}
		sum.Frames += r.Frames
		sum.Bytes += r.Bytes
		sum.Foreign += r.Foreign
		sum.Flows += r.Flows
		sum.Lost += r.Lost // a flow that changed its CPU may leave a negative part
		sum.Reordered += r.Reordered
		sum.Duplicates += r.Duplicates
		sum.Latest = max(sum.Latest, r.Latest)
		sum.Verified += r.Sampled
		sum.BadLength += r.BadLength
		sum.BadIP += r.BadIp
		sum.BadL4 += r.BadL4
		sum.BadPayload += r.BadPayload
	}
	return sum, nil
}

// Wait returns the stats once n frames have come, or when limit is over.
func (s *Sink) Wait(n uint64, limit time.Duration) (Stats, error) {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		stats, err := s.Stats()
		if err != nil || stats.Frames >= n || time.Now().After(deadline) {
			return stats, err
		}
	}
}

// Flow returns what was met of one flow, by its number.
func (s *Sink) Flow(id int) (FlowStats, error) {
	epoch, err := s.epoch()
	if err != nil {
		return FlowStats{}, fmt.Errorf("traffic: sink: %w", err)
	}
	var r bpfFlowRecord
	if err := s.objects.Flows.Lookup(uint32(id), &r); err != nil {
		return FlowStats{}, fmt.Errorf("traffic: flow %d: %w", id, err)
	}
	if r.Epoch != epoch {
		return FlowStats{}, nil
	}
	return FlowStats{
		Packets: r.Packets, Last: r.Last, Lost: uint64(r.Lost),
		Reordered: uint64(r.Reordered), Duplicates: uint64(r.Duplicates),
	}, nil
}
