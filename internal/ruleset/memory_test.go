// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"shunt/internal/kernel"
	"shunt/internal/nft"
)

// listener hears what the kernel announces in a namespace.
type listener struct {
	place
	watcher *kernel.Watcher
}

func newListener(p place) *listener {
	l := &listener{place: p}
	p.do(func() (err error) { l.watcher, err = kernel.Watch(p.t.Context()); return err })
	return l
}

func (p place) do(f func() error) {
	p.t.Helper()
	if err := p.ns.Do(f); err != nil {
		p.t.Fatal(err)
	}
}

// next is what the next transaction touched. One that changes nothing is not announced.
func (l *listener) next() nft.Touched {
	for until := time.Now().Add(30 * time.Millisecond); ; {
		if e, heard := l.watcher.Next(until); !heard || e.Kind == kernel.EventNftables {
			return e.Touched
		}
	}
}

// memoryRules are what a chain may have; CHAIN is another one.
var memoryRules = []string{
	"ct state established accept", "limit rate 5/second accept", "iifname lan ct state established accept", "udp dport 9 quota name cap drop",
	"quota name cap", "jump CHAIN", "ip saddr @addrs limit rate 5/second accept", "udp dport @ports limit rate 5/second", "iifname @names ct state established accept",
	"ct state vmap @states", "update @heard { ip saddr timeout 2s }", "update @heard { ip saddr limit rate 5/second }", "add @heard { ip saddr }", "ip saddr @heard drop",
	"add @ports { udp dport }", "update @own { ip saddr }", "delete @own { ip saddr }", "ip saddr @own accept", "counter", "numgen inc mod 2 0 drop", "tcp dport 1-9 drop",
	"update @bare { ip saddr counter }", "update @bare { ip saddr limit rate 5/second }", "ip saddr @bare drop", `iifname { lan, wan } ct state vmap { established : accept, new : jump CHAIN }`,
}

const memorySets = `set addrs { type ipv4_addr; }; set ports { type inet_service; }; set names { type ifname; }
	map states { type ct_state : verdict; }; set heard { type ipv4_addr; flags dynamic, timeout; timeout 9s; size 100; }
	set own { type ipv4_addr; flags timeout; }; set bare { type ipv4_addr; size 100; flags dynamic; }; quota cap { over 9 mbytes; }
	chain a { }; chain b { }; chain c { type filter hook forward priority 0; }`

// memoryChange is a transaction at random. Some the kernel refuses.
func memoryChange(r *rand.Rand) string {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	table := pick("inet t", "ip u")
	chain := pick("a", "b", "c", "c", "c")
	rule := func() string {
		return strings.ReplaceAll(pick(memoryRules...), "CHAIN", pick("a", "b"))
	}
	change := func() string {
		switch r.IntN(14) {
		case 0, 1, 2, 3:
			return fmt.Sprintf("%s rule %s %s %s", pick("add", "insert"), table, chain, rule())
		case 4:
			return fmt.Sprintf("delete rule %s %s handle %d", table, chain, 12+r.IntN(60))
		case 5:
			return fmt.Sprintf("replace rule %s %s handle %d %s", table, chain, 12+r.IntN(60), rule())
		case 6:
			return fmt.Sprintf("flush chain %s %s", table, chain)
		case 7:
			return fmt.Sprintf("%s element %s %s", pick("add", "delete"), table, pick("addrs { 192.0.2.1 }", "ports { 9 }", "ports { 10 }", `names { "lan" }`, `names { "wan" }`))
		case 8:
			return fmt.Sprintf("%s element %s states { %s }", pick("add", "add", "delete"), table, pick("established : accept", "new : jump a", "new : drop"))
		case 9:
			return fmt.Sprintf("%s element %s %s", pick("add", "add", "delete"), table,
				pick("own { 192.0.2.9 timeout 5s }", "own { 192.0.2.8 timeout 900s }", "heard { 192.0.2.7 timeout 3s }", "bare { 192.0.2.1 limit rate 5/second }"))
		case 10:
			return fmt.Sprintf("flush set %s %s", table, pick("addrs", "ports", "names", "states", "own"))
		case 11:
			return fmt.Sprintf("table %s { flags %s; }", table, pick("dormant", "dormant; }; table "+table+" { "))
		case 12:
			return fmt.Sprintf("table %s { }; delete table %s; table %s {\n%s }", table, table, table, memorySets)
		}
		return fmt.Sprintf("delete set %s ports; add set %s ports { type inet_service; flags %s; }", table, table, pick("timeout", "dynamic", "interval"))
	}
	text := change()
	for r.IntN(3) == 0 {
		text += "\n" + change()
	}
	return text
}

