// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweep removes the labs whose owner is gone. The caller holds the lock, so a
// directory without a record is one whose maker died before it wrote one.
func sweep() error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(root, e.Name())
		r, err := load(dir)
		if err == nil && (r.Kept || startTime(r.PID) == r.Start) {
			continue
		}
		if err := remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// remove takes away all that a lab's record names, then the directory. What is
// gone already is no error.
func remove(dir string) error {
	r, err := load(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("lab: %s: %w; remove it by hand", dir, err)
	}
	if err := killAll(r.Namespaces); err != nil {
		return err
	}
	var errs []error
	for _, name := range r.Namespaces {
		errs = append(errs, removeNamespace(name))
	}
	mounts, err := mountsBelow(dir)
	errs = append(errs, err)
	for _, m := range mounts {
		// Programs and links pinned there end with the mount.
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("lab: unmount %s: %w", m, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // and keep the record for the next try
	}
	return os.RemoveAll(dir)
}

func removeNamespace(name string) error {
	path := filepath.Join("/run/netns", name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("lab: unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

// killAll ends every process in the named namespaces and waits until they are
// gone. A process that started children meanwhile is met again in the next round.
func killAll(namespaces []string) error {
	inodes := map[uint64]bool{}
	for _, name := range namespaces {
		if ino := inode(filepath.Join("/run/netns", name)); ino != 0 {
			inodes[ino] = true
		}
	}
	if len(inodes) == 0 {
		return nil
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		pids := processesIn(inodes)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("lab: process %d in namespace %s does not end", pids[0], namespaces[0])
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// processesIn lists the processes whose network namespace is one of the given.
// Zombies have none, and this process is never listed.
func processesIn(inodes map[uint64]bool) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if inodes[inode(filepath.Join("/proc", e.Name(), "ns/net"))] {
			pids = append(pids, pid)
		}
	}
	return pids
}

// inode is the number of the file behind path, following links; 0 if none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// mountsBelow lists the mount points under dir, innermost first.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	defer f.Close()
	var mounts []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			mounts = append(mounts, fields[4])
		}
	}
	slices.Reverse(mounts)
	return mounts, nil
}
