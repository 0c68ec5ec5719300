// SPDX-License-Identifier: Apache-2.0

// Package mpls holds a label switching router against the RFCs, frame by frame.
//
// Each case of the tables (cases_*_test.go) names a rule and the clause behind it, says what
// the router is told, which frames go in at its ports A and B, and which must come out, byte
// by byte. How a router is told is a driver's business:
//
//	go test -v ./test/mpls -run TestConformance                       shunt, in a lab
//	go test -v ./test/mpls -run TestConformance -router kernel        the kernel's own MPLS, where it has any
//	go test -v ./test/mpls -run TestConformance -router reference     a few lines that switch labels by hand
//	go test -v ./test/mpls -run TestConformance -router none -a eth1 -b eth2 -mac-a MAC -mac-b MAC
//	                                                               somebody else's, behind two interfaces
//
// For the last, every case prints as JSON what the router must have been told; -configure
// names a program that is given the same to do it. Single cases are run by -run
// 'TestConformance/^T5$', whole kinds left out by -without.
//
// docs/mpls-conformance.md has the results. A run against shunt fails if they are others than
// those there; `make conformance` writes the page, for which it runs the kernel in a virtual
// machine (page_test.go).
//
// The frames that are expected are dissected by scapy too (judge_test.go): this package's
// own builder is not its only judge. All of it needs root, as raw sockets and labs do.
package mpls

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"shunt/test/suite"
)

var (
	routerName = flag.String("router", "shunt", "the router under test: shunt, kernel, reference or none")
	interfaces = [2]*string{flag.String("a", "", "with -router none: interface on the link to port A"), flag.String("b", "", "and to port B")}
	macs       = [2]*string{flag.String("mac-a", "", "with -router none: MAC of the router's port A"), flag.String("mac-b", "", "and of port B")}
	hook       = flag.String("configure", "", "with -router none: program that reads a case as JSON and configures the router")
	without    = flag.String("without", notYet, "leave out cases that need these, a comma between them")
	resultFile = flag.String("results", "", "write the results to this file, as JSON")
	update     = flag.Bool("update", false, "write docs/mpls-conformance.md anew, of shunt as it is and of the kernel as it was kept")
	guest      = flag.Bool("vm", false, "before, run the cases against Debian's kernel in a virtual machine, and keep what they come to")
	patience   = flag.Duration("patience", 2*time.Second, "how long an expected frame may be under way")
	seed       = flag.Uint64("seed", 1, "of TestFuzz")
	frames     = flag.Int("frames", 20000, "of TestFuzz")
)

// notYet are the needs that shunt does not meet yet.
const notYet = "vlan"

// program is shunt, built once it is asked for.
var program string

func TestMain(m *testing.M) {
	suite.Main(m, "mpls", func(dir string) error {
		program = filepath.Join(dir, "shunt")
		return nil
	}, nil)
}

// build compiles shunt, the first time that it is needed.
func build() error {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	return suite.Build(program, "")
}
