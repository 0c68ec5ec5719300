// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// realTimeThreads counts the threads of a process by their scheduling.
func (r *rig) realTimeThreads() (realTime, all int) {
	r.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.daemon.PID()))
	r.must(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // it ended
		}
		r.must(err)
		_, rest, _ := strings.Cut(string(text), ") ") // proc_pid_stat(5): the third field is next
		fields := strings.Fields(rest)
		all++
		if policy := fields[41-3]; policy == fmt.Sprint(unix.SCHED_RR) {
			realTime++
			if priority := fields[40-3]; priority != "1" {
				r.t.Errorf("%s: priority %s, want the lowest", file, priority)
			}
		}
	}
	return realTime, all
}

// TestRealTime: the thread that hears of changes and obeys them is a real-time one, and none other,
// also after the daemon has given up the right to make one.
func TestRealTime(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, both...)
	if n, all := r.realTimeThreads(); n != 1 || all < 3 {
		t.Errorf("%d of %d threads are real-time ones, want 1 of some", n, all)
	}
	if out, _, _ := r.shunt("doctor"); !strings.Contains(out, "SCHED_RR obeys") {
		t.Errorf("doctor does not tell: %s", out)
	}
	before := r.status().Events["rule"]
	_, err := r.LAN.NS.Run("ip", "rule", "add", "pref", "4711", "lookup", "main")
	r.must(err)
	r.eventually("a change is heard", 5*time.Second, func() bool { return r.status().Events["rule"] > before })
	r.must(r.daemon.Stop())
	r.nothing()
}

// TestRealTimeRefused: without the right to it everything else is as it was, and log and doctor say
// what that means.
func TestRealTimeRefused(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	wrapper := filepath.Join(t.TempDir(), "shunt")
	r.must(os.WriteFile(wrapper, fmt.Appendf(nil,
		"#!/bin/sh\nulimit -r 0\nexec setpriv --bounding-set -sys_nice --inh-caps -sys_nice %s \"$@\"\n", program), 0o700))
	r.start(wrapper, both...)
	if n, _ := r.realTimeThreads(); n != 0 {
		t.Errorf("%d threads are real-time ones", n)
	}
	if n := strings.Count(r.daemon.Log(), "SCHED_RR"); n != 1 || !strings.Contains(r.daemon.Log(), "LimitRTPRIO=1") {
		t.Errorf("%d lines of the log tell:\n%s", n, r.daemon.Log())
	}
	if out, _, _ := r.shunt("doctor"); !strings.Contains(out, "refuses SCHED_RR") || !strings.Contains(out, "LimitRTPRIO=1") {
		t.Errorf("doctor does not tell: %s", out)
	}
	r.must(r.daemon.Stop())
	r.nothing()
}
