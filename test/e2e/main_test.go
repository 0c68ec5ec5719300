// SPDX-License-Identifier: Apache-2.0

// Package e2e drives the shunt binary the way operators and networks do: real
// namespaces, sockets and rulesets around it, kills and upgrades during traffic, hostile
// packets, other people's programs, and wrong input.
//
// Each test builds a lab of its own and judges by what arrives at the far side, by
// conntrack, and by what the API counted. Wherever shunt must not make a difference, the
// same script runs without it and both ends are compared. Limits: veth devices only, and
// times are judged for what they mean (a lease, a timeout), for speed with -strict alone.
package e2e

import (
	"errors"
	"flag"
	"path/filepath"
	"testing"

	"shunt/test/suite"
)

// program is the binary under test; upgrade is another build of it.
var program, upgrade string

var strict = flag.Bool("strict", false, "assert how soon what is promised happens, on a machine that has nothing else to do")

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "6") // parallel tests wait more than they work
	suite.Main(m, "e2e", func(dir string) error {
		program, upgrade = filepath.Join(dir, "shunt"), filepath.Join(dir, "shunt-next")
		return errors.Join(suite.Build(program, ""), suite.Build(upgrade, "-X main.e2e=upgrade"))
	}, nil)
}
