// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net/netip"
	"testing"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// policy puts rules in force. lan is in group 1, wan in group 2.
func (b *bench) policy(t *testing.T, p dataplane.Policy) {
	t.Helper()
	p.Groups = map[int]uint32{b.LANIndex: 1, b.WANIndex: 2}
	for i := range p.Rules {
		if p.Rules[i].States == 0 {
			p.Rules[i].States = dataplane.StateAny
		}
		if p.Rules[i].Reason == "" {
			p.Rules[i].Reason = "excluded"
		}
	}
	check(t, b.SetPolicy(p))
}

// TestPolicyRules: each field of a rule, with a packet that it fits and one that it does not.
func TestPolicyRules(t *testing.T) {
	b := open(t, exercise.Options{})
	prefix := netip.MustParsePrefix
	udp4, udp6, tcp4 := b.udp4, b.udp6, b.tcp4
	for _, c := range []struct {
		name   string
		rule   dataplane.PolicyRule
		packet func() (in, out exercise.Packet)
		fits   bool
	}{
		{"everything", dataplane.PolicyRule{}, udp4, true},
		{"family", dataplane.PolicyRule{Family: 4}, udp4, true},
		{"other family", dataplane.PolicyRule{Family: 6}, udp4, false},
		{"IPv6", dataplane.PolicyRule{Family: 6}, udp6, true},
		{"not IPv6", dataplane.PolicyRule{Family: 4}, udp6, false},
		{"protocol", dataplane.PolicyRule{Proto: 17}, udp4, true},
		{"protocol over IPv6", dataplane.PolicyRule{Proto: 17}, udp6, true},
		{"other protocol", dataplane.PolicyRule{Proto: 17}, tcp4, false},
		{"protocol and family", dataplane.PolicyRule{Proto: 17, Family: 6}, udp4, false},
		{"source", dataplane.PolicyRule{Source: prefix("198.18.0.0/24")}, udp4, true},
		{"source host", dataplane.PolicyRule{Source: prefix("198.18.0.2/32")}, udp4, true},
		{"other source host", dataplane.PolicyRule{Source: prefix("198.18.0.3/32")}, udp4, false},
		{"source as destination", dataplane.PolicyRule{Destination: prefix("198.18.0.0/24")}, udp4, false},
		{"destination", dataplane.PolicyRule{Destination: prefix("198.16.0.0/12")}, udp4, true},
		{"destination, one bit off", dataplane.PolicyRule{Destination: prefix("198.19.0.128/25")}, udp4, false},
		{"IPv6 source", dataplane.PolicyRule{Source: prefix("2001:2:0:18::/64")}, udp6, true},
		{"other IPv6 source", dataplane.PolicyRule{Source: prefix("2001:2:0:1a::/64")}, udp6, false},
		{"first bits of IPv6", dataplane.PolicyRule{Source: prefix("3001::/4")}, udp6, false},
		{"IPv6 destination", dataplane.PolicyRule{Destination: prefix("2001:2:0:19::2/128")}, udp6, true},
		{"other IPv6 destination", dataplane.PolicyRule{Destination: prefix("2001:2:0:19::3/128")}, udp6, false},
		{"source port", dataplane.PolicyRule{SourcePorts: dataplane.PortRange{1000, 1000}}, udp4, true},
		{"source ports below", dataplane.PolicyRule{SourcePorts: dataplane.PortRange{1, 999}}, udp4, false},
		{"source ports above", dataplane.PolicyRule{SourcePorts: dataplane.PortRange{1001, 65535}}, udp4, false},
		{"destination port", dataplane.PolicyRule{DestinationPorts: dataplane.PortRange{1999, 2000}}, udp4, true},
		{"other destination port", dataplane.PolicyRule{DestinationPorts: dataplane.PortRange{1000, 1000}}, udp4, false},
		{"in", dataplane.PolicyRule{In: 1}, udp4, true},
		{"other in", dataplane.PolicyRule{In: 2}, udp4, false},
		{"out", dataplane.PolicyRule{Out: 2}, udp4, true},
		{"other out", dataplane.PolicyRule{Out: 1}, udp4, false},
		{"state", dataplane.PolicyRule{States: dataplane.StateUntracked}, udp4, true},
		{"other states", dataplane.PolicyRule{States: dataplane.StateNew | dataplane.StateEstablished}, udp4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			b.policy(t, dataplane.Policy{Rules: []dataplane.PolicyRule{c.rule}})
			in, out := c.packet()
			want := teaches + "learned"
			if c.fits {
				want = teaches + "excluded"
			}
			b.forth(t, want, in.Bytes(), out.Bytes())
		})
	}
}

// TestPolicyOrder: the first rule that fits counts, and the last of as many as there may be.
func TestPolicyOrder(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	other := dataplane.PolicyRule{Proto: 99}
	many := make([]dataplane.PolicyRule, dataplane.MaxPolicyRules-1)
	for i := range many {
		many[i] = other
	}
	for _, c := range []struct {
		name  string
		rules []dataplane.PolicyRule
		want  string
	}{
		{"no rule", nil, "learned"},
		{"none that fits", []dataplane.PolicyRule{other}, "learned"},
		{"allowed first", []dataplane.PolicyRule{{Proto: 17, Reason: "hit"}, {}}, "learned"},
		{"refused first", []dataplane.PolicyRule{{Reason: "per_packet_rule"}, {Reason: "hit"}}, "per_packet_rule"},
		{"the last one", append(many, dataplane.PolicyRule{}), "excluded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			b.policy(t, dataplane.Policy{Rules: c.rules})
			b.forth(t, teaches+c.want, in.Bytes(), out.Bytes())
			if c.want != "learned" {
				b.answers(t, queryOf(in), c.want)
			}
		})
	}
	if err := b.SetPolicy(dataplane.Policy{Rules: append(many, other, other)}); err == nil {
		t.Error("too many rules are taken")
	}
}

