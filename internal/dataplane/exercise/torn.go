// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Rewriter is a program that rewrites one slot over and over on a CPU of its own, from
// one entry to another and back, as slot_arm() in bpf/learn.h does it: the sequence word
// made odd by compare and swap, the fields one by one, the word made even again.
type Rewriter struct {
	prog *ebpf.Program
	stop atomic.Bool
	done chan error
	runs uint64
}

// StartRewriter puts `a` at a place and starts to alternate between the rewrites of
// `a` and `b`: all that differs between the two must be part of the rewrite.
func (r *Rig) StartRewriter(cpu int, at Place, a, b Slot) (*Rewriter, error) {
	if err := r.PutAt(at, a); err != nil {
		return nil, err
	}
	body := asm.Instructions{
		asm.LoadMapValue(asm.R6, r.maps[Flows].FD(), uint32(r.Offset(at))),
	}
	body = append(body, rewriteTo(&b, &a)...)
	body = append(body, rewriteTo(&a, &b)...)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: append(body, asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return()),
	})
	if err != nil {
		return nil, fmt.Errorf("rewriter: %w", err)
	}
	w := &Rewriter{prog: prog, done: make(chan error, 1)}
	go func() { w.done <- w.run(cpu) }()
	return w, nil
}

// rewriteTo is one locked rewrite: the words of `to` that are not those of `from`.
func rewriteTo(to, from *Slot) asm.Instructions {
	const words = int(unsafe.Sizeof(Slot{})) / 4
	new, old := (*[words]uint32)(unsafe.Pointer(to)), (*[words]uint32)(unsafe.Pointer(from))
	lock := asm.CmpXchg.Mem(asm.R6, asm.R8, asm.Word, 0)
	lock.Constant = 0xf1 // BPF_CMPXCHG: cilium/ebpf 0.22 writes this field, not the opcode's, and so an addition
	insns := asm.Instructions{
		asm.LoadMem(asm.R0, asm.R6, 0, asm.Word), // seq
		asm.JSet.Imm(asm.R0, 1, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.Add.Imm(asm.R8, 1),
		lock,
		asm.JNE.Reg(asm.R0, asm.R7, "out"),
	}
	for i := range words {
		if new[i] != old[i] {
			insns = append(insns, asm.StoreImm(asm.R6, int16(4*i), int64(int32(new[i])), asm.Word))
		}
	}
	return append(insns, asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R6, asm.R1, asm.Word, 0))
}

func (w *Rewriter) run(cpu int) error {
	runtime.LockOSThread() // never unlocked: the thread keeps its affinity, and ends
	var own unix.CPUSet
	own.Set(cpu)
	if err := unix.SchedSetaffinity(0, &own); err != nil {
		return err
	}
	const batch = 1 << 14
	for !w.stop.Load() {
		if _, err := w.prog.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: batch}); err != nil {
			return fmt.Errorf("rewriter: %w", err)
		}
		w.runs += batch
	}
	return nil
}

// Stop ends it and returns how many times it went there and back.
func (w *Rewriter) Stop() (runs uint64, err error) {
	w.stop.Store(true)
	err = <-w.done
	return w.runs, errors.Join(err, w.prog.Close())
}

// XDPLoop puts one frame through an XDP program n times in turn, on a CPU, and gives
// each outcome to `each`. The outcome's frame is overwritten by the next one.
func (r *Rig) XDPLoop(prog *ebpf.Program, cpu, index int, frame []byte, n int, each func(Outcome) error) error {
	return r.LAN.NS.Do(func() error {
		runtime.LockOSThread()
		var own unix.CPUSet
		own.Set(cpu)
		if err := unix.SchedSetaffinity(0, &own); err != nil {
			return err
		}
		out := make([]byte, len(frame)+room)
		run := ebpf.RunOptions{Data: frame, Context: xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(index)}}
		for range n {
			run.DataOut = out
			verdict, err := prog.Run(&run)
			if err != nil {
				return err
			}
			if err := each(Outcome{Verdict: verdict, Frame: run.DataOut}); err != nil {
				return err
			}
		}
		return nil
	})
}
