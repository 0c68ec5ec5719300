// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// why is what explain says of the generator's first flow.
func (r *rig) why() api.Explanation {
	r.t.Helper()
	q, err := api.ParseFlow(
		netip.AddrPortFrom(r.Client.V4.Addr(), clientPort).String(),
		netip.AddrPortFrom(r.Server.V4.Addr(), servicePort).String()+"/udp")
	r.must(err)
	found, err := r.api.Explain(context.Background(), api.ExplainQuery{Flow: &q})
	r.must(err)
	return found[0]
}

// slow asserts that frames are the kernel's, and that explain says why, with the rule.
func (r *rig) slow(what, reason, detail string) {
	r.t.Helper()
	sink := r.sink(r.Server, 1)
	defer sink.Close()
	g := r.generator(1, 5000)
	defer g.Close()
	r.eventually(what+": "+reason, 10*time.Second, func() bool {
		r.send(g, 20)
		return r.why().Reason == reason
	})
	time.Sleep(50 * time.Millisecond)
	before := r.status().Hits
	r.must(sink.Reset())
	sent := r.send(g, 500)
	r.whole(what, sink, sent.Sent)
	if hits := r.status().Hits - before; hits > 0 {
		r.t.Errorf("%s: %d hits", what, hits)
	}
	if e := r.why(); e.Reason != reason || e.Fast || !strings.Contains(e.Detail, detail) {
		r.t.Errorf("%s: explained by %q, %q; want %q, %q", what, e.Reason, e.Detail, reason, detail)
	}
}

// becomesFast asserts that frames are repeated, sooner or later.
func (r *rig) becomesFast(what string) {
	r.t.Helper()
	sink := r.sink(r.Server, 1)
	defer sink.Close()
	g := r.generator(1, 5000)
	defer g.Close()
	r.eventually(what, 10*time.Second, func() bool { r.send(g, 20); return r.why().Fast })
	r.fast(what, sink, true)
}

// config writes a configuration and returns the arguments for it.
func (r *rig) config(text string) []string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "shunt.toml")
	r.must(os.WriteFile(file, []byte("port = [\"lan\", \"wan\"]\nxdp = \"on\"\n"+text), 0o600))
	return []string{"--config", file}
}

// doctorSays asserts a finding about rules.
func (r *rig) doctorSays(level string, words ...string) {
	r.t.Helper()
	checks, err := r.api.Doctor(context.Background())
	r.must(err)
next:
	for _, c := range checks {
		for _, w := range words {
			if c.Name != "rules" || c.Level != level || !strings.Contains(c.Finding, w) {
				continue next
			}
		}
		return
	}
	r.t.Errorf("no finding of level %s about rules with %q in %+v", level, words, checks)
}

// TestPerPacketRules: what a rule looks at packet by packet stays with the kernel, and the
// rule is named, as long as it is there; nothing else is any slower.
func TestPerPacketRules(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.start(program, with("--xdp", "on")...)
	r.becomesFast("before")
	r.doctorSays(api.LevelOK, "none that forwarded packets reach")

	r.nft(`table inet guard { chain f { type filter hook forward priority 10; udp dport 9 limit rate 1000000/second accept comment "mine"; }; }`)
	r.slow("a limit", "per_packet_rule", `inet guard f handle `)
	r.doctorSays(api.LevelWarn, `"mine" (limit) looks at each packet`, "udp to port 9")
	if log := r.daemon.Log(); !strings.Contains(log, "looks at each packet") || !strings.Contains(log, "inet guard f handle") {
		t.Errorf("the log does not name the rule:\n%s", log)
	}
	out, _, code := r.shunt("explain", "198.18.0.2:10000", "198.19.0.2:9/udp")
	if code != 0 || !strings.Contains(out, "which") || !strings.Contains(out, "(limit)") {
		t.Errorf("explain, %d: %s", code, out)
	}

	r.nft(`flush chain inet guard f
		add rule inet guard f udp dport 10 limit rate 1000000/second accept
		add rule inet guard f limit rate 1/minute log
		add rule inet guard f counter`)
	r.becomesFast("a limit for others")
	r.doctorSays(api.LevelOK, "2 count or log only what the kernel gets")

	r.nft("flush chain inet guard f\nadd rule inet guard f ct state established accept\nadd rule inet guard f quota over 1000 mbytes drop")
	r.slow("nothing came back yet", "per_packet_rule", "(quota)")
	r.nft("delete table inet guard")
	r.becomesFast("without the rule")

	_, err := r.LAN.NS.Run("iptables-legacy", "-A", "FORWARD", "-i", "lan", "-m", "length", "--length", "60000:", "-j", "DROP")
	r.must(err)
	r.slow("legacy iptables", "per_packet_rule", "iptables filter FORWARD rule 1 (length)")
	_, err = r.LAN.NS.Run("iptables-legacy", "-F")
	r.must(err)
	r.becomesFast("without legacy iptables")
}

