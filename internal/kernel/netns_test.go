// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inNetns runs the rest of a test in a process of its own, in a network namespace
// that goes away with it: the package works in the namespace of the process. It
// returns true in that process.
func inNetns(t *testing.T) bool {
	t.Helper()
	const inside = "SHUNT_TEST_NETNS"
	if os.Getenv(inside) != "" {
		run(t, "ip link set lo up")
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.timeout=60s", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("%s", out)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// run runs commands, one a line; blanks separate their words.
func run(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.TrimSpace(line), err, out)
		}
	}
}

// nft loads a ruleset.
func nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

func index(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.Index
}
