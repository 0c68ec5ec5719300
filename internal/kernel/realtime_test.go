// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The calling thread becomes a real-time one of the lowest priority, and what it starts does not.
func TestRealTime(t *testing.T) {
	runtime.LockOSThread() // without an unlock the thread ends with this test
	if err := RealTime(); err != nil {
		t.Fatal(err)
	}
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Policy != unix.SCHED_RR || a.Priority != 1 || a.Flags&unix.SCHED_FLAG_RESET_ON_FORK == 0 {
		t.Errorf("policy %d, priority %d, flags %#x", a.Policy, a.Priority, a.Flags)
	}
	stat, err := exec.Command("cat", "/proc/self/stat").Output()
	if err != nil {
		t.Fatal(err)
	}
	if policy := strings.Fields(string(stat))[40]; policy != "0" { // proc_pid_stat(5)
		t.Errorf("a process that it starts has policy %s", policy)
	}
	if err := TryRealTime(); err != nil {
		t.Errorf("tried: %v", err)
	}
}