// TestEstablishedIsFast: behind a rule that accepts established connections, a flow that
// is answered is fast, whatever rules follow.
func TestEstablishedIsFast(t *testing.T) {
	const port, service = 40000, 7000
	r := newRig(t, lab.FirewallOptions{})
	r.nft(`table inet guard { chain f { type filter hook forward priority 10;
		ct state established,related accept; limit rate 1000000/second accept; }; }`)
	r.start(program, with("--xdp", "on")...)
	at := netip.AddrPortFrom(r.Server.V4.Addr(), service)
	r.serveUDP(at, true)
	client := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), port), at)
	r.eventually("both directions are armed", patience, func() bool {
		for range 5 {
			_, err := client.Write([]byte("ping"))
			r.must(err)
			time.Sleep(time.Millisecond)
		}
		return len(r.armed()) == 2
	})
	r.slow("not answered", "per_packet_rule", "(limit)")
}

// TestMarkPolicy: only marked connections are fast, whatever the ruleset looks at.
func TestMarkPolicy(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.nft(`table inet guard { chain f { type filter hook forward priority 10; limit rate 1000000/second accept; }; }`)
	r.start(program, r.config("policy = \"mark\"\n[mark]\nvalue = 0x10\nmask = 0xf0\n")...)
	r.slow("no mark", "not_marked", "connmark & 0xf0 is not 0x10")
	r.nft("table inet marks { chain f { type filter hook forward priority -5; ct mark set 0x21; }; }")
	r.slow("another mark", "not_marked", "connmark & 0xf0 is not 0x10")
	r.nft("flush chain inet marks f\nadd rule inet marks f udp dport 9 ct mark set 0x12")
	r.becomesFast("the mark")
	r.doctorSays(api.LevelOK, "(limit) looks at each packet: it sees the first packets of what is marked")
	r.nft("flush chain inet marks f\nadd rule inet marks f ct mark set 0")
	r.slow("no longer the mark", "not_marked", "connmark & 0xf0 is not 0x10")
}

// TestExclude: a flow is excluded, or included, by each key of a rule, in either
// direction; others that differ in a key are not about it.
func TestExclude(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	others := []string{
		`from = "192.0.2.0/24"`,
		`to = "2001:2::/32"`,
		"from = \"198.18.0.2\"\nto = \"198.18.0.2\"",
		`proto = "tcp"`,
		"proto = \"udp\"\nport = \"10-20\"",
		`in = "eth0"`,
		"in = \"lan\"\nout = \"lan\"",
	}
	rules := []string{
		"", // none fits
		`from = "198.18.0.0/24"`,
		`from = "198.19.0.2"`, // the answer turned around
		`to = "198.19.0.0/16"`,
		"from = \"198.18.0.2\"\nto = \"198.19.0.2\"",
		`proto = "udp"`,
		"proto = \"udp\"\nport = \"9\"",
		"proto = \"udp\"\nport = \"9999-10001\"", // of the other direction
		`in = "lan"`,
		`in = "wan"`, // likewise
		`in = "l*"`,
		`out = "wan"`,
	}
	for _, rule := range rules {
		lists := []string{"exclude", "include"}
		if rule != "" && !strings.HasPrefix(rule, "in = ") {
			lists = lists[:1] // they are compiled alike
		}
		for _, list := range lists {
			t.Run(list+" "+strings.ReplaceAll(rule, "\n", ", "), func(t *testing.T) {
				r := *r
				r.t = t
				var config strings.Builder
				for _, text := range append([]string{rule}, others...) {
					if text != "" {
						fmt.Fprintf(&config, "[[%s]]\n%s\n", list, text)
					}
				}
				r.start(program, r.config(config.String())...)
				switch {
				case (rule != "") == (list == "include"):
					r.becomesFast(rule)
				case list == "exclude":
					r.slow(rule, "excluded", "[[exclude]] number 1 ")
				default:
					r.slow(rule, "excluded", "no [[include]] of the configuration fits")
				}
				r.terminate()
			})
		}
	}
}
