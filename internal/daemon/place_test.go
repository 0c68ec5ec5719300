// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"shunt/internal/config"
	"shunt/internal/kernel"
)

// TestFit: each lack is named, and the kernel's before the user's.
func TestFit(t *testing.T) {
	old, good := kernel.Release{Major: 6, Minor: 1, Text: "6.1.0-49"}, kernel.Release{Major: 6, Minor: 6, Text: "6.6.1"}
	for _, c := range []struct {
		release kernel.Release
		missing []string
		want    string
	}{
		{good, nil, ""},
		{old, nil, "kernel 6.1.0-49 is too old: shunt needs 6.6"},
		{old, []string{"CAP_BPF"}, "kernel 6.1.0-49 is too old"},
		{good, []string{"CAP_NET_ADMIN", "CAP_BPF"}, "run needs root (CAP_NET_ADMIN, CAP_BPF): run it with sudo"},
	} {
		err := judge(c.release, c.missing)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, %v: %v; want %q", c.release, c.missing, err, c.want)
		}
	}
}

// TestPlace: one daemon at a time; what was not there before is gone after a start that
// failed, and what was there is not.
func TestPlace(t *testing.T) {
	paths := config.Paths{State: filepath.Join(t.TempDir(), "run", "shunt")}
	in := func() *place {
		t.Helper()
		p, err := enter(paths)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := in()
	if _, err := enter(paths); err == nil || !strings.Contains(err.Error(), "a daemon runs already") {
		t.Errorf("a second daemon: %v", err)
	}
	p.undo()
	p.close()
	if _, err := os.Stat(paths.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made for a start that failed, and there: %v", err)
	}

	if err := os.Mkdir(paths.State, 0o750); err != nil {
		t.Fatal(err)
	}
	p = in()
	p.undo()
	p.close()
	if left, err := os.ReadDir(paths.State); err != nil || len(left) > 0 {
		t.Errorf("the operator's directory: %v, %v", left, err)
	}

	// the lock that a daemon removes as it ends is nobody's
	p = in()
	if err := os.Remove(paths.Lock()); err != nil {
		t.Fatal(err)
	}
	if p.current() {
		t.Error("a lock without a name holds nobody out")
	}
	p.close()
	p = in()
	if err := p.remove(); err != nil {
		t.Error(err)
	}
	p.close()
	if _, err := os.Stat(paths.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after stop: %v", err)
	}
}

// TestTraces: a state directory knows the data path that belongs to it for as long as that is there,
// and whoever names another one is told.
func TestTraces(t *testing.T) {
	dir := t.TempDir()
	pins := filepath.Join(dir, "pins")
	paths := config.Paths{State: filepath.Join(dir, "state"), BPFFS: pins}
	p, err := enter(paths)
	if err != nil {
		t.Fatal(err)
	}
	if pid := holder(paths.Lock()); pid != os.Getpid() {
		t.Errorf("the lock is held by %d, want %d", pid, os.Getpid())
	}
	if _, err := enter(paths); err == nil || !strings.Contains(err.Error(), ", pid "+strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second daemon: %v", err)
	}
	if err := p.leaveTraces(7); err != nil {
		t.Fatal(err)
	}
	p.close()
	if pid := holder(paths.Lock()); pid != 0 {
		t.Errorf("the lock is held by %d, want nobody", pid)
	}
	unnamed := config.Paths{State: paths.State, BPFFS: config.DefaultBPFFS}
	other := config.Paths{State: paths.State, BPFFS: filepath.Join(dir, "other")}
	if got, err := Locate(unnamed); err != nil || got != unnamed {
		t.Errorf("with nothing pinned: %v, %v", got, err)
	}
	if err := os.Mkdir(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, named := range []config.Paths{unnamed, paths} {
		if got, err := Locate(named); err != nil || got != paths {
			t.Errorf("%v: %v, %v", named, got, err)
		}
	}
	if _, err := Locate(other); err == nil || !strings.Contains(err.Error(), pins) || !strings.Contains(err.Error(), other.BPFFS) {
		t.Errorf("another one: %v", err)
	}

	// a start that fails leaves what it found
	p, err = enter(paths)
	if err != nil {
		t.Fatal(err)
	}
	p.undo()
	p.close()
	if got := readTraces(paths); got != (traces{pins, 7}) {
		t.Errorf("after a start that failed: %+v", got)
	}
	// what an older daemon left, or nobody wrote, is no trace
	for _, text := range []string{"", "1234\n", "{"} {
		if err := os.WriteFile(paths.Lock(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Locate(unnamed); err != nil || got != unnamed {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

// TestEnterLater: the second of two "shunt stop" waits for the first, which takes the directory away.
func TestEnterLater(t *testing.T) {
	paths := config.Paths{State: filepath.Join(t.TempDir(), "run")}
	first, err := enter(paths)
	if err != nil {
		t.Fatal(err)
	}
	var second *place
	done := make(chan error)
	go func() {
		p, err := enterLater(paths)
		second = p
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("the second did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := first.remove(); err != nil {
		t.Error(err)
	}
	first.close()
	if err := <-done; err != nil {
		t.Fatalf("the second: %v", err)
	}
	if err := second.remove(); err != nil {
		t.Error(err)
	}
	second.close()
	if _, err := os.Stat(paths.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}
