// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const emulator = "qemu-system-x86_64"

// arguments make QEMU's command line. All processors share one thread: with one for each, a
// guest in ninety panicked while it booted (QEMU up to 8.0 is known to take an int3 of a
// branch that is being patched by another processor, as code). Of the files that QEMU
// inherits, number 3 is what the guest reports (see follow), 4 its console, 5 the initrd, those from
// firstTap on the cards' taps.
func arguments(o Options, i image) []string {
	var clock []string
	switch {
	case o.ICount && o.RealIdle:
		clock = []string{"-icount", "shift=0,sleep=on"}
	case o.ICount:
		clock = []string{"-icount", "shift=0,sleep=off"}
	}
	share := func(tag, path, more string) string {
		return "local,mount_tag=" + tag + ",path=" + strings.ReplaceAll(path, ",", ",,") + ",security_model=none,multidevs=remap" + more
	}
	args := append(clock,
		"-M", "q35", "-cpu", processor(o), "-accel", "tcg,thread=single", "-smp", strconv.Itoa(o.CPUs), "-m", strconv.Itoa(o.MemoryMB),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-kernel", i.kernel(), "-initrd", "/dev/fd/5", "-append", kernelLine,
		"-chardev", "file,id=console,path=/dev/fd/4", "-serial", "chardev:console",
		"-chardev", "file,id=output,path=/dev/fd/1", "-chardev", "file,id=report,path=/dev/fd/3",
		"-device", "virtio-serial", "-device", "virtserialport,nr=1,chardev=output", "-device", "virtserialport,nr=2,chardev=report",
		"-virtfs", share("host", "/", ",readonly=on"))
	if o.Share != "" {
		args = append(args, "-virtfs", share("share", o.Share, ""))
	}
	return append(args, cardArguments(o.Cards, firstTap)...)
}

const firstTap = 6

// processor has all that TCG can emulate, but for what would only cost: a fifth level of page
// tables, and "fast" string instructions, with which the kernel clears and copies memory
// by the byte. To TCG every repetition is an instruction, to run and to count.
//
// And CMPXCHG16B: after it QEMU (7.2) has flags that it made of an earlier instruction's operand. An
// interrupt that comes then saves them, and with such as TF or DF the guest goes on and dies, once in
// some ten minutes of two busy guests (POPF, ADD, CMPXCHG16B, PUSHF shows it: ADD's operand). The kernel has another way, with a
// few instructions more: so those who count what it takes keep it.
func processor(o Options) string {
	const most = "max,la57=off,erms=off,fsrm=off"
	if o.ICount && !o.RealIdle {
		return most
	}
	return most + ",cx16=off"
}

// kernelLine: an oops or a panic ends the guest at once (-no-reboot); clocks are what the
// emulator says they are; what protects against other users' programs only costs time here.
const kernelLine = "console=ttyS0 quiet oops=panic panic=-1 nowatchdog mitigations=off nokaslr " +
	"tsc=reliable no_timer_check random.trust_cpu=on audit=0"

// boot runs QEMU until the guest ends it.
func boot(ctx context.Context, o Options, i image, initrd *os.File, say func(string, ...any)) (exit int, err error) {
	qemu, err := find(emulator)
	if err != nil {
		return 0, err
	}
	reports, reportsEnd, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("vm: %w", err)
	}
	defer reports.Close()
	console, consoleEnd, err := os.Pipe()
	if err != nil {
		reportsEnd.Close()
		return 0, fmt.Errorf("vm: %w", err)
	}
	defer console.Close()

	taps, err := openCards(ctx, o.Cards)
	if err != nil {
		return 0, errors.Join(err, reportsEnd.Close(), consoleEnd.Close())
	}
	defer closeAll(taps)

	errs := &tail{}
	cmd := exec.CommandContext(ctx, qemu, arguments(o, i)...)
	cmd.Stdout, cmd.Stderr = o.Output, errs
	cmd.ExtraFiles = append([]*os.File{reportsEnd, consoleEnd, initrd}, taps...)
	// QEMU dies with this process. The signal comes when the thread that forked ends: so
	// that one is kept.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	err = cmd.Start()
	reportsEnd.Close()
	consoleEnd.Close()
	if err != nil {
		return 0, fmt.Errorf("vm: %s: %w", emulator, err)
	}
	said := make(chan *tail, 1)
	go func() {
		last := &tail{}
		io.Copy(last, console)
		said <- last
	}()
	report := make(chan string, 1)
	go func() {
		report <- follow(reports, func(release, uptime string) {
			say("Linux %s starts the command after %.1f s (%s s of its own)", release, time.Since(began).Seconds(), uptime)
		})
	}()
	ended := cmd.Wait()
	last := <-said
	exit, err = outcome(ctx, o, ended, <-report, last.words(), errs.words())
	if errors.Is(err, errDied) { // one line does not tell why
		fmt.Fprintf(o.Output, "\nvm: the guest's console ended:\n%s\n", last.b)
	}
	return exit, err
}

// follow reads what guest.sh tells: "started RELEASE UPTIME", then "exit CODE" or
// "error WORDS", of which it returns the last.
func follow(r io.Reader, started func(release, uptime string)) (last string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		last = lines.Text()
		if f := strings.Fields(last); len(f) == 3 && f[0] == "started" {
			started(f[1], f[2])
		}
	}
	return last
}

// outcome makes sense of how it ended: the guest's report counts before everything else.
func outcome(ctx context.Context, o Options, ended error, report, console, qemu string) (exit int, err error) {
	kind, rest, _ := strings.Cut(report, " ")
	switch kind {
	case "exit":
		if exit, err = strconv.Atoi(rest); err == nil {
			return exit, nil
		}
	case "error":
		return 0, errors.New("vm: " + rest)
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && o.Timeout > 0:
		return 0, fmt.Errorf("vm: %s: not done within %v: %w", o.Command[0], o.Timeout, ctx.Err())
	case ctx.Err() != nil:
		return 0, fmt.Errorf("vm: %s: %w", o.Command[0], ctx.Err())
	case ended != nil:
		return 0, fmt.Errorf("vm: %s: %w: %s", emulator, ended, qemu)
	}
	return 0, fmt.Errorf("%w; its last words: %s", errDied, console)
}

// errDied is for a guest that ends and has not told how.
var errDied = errors.New("vm: the guest died without an exit code")

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	const keep = 16 << 10
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-keep):]
	return len(b), nil
}

// words is the line that tells most: ours, the first of an oops, the panic, else the last.
func (t *tail) words() string {
	text := strings.TrimSpace(string(t.b))
	for _, mark := range []string{"vm: ", "BUG: ", "Kernel panic"} {
		if at := strings.Index(text, mark); at >= 0 {
			line, _, _ := strings.Cut(text[at:], "\n")
			return strings.TrimSpace(strings.TrimPrefix(line, "vm: "))
		}
	}
	if text == "" {
		return "none"
	}
	return lastLine(text)
}
