// SPDX-License-Identifier: Apache-2.0

// Command run is `make test`: every test of the tree, by gotestsum, and a verdict that a
// machine can read.
//
//	go run ./test/run                     # a test that fails runs again, twice at most
//	go run ./test/run -noisy [-seed N]    # on CPUs that are taken away now and then; no second runs
//	go run ./test/run ./test/path ./internal/...
//
// gotestsum runs a failed test again in a process of its own, so it begins from a clean lab:
// internal/lab removes the labs of processes that are gone. A test that fails and then passes
// is flaky; it is named, and does not fail the run. What no test of its own accounts for does:
// a package that does not build, a TestMain, a panic, a data race.
//
// It keeps all events of the tests in build/test.json (-events). The last line is
// "N passed, N failed, N skipped".
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"time"
)

const (
	reruns      = 2
	maxFailures = 8 // with more than that, something else is wrong than a busy machine
)

var (
	events = flag.String("events", "build/test.json", "where all events of the tests are kept")
	noisy  = flag.Bool("noisy", false, "take the CPUs away now and then, and run no test twice")
	seed   = flag.Uint64("seed", 0, "of -noisy; 0: another each time")
)

func main() {
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, "Usage: go run ./test/run [-noisy [-seed N]] [-events FILE] [PACKAGE]...\n\nRun the tests of the packages, of all by default. From the top of the tree.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	code, err := run(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/run:", err)
		code = 1
	}
	os.Exit(code)
}

// run tests the packages and returns the exit status.
func run(packages []string) (int, error) {
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	if err := os.MkdirAll(filepath.Dir(*events), 0o755); err != nil {
		return 0, err
	}
	if err := os.Remove(*events); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // gotestsum, which gets it too, ends first
	if *noisy {
		if *seed == 0 {
			*seed = uint64(time.Now().Unix())
		}
		fmt.Printf("noisy: seed %d\n", *seed)
		if err := makeNoise(*seed); err != nil {
			return 0, err
		}
	}
	cmd := exec.Command("go", arguments(packages)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ran := cmd.Run()
	if exit := new(exec.ExitError); ran != nil && !errors.As(ran, &exit) {
		return 0, ran
	}
	f, err := os.Open(*events)
	if err != nil {
		return 0, errors.Join(ran, err)
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", *events, err)
	}
	fmt.Print("\n", v)
	if *noisy {
		fmt.Printf("noisy: seed was %d\n", *seed)
	}
	fmt.Println(v.Last())
	if len(v.failed) > 0 {
		return 1, nil
	}
	return max(cmd.ProcessState.ExitCode(), 0), nil
}

// arguments are those of `go` that run gotestsum.
func arguments(packages []string) []string {
	args := []string{"tool", "gotestsum", "--format", "standard-quiet", "--hide-summary", "skipped", "--jsonfile", *events}
	if !*noisy {
		args = append(args, fmt.Sprintf("--rerun-fails=%d", reruns), fmt.Sprintf("--rerun-fails-max-failures=%d", maxFailures),
			"--rerun-fails-abort-on-data-race")
	}
	for _, p := range packages {
		args = append(args, "--packages", p)
	}
	return append(args, "--", "-count=1", "-p", "1", "-timeout", "40m")
}
