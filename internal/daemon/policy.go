// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"net/netip"
	"path"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/ruleset"
)

// compiled is a policy for the data path, with the words for each of its rules, and those
// interfaces that its groups are made of.
type compiled struct {
	dataplane.Policy
	names  []string
	groups []interfaces
	lost   []string // what the configuration asks for and has no room
	vain   []string // interfaces of the configuration that no port stands under
}

// interfaces tells whether one is meant, by its name or index.
type interfaces struct {
	key        string
	configured bool // not by the ruleset
	has        func(name string, index int) bool
}

// compile makes one list of what the configuration and the ruleset say: what is excluded,
// what rules look at packet by packet, and if only some flows are included, those and
// nothing else. What there is no room for makes it wider, never narrower.
func compile(cfg config.Config, enforcing []ruleset.Finding) compiled {
	c := compiled{}
	for i, f := range cfg.Exclude {
		c.addFlows(f, "excluded", fmt.Sprintf("[[exclude]] number %d of the configuration", i+1))
	}
	var included compiled
	included.groups = c.groups
	for i, f := range cfg.Include {
		included.addFlows(f, "hit", fmt.Sprintf("[[include]] number %d of the configuration", i+1))
	}
	c.groups = included.groups
	if len(cfg.Include) > 0 {
		included.add(dataplane.PolicyRule{States: dataplane.StateAny, Reason: "excluded"}, "no [[include]] of the configuration fits")
	}
	if cfg.Policy == config.PolicyMark {
		c.Marked, c.Value, c.Mask = true, cfg.Mark.Value, cfg.Mark.Mask
	} else {
		c.addFindings(enforcing, dataplane.MaxPolicyRules-len(c.Rules)-len(included.Rules))
	}
	c.Rules, c.names = append(c.Rules, included.Rules...), append(c.names, included.names...)
	c.lost = included.lost
	return c
}

func (c *compiled) add(r dataplane.PolicyRule, name string) {
	c.Rules, c.names = append(c.Rules, r), append(c.names, name)
}

// addFlows adds a rule of the configuration: one for each direction.
func (c *compiled) addFlows(f config.Flows, reason, name string) {
	in, okIn := c.group(f.In, true, func(name string, _ int) bool { return fits(f.In, name) })
	out, okOut := c.group(f.Out, true, func(name string, _ int) bool { return fits(f.Out, name) })
	if reason == "hit" && !(okIn && okOut) {
		c.lost = append(c.lost, name)
		return
	}
	there := dataplane.PolicyRule{
		Family: family(f.From, f.To), Proto: f.Proto, Source: f.From, Destination: f.To, DestinationPorts: f.Port,
		In: in, Out: out, States: dataplane.StateAny, Reason: reason,
	}
	c.add(there, name)
	back := there
	back.Source, back.Destination = there.Destination, there.Source
	back.SourcePorts, back.DestinationPorts = there.DestinationPorts, there.SourcePorts
	back.In, back.Out = there.Out, there.In
	if back != there {
		c.add(back, name)
	}
}

