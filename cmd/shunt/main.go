// SPDX-License-Identifier: Apache-2.0

// Command shunt is a fast path for Linux routers: `shunt run` is the daemon, all other
// commands are its clients.
package main

import (
	"os"

	"shunt/internal/api"
	"shunt/internal/cli"
	"shunt/internal/config"
	"shunt/internal/daemon"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
)

func main() {
	doctor.Probe = probe
	doctor.Programs = dataplane.Programs
	cli.RunDaemon = daemon.Run
	cli.Replace = daemon.Replace
	cli.CleanUp = daemon.CleanUp
	cli.Pinned = pinned
	cli.Doctor = examine
	os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr))
}

// pinned is what a daemon left; nil where it left nothing.
func pinned(paths config.Paths) (cli.Unattended, error) {
	p, err := daemon.OpenPinned(paths)
	if p == nil {
		return nil, err
	}
	return p, err
}

// examine is the doctor, who needs to know where the pins are.
func examine(paths config.Paths, ports []string) ([]api.Check, error) {
	paths, err := daemon.Locate(paths)
	if err != nil {
		return nil, err
	}
	return doctor.Run(paths, ports)
}

// probe puts what the data path finds into the doctor's words.
func probe() []api.Check {
	if err := dataplane.Probe(); err != nil {
		return []api.Check{{Name: "programs", Level: api.LevelFail, Finding: err.Error(),
			Remedy: "use Linux 6.6 or later, built with BTF and tcx, and run as root"}}
	}
	return []api.Check{{Name: "programs", Level: api.LevelOK, Finding: "the kernel takes all programs"}}
}
