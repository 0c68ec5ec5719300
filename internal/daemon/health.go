// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"slices"
	"strings"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
)

// awaited is the remedy for a port that is not there.
const awaited = "it becomes a port as soon as it is there; \"ip link\" lists the names"

// problems are what keeps flows from being fast, the worst first: ports that are refused or not
// there, names that match nothing, a router with one side only, devices that stand on a port.
func problems(ports []api.Port, unmatched []string) []api.Check {
	found := []api.Check{}
	var stacked []api.Check
	var fast []string
	for _, p := range ports {
		switch p.State {
		case api.PortRefused, api.PortAbsent:
			found = append(found, api.Check{Name: "port " + p.Name, Level: api.LevelFail, Finding: naming(p.Name, p.Reason), Remedy: p.Remedy})
		default:
			fast = append(fast, p.Name)
			if len(p.Above) > 0 {
				finding, remedy := doctor.Stacked(p.Name, p.Above)
				stacked = append(stacked, api.Check{Name: "port " + p.Name, Level: api.LevelWarn, Finding: finding, Remedy: remedy})
			}
		}
		if p.Labels != "" {
			found = append(found, api.Check{Name: "labels of " + p.Name, Level: api.LevelWarn, Finding: naming(p.Name, p.Labels)})
		}
	}
	for _, pattern := range unmatched {
		found = append(found, api.Check{Name: "port " + pattern, Level: api.LevelWarn, Finding: "no interface matches " + pattern, Remedy: awaited})
	}
	found = append(found, stacked...)
	const remedy = "see \"shunt ports\""
	switch len(fast) {
	case 0:
		found = append([]api.Check{{Name: "ports", Level: api.LevelFail, Finding: "no flow can be fast: no port is attached", Remedy: remedy}}, found...)
	case 1:
		found = append([]api.Check{{Name: "ports", Level: api.LevelFail, Remedy: remedy + ", or add the other side with --port",
			Finding: fmt.Sprintf("only %s is attached: no flow between %[1]s and another interface can be fast", fast[0])}}, found...)
	}
	return found
}

// naming puts a port's name in front of a reason that does not have it.
func naming(port, reason string) string {
	if slices.Contains(strings.Fields(reason), port) {
		return reason
	}
	return port + ": " + reason
}

// state is the word for what problems there are.
func state(paused bool, problems []api.Check) string {
	switch {
	case paused:
		return api.StatePaused
	case len(problems) > 0:
		return api.StateDegraded
	}
	return api.StateRunning
}

// unmatched are the wildcards of the configuration that no interface matches now.
func (d *Daemon) unmatched() (patterns []string) {
	exact, ports := d.cfg.Load().Exact(), d.showing()
	for _, pattern := range d.cfg.Load().Ports {
		if !slices.Contains(exact, pattern) && !slices.ContainsFunc(ports, func(p shown) bool { return fits(pattern, p.link.Name) }) {
			patterns = append(patterns, pattern)
		}
	}
	return patterns
}

// sayProblems logs them, as the daemon becomes ready.
func (d *Daemon) sayProblems() {
	ports, err := d.Ports()
	if err != nil {
		d.log.Error("counters", "err", err)
		return
	}
	for _, p := range problems(ports, d.unmatched()) {
		d.log.Warn("degraded: "+p.Finding, "remedy", p.Remedy)
	}
}

// addCounters adds what the data path counted.
func addCounters(s *api.Status, plane *dataplane.Plane) (err error) {
	for stage, word := range dataplane.Stages {
		c, err := plane.Totals(stage)
		if err != nil {
			return err
		}
		s.Counters[word] = map[string]uint64{}
		for i, n := range c.Packets {
			if n > 0 {
				s.Counters[word][dataplane.Reasons[i]] = n
			}
		}
		if stage != dataplane.StageTCEgress {
			s.Hits += c.Of("hit")
		}
		if stage == dataplane.StageTCIngress {
			s.Punts = c.Punts()
		}
	}
	s.Policed, err = plane.Policed()
	return err
}
