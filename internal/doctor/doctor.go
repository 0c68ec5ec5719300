// SPDX-License-Identifier: Apache-2.0

// Package doctor examines the machine and says, in one line each, what shunt finds
// there, what that costs, and what to do about it.
//
// It only looks. Whether a port may be fast is package eligible's judgement, from what package
// kernel reads; the doctor puts it into words, next to what that does not weigh:
// kernel features, the BPF file system, sysctls. The daemon runs it for its own ports
// (GET /v1/doctor), the command line runs it where no daemon lives.
//
// Limits: without a daemon it judges with xdp = "auto" and offloads = "switch". It counts bytes for half a second and
// reads no packet, so of a veth it cannot say whether its peer behaves like a wire; the
// running daemon can (`shunt ports`).
package doctor

import (
	"fmt"
	"path"
	"slices"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// What only the BPF library can tell; package dataplane fills these in. While they are
// nil, the checks that need them are left out.
var (
	// Probe tries what the programs need of the kernel: tcx, kernel context casts.
	Probe func() []api.Check
	// Programs looks at an interface, given the directory of shunt's pins: the id of
	// shunt's own XDP program there (0 if none) and the words of other people's tcx
	// programs at ingress and at egress.
	Programs func(bpffs string, index int) (own uint32, ingress, egress []string, err error)
)

// Run examines the machine, the places of a daemon, and the interfaces that match
// ports, which are names or wildcards; all Ethernet ports, and what stands on them, if there are none.
// An error means that it could not look at all.
func Run(paths config.Paths, ports []string) ([]api.Check, error) {
	return run(paths, ports, auto, false, readRules)
}

// auto is the mode of ports that no configuration is known of.
func auto(string) eligible.Mode { return eligible.Auto }

// RunFor is Run by a daemon that runs. It knows the ruleset already, and what it took to start was
// there; that is not tried again, since it has given up most of its rights by then.
func RunFor(paths config.Paths, ports []string, mode func(port string) eligible.Mode, known Rules) ([]api.Check, error) {
	return run(paths, ports, mode, true, func() []api.Check { return rules(known) })
}

func run(paths config.Paths, ports []string, mode func(string) eligible.Mode, inside bool, rules func() []api.Check) ([]api.Check, error) {
	release, err := kernel.Version()
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	checks := examineAll(release, paths, ports, mode, inside)
	if !release.AtLeast(6, 6) {
		return checks, nil
	}
	checks = append(checks, rules()...)
	if first, err := weigh(paths, ports, mode); err == nil { // else what failed is among the others
		checks = append([]api.Check{first}, checks...)
	}
	return checks, nil
}

// examineAll is Run or RunFor on a kernel of that release. One cause is one finding: nothing
// is tried that would fail for the kernel's age alone, and no program for want of rights.
func examineAll(release kernel.Release, paths config.Paths, ports []string, mode func(string) eligible.Mode, inside bool) []api.Check {
	s := system{root: "/"}
	checks := []api.Check{floor(release), rights(inside), s.btf()}
	if inside {
		checks = append(checks, ok("programs", "they are loaded"))
	} else if Probe != nil && !slices.ContainsFunc(checks, func(c api.Check) bool { return c.Level == api.LevelFail }) {
		checks = append(checks, Probe()...)
	}
	checks = append(checks, s.jit(), s.lockdown(), s.bpffs(paths.BPFFS))
	if !inside {
		checks = append(checks, RealTime(kernel.TryRealTime()))
	}
	checks = append(checks, s.forwarding()...)
	checks = append(checks, s.conntrack()...)
	if checks[0].Level == api.LevelFail {
		return checks
	}
	links, err := kernel.Links()
	if err != nil { // what was found so far may say why
		return append(checks, fail("ports", err.Error(), "mend what failed above first"))
	}
	for _, pattern := range ports {
		checks = append(checks, matching(paths, pattern, links, mode, inside)...)
	}
	for _, l := range links {
		if len(ports) == 0 && ethernet(l) {
			checks = append(checks, examine(paths, l, mode(l.Name), inside)...)
		}
	}
	return checks
}

// matching examines all links of one name or wildcard.
func matching(paths config.Paths, pattern string, links []kernel.Link, mode func(string) eligible.Mode, inside bool) (checks []api.Check) {
	for _, l := range links {
		if hit, err := path.Match(pattern, l.Name); hit && err == nil {
			checks = append(checks, examine(paths, l, mode(l.Name), inside)...)
		}
	}
	if checks == nil {
		return []api.Check{warn("port "+pattern, "no such interface",
			"see what there is with `ip link`; a port may also come later")}
	}
	return checks
}

func ok(name, finding string, args ...any) api.Check {
	return api.Check{Name: name, Level: api.LevelOK, Finding: fmt.Sprintf(finding, args...)}
}

func warn(name, finding, remedy string) api.Check {
	return api.Check{Name: name, Level: api.LevelWarn, Finding: finding, Remedy: remedy}
}

func fail(name, finding, remedy string) api.Check {
	return api.Check{Name: name, Level: api.LevelFail, Finding: finding, Remedy: remedy}
}
