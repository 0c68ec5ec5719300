// SPDX-License-Identifier: Apache-2.0

package dataplane

import "net/netip"

// Fit says whether a PolicyRule is about a flow.
type Fit int

// What can be said. Maybe is for what nobody keeps: the state of its connection, and how
// a flow leaves that was never learned.
const (
	FitsNot Fit = iota
	FitsMaybe
	FitsSurely
)

// Fits tells whether a rule is about a flow, as bpf/policy.h judges its packets; groups
// are Policy.Groups.
func (r PolicyRule) Fits(f Flow, groups map[int]uint32) Fit {
	four := f.In.Source.Addr().Is4()
	if r.Proto != 0 && r.Proto != f.Proto || r.Family == 4 && !four || r.Family == 6 && four {
		return FitsNot
	}
	if r.In != 0 && r.In&groups[f.Port] == 0 {
		return FitsNot
	}
	learned := f.Out != 0
	if r.Out != 0 && learned && r.Out&groups[f.Out] == 0 {
		return FitsNot
	}
	for _, end := range []struct {
		prefix  netip.Prefix
		ports   PortRange
		in, out netip.AddrPort
	}{{r.Source, r.SourcePorts, f.In.Source, f.NAT.Source}, {r.Destination, r.DestinationPorts, f.In.Destination, f.NAT.Destination}} {
		address := !end.prefix.IsValid() || end.prefix.Contains(end.in.Addr()) || end.prefix.Contains(end.out.Addr())
		port := end.ports.has(end.in.Port()) || end.ports.has(end.out.Port())
		if learned && !(address && port) {
			return FitsNot
		}
		if !address || !port {
			return FitsMaybe
		}
	}
	if r.Out != 0 && !learned || r.States != StateAny || r.Counter != 0 {
		return FitsMaybe
	}
	return FitsSurely
}

func (p PortRange) has(port uint16) bool {
	return p == PortRange{} || port >= p[0] && port <= p[1]
}
