// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// TestFullState: on a state directory that is full a daemon starts, after a crash and for the first
// time; the labels it had are there, a change is refused by name, and works once there is room.
func TestFullState(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.must(os.Mkdir(r.State(), 0o755))
	r.must(unix.Mount("shunt-test", r.State(), "tmpfs", 0, "size=64k,nr_inodes=12"))
	filler := filepath.Join(r.State(), "filler")
	fill := func() {
		file, err := os.Create(filler)
		r.must(err)
		defer file.Close()
		for err == nil {
			_, err = file.Write(bytes.Repeat([]byte("x"), 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	fill()
	r.start(program, both...)
	if log := r.daemon.Log(); !strings.Contains(log, "will need --bpffs") {
		t.Error("the log does not say what a full directory costs")
	}
	label := "nhlfe add 7 swap 200 send dev wan via inet " + r.Server.V4.Addr().String()
	if out, errs, code := r.shunt("mpls", "nhlfe", "add", "8", "drop"); code != 1 || !strings.Contains(errs, "no space left") || !strings.Contains(errs, "--state") {
		t.Errorf("a change: exit code %d, %q, %q", code, out, errs)
	}
	r.must(os.Remove(filler))
	r.labelsApply(label, "space set lan 0")
	want := r.labelsSaved()

	r.daemon.Kill9()
	fill()
	r.start(program, both...)
	if got := r.labelsSaved(); !slices.Equal(got, want) {
		t.Errorf("after a crash, on a full directory: %q, want %q", got, want)
	}
	r.must(os.Remove(filler))
	r.labelsApply("ilm add 100 nhlfe 7")
	want = r.labelsSaved()
	r.daemon.Kill9()
	r.start(program, both...)
	if got := r.labelsSaved(); !slices.Equal(got, want) {
		t.Errorf("with room again: %q, want %q", got, want)
	}
	saved, _, _ := r.shunt("mpls", "save")
	file := filepath.Join(r.Dir(), "saved.mpls")
	r.must(os.WriteFile(file, []byte(saved), 0o600))
	for range 2 {
		if _, errs, code := r.shunt("mpls", "apply", file); code != 0 {
			t.Errorf("apply what save printed: exit code %d, %s", code, errs)
		}
	}
	if got := r.labelsSaved(); !slices.Equal(got, want) {
		t.Errorf("after that: %q, want %q", got, want)
	}
	if _, err := r.api.Status(context.Background()); err != nil {
		t.Error(err)
	}
}
