// SPDX-License-Identifier: Apache-2.0

// Package nltest helps tests that speak netlink: it runs them in network namespaces of their own,
// and builds messages as the kernel does.
package nltest

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
)

// InNetns runs the rest of a test in a process of its own, in a network namespace
// that goes away with it: the package works in the namespace of the process. It
// returns true in that process.
func InNetns(t *testing.T) bool {
	t.Helper()
	const inside = "SHUNT_TEST_NETNS"
	if os.Getenv(inside) != "" {
		Run(t, "ip link set lo up")
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

// Run runs commands, one a line; blanks separate their words.
func Run(t *testing.T, commands string) {
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

// NFT loads a ruleset.
func NFT(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// Message builds one with a zeroed fixed header of the given size, whose first byte
// is the family.
func Message(t testing.TB, typ netlink.HeaderType, header int, family byte, attrs func(*netlink.AttributeEncoder)) netlink.Message {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	attrs(ae)
	encoded, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	data := append(make([]byte, header), encoded...)
	data[0] = family
	return netlink.Message{Header: netlink.Header{Type: typ}, Data: data}
}

// Nest encodes attributes inside another.
func Nest(ae *netlink.AttributeEncoder, typ uint16, attrs func(*netlink.AttributeEncoder)) {
	ae.Nested(typ, func(ae *netlink.AttributeEncoder) error {
		attrs(ae)
		return nil
	})
}

// Prefixes joins them in order, for comparison.
func Prefixes(list []netip.Prefix) string {
	var words []string
	for _, p := range list {
		words = append(words, p.String())
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