// TestUpdate: to read what transactions touched gives what to read everything gives, for changes at
// random of all that a judgement depends on.
func TestUpdate(t *testing.T) {
	var kept, anew, findings int
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := newPlace(t)
		p.nft("table inet t {\n" + memorySets + "\n}\ntable ip u {\n" + memorySets + "\n}")
		l := newListener(p)
		var reader Reader
		for step := range 120 {
			text := memoryChange(random)
			if p.ns.NFT(text) != nil {
				continue
			}
			touched, before := l.next(), maps.Clone(reader.nft.chains)
			var got, want Report
			p.do(func() (err error) {
				if got, err = reader.Update(touched); err != nil {
					return err
				}
				want, err = new(Reader).Read()
				return err
			})
			for ref, j := range reader.nft.chains {
				if before[ref] == j {
					kept++
				} else {
					anew++
				}
			}
			findings += len(want.Enforcing)
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				out, _ := p.ns.Run("nft", "-a", "list", "ruleset")
				t.Fatalf("seed %d, step %d, %q (-whole +updated):\n%s%s", seed, step, text, diff, out)
			}
		}
	}
	t.Logf("%d findings; chains kept %d times, read again %d times", findings, kept, anew)
	if findings < 100 || kept < 100 || anew < 100 {
		t.Error("the changes show nothing")
	}
}

// TestUpdateForgets: what was known of a chain that nothing touched does not outlive its cause.
func TestUpdateForgets(t *testing.T) {
	const asked = `; chain asks { type filter hook forward priority 5; udp dport 9 quota name cap drop; }`
	const grown = `set heard { type ipv4_addr; size 100; flags dynamic; }; chain f { type filter hook forward priority 0; ip saddr @heard drop; }
		chain adds { type filter hook forward priority 5; update @heard { ip saddr limit rate 5/second }; }`
	p := newPlace(t)
	l := newListener(p)
	for _, c := range []struct {
		name, before, change string
		wait                 time.Duration
	}{
		{"the rule that asks what it feeds", `quota cap { over 9 mbytes; }; chain f { type filter hook forward priority 0; quota name cap; }` + asked, "flush chain inet t asks", 0},
		{"the rule that adds limits to a set", grown, "flush chain inet t adds", 0},
		{"the chain of that rule", grown, "delete chain inet t adds", 0},
		{"an element with a short time", `set own { type ipv4_addr; flags timeout; elements = { 192.0.2.1 timeout 1s }; }
			chain f { type filter hook forward priority 0; update @own { ip saddr }; ip saddr @own drop; }`, "add table ip other", 1300 * time.Millisecond},
	} {
		p.nft("table inet t { " + c.before + "; }")
		for l.next().Chains != nil { // until there is none
		}
		var reader Reader
		var before, got, want Report
		p.do(func() (err error) { before, err = reader.Read(); return err })
		time.Sleep(c.wait)
		p.must("", p.ns.NFT(c.change))
		p.do(func() (err error) {
			if got, err = reader.Update(l.next()); err != nil {
				return err
			}
			want, err = new(Reader).Read()
			return err
		})
		prefixes := cmpopts.EquateComparable(netip.Prefix{})
		if diff := cmp.Diff(want, got, prefixes); diff != "" || cmp.Equal(want, before, prefixes) {
			t.Errorf("%s: before %+v (-whole +updated):\n%s", c.name, before, diff)
		}
	}
}