func fits(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// addFindings adds what rules of the ruleset could touch, in at most so many rules.
func (c *compiled) addFindings(enforcing []ruleset.Finding, room int) {
	n := 0
	for _, f := range enforcing {
		n += len(f.Touches)
	}
	for i, f := range enforcing {
		if i > 0 && n > room { // one rule for all
			continue
		}
		if n > room {
			c.add(dataplane.PolicyRule{States: dataplane.StateAny, Reason: "per_packet_rule"}, f.String()+" and others")
			continue
		}
		for _, m := range f.Touches {
			in, _ := c.listed(m.In, m.NotIn)
			out, _ := c.listed(m.Out, m.NotOut)
			c.add(dataplane.PolicyRule{
				Family: max(m.Family, family(m.Source, m.Destination)), Proto: m.Proto,
				Source: m.Source, Destination: m.Destination,
				SourcePorts: m.SourcePorts, DestinationPorts: m.DestinationPorts,
				In: in, Out: out, States: stateBits(m.States), Reason: "per_packet_rule",
				Counter: uint8(m.Until.Counter), Direction: uint8(m.Until.Direction), Until: m.Until.At,
			}, f.String())
		}
	}
}

// listed is the group of the interfaces that a rule of the ruleset names, without those that it
// excludes.
func (c *compiled) listed(some, not ruleset.Interfaces) (bit uint32, ok bool) {
	key := string(some)
	if not != "" {
		key += " but " + string(not)
	}
	return c.group(key, false, func(name string, index int) bool {
		return some.Has(name, index) && (not == "" || !not.Has(name, index))
	})
}

func stateBits(s ruleset.States) (bits uint8) {
	for from, to := range map[ruleset.States]uint8{
		ruleset.Established: dataplane.StateEstablished, ruleset.New: dataplane.StateNew, ruleset.Untracked: dataplane.StateUntracked,
	} {
		if s&from != 0 {
			bits |= to
		}
	}
	return bits
}

// family is that of the first prefix that is given: in the data path an IPv4 address
// looks like the end of an IPv6 one.
func family(prefixes ...netip.Prefix) uint8 {
	for _, p := range prefixes {
		switch {
		case p.IsValid() && p.Addr().Is4():
			return 4
		case p.IsValid():
			return 6
		}
	}
	return 0
}

// group is the bit of some interfaces; 0 is any. false: all bits are taken, so that any
// interface stands for these.
func (c *compiled) group(key string, configured bool, has func(string, int) bool) (bit uint32, ok bool) {
	if key == "" {
		return 0, true
	}
	for i, g := range c.groups {
		if g.key == key && g.configured == configured {
			return 1 << i, true
		}
	}
	if len(c.groups) == dataplane.MaxPolicyGroups {
		return 0, false
	}
	c.groups = append(c.groups, interfaces{key, configured, has})
	return 1 << (len(c.groups) - 1), true
}

// place puts ports into their groups. A port belongs to those of its own name and to
// those of the interfaces above it: what a bridge or a VLAN on it is named for comes in
// by the port.
func (c *compiled) place(links []kernel.Link, ports []int) {
	c.Groups = map[int]uint32{}
	byIndex, up := map[int]kernel.Link{}, map[int][]int{}
	byName := map[string]int{}
	for _, l := range links {
		byIndex[l.Index], byName[l.Name] = l, l.Index
	}
	for _, l := range links {
		if l.Master != 0 {
			up[l.Index] = append(up[l.Index], l.Master)
		}
		if l.ParentName != "" {
			below := byName[l.ParentName]
			up[below] = append(up[below], l.Index)
		}
	}
	for _, port := range ports {
		bits, seen := uint32(0), map[int]bool{}
		for at := []int{port}; len(at) > 0; at = at[1:] {
			if seen[at[0]] {
				continue
			}
			seen[at[0]] = true
			at = append(at, up[at[0]]...)
			l := byIndex[at[0]]
			for i, g := range c.groups {
				if g.has(l.Name, l.Index) {
					bits |= 1 << i
				}
			}
		}
		c.Groups[port] = bits
	}
	for i, g := range c.groups {
		used := false
		for _, bits := range c.Groups {
			used = used || bits&(1<<i) != 0
		}
		if !used && g.configured && len(ports) > 0 {
			c.vain = append(c.vain, g.key)
		}
	}
}

// because names the rule that keeps a flow from being learned, given the reason that it
// met; "": it cannot be told. Of a flow that was not learned it is not known what becomes
// of it, so a rule that could be about that is the second choice.
func (c *compiled) because(f dataplane.Flow, reason string) string {
	second := ""
	for i, r := range c.Rules {
		if r.Reason != reason {
			continue
		}
		switch r.Fits(f, c.Groups) {
		case dataplane.FitsSurely:
			return c.names[i]
		case dataplane.FitsMaybe:
			if second == "" {
				second = c.names[i]
			}
		}
	}
	return second
}
