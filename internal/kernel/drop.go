// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that a running daemon goes on using: CAP_NET_ADMIN to attach to
// ports that come, to read hooks and to speak with conntrack, CAP_BPF for every call of
// bpf(2) where unprivileged ones are refused. CAP_PERFMON is for loading programs alone, and
// files need no capability: the daemon's are its own user's.
var kept = []int{unix.CAP_NET_ADMIN, unix.CAP_BPF}

// DropRights takes from all threads of this process, and from whatever it may execute, every
// capability but those in kept, and the way to get one back: effective, permitted,
// inheritable and ambient sets, the bounding set, no_new_privs. What is missing of kept is
// not there afterwards either.
//
// The Go runtime cannot do so for the threads of a program that was built with cgo: then
// nothing is changed, and the error is errors.ErrUnsupported.
func DropRights() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now, next [2]unix.CapUserData
	if err := unix.Capget(&header, &now[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	for _, c := range keptOf(now) {
		next[c/32].Permitted |= 1 << (c % 32)
	}
	next[0].Effective, next[1].Effective = next[0].Permitted, next[1].Permitted
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return fmt.Errorf("ambient capabilities: %w", err)
	}
	if now[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		if err := dropBounding(next); err != nil {
			return err
		}
	}
	// AllThreadsSyscall keeps what is behind the pointers where it is.
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&next[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capabilities: %w", errno)
	}
	return nil
}

// keptOf are those of kept that are permitted; CAP_SYS_ADMIN stands in for CAP_BPF.
func keptOf(now [2]unix.CapUserData) (keep []int) {
	has := func(c int) bool { return now[c/32].Permitted&(1<<(c%32)) != 0 }
	for _, c := range kept {
		if c == unix.CAP_BPF && !has(c) {
			c = unix.CAP_SYS_ADMIN
		}
		if has(c) {
			keep = append(keep, c)
		}
	}
	return keep
}

// dropBounding leaves only what is permitted from now on in the bounding set.
func dropBounding(next [2]unix.CapUserData) error {
	for c := range 64 {
		if next[c/32].Permitted&(1<<(c%32)) != 0 {
			continue
		}
		err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c))
		if errors.Is(err, unix.EINVAL) { // no such capability: that was the last
			return nil
		}
		if err != nil {
			return fmt.Errorf("bounding set: %w", err)
		}
	}
	return nil
}

// allThreads makes a system call of up to two arguments on every thread.
func allThreads(call, a, b uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(call, a, b, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
