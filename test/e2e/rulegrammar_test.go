// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// What rules are made of. The packets are those of rulediff_test.go.
var (
	nftMatches = []string{
		// what differs between packets of a flow
		"meta length > 500", "ip length < 200", "ip ttl < 10", "ip ttl 63", "ip ecn ce", "ip ecn != not-ect", "udp length > 500", "ip id > 30000",
		"tcp flags & psh == psh", "tcp flags { psh|ack, syn }", "tcp sequence > 100000", "@th,128,16 > 100", "@nh,64,8 < 10",
		"icmp sequence > 90", "ct packets > 100", "ct original packets < 40", "ct original packets 50-90", "ct bytes > 20000", "ct reply bytes > 500", "ct avgpkt > 250",
		"numgen inc mod 3 == 0", "numgen random mod 2 == 0", "limit rate 100/second burst 5 packets", "limit rate over 100/second burst 5 packets",
		"quota over 20 kbytes", "quota until 20 kbytes", `quota name "cap"`, `limit name "lim"`, "ip saddr . ip ttl { 198.18.0.2 . 63 }",
		// what they have in common
		"ct state established", "ct state new", "ct state { established, new }", "ct state != established", "ct direction original",
		"iifname lan", "oifname wan", "iifname { lan, wan }", "iifname != wan", "ip protocol udp", "meta l4proto { tcp, udp }", "meta l4proto icmp",
		"meta l4proto { tcp, udp } th dport 7000", "udp dport 7000", "tcp dport { 80, 7000 }", "ip saddr 198.18.0.0/24", "ip daddr { 198.19.0.2, 198.19.0.3 }",
		"ip dscp ef", "ct mark 0", "icmp type echo-request icmp code 0", "tcp flags & (fin|syn|rst|ack) == ack", "tcp flags { 0x0, fin|psh|urg }",
		`ct state . iifname { established . "lan", new . "wan" }`, `ct state . meta l4proto { established . udp, new . icmp }`, "ip frag-off & 0x1fff == 0",
		"ip saddr & 0.0.0.255 == 2", "ip saddr @ban", "ip saddr . ip protocol @keep", "fib saddr type unicast", "meta pkttype host", "meta mark 0", "symhash mod 2 == 0",
	}
	nftActs = []string{
		"accept", "accept", "drop", "drop", "drop", "return", "jump c1", "jump c2", "goto c2", "counter", "meta mark set 1", "ct mark set ct mark xor 1",
		"update @ban { ip saddr limit rate over 60/second burst 5 packets }", "add @ban { ip saddr limit rate over 60/second burst 5 packets } drop",
		"update @keep { ip saddr . ip protocol timeout 1s }",
	}
	nftMaps = []string{
		`ct state vmap { established : accept, new : jump c1 }`, `ct state . iifname vmap { established . "lan" : accept, new . "wan" : drop }`,
		`ct state . iifname vmap { established . "lo" : accept }`, `meta l4proto vmap { udp : jump c1, tcp : goto c2 }`, "ct state vmap @states",
		`iifname vmap { "lan" : jump c1, "wan" : accept }`, `tcp flags vmap { psh|ack : drop, ack : accept }`, `ct state . ip protocol vmap { established . udp : accept }`,
	}
	xMatches = []string{
		"-m length --length 500:", "-m ttl --ttl-lt 10", "-m ecn --ecn-ip-ect 3", "-m tos --tos 0x01/0x03", "-p tcp --tcp-flags PSH PSH", "-m u32 --u32 4>>16=0:30000",
		"-m limit --limit 100/second --limit-burst 5", "-m hashlimit --hashlimit-above 100/second --hashlimit-name h", "-m quota --quota 20000",
		"-m statistic --mode nth --every 3 --packet 0", "-m connbytes --connbytes 50:90 --connbytes-dir original --connbytes-mode packets",
		"-m connbytes --connbytes 0:30 --connbytes-dir both --connbytes-mode packets", "-m connbytes --connbytes 20000: --connbytes-dir both --connbytes-mode bytes",
		"-m set --match-set s src --packets-gt 100", "-m set --match-set s src --bytes-lt 20000", "-m recent --name x --set", "-m recent --name x --rcheck --seconds 1 --hitcount 10",
		"-m conntrack --ctstate ESTABLISHED", "-m conntrack --ctstate NEW", "-m state --state NEW,ESTABLISHED", "-m conntrack ! --ctstate ESTABLISHED",
		"-m set --match-set s src", "-i lan", "-o wan", "! -i wan", "-p udp --dport 7000", "-p tcp", "-s 198.18.0.0/24", "-s 0.0.0.2/0.0.0.255", "! -f", "-f",
		"-m dscp --dscp 46", "-m mark --mark 0", "-m addrtype --dst-type UNICAST", "-m pkttype --pkt-type unicast", "-m comment --comment x", "-m connlimit --connlimit-above 2",
	}
	xActs = []string{"-j ACCEPT", "-j ACCEPT", "-j DROP", "-j DROP", "-j DROP", "-j RETURN", "", "-j MARK --set-mark 1", "-j SET --del-set s src"}
)

