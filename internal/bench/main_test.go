// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"os"
	"testing"

	"shunt/internal/cli"
	"shunt/internal/daemon"
)

// TestMain also plays the daemon that a bench starts: the test is the shunt program then.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		cli.RunDaemon = daemon.Run
		os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}
