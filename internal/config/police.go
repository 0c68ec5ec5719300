// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Policeable are the reasons that [police] may give a rate: what a packet is, or that the
// kernel must have it for want of a slot. No packet of a flow that is watched, learned or
// proved has one of them.
var Policeable = []string{
	"not_ip", "mpls_off", "vlan_tag", "not_host", "ipsec", "runt", "malformed", "bad_checksum", "ip_options",
	"extension_header", "fragment", "ttl", "not_echo", "tcp_syn", "tcp_no_ack", "tcp_close",
	"table_full", "source_full", "over_mtu",
}

const (
	maxRate = 10_000_000 // packets a second; whole nanoseconds lie between two of them
	// A burst is what comes in a tenth of a second, and never less than a traceroute or a
	// hand of pings.
	burstShare, minBurst = 10, 16
)

// Rate is how many packets of one reason each CPU may give to the kernel.
type Rate int

// Burst is how many of them may come at once.
func (r Rate) Burst() int { return max(minBurst, int(r)/burstShare) }

// parseRate reads "1000/s".
func parseRate(s string) (Rate, bool) {
	number, ok := strings.CutSuffix(s, "/s")
	n, err := strconv.ParseUint(number, 10, 32)
	return Rate(n), ok && err == nil && n >= 1 && n <= maxRate
}

// applyPolice gives cfg the rates, in the order of the file.
func (f *file) applyPolice(cfg *Config, r *raw) error {
	for _, e := range f.entries {
		if e.pattern() != "police.*" {
			continue
		}
		reason := e.path[1]
		if !slices.Contains(Policeable, reason) {
			return f.errorf(e.line, "police.%s: allowed are %s", oneLine(strconv.Quote(reason)), strings.Join(Policeable, ", "))
		}
		rate, ok := parseRate(r.Police[reason])
		if !ok {
			return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed["police.*"])
		}
		cfg.Police[reason] = rate
	}
	return nil
}

// checkSource says whether one source's share fits the table.
func (c Config) checkSource() error {
	if c.SourceFlows <= 0 || c.SourceFlows >= c.Flows/minSourceShare && c.SourceFlows <= c.Flows {
		return nil
	}
	return &keyError{"source_flows", fmt.Sprintf("source_flows %d: allowed is 0, or from a %dth of flows to all of them: %d to %d",
		c.SourceFlows, minSourceShare, c.Flows/minSourceShare, c.Flows)}
}

// SourceLimit is how many slots one source may hold: 0 for any number.
func (c Config) SourceLimit() int {
	if c.SourceFlows == AutoSourceFlows {
		return c.Flows / sourceShare
	}
	return c.SourceFlows
}