// timed are words of rules whose outcome for one packet is not that of the run before.
var timed = regexp.MustCompile(`limit|numgen|quota|timeout|nth|hashlimit|recent|connlimit|counters|packets-gt|bytes-lt|xor`)

func dependsOnTime(text string) bool {
	if _, chains, ok := strings.Cut(text, "\tchain c2 "); ok { // what is declared in front is not used everywhere
		text = chains
	}
	return timed.MatchString(text)
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// drawRuleset draws a ruleset: nftables, or lines of iptables under the name of the tool.
func drawRuleset(random *rand.Rand) string {
	if random.IntN(3) == 0 {
		lines := []string{pick(random, []string{"iptables-legacy", "iptables-nft"})}
		for range 2 + random.IntN(4) {
			lines = append(lines, drawX(random))
		}
		return strings.Join(lines, "\n") + "\n"
	}
	chain := func(name, base string, most int, last bool) string {
		var rules []string
		for range 1 + random.IntN(most) {
			rules = append(rules, drawNft(random, name, last))
		}
		return fmt.Sprintf("\tchain %s { %s\n\t\t%s\n\t}\n", name, base, strings.Join(rules, "\n\t\t"))
	}
	text := "table ip t {\n\tquota cap { over 20 kbytes; }\n\tlimit lim { rate over 100/second; }\n" +
		"\tset ban { type ipv4_addr; size 100; flags dynamic; }\n\tset keep { type ipv4_addr . inet_proto; size 100; flags dynamic,timeout; }\n" +
		"\tmap states { type ct_state : verdict; elements = { established : accept, new : jump c1 }; }\n"
	text += chain("c2", "", 2, true) + chain("c1", "", 3, false)
	text += chain("f", "type filter hook forward priority 0;", 5, false)
	if random.IntN(3) == 0 {
		text += chain("g", "type filter hook "+pick(random, []string{"prerouting", "postrouting", "forward"})+" priority 5;", 2, false)
	}
	return text + "}\n"
}

// drawNft draws a rule. A chain that is last, or c1, jumps to none that could jump back.
func drawNft(random *rand.Rand, chain string, last bool) string {
	for {
		var words []string
		protocols := map[string]bool{}
		for range random.IntN(4) {
			m := pick(random, nftMatches)
			if p, _, _ := strings.Cut(m, " "); p == "udp" || p == "tcp" || p == "icmp" {
				protocols[p] = true
			}
			words = append(words, m)
		}
		act := pick(random, nftActs)
		if random.IntN(6) == 0 {
			act = pick(random, nftMaps)
		}
		words = append(words, act)
		rule := strings.Join(words, " ")
		jumps := strings.Contains(act, "jump") || strings.Contains(act, "goto") || strings.Contains(act, "@states")
		backwards := jumps && (last || chain == "c1" && (strings.Contains(act, "c1") || strings.Contains(act, "@states")))
		if len(protocols) < 2 && !backwards && strings.Count(rule, "l4proto")+strings.Count(rule, "ip protocol")+len(protocols) < 2 {
			return rule
		}
	}
}

func drawX(random *rand.Rand) string {
	for {
		var words []string
		for range random.IntN(3) {
			words = append(words, pick(random, xMatches))
		}
		rule := strings.TrimSpace(strings.Join(append(words, pick(random, xActs)), " "))
		once := func(word string) bool { return strings.Count(" "+rule, word) < 2 }
		if rule != "" && once(" -p ") && once(" -i ") && once(" -s ") && once("-f") && once("-m set") && once("-m conntrack") && once("-m recent") && once("-m connbytes") {
			return rule
		}
	}
}
