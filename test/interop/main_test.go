// SPDX-License-Identifier: Apache-2.0

// Package interop lets shunt and the kernel's own MPLS share label switched paths: what one
// of them labels the other switches, and takes apart again.
//
// A path is three routers in namespaces, with a sender before and a receiver behind them
// (path_test.go). Over each of its LSPs, of IPv4 and IPv6, of one to three labels, go
// 100,000 random packets (packet_test.go), in small bursts, so that none is lost for want
// of room; each is compared byte for byte with what must have become of it, and so are the
// counters of all three routers (pump_test.go). What must become of a packet is computed,
// and a path of three kernels is held to the same: the plain reference.
//
// Packets of one combination go by two LSPs in turn, a uniform one and a pipe.
//
// It needs root, and a kernel with mpls_router and mpls_iptunnel; without these it skips.
// Debian's has them: `make interop` runs it there, emulated, with progress.
//
//	go test -v ./test/vm -suite interop                          all, in the guest
//	go test -v ./test/vm -suite interop -tests TestPaths/kernel-shunt-kernel/IPv4
package interop

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"shunt/test/suite"
)

var packets = flag.Int("packets", 100_000, "how many go by each combination of path, family and number of labels")

// program is shunt, built where the kernel can take part.
var program string

func TestMain(m *testing.M) {
	suite.Main(m, "interop", func(dir string) error {
		program = filepath.Join(dir, "shunt")
		return nil
	}, nil)
}

// needMPLS skips where the kernel cannot switch labels, or not push them.
func needMPLS(t *testing.T) {
	t.Helper()
	_ = exec.Command("modprobe", "-a", "mpls_router", "mpls_iptunnel").Run() // built in, or the probes tell
	for _, probe := range []string{"/proc/sys/net/mpls/platform_labels", "/proc/sys/net/mpls/ip_ttl_propagate"} {
		if _, err := os.Stat(probe); err != nil {
			t.Skipf("this kernel has no MPLS of its own: %v; `make interop` runs the test under Debian's", err)
		}
	}
}
