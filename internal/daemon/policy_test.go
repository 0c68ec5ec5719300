// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/ruleset"
)

// finding is a rule that looks at all packets of the given matches.
func finding(name string, touches ...ruleset.Match) ruleset.Finding {
	for i := range touches {
		touches[i].States = ruleset.AnyState
	}
	return ruleset.Finding{Rule: name, Why: "limit", Touches: touches}
}

// list shows the rules of a policy by reason and name.
func list(c compiled) (lines []string) {
	for i, r := range c.Rules {
		lines = append(lines, r.Reason+" "+c.names[i])
	}
	return lines
}

func TestCompileOrder(t *testing.T) {
	cfg := config.Default()
	cfg.Exclude = []config.Flows{{Proto: 17, Port: [2]uint16{53, 53}}, {Proto: 89}}
	cfg.Include = []config.Flows{{In: "lan*"}}
	enforcing := []ruleset.Finding{finding("a", ruleset.Match{Proto: 6}, ruleset.Match{Proto: 17})}
	want := []string{
		"excluded [[exclude]] number 1 of the configuration", "excluded [[exclude]] number 1 of the configuration",
		"excluded [[exclude]] number 2 of the configuration",
		"per_packet_rule a (limit)", "per_packet_rule a (limit)",
		"hit [[include]] number 1 of the configuration", "hit [[include]] number 1 of the configuration",
		"excluded no [[include]] of the configuration fits",
	}
	c := compile(cfg, enforcing)
	if diff := cmp.Diff(want, list(c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Marked || c.Rules[0].DestinationPorts != (dataplane.PortRange{53, 53}) || c.Rules[1].SourcePorts != (dataplane.PortRange{53, 53}) ||
		c.Rules[5].In != 1 || c.Rules[6].Out != 1 {
		t.Errorf("%+v", c.Policy)
	}
	cfg.Policy, cfg.Mark = config.PolicyMark, config.Mark{Value: 2, Mask: 3}
	c = compile(cfg, enforcing)
	if !c.Marked || c.Value != 2 || c.Mask != 3 || len(c.Rules) != 6 || strings.Contains(fmt.Sprint(list(c)), "per_packet_rule") {
		t.Errorf("%v, %v", c.Marked, list(c))
	}
	if c := compile(config.Default(), nil); len(c.Rules) != 0 || c.Marked {
		t.Errorf("nothing is configured: %v", list(c))
	}
}

// TestCompileBounds: what there is no room for is refused more widely, never allowed.
func TestCompileBounds(t *testing.T) {
	cfg := config.Default()
	for i := range config.MaxFlowRules {
		f := config.Flows{From: netip.MustParsePrefix(fmt.Sprintf("192.0.%d.0/24", i)), In: fmt.Sprintf("a%d", i)}
		cfg.Exclude = append(cfg.Exclude, f)
	}
	var enforcing []ruleset.Finding
	for i := range ruleset.MaxFindings {
		m := ruleset.Match{Family: 4, Proto: uint8(i + 1)}
		n := m
		n.Family = 6
		o := m
		o.In = ruleset.Named([]string{fmt.Sprintf("b%d", i)})
		enforcing = append(enforcing, finding(fmt.Sprint(i), m, n, o))
	}
	c := compile(cfg, enforcing)
	last := c.Rules[len(c.Rules)-1]
	if len(c.Rules) != 2*config.MaxFlowRules+1 || last != (dataplane.PolicyRule{States: dataplane.StateAny, Reason: "per_packet_rule"}) {
		t.Errorf("%d rules, the last one %+v", len(c.Rules), last)
	}
	if last = c.Rules[2*config.MaxFlowRules-1]; last.In|last.Out != 0 || !last.Destination.IsValid() {
		t.Errorf("no group is left for it: %+v", last)
	}
	cfg.Include, cfg.Exclude = cfg.Exclude, nil
	c = compile(cfg, nil)
	if len(c.Rules) != 2*dataplane.MaxPolicyGroups+1 || len(c.lost) != config.MaxFlowRules-dataplane.MaxPolicyGroups {
		t.Errorf("%d rules, %d lost", len(c.Rules), len(c.lost))
	}
}

// TestGroups: a port is in the groups of all that stands on it.
func TestGroups(t *testing.T) {
	cfg := config.Default()
	cfg.Exclude = []config.Flows{{In: "lan"}, {In: "br0"}, {In: "br0.7"}, {In: "wan"}}
	enforcing := []ruleset.Finding{finding("a", ruleset.Match{In: ruleset.Named(nil, 3)}), finding("b", ruleset.Match{In: ruleset.Named([]string{"br*"})})}
	c := compile(cfg, enforcing)
	c.place([]kernel.Link{
		{Index: 1, Name: "lan", Master: 4}, {Index: 2, Name: "lan2", Master: 4}, {Index: 3, Name: "wan"},
		{Index: 4, Name: "br0"}, {Index: 5, Name: "br0.7", ParentName: "br0"},
	}, []int{1, 2, 3})
	if diff := cmp.Diff(map[int]uint32{1: 0b100111, 2: 0b100110, 3: 0b011000}, c.Groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	c.vain = nil
	c.place([]kernel.Link{{Index: 3, Name: "wan"}}, []int{3})
	if diff := cmp.Diff([]string{"lan", "br0", "br0.7"}, c.vain); diff != "" {
		t.Errorf("no port (-want +got):\n%s", diff)
	}
}

// TestExcludedInterfaces: what a rule of the ruleset excludes is a group of all others, and a bound
// goes on to the data path.
func TestExcludedInterfaces(t *testing.T) {
	until := ruleset.Until{Counter: ruleset.Bytes, Direction: ruleset.Reply, At: 7}
	c := compile(config.Default(), []ruleset.Finding{finding("a",
		ruleset.Match{NotIn: ruleset.Named([]string{"lan"}), States: ruleset.AnyState},
		ruleset.Match{In: ruleset.Named([]string{"w*"}), NotIn: ruleset.Named([]string{"wan"}), States: ruleset.AnyState, Until: until})})
	c.place([]kernel.Link{{Index: 1, Name: "lan"}, {Index: 2, Name: "wan"}, {Index: 3, Name: "wifi"}}, []int{1, 2, 3})
	if diff := cmp.Diff(map[int]uint32{1: 0, 2: 0b01, 3: 0b11}, c.Groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if r := c.Rules[1]; r.In != 0b10 || r.Counter != dataplane.CountBytes || r.Direction != dataplane.DirectionReply || r.Until != 7 {
		t.Errorf("%+v", r)
	}
}

// TestBecause: the rule that is named is the one that the data path met, as far as that
// can be told.
func TestBecause(t *testing.T) {
	tuple := func(from, to string) dataplane.Tuple {
		return dataplane.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to)}
	}
	in, nat := tuple("192.0.2.1:1000", "198.51.100.1:53"), tuple("203.0.113.1:2000", "198.51.100.1:53")
	flow := dataplane.Flow{Port: 1, Proto: 17, In: in, NAT: in}
	learned := flow
	learned.NAT, learned.Out = nat, 2
	six := dataplane.Flow{Port: 1, Proto: 17, In: tuple("[2001:db8::1]:1", "[2001:db8::2]:53")}
	six.NAT = six.In
	match := ruleset.Match{Family: 4, Source: netip.MustParsePrefix("203.0.113.0/24")}
	for _, c := range []struct {
		name  string
		match ruleset.Match
		flow  dataplane.Flow
		want  string
	}{
		{"family", ruleset.Match{Family: 6}, flow, "any"},
		{"IPv6", ruleset.Match{Family: 6}, six, "this"},
		{"protocol", ruleset.Match{Proto: 6}, flow, "any"},
		{"destination port", ruleset.Match{DestinationPorts: [2]uint16{50, 60}}, flow, "this"},
		{"other port", ruleset.Match{DestinationPorts: [2]uint16{54, 60}}, learned, "any"},
		{"interface", ruleset.Match{In: ruleset.Named([]string{"lan"})}, flow, "this"},
		{"other interface", ruleset.Match{In: ruleset.Named([]string{"wan"})}, flow, "any"},
		{"way out", ruleset.Match{Out: ruleset.Named([]string{"wan"})}, learned, "this"},
		{"other way out", ruleset.Match{Out: ruleset.Named([]string{"lan"})}, learned, "any"},
		{"after NAT", match, learned, "this"},
		{"after NAT, which is not known: sure before maybe", match, flow, "any"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := compile(config.Default(), []ruleset.Finding{finding("this", c.match), finding("any", ruleset.Match{})})
			p.place([]kernel.Link{{Index: 1, Name: "lan"}, {Index: 2, Name: "wan"}}, []int{1, 2})
			if got := p.because(c.flow, "per_packet_rule"); got != c.want+" (limit)" {
				t.Errorf("named %q, want %q", got, c.want)
			}
			if got := p.because(c.flow, "excluded"); got != "" {
				t.Errorf("named %q", got)
			}
		})
	}
	p := compile(config.Default(), []ruleset.Finding{finding("this", match)})
	if got := p.because(flow, "per_packet_rule"); got != "this (limit)" {
		t.Errorf("the only one that can be: %q", got)
	}
}
