// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"net/netip"

	"shunt/internal/nl/nltest"
)

// TestReadNft: tables, chains, sets with their elements, and rules with what matters in
// their expressions.
func TestReadNft(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.NFT(t, `table inet t {
		set dyn { type ipv4_addr; flags dynamic; limit rate 5/second; }
		set own { type ipv4_addr; size 100; flags dynamic; }
		chain sub { }
		chain f { type filter hook forward priority -5; policy drop;
			ct state vmap { established : accept, new : jump sub } comment "first"
			iifname { "lan", "wan" } tcp dport 5060-5061 limit rate 5/second accept
			update @own { ip saddr limit rate 3/second } drop
		}
	}
	table ip asleep {
		flags dormant
		chain f { type filter hook forward priority 0; }
	}
	table netdev n { }`)
	n, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	table := Table{unix.NFPROTO_INET, "t"}
	want := []Chain{{Ref: Ref{table, "sub"}, Policy: 1},
		{Ref: Ref{table, "f"}, Base: true, Hook: 2, Priority: -5, Type: "filter", Policy: 0}}
	if diff := cmp.Diff(want, n.Chains); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
	if s := n.Sets[Ref{table, "dyn"}]; !slices.Equal(s.Exprs, []string{"limit"}) {
		t.Errorf("set: %+v", s)
	}
	var rules []Rule
	if err := n.Rules(Ref{table, "f"}, func(r Rule) { rules = append(rules, r) }); err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, r := range rules {
		for _, e := range r.Exprs {
			words = append(words, e.Name)
		}
		words = append(words, ";")
	}
	if got := strings.Join(words, " "); got != "ct lookup ; meta lookup meta cmp payload range limit immediate ; meta cmp payload dynset immediate ;" &&
		got != "ct lookup ; meta lookup meta cmp payload cmp cmp limit immediate ; meta cmp payload dynset immediate ;" {
		t.Fatalf("expressions: %s", got)
	}
	if rules[0].Comment != "first" || rules[0].Exprs[1].Dest != VerdictRegister || rules[2].Exprs[3].Inner[0] != "limit" {
		t.Errorf("%+v", rules)
	}
	elements, all := n.Elements(Ref{table, rules[0].Exprs[1].Set}, 10)
	if len(elements) != 2 || !all {
		t.Fatalf("%+v, %v", elements, all)
	}
	for _, e := range elements {
		want := map[string]Verdict{"\x02\x00\x00\x00": {Code: 1}, "\x08\x00\x00\x00": {Code: unix.NFT_JUMP, Chain: "sub"}}[string(e.Key)]
		if e.Verdict == nil || *e.Verdict != want {
			t.Errorf("element %q: %+v, want %+v", e.Key, e.Verdict, want)
		}
	}
	if _, all := n.Elements(Ref{table, rules[0].Exprs[1].Set}, 1); all {
		t.Error("more elements than were asked for")
	}
	if _, all := n.Elements(Ref{table, "nosuch"}, 1); all {
		t.Error("a set that is not there was read")
	}
}

// TestReadXTables: what legacy iptables holds, in both families.
func TestReadXTables(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	if tables, err := ReadXTables(); err != nil || len(tables) != 0 {
		t.Fatalf("before: %v, %v", tables, err)
	}
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		net := map[string]string{"iptables-legacy": "192.0.2.0/24", "ip6tables-legacy": "2001:db8::/32"}[tool]
		for line := range strings.Lines(`-N mine
			-A FORWARD -i eth0 -o ppp+ -s NET -p udp -m limit --limit 5/sec -j mine
			-A FORWARD ! -i eth0 -g mine
			-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
			-A mine -j LOG
			-A mine -p tcp -j RETURN
			-P FORWARD DROP`) {
			words := strings.Fields(strings.ReplaceAll(line, "NET", net))
			if out, err := exec.Command(tool, words...).CombinedOutput(); err != nil {
				t.Fatalf("%s %v: %v: %s", tool, words, err, out)
			}
		}
	}
	tables, err := ReadXTables()
	if err != nil || len(tables) != 2 {
		t.Fatalf("%+v, %v", tables, err)
	}
	for i, prefix := range []string{"192.0.2.0/24", "2001:db8::/32"} {
		x := tables[i]
		if x.Name != "filter" || x.Hooks[2] != "FORWARD" || len(x.Chains) != 4 {
			t.Fatalf("%+v", x)
		}
		forward, mine := x.Chains["FORWARD"], x.Chains["mine"]
		if len(forward) != 4 || len(mine) != 3 { // policy; and the end of the user's own
			t.Fatalf("%+v\n%+v", forward, mine)
		}
		r := forward[0]
		if r.In != "eth0" || r.Out != "ppp+" || r.Source != netip.MustParsePrefix(prefix) || r.Proto != unix.IPPROTO_UDP || !r.Plain ||
			r.Verdict != XJump || r.Chain != "mine" || r.Matches[len(r.Matches)-1].Name != "limit" {
			t.Errorf("%+v", r)
		}
		if r = forward[1]; r.In != "" || r.Verdict != XGoto || r.Chain != "mine" {
			t.Errorf("%+v", r)
		}
		if r = forward[2]; r.Verdict != 1 || r.Matches[0].Name != "conntrack" || r.Matches[0].Revision != 3 {
			t.Errorf("%+v", r)
		}
		if forward[3].Verdict != 0 || mine[0].Target.Name != "LOG" || mine[1].Verdict != XReturn || mine[2].Verdict != XReturn {
			t.Errorf("%+v\n%+v", forward, mine)
		}
	}
}
