// SPDX-License-Identifier: Apache-2.0

// Package suite is what the test suites that run shunt as a user would have in common: they
// need root, a directory of their own, and the program, built from this tree.
//
// A suite's TestMain calls Main; whoever needs the program calls Build.
package suite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Main runs the tests of m as root and ends the process with their exit code. Before them it calls
// prepare with a directory that anyone may enter (some tests give up root) and that is gone
// afterwards; after them it calls report, if there is one. name stands before what goes wrong.
func Main(m *testing.M, name string, prepare func(dir string) error, report func()) {
	code, err := run(m, prepare, report)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M, prepare func(string) error, report func()) (int, error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("network namespaces, raw sockets and BPF need root; run the tests with sudo")
	}
	dir, err := os.MkdirTemp("", "shunt-suite-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	if err := prepare(dir); err != nil {
		return 0, err
	}
	code := m.Run()
	if report != nil {
		report()
	}
	return code, nil
}

// Build compiles shunt to path, as make does, with ldflags beside make's own: "-X main.e2e=upgrade"
// makes another version of it. Without cgo, because with it the daemon keeps its rights.
func Build(path, ldflags string) error {
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w "+ldflags, "-o", path, "shunt/cmd/shunt")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build shunt/cmd/shunt: %w: %s", err, out)
	}
	return nil
}
