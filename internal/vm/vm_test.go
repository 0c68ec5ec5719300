// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	nothingLeft(t)
	share := t.TempDir()
	var out, progress bytes.Buffer
	o := Options{ICount: true, Command: []string{"sh", "-c", `
		echo "$1|$2|$3|$WORD|$PWD"
		for n in 1 2 3; do echo "out $n"; echo "err $n" >&2; done
		uname -r | cut -d. -f1,2
		test -d /sys/module/dummy && echo loaded
		test -c /dev/net/tun && touch /etc/shunt-vm-test && echo writable
		sleep 100 & # holds the output open
		echo '{}' >` + ShareDir + `/result.json
		exit 7`, "sh", "a  b", "c'd", "$e\n"}}
	o.Dir, o.Env, o.Share, o.Modules = "/usr/share", []string{"WORD=it's two"}, share, []string{"dummy"}
	o.Output, o.Progress = &out, &progress
	code, err := Run(t.Context(), o)
	if err != nil || code != 7 {
		t.Fatalf("exit code %d, %v; want 7\n%s%s", code, err, &progress, &out)
	}
	const want = "a  b|c'd|$e\n|it's two|/usr/share\nout 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n" + DefaultKernel + "\nloaded\nwritable\n"
	if out.String() != want {
		t.Errorf("output:\n%s\nwant:\n%s", &out, want)
	}
	if b, err := os.ReadFile(filepath.Join(share, "result.json")); err != nil || string(b) != "{}\n" {
		t.Errorf("from the share: %q, %v", b, err)
	}
	if _, err := os.Stat("/etc/shunt-vm-test"); !os.IsNotExist(err) {
		t.Error("the guest wrote to the host's /etc")
	}
	if !strings.Contains(progress.String(), "starts the command after") {
		t.Errorf("progress: %s", &progress)
	}
}

// Guests that run programs for long do without the instruction that QEMU emulates wrongly; those
// that count have it, as users' processors do.
func TestProcessor(t *testing.T) {
	nothingLeft(t)
	for realIdle, want := range map[bool]string{true: "no\n", false: "yes\n"} {
		var out bytes.Buffer
		code, err := Run(t.Context(), Options{ICount: true, RealIdle: realIdle, Output: &out,
			Command: []string{"sh", "-c", "grep -qw cx16 /proc/cpuinfo && echo yes || echo no"}})
		if err != nil || code != 0 || out.String() != want {
			t.Errorf("real idle %t: cx16: %q, exit code %d, %v; want %q", realIdle, &out, code, err, want)
		}
	}
}

// whenWritten calls a function at the first output, which so has come before the end.
type whenWritten func()

func (f whenWritten) Write(b []byte) (int, error) { f(); return len(b), nil }

func TestCancel(t *testing.T) {
	nothingLeft(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Command: []string{"sh", "-c", "echo; while :; do :; done"}}
	o.Output = whenWritten(cancel)
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want it cancelled", err)
	}
}

func TestTimeout(t *testing.T) {
	nothingLeft(t)
	// The guest needs longer to boot.
	o := Options{Command: []string{"true"}, Timeout: time.Second}
	_, err := Run(t.Context(), o)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "true: not done within 1s") {
		t.Error(err)
	}
}

func TestUnknownModule(t *testing.T) {
	o := Options{Command: []string{"true"}, Modules: []string{"nonesuch"}}
	oneLine(t, func() error { _, err := Run(t.Context(), o); return err }(), "cannot load a module", "nonesuch")
}

// nothingLeft looks, when the test has ended, for files and processes of it.
func nothingLeft(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		all, _ := filepath.Glob("/proc/[0-9]*/status")
		for _, name := range all {
			if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, fmt.Appendf(nil, "\nPPid:\t%d\n", os.Getpid())) {
				t.Errorf("a process is left behind:\n%s", b)
			}
		}
	})
}

func oneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", words)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("not one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not name %q", err, w)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		word string
	}{
		{Options{}, "no command"},
		{Options{Command: []string{"true"}, Kernel: "../6.12"}, "../6.12"},
		{Options{Command: []string{"true"}, RealIdle: true}, "RealIdle"},
	} {
		_, err := Run(t.Context(), c.o)
		oneLine(t, err, c.word)
	}
}

func TestOutcome(t *testing.T) {
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	gone, cancelled := context.WithCancel(t.Context())
	cancelled()
	o := Options{Command: []string{"prog"}, Timeout: time.Minute}
	died := errors.New("signal: killed")
	for _, c := range []struct {
		ctx            context.Context
		ended          error
		report         string
		console, words string
		exit           int
		want           []string
	}{
		{t.Context(), nil, "exit 0", "", "", 0, nil},
		{t.Context(), died, "exit 3", "", "", 3, nil},
		{t.Context(), nil, "error no such thing", "", "", 0, []string{"vm: no such thing"}},
		{t.Context(), died, "started 6.12 5", "", "qemu: Cannot allocate memory", 0, []string{emulator, "Cannot allocate memory"}},
		{t.Context(), nil, "started 6.12 5", "[ 1.0] x\n[ 1.2] Kernel panic - not syncing: oh\n[ 1.3] y", "", 0, []string{"died", "Kernel panic - not syncing: oh"}},
		{t.Context(), nil, "", "SeaBIOS\nvm: the share cannot be mounted\n[ 2.0] Power down", "", 0, []string{"words: the share cannot be mounted"}},
		{t.Context(), nil, "", "", "", 0, []string{"none"}},
		{over, died, "started 6.12 5", "", "", 0, []string{"prog", "not done within 1m0s"}},
		{gone, died, "", "", "", 0, []string{"prog", "canceled"}},
	} {
		console, words := &tail{}, &tail{}
		io.WriteString(console, c.console)
		io.WriteString(words, c.words)
		exit, err := outcome(c.ctx, o, c.ended, c.report, console.words(), words.words())
		if exit != c.exit {
			t.Errorf("%s: exit code %d", c.report, exit)
		}
		if c.want == nil && err != nil {
			t.Errorf("%s: %v", c.report, err)
		} else if c.want != nil {
			oneLine(t, err, c.want...)
		}
	}
}
