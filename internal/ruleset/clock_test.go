// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestClocks: the clock that runs out first is found in whatever packets wind, and only where
// forwarded ones do that may be repeated. What packets do more than keep alive looks at each of them.
func TestClocks(t *testing.T) {
	p := newPlace(t)
	const head, tail = "table inet f { set s { type ipv4_addr; flags dynamic,timeout; timeout 5s; }\nset plain { type ipv4_addr; flags dynamic; size 100; }\n" +
		"set other { type ipv4_addr; flags dynamic,timeout; timeout 1d; }\nmap sticky { type ipv4_addr : mark; flags dynamic,timeout; timeout 6s; }\n" +
		"chain f { type filter hook forward priority 0; policy accept;\n", "\n}\n}\n"
	const input = "\n}\nchain i { type filter hook input priority 0; "
	const asks, asked = "ip saddr @s accept\n", "set s in table inet f, which a rule asks"
	for _, c := range []struct {
		name, rules string
		want        time.Duration
		owner       string
		elements    bool
		findings    string // each begins so
	}{
		{"nothing", "", 0, "", false, ""},
		{"a set that nobody winds", "ip saddr @s accept", 0, "", false, ""},
		{"by the set's timeout", "update @s { ip saddr } counter", 5 * time.Second, "set s", true, ""},
		{"by the rule's", "update @s { ip saddr timeout 3s } counter", 3 * time.Second, "set s", false, ""},
		{"added anew", "add @s { ip daddr } counter", 5 * time.Second, "set s", true, ""},
		{"deleted", "delete @s { ip saddr } counter", 0, "", false, ""},
		{"a set without a timeout", "update @plain { ip saddr } counter", 0, "", false, ""},
		{"an element's own", "update @other { ip saddr } counter" + tail + "add element inet f other { 192.0.2.1 timeout 2s, 192.0.2.2 timeout 7s, 192.0.2.3 }#",
			2 * time.Second, "set other", true, ""},
		{"a map", "update @sticky { ip saddr : 0x7 } counter", 6 * time.Second, "set sticky", true, ""},
		{"the least of several", "update @s { ip saddr } counter\nupdate @other { ip saddr timeout 4s } counter", 4 * time.Second, "set other", true, ""},
		{"in a chain that is jumped to", "jump g" + "\n}\nchain g { update @s { ip saddr } counter", 5 * time.Second, "f g", true, ""},
		{"in a chain that forwarded packets do not meet", input + "update @s { ip saddr timeout 3s } counter", 0, "", false, ""},
		{"of what this host says to itself", "iif lo update @s { ip saddr timeout 3s } counter", 0, "", false, ""},
		{"before a condition that no repeated packet fits", "update @s { ip saddr } tcp flags syn accept", 5 * time.Second, "set s", true, ""},

		{"asked", asks + "update @s { ip saddr } accept", 5 * time.Second, "set s", true, ""},
		{"asked by itself", "ip saddr @s update @s { ip saddr } accept", 5 * time.Second, "set s", true, ""},
		{"asked, with a counter", asks + "update @s { ip saddr counter } accept", 5 * time.Second, "set s", true, ""},
		{"asked, with a limit", asks + "update @s { ip saddr limit rate 5/second } accept", 0, "", false, "limit in set s | limit in set s"},
		{"asked, and an element has a limit", asks + "update @s { ip saddr } accept" + tail + "add element inet f s { 192.0.2.1 limit rate 5/second }#", 0, "", false,
			"limit in set s | limit in set s"},
		{"asked, and no packet of the rule is like another", asks + "limit rate 5/second update @s { ip saddr }", 0, "", false, "limit"},
		{"asked, and made anew", asks + "add @s { ip daddr }", 0, "", false, asked},
		{"asked, and taken out", asks + "update @s { ip saddr }\nudp dport 9 delete @s { ip saddr }", 0, "", false, asked + " | " + asked},
		{"asked, with two times", asks + "update @s { ip saddr timeout 3s }\nudp dport 9 update @s { ip saddr timeout 4s }", 0, "", false, asked + " | " + asked},
		{"asked, with another time at another hook", asks + "update @s { ip saddr timeout 3s }" + input + "update @s { ip saddr timeout 4s }", 0, "", false, asked},
		{"with two times, but not asked", "update @s { ip saddr timeout 3s }\nudp dport 9 update @s { ip saddr timeout 4s }", 3 * time.Second, "set s", false, ""},
		{"asked, and made with less time at another hook", asks + "update @s { ip saddr }" + input + "add @s { ip saddr timeout 1s }", time.Second, "set s", true, ""},
		{"asked before a condition that no repeated packet fits", asks + "add @s { ip daddr } tcp flags syn accept", 0, "", false, asked},

		{"too short for leases", "ip saddr 192.0.2.0/24 update @s { ip saddr timeout 300ms } counter", 0, "", false, "elements of set s end after 300ms"},
		{"an element's own is too short", "update @s { ip saddr } counter" + tail + "add element inet f s { 192.0.2.1 timeout 300ms }#",
			0, "", true, "elements of set s end after 300ms"},
		{"long enough", "ip saddr 192.0.2.0/24 update @s { ip saddr timeout 400ms } counter", 400 * time.Millisecond, "set s", false, ""},
	} {
		text, ended := strings.CutSuffix(head+c.rules, "#")
		if !ended {
			text += tail
		}
		p.nft(text)
		r := p.read()
		if r.Clock.Time != c.want || !strings.Contains(r.Clock.String(), c.owner) || r.Elements != c.elements {
			t.Errorf("%s: %v, elements %t; want %v of %s, %t", c.name, r.Clock, r.Elements, c.want, c.owner, c.elements)
		}
		var why []string
		for _, f := range r.Enforcing {
			why = append(why, f.Why)
		}
		got, want := why, strings.Split(c.findings, " | ")
		if c.findings == "" {
			want = nil
		}
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: found %q, want %q", c.name, got, want)
		}
	}
	p.nft("")
}

// TestClocksOfIPTables is the same for its extensions, legacy and by way of nftables.
func TestClocksOfIPTables(t *testing.T) {
	p := newPlace(t)
	p.nft("")
	p.must(p.ns.Run("ipset", "create", "guests", "hash:ip", "timeout", "9"))
	p.must(p.ns.Run("ipset", "create", "staying", "hash:ip"))
	for _, tool := range []string{"iptables-legacy", "iptables-nft"} {
		for _, c := range []struct {
			args string
			want time.Duration
		}{
			{"-j SET --add-set guests src --exist", 9 * time.Second},
			{"-j SET --add-set guests src --exist --timeout 3", 3 * time.Second},
			{"-j SET --add-set staying src --exist", 0},
			{"-j SET --del-set guests src", 0},
			{"-j IDLETIMER --timeout 7 --label lan", 7 * time.Second},
			{"-m recent --update --seconds 8 --name seen", 8 * time.Second},
			{"-m recent --update --seconds 8 --name seen -j ACCEPT", 0}, // it looks at each packet
		} {
			add := append([]string{tool, "-A", "FORWARD"}, strings.Fields(c.args)...)
			if out, err := p.ns.Run(add...); err != nil {
				t.Logf("not in this kernel: %s %s: %v %s", tool, c.args, err, out)
				continue
			}
			if r := p.read(); r.Clock.Time != c.want {
				t.Errorf("%s %s: %+v, want %v", tool, c.args, r.Clock, c.want)
			}
			p.must(p.ns.Run(tool, "-F", "FORWARD"))
		}
	}
}
