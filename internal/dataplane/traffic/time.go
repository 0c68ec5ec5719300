package traffic

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// progTestRun is what BPF_PROG_TEST_RUN takes: `test` in union bpf_attr of linux/bpf.h.
type progTestRun struct {
	fd, result                  uint32
	sizeIn, sizeOut             uint32
	dataIn, dataOut             uint64
	repeat, duration            uint32
	contextSizeIn, contextOut   uint32
	contextIn, contextOutBuffer uint64
	flags, cpu, batch           uint32
	_                           uint32
}

// Time sends n frames in one call and returns the time that the kernel says each of them
// took, in whole nanoseconds: sending and, where softirqs run on the same CPU, all that
// became of the frame. What other tasks did when they were let in between two batches is left out
// (bpf_test_timer_continue), and so is setting the run up. An interrupted run is an error;
// what it had sent by then is sent.
func (g *Generator) Time(n uint32) (perFrame uint32, err error) {
	err = g.config.NS.Do(func() error {
		if err := g.pin(); err != nil {
			return err
		}
		if err := g.arm(uint64(n)); err != nil {
			return err
		}
		run := progTestRun{
			fd: uint32(g.objects.Program.FD()), sizeIn: uint32(len(g.frame)),
			dataIn: uint64(uintptr(unsafe.Pointer(&g.frame[0]))),
			repeat: n, batch: batch, flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		}
		// The BPF library knows the duration and keeps it to itself.
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
		runtime.KeepAlive(g)
		if errno != 0 {
			return fmt.Errorf("traffic: run the generator: %w", errno)
		}
		perFrame = run.duration
		return nil
	})
	return perFrame, err
}
