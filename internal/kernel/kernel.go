// SPDX-License-Identifier: Apache-2.0

// Package kernel asks Linux about the network and listens to it.
//
// It keeps no state of its own but what Watch needs to tell a change from a
// refresh. Everything goes by netlink (and one ethtool ioctl for driver names),
// in the network namespace of the process:
//
//   - Links says what interfaces there are and what shunt must know of each:
//     its kind, its master, its qdiscs, its offloads, what XDP its driver can do.
//   - Hooks says which programs and rules of other people sit on a link.
//   - Watch says what changed, and how far that goes: which address, prefix, MAC or
//     connection, and what is new about a link. It subscribes before anybody reads,
//     and whenever messages were lost it says so with a Resync event: the answer to
//     that is to read again. It ends only with its context.
//   - Conntrack sets be-liberal on TCP connections and dumps the table for tests.
//   - Resolver looks one neighbour up, and has the kernel ask for it; and it makes the veth
//     pair in which IP packets get labels.
//   - LabelSocket hears what the data path passes up, and answers.
//
// The daemon calls all of it; packages eligible and doctor judge what it returns and speak
// no netlink. Rulesets are package nft's to read. What it does not do: it changes nothing but conntrack flags, whether a
// neighbour is used, and that pair, and it does not see BPF links (tcx, XDP links): package dataplane asks
// for those.
package kernel

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HZ returns the kernel's timer ticks per second: jiffies, in which the data path
// keeps its times, advance at this rate. The coarse clocks advance once per tick,
// so their resolution is one tick (kernel/time/posix-timers.c, posix_get_coarse_res).
func HZ() (uint32, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("clock_getres: %w", err)
	}
	ns := tick.Nano()
	if ns <= 0 || ns > int64(time.Second) {
		return 0, fmt.Errorf("clock_getres: a tick of %d ns makes no sense", ns)
	}
	return uint32((int64(time.Second) + ns/2) / ns), nil
}

// Release is a kernel's version as `uname -r` tells it.
type Release struct {
	Major, Minor int
	Text         string // the whole of it, such as "6.12.9-amd64"
}

// AtLeast reports whether the kernel is major.minor or newer. Distributions
// backport, so it is a hint: probe for what is needed.
func (r Release) AtLeast(major, minor int) bool {
	return r.Major > major || r.Major == major && r.Minor >= minor
}

// String returns the release as `uname -r` tells it.
func (r Release) String() string { return r.Text }

// Version returns the running kernel's release.
func Version() (Release, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Release{}, fmt.Errorf("uname: %w", err)
	}
	return parseRelease(unix.ByteSliceToString(u.Release[:]))
}

func parseRelease(text string) (Release, error) {
	r := Release{Text: text}
	major, rest, ok := strings.Cut(text, ".")
	minor := rest
	if end := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' }); end >= 0 {
		minor = rest[:end]
	}
	var errMajor, errMinor error
	r.Major, errMajor = strconv.Atoi(major)
	r.Minor, errMinor = strconv.Atoi(minor)
	if !ok || errMajor != nil || errMinor != nil {
		return Release{}, fmt.Errorf("kernel release %q: not MAJOR.MINOR", text)
	}
	return r, nil
}
