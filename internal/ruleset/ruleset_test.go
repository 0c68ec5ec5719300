// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/lab"
)

// place is a network namespace whose ruleset is replaced and read.
type place struct {
	t  *testing.T
	ns *lab.NS
}

func newPlace(t *testing.T) place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root; run the tests with sudo")
	}
	l, err := lab.New("ruleset")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := l.Namespaces("r")
	if err != nil {
		t.Fatal(err)
	}
	return place{t, ns[0]}
}

func (p place) must(out string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

func (p place) nft(rules string) {
	p.t.Helper()
	if err := p.ns.NFT("flush ruleset\n" + rules); err != nil {
		p.t.Fatal(err)
	}
}

// restore gives a file of rules to iptables-legacy-restore or to iptables-nft-restore.
func (p place) restore(tool, file string) {
	p.t.Helper()
	p.must(p.ns.Run("sh", "-c", tool+" < "+file))
}

func (p place) read() (r Report) {
	p.t.Helper()
	if err := p.ns.Do(func() (err error) { r, err = new(Reader).Read(); return err }); err != nil {
		p.t.Fatal(err)
	}
	return r
}

// told are the findings in one line each, without handles.
func told(r Report) (lines []string) {
	for _, f := range r.Enforcing {
		rule := f.Rule
		if before, after, ok := strings.Cut(rule, " handle "); ok {
			_, comment, _ := strings.Cut(after, " ")
			rule = strings.TrimSpace(before + " " + comment)
		}
		var touches []string
		for _, m := range f.Touches {
			touches = append(touches, m.String())
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s", rule, f.Why, strings.Join(touches, "; ")))
	}
	return lines
}

// TestCommonFirewalls: rulesets as common tools write them. With all of them but the last
// established connections are fast; what is told apart are rules for new ones.
func TestCommonFirewalls(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		file    string
		want    []string
		counted int
	}{
		{"openwrt-fw4.nft", []string{
			`inet fw4 forward_wan "!fw4: Allow-ICMPv6-Forward": limit: IPv6 icmpv6 in by wan, new or untracked`,
			`inet fw4 forward_wan "!fw4: Allow-ICMPv6-Forward": limit: IPv6 icmpv6 in by wan, new or untracked`,
		}, 8},
		{"firewalld.nft", []string{"inet firewalld filter_FWD_public_allow: limit: tcp to port 22 not out by lan, new or untracked"}, 1},
		{"debian-router.nft", []string{"inet filter forward: limit: IPv4 icmp, new or untracked"}, 2},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + c.file)
			if err != nil {
				t.Fatal(err)
			}
			p.nft(string(text))
			p.holds(t, c.want, c.counted)
		})
	}
	p.nft("")
	for _, c := range []struct {
		file    string
		want    []string
		counted int
	}{
		{"ufw.rules", []string{
			"iptables filter ufw-user-forward rule 2: recent DEFAULT, which a rule asks: IPv4 tcp to port 22, new",
			"iptables filter ufw-user-forward rule 3: recent: IPv4 tcp to port 22, new",
		}, 2},
		{"docker.rules", []string{
			"iptables filter DOCKER-USER rule 1: hashlimit: IPv4 tcp to port 80 in by wan",
		}, 0},
		{"kubernetes.rules", nil, 0},
		{"ips.rules", []string{"iptables mangle POSTROUTING rule 1: queue: IPv4"}, 0},
	} {
		t.Run(c.file+" in nftables", func(t *testing.T) {
			p.restore("iptables-nft-restore", "testdata/"+c.file)
			var want []string
			for _, line := range c.want { // handles are left out
				from, to := strings.Index(line, " rule "), strings.Index(line, ": ")
				want = append(want, strings.Replace(line[:from]+line[to:], "iptables", "ip", 1))
			}
			p.holds(t, want, -1) // every rule of iptables-nft has a counter
			p.nft("")
		})
		t.Run(c.file, func(t *testing.T) {
			p.restore("iptables-legacy-restore", "testdata/"+c.file)
			p.holds(t, c.want, c.counted)
			p.legacyFlush()
		})
	}
}

