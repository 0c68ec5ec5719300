// SPDX-License-Identifier: Apache-2.0

// Package vm runs a command under another kernel: Debian's own, emulated by QEMU, on this
// machine's root.
//
// The guest sees the host's files (9p, read-only) under a layer of memory, so a program
// built here runs there, may write where it likes, and leaves nothing. Only Options.Share
// is written through. The kernel is downloaded once, by the package's name through apt,
// unpacked into the user's cache and never installed. There is no network to the outside,
// no virtualization (none is asked of the machine: everything is emulated, some ten times
// slower), and no other machine than amd64. What the caller may not read, the guest cannot.
//
// With ICount the guest's clock is its instructions: each is one nanosecond, so the same
// work takes the same time in every run, within 0.4 % on one processor, however busy the
// host is. Where nothing is to be done until a timer fires, that time is skipped; but then a
// file that is read from the host takes seconds of the guest's time, because its timers fire
// meanwhile. RealIdle mends that, for programs with deadlines. Without it, a guest may die of a flaw of
// QEMU, though seldom: see processor().
//
//	image.go   the kernel: fetched, unpacked, kept
//	initrd.go  the way into the guest: init.sh, then guest.sh
//	card.go    network cards, and the wires between them
//	vm.go      the run: start, watch, end
//
// test/vm runs the suites in it, internal/bench counts instructions with it.
package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ShareDir is where the guest sees Options.Share.
const ShareDir = "/mnt/share"

// DefaultKernel is the version of Options.Kernel if none is given.
const DefaultKernel = "6.12"

// Options say which kernel runs what.
type Options struct {
	Kernel   string        // version of Debian's package up to any dot; DefaultKernel if empty
	Command  []string      // program, looked up in the guest's PATH, and arguments
	Dir      string        // working directory; the caller's if empty
	Env      []string      // NAME=value; beside it there are PATH, HOME and TERM
	CPUs     int           // 2 if zero, 1 with ICount
	MemoryMB int           // 2048 if zero; of which three quarters may hold files that the guest writes
	ICount   bool          // one instruction is one virtual nanosecond, and idle time is skipped
	RealIdle bool          // with ICount: idle time passes as it does outside
	Modules  []string      // kernel modules to load before the command starts
	Cards    []Card        // emulated network cards; their drivers are modules to be named above
	Share    string        // directory of the host that the guest may write to, at ShareDir
	Timeout  time.Duration // from the start of the guest to its end; none if zero
	Output   io.Writer     // stdout and stderr of the command, as it comes; nil discards it
	Progress io.Writer     // a line for each step; nil discards it
	Cache    string        // where kernels are kept; shunt/vm in the user's cache if empty
}

// Run boots the kernel, runs the command there as root and returns its exit code as a
// shell would: 127 if there is no such program, 128+n if signal n ended it.
//
// An error says that there is no exit code: the kernel or QEMU cannot be had, the guest
// died, time is over or ctx is cancelled (both can be told with errors.Is). Whatever it
// returns, no process and no file but the cache is left; nor does a caller that is killed leave any. Calls may run side by side; Output
// and Progress may be the same writer, and are written to by one goroutine at a time.
func Run(ctx context.Context, o Options) (exit int, err error) {
	if o, err = o.complete(); err != nil {
		return 0, err
	}
	say := func(format string, args ...any) { fmt.Fprintf(o.Progress, "vm: "+format+"\n", args...) }
	i, err := openImage(ctx, o.Cache, o.Kernel, say)
	if err != nil {
		return 0, err
	}
	initrd, err := makeInitrd(i, o.settings(i))
	if err != nil {
		return 0, err
	}
	defer initrd.Close()
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	return boot(ctx, o, i, initrd, say)
}

// complete fills in what was left out, and refuses what cannot be run.
func (o Options) complete() (Options, error) {
	if len(o.Command) == 0 {
		return o, errors.New("vm: no command")
	}
	if o.RealIdle && !o.ICount {
		return o, errors.New("vm: RealIdle is for ICount; without it time always passes as outside")
	}
	if o.Kernel == "" {
		o.Kernel = DefaultKernel
	}
	if strings.Trim(o.Kernel, "0123456789.") != "" {
		return o, fmt.Errorf("vm: kernel %q is no version such as %s", o.Kernel, DefaultKernel)
	}
	if o.CPUs == 0 {
		o.CPUs = 2
		if o.ICount {
			o.CPUs = 1
		}
	}
	if o.MemoryMB == 0 {
		o.MemoryMB = 2048
	}
	var err error
	if o.Dir == "" {
		if o.Dir, err = os.Getwd(); err != nil {
			return o, fmt.Errorf("vm: %w", err)
		}
	}
	if o.Share != "" {
		if o.Share, err = filepath.Abs(o.Share); err != nil {
			return o, fmt.Errorf("vm: %w", err)
		}
	}
	if o.Cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return o, fmt.Errorf("vm: nowhere to keep the kernel: %w", err)
		}
		o.Cache = filepath.Join(base, "shunt", "vm")
	}
	if o.Cache, err = filepath.Abs(o.Cache); err != nil {
		return o, fmt.Errorf("vm: %w", err)
	}
	var mu sync.Mutex
	o.Output, o.Progress = &inTurn{&mu, o.Output}, &inTurn{&mu, o.Progress}
	return o, nil
}

// By how many nanoseconds a sleep may be longer than it was to be (PR_SET_TIMERSLACK). The Go runtime's
// monitor sleeps for 20 us at a time while anything is done. With the kernel's default that is a tenth
// of all that a guest does, whose processors are so slow.
const defaultSlack, busySlack = 50_000, 200_000

// settings is what init.sh and guest.sh read: variables, the environment, the command.
func (o Options) settings(i image) string {
	// Not the host's: its directories may be another user's.
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb"}
	slack := defaultSlack
	if o.RealIdle {
		slack = busySlack
	}
	return "share=" + quote(o.Share) +
		"\ntimer_slack=" + strconv.Itoa(slack) +
		"\nshare_dir=" + quote(ShareDir) +
		"\nmodules_dir=" + quote(i.modules()) +
		"\nmodules=" + quote(strings.Join(o.Modules, " ")) +
		"\ndir=" + quote(o.Dir) +
		"\nexport" + quoteAll(append(env, o.Env...)) +
		"\nset --" + quoteAll(o.Command) + "\n"
}

// inTurn lets several goroutines use a writer, or none.
type inTurn struct {
	mu *sync.Mutex
	w  io.Writer
}

func (i *inTurn) Write(b []byte) (int, error) {
	if i.w == nil {
		return len(b), nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.w.Write(b)
}
