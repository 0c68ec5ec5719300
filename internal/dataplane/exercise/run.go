package exercise

import (
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
}

// room is for frames that grow; none does today.
const room = 64

// XDP puts a frame through the XDP program as if it came in by a port.
func (r *Rig) XDP(index int, frame []byte) (Outcome, error) {
	o := Outcome{Frame: make([]byte, len(frame)+room)}
	run := ebpf.RunOptions{
		Data: frame, DataOut: o.Frame,
		Context: xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(index)},
	}
	err := r.LAN.NS.Do(func() (err error) {
		o.Verdict, err = r.programs["shunt_xdp"].Run(&run)
		return err
	})
	o.Frame = run.DataOut
	if err != nil {
		return o, fmt.Errorf("run shunt_xdp on %d bytes: %w", len(frame), err)
	}
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
	return Outcome{v, run.DataOut, Buffer{ctx.Mark, ctx.Priority, ctx.GSOSegs, ctx.GSOSize}}, nil
}

// Ingress puts a frame through the TC ingress program as if it came in by a port.
func (r *Rig) Ingress(index int, frame []byte, b Buffer) (o Outcome, err error) {
	err = r.LAN.NS.Do(func() error {
		o, err = r.tc("shunt_ingress", index, frame, b)
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
