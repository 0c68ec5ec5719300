// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

func (e *env) doctorCommand() *cobra.Command {
	return e.reader(&cobra.Command{
		Use:   "doctor [PORT]...",
		Short: "Examine the machine: one finding a line, with a remedy",
		Long: `Examines the kernel, its features, drivers, qdiscs and other programs. With a running
daemon its ports are examined, as it is configured; with PORTs those that are named; else every
Ethernet port, and what stands on it. The first line is the verdict: how much of what comes in
could be fast, and the largest cause why not more. A check that fails makes the exit code 1.`,
		Example: `  shunt doctor
  shunt doctor eth0 eth1`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, ports []string) error {
			checks, err := e.examine(cmd, ports)
			if err != nil {
				return err
			}
			if err := e.show(checks, func(p *page) { printChecks(p, checks) }); err != nil {
				return err
			}
			return verdict(checks)
		},
	})
}

// examine asks the daemon, or examines the machine here where none lives or ports are
// named.
func (e *env) examine(cmd *cobra.Command, ports []string) ([]api.Check, error) {
	if len(ports) == 0 {
		checks, err := e.client().Doctor(cmd.Context())
		if !errors.Is(err, api.ErrNoDaemon) {
			return checks, err
		}
	}
	if Doctor == nil {
		return nil, errors.New("doctor: this program was built without the doctor; build ./cmd/shunt")
	}
	checks, err := Doctor(e.paths, ports)
	if theirs, asked := e.client().Doctor(cmd.Context()); len(ports) > 0 && asked == nil {
		checks = preferring(theirs, checks)
	}
	if checks == nil {
		checks = []api.Check{}
	}
	return checks, err
}

// preferring puts what the daemon finds about its ports in the place of what was found here: it knows its
// configuration, and what came in by them.
func preferring(theirs, here []api.Check) (checks []api.Check) {
	of := map[string][]api.Check{}
	for _, c := range theirs {
		if strings.HasPrefix(c.Name, "port ") {
			of[c.Name] = append(of[c.Name], c)
		}
	}
	done := map[string]bool{}
	for _, c := range here {
		if of[c.Name] == nil {
			checks = append(checks, c)
		} else if !done[c.Name] {
			done[c.Name] = true
			checks = append(checks, of[c.Name]...)
		}
	}
	return checks
}

func printChecks(p *page, checks []api.Check) {
	styles := map[string]style{api.LevelOK: green, api.LevelWarn: yellow, api.LevelFail: red}
	t := newTable("LEVEL", "CHECK", "FINDING")
	for _, c := range checks {
		t.add(cell{c.Level, styles[c.Level]}, c.Name, c.Finding)
		if c.Remedy != "" {
			t.add("", "", cell{"remedy: " + c.Remedy, dim})
		}
	}
	p.table(t)
}

// verdict is an error if a check failed.
func verdict(checks []api.Check) error {
	failed := 0
	for _, c := range checks {
		if c.Level == api.LevelFail {
			failed++
		}
	}
	switch failed {
	case 0:
		return nil
	case 1:
		return errors.New("doctor: one check failed; its remedy stands beside it")
	}
	return errors.New("doctor: " + plainInt(failed) + " checks failed; their remedies stand beside them")
}
