// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"
)

// Verdicts of the programs (enum xdp_action, enum tcx_action_base, TC_ACT_REDIRECT).
const (
	XDPDrop     = 1
	XDPPass     = 2
	XDPRedirect = 4
	TCNext      = 0xffffffff
	TCDrop      = 2
	TCRedirect  = 7
)

// Buffer is the part of struct __sk_buff that BPF_PROG_RUN takes and gives back.
type Buffer struct {
	Mark, Priority   uint32
	GSOSegs, GSOSize uint32
}

// skBuff is struct __sk_buff (linux/bpf.h): what a TC program's context may hold.
type skBuff struct {
	Len, PktType, Mark, QueueMapping uint32
	Protocol, VlanPresent, VlanTCI   uint32
	VlanProto, Priority              uint32
	IngressIfindex, Ifindex          uint32
	TCIndex                          uint32
	CB                               [5]uint32
	Hash, TCClassid, Data, DataEnd   uint32
	NapiID, Family, RemoteIP4        uint32
	LocalIP4                         uint32
	RemoteIP6, LocalIP6              [4]uint32
	RemotePort, LocalPort, DataMeta  uint32
	FlowKeys, Tstamp                 uint64
	WireLen, GSOSegs                 uint32
	SK                               uint64
	GSOSize                          uint32
	TstampType                       uint8
	Pad1                             [3]byte
	Hwtstamp                         uint64
}

// xdpMD is struct xdp_md.
type xdpMD struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }

// Outcome is what a program made of a frame.
type Outcome struct {
	Verdict uint32
	Frame   []byte
	Buffer  Buffer // TC programs only
	Marked  bool   // XDP only: TC ingress is to look at it
}

// room is for frames that grow.
const room = 64

// XDP puts a frame through the XDP program as if it came in by a port.
func (r *Rig) XDP(index int, frame []byte) (Outcome, error) {
	return r.xdp(index, frame, 0)
}

// mark is enum mark_magic of bpf/abi.h, as it stands in front of a frame.
var mark = binary.NativeEndian.AppendUint32(nil, 0x73687574)

// MetaMax is how much metadata there is room for: XDP_PACKET_HEADROOM without struct
// xdp_frame (bpf_xdp_adjust_meta()).
const MetaMax = 256 - 40

// XDPUnmarkable is XDP by a driver that has no room left for metadata.
func (r *Rig) XDPUnmarkable(index int, frame []byte) (Outcome, error) {
	return r.xdp(index, frame, MetaMax)
}

// xdp runs the XDP program with so many bytes of metadata in front of the frame.
func (r *Rig) xdp(index int, frame []byte, meta int) (o Outcome, err error) {
	return r.XDPBy(r.programs["shunt_xdp"], index, frame, meta)
}

// XDPOn puts the same frame through the XDP program several times, on one CPU.
func (r *Rig) XDPOn(cpu, index int, frame []byte, times int) error {
	return r.LAN.NS.Do(func() error {
		runtime.LockOSThread() // never unlocked: the thread keeps its affinity, and ends
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		ctx := xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(index)}
		_, err := r.programs["shunt_xdp"].Run(&ebpf.RunOptions{Data: frame, Context: ctx, Repeat: uint32(times)})
		return err
	})
}

// XDPBy puts a frame through an XDP program of shunt's, with so many bytes of metadata in front.
func (r *Rig) XDPBy(prog *ebpf.Program, index int, frame []byte, meta int) (o Outcome, err error) {
	ctx := xdpMD{Data: uint32(meta), DataEnd: uint32(meta + len(frame)), IngressIfindex: uint32(index)}
	after := make([]byte, binary.Size(ctx))
	run := ebpf.RunOptions{
		Data: append(make([]byte, meta), frame...), DataOut: make([]byte, meta+len(frame)+room),
		Context: ctx, ContextOut: after,
	}
	err = r.LAN.NS.Do(func() (err error) {
		o.Verdict, err = prog.Run(&run)
		return err
	})
	if err != nil {
		return o, fmt.Errorf("run %v on %d bytes: %w", prog, len(frame), err)
	}
	if _, err := binary.Decode(after, binary.NativeEndian, &ctx); err != nil {
		return o, err
	}
	o.Frame = run.DataOut[ctx.Data:]
	o.Marked = bytes.Equal(run.DataOut[:ctx.Data], mark)
	return o, nil
}

// tc puts a frame through a TC program. The caller is in the router's namespace.
func (r *Rig) tc(name string, index int, frame []byte, b Buffer) (Outcome, error) {
	out := make([]byte, len(frame)+room)
	ctx := skBuff{
		Mark: b.Mark, Priority: b.Priority, GSOSegs: b.GSOSegs, GSOSize: b.GSOSize,
		IngressIfindex: uint32(index), Ifindex: uint32(index),
	}
	after := make([]byte, binary.Size(ctx))
	run := ebpf.RunOptions{Data: frame, DataOut: out, Context: ctx, ContextOut: after}
	v, err := r.programs[name].Run(&run)
	if err != nil {
		return Outcome{}, fmt.Errorf("run %s on %d bytes: %w", name, len(frame), err)
	}
	if _, err := binary.Decode(after, binary.NativeEndian, &ctx); err != nil {
		return Outcome{}, err
	}
	return Outcome{Verdict: v, Frame: run.DataOut, Buffer: Buffer{ctx.Mark, ctx.Priority, ctx.GSOSegs, ctx.GSOSize}}, nil
}

// Ingress puts a frame through the TC ingress program of a port without XDP.
func (r *Rig) Ingress(index int, frame []byte, b Buffer) (Outcome, error) {
	return r.ingress("shunt_ingress", index, frame, b)
}

// AfterXDP puts a frame without a mark through the TC ingress program of a port with XDP.
func (r *Rig) AfterXDP(index int, frame []byte, b Buffer) (Outcome, error) {
	return r.ingress("shunt_after_xdp", index, frame, b)
}

func (r *Rig) ingress(program string, index int, frame []byte, b Buffer) (o Outcome, err error) {
	err = r.LAN.NS.Do(func() error {
		o, err = r.tc(program, index, frame, b)
		return err
	})
	return o, err
}

// Through puts a frame through TC ingress at one port and at once, on the same CPU,
// another through TC egress at the other. The kernel's allocator nearly always gives
// the second skb the memory of the first; nothing is forwarded.
func (r *Rig) Through(in, out int, first, second []byte) (ingress, egress Outcome, err error) {
	err = r.LAN.NS.Do(func() error {
		runtime.LockOSThread() // never unlocked: the thread keeps its affinity, and ends
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		if ingress, err = r.tc("shunt_ingress", in, first, Buffer{}); err != nil {
			return err
		}
		egress, err = r.tc("shunt_egress", out, second, Buffer{})
		return err
	})
	return ingress, egress, err
}
