// SPDX-License-Identifier: Apache-2.0

// Package vm runs the suites under Debian's kernels, emulated (internal/vm): under 6.12, which
// has all that users' kernels have, and what is too old for shunt under 6.1.
//
//	go test ./test/vm                                   a few of their tests: part of `make test`
//	go test -v -parallel 3 -timeout 1h ./test/vm -full  all of them: `make test-vm`
//	go test -v ./test/vm -suite e2e -tests X            those that match, as -run says it
//	go test -v ./test/vm -suite change                  every kind of change, once
//	go test -v ./test/vm -suite interop                 paths of shunt's and the kernel's label switching
//
// The suites are those of test/e2e, test/twin, test/change and test/interop, unchanged: compiled here, run there as
// root. In the guest a second is a thousand million instructions, however busy this machine
// is, so deadlines mean the same in every run. It takes about ten times as long as here.
//
// A kernel that cannot be had is a failure. So is a test that is skipped: 6.12 has every
// feature that one may ask for.
package vm

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"shunt/internal/vm"
	"shunt/test/suite"
)

var (
	full  = flag.Bool("full", false, "run all tests of the suites")
	only  = flag.String("suite", "", "run tests of this suite only: e2e, twin, change or interop")
	tests = flag.String("tests", "", "with -suite: those that match")
)

// run is a suite, or a part of it, in a guest; flags are words for the shell.
type run struct{ suite, tests, flags string }

// short has of each suite what shows most in a minute: NAT of all protocols, by XDP and by
// TC; what shunt must leave to others; labels that the kernel made and takes.
var short = map[string][]run{"short": {
	{"twin", "-test.run=^TestTwins$/^masquerade$/^wire$", ""},
	{"e2e", "-test.run=^(TestPortTaken|TestStatelessRewrite)$", ""},
	{"interop", "-test.run=^TestPaths$/^shunt/IPv/[13]", "-packets=300"},
}}

// slower are flags for suites that send at a rate: a guest has a tenth of the breath.
var slower = map[string]string{"change": "-each=5ms -times=1"}

// half are the tests of e2e that take about as long as the others.
const half = "^Test([A-I]|La)"

// all are three guests, for two processors: one or another always waits. Random traffic is not for them:
// what differs between kernels, and a frame that does, is found here.
var all = map[string][]run{
	"twin":  {{"twin", "-test.skip=^TestFuzz$", ""}},
	"e2e 1": {{"e2e", "-test.run=" + half, ""}},
	"e2e 2": {{"e2e", "-test.skip=" + half, ""}},
}

func TestSuites(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the guest reads files as the caller does: run the tests as root")
	}
	guests, limit := short, 10*time.Minute
	switch {
	case *only != "":
		guests, limit = map[string][]run{*only: {{*only, "-test.run=" + *tests, slower[*only]}}}, 40*time.Minute
	case *full:
		guests, limit = all, 40*time.Minute
	}
	bin := compile(t)
	for name, runs := range guests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			play(t, bin, name, runs, limit)
			t.Logf("took %v", time.Since(began).Round(time.Second))
		})
	}
}

// compile builds what the guest runs. The suites build shunt themselves, which takes minutes
// under emulation: there they find a "go" that hands out what was built here.
func compile(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	const handOut = `#!/bin/sh
from=shunt
for word; do
	case $word in *main.e2e=upgrade*) from=shunt-upgrade;; esac
	[ "$last" != -o ] || to=$word
	last=$word
done
exec cp "${0%/*}/$from" "$to"
`
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(handOut), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"twin", "e2e", "change", "interop"} {
		cmd := exec.Command("go", "test", "-c", "-buildvcs=false", "-o", filepath.Join(bin, name+".test"), "shunt/test/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go test -c shunt/test/%s: %v\n%s", name, err, out)
		}
	}
	err := errors.Join(suite.Build(filepath.Join(bin, "shunt"), ""), suite.Build(filepath.Join(bin, "shunt-upgrade"), "-X main.e2e=upgrade"))
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

var (
	skipped = regexp.MustCompile(`(?m)^ *--- SKIP: .*\n(?: +.*\n)?`) // with the line that says why
	passed  = regexp.MustCompile(`(?m)^ *--- PASS: `)
)

// play boots a guest and lets it run suites, one after the other.
func play(t *testing.T, bin, name string, runs []run, limit time.Duration) {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, r := range runs {
		fmt.Fprintf(&script, "(cd '%s/test/%s' && '%s/%s.test' -test.v '%s' %s) || code=1\n", top, r.suite, bin, r.suite, r.tests, r.flags)
	}
	var out bytes.Buffer
	o := vm.Options{
		Command: []string{"sh", "-c", script.String() + "exit ${code:-0}"},
		Env:     []string{"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		CPUs:    2, MemoryMB: 3072, ICount: true, RealIdle: true, Timeout: limit,
		Output: &out, Progress: os.Stdout,
	}
	if testing.Verbose() {
		o.Output = io.MultiWriter(&out, &prefixed{prefix: name + ": ", w: os.Stdout})
	}
	code, err := vm.Run(t.Context(), o)
	switch {
	case err != nil:
		t.Errorf("%v", err)
	case code != 0:
		t.Errorf("exit code %d", code)
	case !passed.Match(out.Bytes()):
		t.Error("no test has run")
	}
	for _, s := range skipped.FindAllString(out.String(), -1) {
		t.Errorf("skipped, and this kernel has everything: %s", s)
	}
	if t.Failed() && !testing.Verbose() {
		t.Logf("the guest's output:\n%s", &out)
	}
}

// prefixed begins each line with the name of the guest that says it.
type prefixed struct {
	prefix string
	w      io.Writer
	line   []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.line = append(p.line, b...)
	for {
		end := bytes.IndexByte(p.line, '\n') + 1
		if end == 0 {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(p.w, "%s%s", p.prefix, p.line[:end]); err != nil {
			return 0, err
		}
		p.line = p.line[end:]
	}
}
