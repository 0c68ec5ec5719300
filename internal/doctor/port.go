// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
)

// examine gathers what eligible.Decide judges a link by, and puts the judgement into words.
func examine(paths config.Paths, l kernel.Link, mode eligible.Mode, inside bool) []api.Check {
	facts, failed := gather(paths, l)
	if failed != nil {
		return []api.Check{*failed}
	}
	return judge(facts, mode, inside)
}

// gather reads the facts; what could not be read is a finding.
func gather(paths config.Paths, l kernel.Link) (facts eligible.Port, failed *api.Check) {
	name := "port " + l.Name
	facts = eligible.Port{Link: l}
	hooks, err := kernel.Hooks(l)
	if err != nil {
		c := fail(name, fmt.Sprintf("other people's hooks cannot be read: %v", err), "run as root")
		return facts, &c
	}
	facts.Foreign = hooks
	if facts.Queue, err = kernel.ReadQueue(l); err != nil {
		c := fail(name, fmt.Sprintf("the queue cannot be read: %v", err), "run as root")
		return facts, &c
	}
	if facts.CPUs, err = kernel.CPUs(); err != nil {
		c := fail(name, err.Error(), "mount sysfs at /sys")
		return facts, &c
	}
	if Programs != nil {
		own, ingress, egress, err := Programs(paths.BPFFS, l.Index)
		if err != nil {
			c := fail(name, fmt.Sprintf("BPF programs cannot be read: %v", err), "run as root")
			return facts, &c
		}
		facts.OwnXDP = own
		facts.Foreign = append(facts.Foreign, ingress...)
		facts.Queue = facts.Queue.With(egress)
	}
	return facts, nil
}

// judge says whether a port is fast, and by which way: first the port as a whole, then each end of
// the XDP way, then what attaching does to the card and what may surprise. Where no daemon lives, a port is
// judged as the next one will make it.
func judge(p eligible.Port, mode eligible.Mode, inside bool) []api.Check {
	l := p.Link
	name := "port " + l.Name
	effect := ""
	if p.OwnXDP == 0 && !inside {
		effect = eligible.Effect(p, mode)
	}
	if p.Proven = true; !inside {
		p = eligible.Prepared(p)
	}
	decision := eligible.Decide(p, mode)
	if !decision.Attach {
		return []api.Check{fail(name, decision.Reason, decision.Remedy)}
	}
	checks := []api.Check{ok(name, "can be fast: %s, MTU %d, qdisc %s", device(l), l.MTU, l.Qdisc)}

	if reason, remedy := eligible.LooksDeeper(p); reason != "" {
		checks = append(checks, warn(name, reason, remedy))
	}
	receives, reason, remedy := eligible.Receive(p, mode)
	checks = append(checks, way(name, "receives in XDP", receives, reason, remedy))
	if transmits, why, help := eligible.Transmit(p); mode != eligible.Off && (transmits || why != reason) {
		checks = append(checks, way(name, "takes redirected frames", transmits, why, help))
	}
	if len(l.Uppers) > 0 {
		finding, remedy := Stacked(l.Name, l.Uppers)
		checks = append(checks, warn(name, finding, remedy))
	}
	if effect != "" {
		checks = append(checks, ok(name, "shunt run %s", effect))
	}
	if l.Up && !l.Carrier {
		checks = append(checks, warn(name, "nobody is at the other end (no carrier)", "look at the cable, or set the peer up"))
	}
	return checks
}

// way puts one end of the XDP way into words. What the operator can change is a warning.
func way(name, what string, yes bool, reason, remedy string) api.Check {
	switch {
	case yes:
		return ok(name, "%s", what)
	case remedy != "":
		return warn(name, reason, remedy)
	}
	return ok(name, "%s", reason)
}

func device(l kernel.Link) string {
	switch {
	case l.Driver != "" && l.Kind != "" && l.Driver != l.Kind:
		return fmt.Sprintf("%s with driver %s", l.Kind, l.Driver)
	case l.Driver != "":
		return "driver " + l.Driver
	case l.Kind != "":
		return l.Kind
	}
	return "a device without a named driver"
}
