// Package e2e drives the shunt binary the way operators and networks do: real
// namespaces, sockets and rulesets around it, kills and upgrades during traffic, hostile
// packets, other people's programs, and wrong input.
//
// Each test builds a lab of its own and judges by what arrives at the far side, by
// conntrack, and by what the API counted. Wherever shunt must not make a difference, the
// same script runs without it and both ends are compared. Limits: veth devices only, and
// times are judged for what they mean (a lease, a timeout), never for speed.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// program is the binary under test; upgrade is another build of it.
var program, upgrade string

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "e2e: namespaces and BPF need root; run the tests with sudo")
		os.Exit(1)
	}
	flag.Parse()
	flag.Set("test.parallel", "6") // parallel tests wait more than they work
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shunt-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755) // one test is nobody
	program, upgrade = filepath.Join(dir, "shunt"), filepath.Join(dir, "shunt-next")
	for path, flags := range map[string]string{program: "-s -w", upgrade: "-s -w -X main.e2e=upgrade"} {
		build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", flags, "-o", path, "shunt/cmd/shunt")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make does: with cgo the daemon keeps its rights
		out, err := build.CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "e2e: go build: %v: %s", err, out)
			return 1
		}
	}
	return m.Run()
}
