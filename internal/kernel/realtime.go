// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// realTimePriority is the lowest of SCHED_RR: ahead of every ordinary thread, behind
// everything else that an administrator made real-time.
const realTimePriority = 1

// RealTime has the kernel schedule the calling thread, to which the goroutine is locked, by SCHED_RR.
// The threads that it starts are ordinary ones (SCHED_FLAG_RESET_ON_FORK). It needs CAP_SYS_NICE,
// or RLIMIT_RTPRIO of at least 1 (sched(7)).
func RealTime() error {
	err := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realTimePriority, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
	if err != nil {
		return fmt.Errorf("sched_setattr: %w", err)
	}
	return nil
}

// TryRealTime returns the error that a thread of this process gets when it asks for SCHED_RR.
func TryRealTime() error {
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock the thread ends with this goroutine
		refused <- RealTime()
	}()
	return <-refused
}
