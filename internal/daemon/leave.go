// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/dataplane"
)

// sayFarewell logs what stays when a daemon ends and leaves the data path, and what removes it.
func (d *Daemon) sayFarewell() {
	var names []string
	for _, p := range d.showing() {
		if p.decision.Attach {
			names = append(names, p.link.Name)
		}
	}
	slices.Sort(names)
	next := fmt.Sprintf("%q takes over, %q removes it all", d.paths.Command("run"), d.paths.Command("stop"))
	if len(names) == 0 {
		d.log.Info("ended; no program is attached, the maps stay pinned; "+next, "bpffs", d.paths.BPFFS)
		return
	}
	d.log.Info("ended; the programs stay attached and go on repeating; leases end by themselves and the kernel proves them; "+next,
		"ports", strings.Join(names, ","), "leases-end-within", d.longestLease(), "paused", d.plane.Paused())
}

// longestLease is how long an entry may still be used that was proved just now.
func (d *Daemon) longestLease() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	lease := max(d.lease.now, d.lease.least())
	return (lease + lease/8).Round(time.Millisecond)
}

// How long a daemon may take to end after SIGTERM before it is killed.
const replacePatience = 5 * time.Second

// Replace ends the daemon that lives at paths as SIGTERM does: what it attached stays and goes on.
// It returns once the process has ended, and at once where none lives. What would keep a new daemon
// from starting here is an error before anything is ended.
func Replace(ctx context.Context, paths config.Paths) error {
	if err := fit(); err != nil {
		return err
	}
	pid := holder(paths.Lock())
	if pid <= 0 { // none, or /proc/locks cannot tell
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		status, err := api.NewClient(paths.Socket()).Status(ask)
		if err != nil {
			return nil // a lock that is held is the start's to report
		}
		pid = status.PID
	}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--replace: the daemon, pid %d, cannot be watched: %w", pid, err)
	}
	defer unix.Close(process)
	if err := dataplane.Probe(); err != nil { // it loads the programs, which is what may fail
		return fmt.Errorf("--replace: %w; the daemon, pid %d, goes on", err, pid)
	}
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("--replace: the daemon, pid %d, cannot be ended: %w", pid, err)
	}
	switch ended, err := waitFor(ctx, process, replacePatience); {
	case err != nil:
		return fmt.Errorf("--replace: the daemon, pid %d: %w", pid, err)
	case ended:
		return nil
	}
	slog.Warn("the daemon to be replaced does not end; it is killed, which leaves its data path, too", "pid", pid)
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("--replace: the daemon, pid %d, cannot be killed: %w", pid, err)
	}
	if ended, err := waitFor(ctx, process, replacePatience); err != nil || !ended {
		return errors.Join(fmt.Errorf("--replace: the daemon, pid %d, does not end; see what it waits for: /proc/%[1]d/stack", pid), err)
	}
	return nil
}

// waitFor waits until a process ends, for as long as patience.
func waitFor(ctx context.Context, pidfd int, patience time.Duration) (ended bool, err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if ctx.Err() != nil {
			return false, errors.New("interrupted")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
	return false, nil
}