// TestPolicyChange: what was learned under another policy proves itself again, and what
// may not be fast any more is not; the same policy again costs nothing.
func TestPolicyChange(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	i, o := in.Bytes(), out.Bytes()
	b.policy(t, dataplane.Policy{})
	b.forth(t, teaches+"learned", i, o)
	b.policy(t, dataplane.Policy{})
	b.forth(t, "xdp hit", i, o)
	b.policy(t, dataplane.Policy{Rules: []dataplane.PolicyRule{{Proto: 6}}})
	b.forth(t, "xdp old_generation, tc-ingress old_generation, tc-egress renewed", i, o)
	b.forth(t, "xdp hit", i, o)
	b.policy(t, dataplane.Policy{Rules: []dataplane.PolicyRule{{Proto: 17}}})
	b.forth(t, "xdp old_generation, tc-ingress old_generation, tc-egress excluded", i, o)
	b.forth(t, teaches+"excluded", i, o) // what was learned is forgotten
	because(t, b.slotOf(t, in), "excluded")
	if s := b.slotOf(t, in); s.State != exercise.Seen {
		t.Errorf("state %d, want %d", s.State, exercise.Seen)
	}

	// a port that the policy does not know yet
	check(t, b.SetPolicy(dataplane.Policy{Rules: []dataplane.PolicyRule{{Proto: 6, States: dataplane.StateAny, Reason: "excluded"}}}))
	b.forth(t, teaches+"port_unknown", i, o)
	b.policy(t, dataplane.Policy{Rules: []dataplane.PolicyRule{{Proto: 6}}})
	b.forth(t, teaches+"learned", i, o)
	b.forth(t, "xdp hit", i, o)
}

// TestPolicyNAT: an address that is rewritten counts in both its forms, in both directions.
func TestPolicyNAT(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	out.Src = addr("198.19.0.77:5000")
	back, returned := answer(out), answer(in)
	returned.TTL = back.TTL - 1
	nat := "chain source { type nat hook postrouting priority 100; ip protocol udp snat ip to 198.19.0.77:5000; }"
	for _, c := range []struct {
		name        string
		rule        dataplane.PolicyRule
		there, home string
	}{
		{"as it comes in", dataplane.PolicyRule{Source: netip.MustParsePrefix("198.18.0.2/32")}, "excluded", "learned"},
		{"as it goes out", dataplane.PolicyRule{SourcePorts: dataplane.PortRange{5000, 5000}}, "excluded", "learned"},
		{"answer as it comes in", dataplane.PolicyRule{Destination: netip.MustParsePrefix("198.19.0.77/32")}, "learned", "excluded"},
		{"answer as it goes out", dataplane.PolicyRule{DestinationPorts: dataplane.PortRange{1000, 1000}}, "learned", "excluded"},
		{"new", dataplane.PolicyRule{States: dataplane.StateNew}, "excluded", "learned"},
		{"established", dataplane.PolicyRule{States: dataplane.StateEstablished}, "learned", "excluded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.track(t, nat)
			b.policy(t, dataplane.Policy{Rules: []dataplane.PolicyRule{c.rule}})
			b.forth(t, teaches+c.there, in.Bytes(), out.Bytes())
			b.back(t, teaches+c.home, back.Bytes(), returned.Bytes())
		})
	}
}

// TestPolicyMark: only connections with the mark are learned, and none without conntrack.
func TestPolicyMark(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	marked := dataplane.Policy{Marked: true, Value: 0x10, Mask: 0xf0}
	for _, c := range []struct{ name, rules, want string }{
		{"without conntrack", "", "not_marked"},
		{"no mark", tracked, "not_marked"},
		{"another mark", tracked + forward + "ct mark set 0x21; }", "not_marked"},
		{"the mark", tracked + forward + "ct mark set 0x10; }", "learned"},
		{"the mark, and bits that do not count", tracked + forward + "ct mark set 0x1f; }", "learned"},
		{"not tracked", tracked + "chain early { type filter hook prerouting priority -300; notrack; }", "not_marked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			b.rules(t, c.rules)
			_, err := b.LAN.NS.Run("conntrack", "-F")
			check(t, err)
			b.policy(t, marked)
			b.forth(t, teaches+c.want, in.Bytes(), out.Bytes())
		})
	}
	t.Run("explained", func(t *testing.T) {
		b.track(t, "")
		b.policy(t, marked)
		b.forth(t, teaches+"not_marked", in.Bytes(), out.Bytes())
		b.answers(t, queryOf(in), "not_marked")
	})
	t.Run("marked, and excluded", func(t *testing.T) {
		b.track(t, forward+"ct mark set 0x10; }")
		p := marked
		p.Rules = []dataplane.PolicyRule{{Proto: 17}}
		b.policy(t, p)
		b.forth(t, teaches+"excluded", in.Bytes(), out.Bytes())
	})
	t.Run("be-liberal is not asked for what stays slow", func(t *testing.T) {
		b.track(t, "")
		b.policy(t, marked)
		asked := make(chan dataplane.Request, 10)
		read, stop, err := b.Events()
		check(t, err)
		go read(dataplane.Listener{Request: func(r dataplane.Request) { asked <- r }})
		defer stop()
		in, out := b.tcp4()
		b.forth(t, teaches+"not_marked", in.Bytes(), out.Bytes())
		if len(asked) > 0 {
			t.Errorf("asked for %+v", <-asked)
		}
	})
}