func (p place) holds(t *testing.T, want []string, counted int) {
	t.Helper()
	r := p.read()
	if diff := cmp.Diff(want, told(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if counted >= 0 && (r.Counted != counted || len(r.Counting) != min(counted, maxCounting)) {
		t.Errorf("%d rules count, %q; want %d", r.Counted, r.Counting, counted)
	}
}

func (p place) legacyFlush() {
	p.t.Helper()
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		p.must(p.ns.Run("sh", "-ec", "for t in filter nat raw mangle; do "+tool+" -t $t -F; "+tool+" -t $t -X; done"))
	}
}

// TestNft: single rules of nftables in a base chain at forward, and what they could touch.
func TestNft(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct{ rules, want string }{
		// what looks at each packet
		{"limit rate 5/second accept", "limit: everything"},
		{"quota over 10 mbytes drop", "quota: everything"},
		{"ct bytes > 1000000 drop", "ct bytes: everything, until 1000000 bytes"},
		{"ct original packets > 10 drop", "ct packets: everything, until 10 original packets"},
		{"ct avgpkt > 900 drop", "ct avgpkt: everything"},
		{"ct expiration < 10s drop", "ct expiration: everything"},
		{"meta length > 1400 drop", "length: everything"},
		{"ip length > 1400 drop", "length: IPv4"},
		{"ip6 length > 1400 drop", "length: IPv6"},
		{"udp length > 1400 drop", "UDP header: udp"},
		{"ip ttl < 5 drop", "TTL: IPv4"},
		{"ip6 hoplimit < 5 drop", "hop limit: IPv6"},
		{"ip ttl set 64", "TTL: IPv4"}, // learned of a packet that had 65, it would be wrong for the next
		{"ip id 7 drop", "IP id: IPv4"},
		{"ip ecn ce drop", "ECN: IPv4"},
		{"ip6 ecn ce drop", "ECN: IPv6"},
		{"ip frag-off & 0x4000 != 0 drop", "DF: IPv4"},
		{"numgen random mod 2 == 0 drop", "numgen: everything"},
		{"meta mark set numgen inc mod 2", "numgen: everything"},
		{"meta random < 100 drop", "random: everything"},
		{"meta cpu 1 drop", "cpu: everything"},
		{"meta hour \"08:00\"-\"18:00\" drop", "time: everything"},
		{"meta day \"Monday\" drop", "time: everything"},
		{"meta time > \"2020-01-01\" drop", "time: everything"},
		{"@th,160,32 0x47455420 drop", "payload: everything"},
		{"tcp dport 80 @th,160,32 0x47455420 drop", "payload: tcp to port 80"},
		{"tcp window < 100 drop", "TCP header: tcp"},
		{"tcp sequence 7 drop", "TCP header: tcp"},
		{"tcp flags psh drop", "TCP flags: tcp"},
		{"tcp option timestamp exists drop", "TCP option: tcp"},
		{"icmp sequence 7 drop", "ICMP header: IPv4 icmp"},
		{"limit rate 5/second meta mark set 1", "limit: everything"},
		{"limit rate 5/second jump decides", "limit: everything"},
		{"limit rate 5/second goto decides", "limit: everything"},
		{"limit rate 5/second return", "limit: everything"},
		{"limit name lim accept", "limit: everything"},
		{"quota name quo drop", "quota: everything"},
		{"update @meters { ip saddr limit rate over 5/second } drop", "limit in set meters: IPv4"},
		{"add @meters2 { ip saddr } drop", "limit in set meters2: IPv4"},

		// which packets
		{"ip saddr 192.0.2.0/24 limit rate 5/second accept", "limit: IPv4 from 192.0.2.0/24"},
		{"ip saddr 192.0.2.1 ip daddr 198.51.100.0/25 limit rate 5/second accept", "limit: IPv4 from 192.0.2.1/32 to 198.51.100.0/25"},
		{"ip6 saddr 2001:db8::/33 limit rate 5/second accept", "limit: IPv6 from 2001:db8::/33"},
		{"ip saddr != 192.0.2.1 limit rate 5/second accept", "limit: IPv4"},
		{"ip saddr { 192.0.2.1, 192.0.2.9 } limit rate 5/second accept", "limit: IPv4"},
		{"ip saddr @hosts limit rate 5/second accept", "limit: IPv4"},
		{"udp sport 53 limit rate 5/second accept", "limit: udp from port 53"},
		{"udp dport 5060-5061 limit rate 5/second accept", "limit: udp to port 5060-5061"},
		{"tcp sport 1024-65535 tcp dport 80 limit rate 5/second accept", "limit: tcp from port 1024-65535 to port 80"},
		{"tcp dport >= 1024 limit rate 5/second accept", "limit: tcp to port 1024-65535"},
		{"tcp dport { 80, 443 } limit rate 5/second accept", "limit: tcp"},
		{"th dport 53 limit rate 5/second accept", "payload: everything"}, // of ICMP it is the checksum
		{"meta l4proto { tcp, udp } limit rate 5/second accept", "limit: everything"},
		{"meta l4proto 89 limit rate 5/second accept", "limit: protocol 89"},
		{"ip protocol gre limit rate 5/second accept", "limit: IPv4 gre"},
		{"iifname lan limit rate 5/second accept", "limit: in by lan"},
		{"iifname \"lan*\" oifname wan limit rate 5/second accept", "limit: in by lan* out by wan"},
		{"iifname { lan, guest } limit rate 5/second accept", "limit: in by guest or lan"},
		{"iifname != lan limit rate 5/second accept", "limit: not in by lan"},
		{"iif lo limit rate 5/second accept", "limit: in by interface 1"},
		{"meta nfproto ipv6 limit rate 5/second accept", "limit: IPv6"},
		{"ct state new limit rate 5/second accept", "limit: everything, new"},
		{"ct state established limit rate 5/second accept", "limit: everything, established"},
		{"ct state { established, related } limit rate 5/second accept", "limit: everything, established"},
		{"ct state != new limit rate 5/second accept", "limit: everything, established or untracked"},
		{"ct state { new, untracked } limit rate 5/second accept", "limit: everything, new or untracked"},
		{"ct state related limit rate 5/second accept", ""},

		// what is reached
		{"ct state established,related accept; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"ct state { established, related } accept; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"ct state vmap { established : accept, related : accept, invalid : drop }; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"ct state vmap { established : jump takes, new : jump leaves }; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"ct state vmap { established : goto takes, new : goto leaves }; limit rate 5/second accept", "limit: everything, untracked"},
		{"counter ct state established accept; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"iifname lan ct state established accept; limit rate 5/second accept", "limit: everything, new or untracked; not in by lan, established"},
		{"iifname lan ct state established accept; iifname lan limit rate 5/second accept", "limit: in by lan, new or untracked"},
		{"meta nfproto ipv4 ct state established accept; limit rate 5/second accept",
			"limit: IPv4, new or untracked; IPv6"},
		{"ct state established ct mark 1 accept; limit rate 5/second accept", "limit: everything"},
		{"ct state established limit rate 5/second accept; quota 5 bytes accept", "limit: everything, established | quota: everything"},
		{"jump takes; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"jump leaves; limit rate 5/second accept", "limit: everything"},
		{"goto takes; limit rate 5/second accept", ""},
		{"accept; limit rate 5/second accept", ""},
		{"return; limit rate 5/second accept", ""},
		{"ct state established return; limit rate 5/second accept", "limit: everything, new or untracked"},
		{"iifname lan jump limits", "limit: udp in by lan"},
		{"iifname lan jump limits; iifname wan jump limits", "limit: udp in by lan; udp in by wan"},
		{"iifname lan ct state established accept; jump limits", "limit: udp, new or untracked; udp not in by lan, established"},
		{"iifname vmap { lan : jump limits, wan : accept }", "limit: udp in by lan"},
		{"ip saddr vmap { 192.0.2.1 : jump limits }", "limit: IPv4 udp"},
		{"ip saddr vmap @named", "limit: IPv4 udp"},
		{"meta l4proto vmap { udp : jump limits, tcp : accept }", "limit: udp"},
		{"ip protocol icmp jump limits", ""},

		// what is safe
		{"counter", ""},
		{"limit rate 5/second log prefix \"x\" group 3", ""},
		{"limit rate 5/second counter", ""},
		{"limit rate 5/second jump logs", ""},
		{"limit rate 5/second meta nftrace set 1", ""},
		{"ip dscp ef drop", ""},
		{"ip6 dscp ef drop", ""},
		{"ip dscp set cs1", ""},
		{"ip6 flowlabel 7 drop", ""},
		{"ether saddr 02:00:00:00:00:01 drop", ""},
		{"ct count over 20 drop", "ct count: everything"}, // of others; all packets are judged by it
		{"ct mark 7 drop", ""},
		{"ct mark set mark", ""},
		{"ct status dnat accept", ""},
		{"ct direction reply accept", ""},
		{"fib saddr . iif oif missing drop", ""},
		{"ip frag-off & 0x1fff != 0 drop", ""},
		{"exthdr frag exists drop", ""},
		{"ip option rr exists drop", ""},
		{"tcp flags syn limit rate 5/second drop", ""},
		{"tcp flags & (fin|syn|rst|ack) == syn limit rate 5/second drop", ""},
		{"tcp flags & (fin|syn|rst|psh|ack|urg) == 0x0 limit rate 5/second drop", ""},
		{"tcp flags & (fin|syn|rst|psh|ack|urg) == fin|psh|urg limit rate 5/second drop", ""},
		{"tcp flags & (fin|syn|rst|ack) == ack limit rate 5/second drop", "limit: tcp"},
		{"tcp flags & (syn|rst) == 0x0 accept", ""},
		{"tcp option sack-perm exists limit rate 5/second drop", "TCP option: tcp"},
		{"tcp flags syn tcp option maxseg size set rt mtu", ""},
		{"tcp option maxseg size set 1360", ""},
		{"meta pkttype { broadcast, multicast } limit rate 5/second accept", ""},
		{"meta pkttype broadcast limit rate 5/second accept", ""},
		{"meta pkttype != host limit rate 5/second accept", ""},
		{"meta pkttype host limit rate 5/second accept", "limit: everything"},
		{"icmp type echo-request accept", ""},
		{"icmp id 7 accept", ""},
		{"jhash ip saddr mod 2 == 0 drop", ""},
		{"symhash mod 2 == 0 drop", "hash of what is in a tunnel: protocol 4; protocol 41; gre; protocol 115; protocol 137"},
		{"meta skuid 0 drop", ""},
		{"reject", ""},
		{"notrack", ""},
		{"add @seen { ip saddr timeout 10s }", ""},
		{"add @seen { ip saddr counter }", ""},
	} {
		t.Run(c.rules, func(t *testing.T) {
			p.nft(`table inet t {
				limit lim { rate 5/second; }
				quota quo { over 5 mbytes; }
				set meters { type ipv4_addr; size 100; flags dynamic; }
				set meters2 { type ipv4_addr; size 100; flags dynamic; limit rate over 5/second; }
				set hosts { type ipv4_addr; }
				set seen { type ipv4_addr; size 100; flags dynamic,timeout; }
				chain takes { ct state established accept; }
				chain leaves { ct state established return; }
				chain limits { meta l4proto udp limit rate 5/second accept; }
				chain logs { log; jump logs2; }
				chain logs2 { counter; }
				chain decides { log; drop; }
				map named { type ipv4_addr : verdict; }
				chain f { type filter hook forward priority 0; ` + c.rules + `; }
			}`)
			holdOne(t, p.read(), "inet t ", c.want)
		})
	}
}

// holdOne compares findings, without the rules' names: one " | " another.
func holdOne(t *testing.T, r Report, table, want string) {
	t.Helper()
	var got []string
	for _, line := range told(r) {
		name, rest, _ := strings.Cut(line, ": ")
		if !strings.HasPrefix(name, table) {
			t.Errorf("finding about %s", name)
		}
		got = append(got, rest)
	}
	if text := strings.Join(got, " | "); text != want {
		t.Errorf("found  %q\nwanted %q", text, want)
	}
}

// TestSilent: what may change without an announcement.
func TestSilent(t *testing.T) {
	p := newPlace(t)
	holds := func(want ...string) {
		t.Helper()
		if r := p.read(); !slices.Equal(r.Silent, want) {
			t.Errorf("may change in silence: %q, want %q", r.Silent, want)
		}
	}
	const chain = "chain c { type filter hook forward priority 0; ip saddr @s drop; }"
	p.nft("table ip t {\nset s { type ipv4_addr; }\n" + chain + "\n}")
	holds()
	p.nft("table ip t {\nset s { type ipv4_addr; timeout 1m; }\n" + chain + "\n}")
	holds("elements of set s in table ip t")
	p.nft("table ip t {\nset s { type ipv4_addr; size 9; flags dynamic; }\n" + chain + "\n}")
	holds("elements of set s in table ip t")
	p.nft("")
	p.must(p.ns.Run("iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")) // for new connections alone
	p.must(p.ns.Run("iptables-legacy", "-L", "FORWARD"))                                      // makes the table, with its policies
	holds()
	p.must(p.ns.Run("iptables-legacy", "-A", "FORWARD", "-s", "192.0.2.7", "-j", "DROP"))
	holds("rules of iptables -t filter (legacy)")
	p.legacyFlush()
	p.must(p.ns.Run("ipset", "create", "banned", "hash:ip"))
	p.must(p.ns.Run("iptables-nft", "-A", "FORWARD", "-m", "set", "--match-set", "banned", "src", "-j", "DROP"))
	holds("members of an ipset")
}
