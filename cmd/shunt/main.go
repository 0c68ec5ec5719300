// SPDX-License-Identifier: Apache-2.0

// Command shunt is a fast path for Linux routers: `shunt run` is the daemon, all other
// commands are its clients.
package main

import (
	"os"

	"shunt/internal/api"
	"shunt/internal/cli"
	"shunt/internal/daemon"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
)

func main() {
	doctor.Probe = probe
	doctor.Programs = dataplane.Programs
	cli.RunDaemon = daemon.Run
	cli.CleanUp = daemon.CleanUp
	cli.Doctor = doctor.Run
	os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
}

// probe puts what the data path finds into the doctor's words.
func probe() []api.Check {
	if err := dataplane.Probe(); err != nil {
		return []api.Check{{Name: "programs", Level: api.LevelFail, Finding: err.Error(),
			Remedy: "use Linux 6.6 or later, built with BTF and tcx, and run as root"}}
	}
	return []api.Check{{Name: "programs", Level: api.LevelOK, Finding: "the kernel takes all programs"}}
}
