// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
)

const (
	dests     = 4 // addresses at the server, beside its own
	sources   = 8 // addresses behind the client
	ports     = 4 // of the server, from plainPort on
	pairs     = 60
	singles   = 80
	mostUnfit = 3 // steps for which the daemon may be dead or hang
)

// dest is an address that flows go to, and how the router reaches it.
type dest struct {
	v4, v6 netip.Addr
	way    string // "wan", "dmz" or "unreachable"
	mac    byte   // last of the neighbour's on wan; 0: failed
}

// state is what was done to the routers so far: an act changes a part of it. Acts that leave
// nothing standing, as a link that is down, are undone by the next step.
type state struct {
	dests   [dests]dest
	dropped [ports]bool   // by an nft rule
	banned  [sources]bool // by an nft set
	legacy  bool          // by iptables
	quiet   [sources]bool // by an ipset
	on      map[string]bool
	undo    *act
	health  string // of the daemon: "", "dead" or "hangs"
	unfit   int    // steps since then
	newer   bool   // which of the two builds runs
}

func newState() *state {
	s := &state{on: map[string]bool{}}
	for i := range s.dests {
		s.dests[i] = dest{v4: netip.AddrFrom4([4]byte{198, 19, 0, byte(16 + i)}), v6: netip.MustParseAddr(fmt.Sprintf("2001:2:0:19::%d", 16+i)), way: "wan", mac: byte(0x10 + i)}
	}
	return s
}

// furnish sets up a router: sets and chains that acts fill, and all routes and neighbours. The
// forward chain ends with a rule that drops, because its policy is none for a moment whenever
// the ruleset is loaded again: a new chain accepts until all chains before it in the transaction
// are gone (nft_basechain_init(), nft_chain_commit_drop_policy()), and a connection that conntrack
// learned then lives on, in one of the two routers.
func (s *state) furnish(r *rig) {
	r.t.Helper()
	r.do(extra, "nft add set inet filter banned { type ipv4_addr; }; insert rule inet filter forward ip saddr @banned drop; "+
		`insert rule inet filter forward oifname "wan9" drop`,
		"nft add rule inet filter forward drop",
		"nft table inet marks { chain in { type filter hook prerouting priority mangle; udp dport 11 meta mark set 7; }; }",
		fmt.Sprintf("nft table inet nat { chain post { type nat hook postrouting priority srcnat; ip saddr %s udp dport 9-12 snat to 198.19.0.100; }; }", source4(sources-1)),
		"ip route add default via 192.0.2.2 dev dmz table 7",
		"ipset create quiet hash:ip", "iptables-legacy -I FORWARD -m set --match-set quiet src -j DROP", "iptables-legacy -N LEGACY", "iptables-legacy -A FORWARD -j LEGACY")
	r.do(s.paths()...)
}

// paths are the commands that make routes and neighbours what they should be.
func (s *state) paths() (all []string) {
	for _, d := range s.dests {
		all = append(all, d.neighbour()...)
		all = append(all, d.route()...)
	}
	return all
}

func (d dest) neighbour() (all []string) {
	for _, a := range []netip.Addr{d.v4, d.v6} {
		if d.mac == 0 {
			all = append(all, fmt.Sprintf("ip neigh replace %s dev wan nud failed", a))
			continue
		}
		all = append(all, fmt.Sprintf("ip neigh replace %s lladdr 02:00:00:00:19:%02x dev wan nud permanent", a, d.mac))
	}
	return all
}

func (d dest) route() []string {
	switch d.way {
	case "wan":
		return []string{fmt.Sprintf("ip route replace %s/32 dev wan", d.v4), fmt.Sprintf("ip route replace %s/128 dev wan", d.v6)}
	case "dmz":
		return []string{fmt.Sprintf("ip route replace %s/32 via 192.0.2.2 dev dmz", d.v4), fmt.Sprintf("ip route replace %s/128 via inet6 2001:2:0:20::2 dev dmz", d.v6)}
	}
	return []string{fmt.Sprintf("ip route replace unreachable %s/32", d.v4), fmt.Sprintf("ip route replace unreachable %s/128", d.v6)}
}

func source4(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(130 + i)}) }
func source6(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("2001:2:0:18::8%03d", i)) }

// chaosFlows are 200: pairs of both directions, and singles; a few are TCP, some large.
func chaosFlows(r *rig) (all []flow) {
	s := newState()
	up := func(i int, proto uint8) flow {
		d, from := s.dests[i%dests], i/dests%sources
		source, dest := source4(from), d.v4
		if i%3 == 2 {
			source, dest = source6(from), d.v6
		}
		f := flow{name: fmt.Sprintf("flow %d", i), proto: proto, from: client, smac: r.Client.MAC, dmac: r.LAN.MAC,
			source: netip.AddrPortFrom(source, uint16(10000+i)), dest: netip.AddrPortFrom(dest, uint16(plainPort+i/5%ports))}
		if i%7 == 6 {
			f.size = 1400
		}
		return f
	}
	for i := range pairs {
		f := up(i, unix.IPPROTO_UDP)
		if i%6 == 5 {
			f = up(i, unix.IPPROTO_TCP)
		}
		if f.source.Addr() == source4(sources-1) { // masked: no answers, see unanswered
			f.source = netip.AddrPortFrom(source4(0), f.source.Port())
		}
		all = append(all, f, r.answer(f))
	}
	for i := pairs; i < pairs+singles; i++ {
		all = append(all, up(i, unix.IPPROTO_UDP))
	}
	return all
}

// next chooses what is done now.
func (s *state) next(random *rand.Rand) act {
	if s.undo != nil {
		a := *s.undo
		s.undo = nil
		return a
	}
	if s.health != "" {
		if s.unfit++; s.unfit > mostUnfit {
			return s.recover()
		}
	}
	all := []func(*rand.Rand) act{s.route, s.route, s.neighbour, s.neighbour, s.drop, s.drop, s.ban, s.ban, s.mark, s.policy, s.toggle, s.toggle,
		s.reload, s.forget, s.legacyRule, s.ipset, s.passing, s.passing, s.fault, s.fault, s.fault}
	return all[random.IntN(len(all))](random)
}

// steps makes an act of commands.
func steps(name string, announced bool, commands ...string) act {
	return act{name: name, announced: announced, both: func(r *rig) { r.t.Helper(); r.do(commands...) }}
}

func (s *state) route(random *rand.Rand) act {
	d := &s.dests[random.IntN(dests)]
	d.way = []string{"wan", "wan", "wan", "dmz", "dmz", "dmz", "unreachable"}[random.IntN(7)]
	return steps("route "+d.way, true, d.route()...)
}

func (s *state) neighbour(random *rand.Rand) act {
	d := &s.dests[random.IntN(dests)]
	name := "neighbour's MAC"
	d.mac = byte(0x10 + random.IntN(100))
	if random.IntN(6) == 0 {
		d.mac, name = 0, "neighbour failed"
	}
	return steps(name, true, d.neighbour()...)
}

// pick chooses one and turns it over. Mostly it is one that is on: most flows are to flow.
func pick(random *rand.Rand, on []bool) int {
	i := random.IntN(len(on))
	if at := slices.Index(on, true); at >= 0 && random.IntN(3) > 0 {
		i = at
	}
	on[i] = !on[i]
	return i
}

func (s *state) drop(random *rand.Rand) act {
	pick(random, s.dropped[:])
	rules := "nft flush chain inet filter extra"
	for i, is := range s.dropped {
		if is {
			rules += fmt.Sprintf("; add rule inet filter extra udp dport %d drop", plainPort+i)
		}
	}
	return steps("nft rule", true, rules)
}

func (s *state) ban(random *rand.Rand) act {
	i := pick(random, s.banned[:])
	verb := map[bool]string{true: "add", false: "delete"}[s.banned[i]]
	return steps("nft set element", true, fmt.Sprintf("nft %s element inet filter banned { %s }", verb, source4(i)))
}

func (s *state) mark(*rand.Rand) act {
	s.on["mark"] = !s.on["mark"]
	verb := map[bool]string{true: "add", false: "del"}[s.on["mark"]]
	return steps("rule for a mark", true, "ip rule "+verb+" pref 100 fwmark 7 lookup 7")
}

func (s *state) policy(random *rand.Rand) act {
	d := s.dests[random.IntN(dests)]
	key := "policy " + d.v4.String()
	s.on[key] = !s.on[key]
	verb, action := "add", "action block"
	if !s.on[key] {
		verb, action = "delete", ""
	}
	return steps("IPsec policy", true, fmt.Sprintf("ip xfrm policy %s dst %s/32 dir out %s", verb, d.v4, action))
}

// toggles are acts with two commands, one of which is due.
var toggles = []struct{ name, on, off string }{
	{"MTU", "ip link set wan mtu 1300", "ip link set wan mtu 1500"},
	{"qdisc", "tc qdisc replace dev dmz root pfifo limit 1000", "tc qdisc del dev dmz root"},
}

func (s *state) toggle(random *rand.Rand) act {
	t := toggles[random.IntN(len(toggles))]
	s.on[t.name] = !s.on[t.name]
	return steps(t.name, true, map[bool]string{true: t.on, false: t.off}[s.on[t.name]])
}

func (s *state) reload(*rand.Rand) act {
	return act{name: "same ruleset again", announced: true, both: func(r *rig) {
		r.t.Helper()
		r.save()
		r.must(r.LAN.NS.NFT("flush ruleset\n" + r.saved))
	}}
}

// forget lets conntrack forget all UDP. Who is known again
// depends on what the kernel gets to see, so nothing else is changed before it has seen all.
func (s *state) forget(*rand.Rand) act {
	return act{name: "conntrack -D", slow: true, both: func(r *rig) { r.t.Helper(); r.do("conntrack -D -p udp") }}
}

func (s *state) legacyRule(*rand.Rand) act {
	s.legacy = !s.legacy
	command := "iptables-legacy -A LEGACY -p udp --dport 12 -j DROP"
	if !s.legacy {
		command = "iptables-legacy -F LEGACY"
	}
	return steps("iptables-legacy rule", false, command)
}

func (s *state) ipset(random *rand.Rand) act {
	i := pick(random, s.quiet[:])
	verb := map[bool]string{true: "add", false: "del"}[s.quiet[i]]
	return steps("ipset element", false, fmt.Sprintf("ipset %s quiet %s", verb, source4(i)))
}

// passing is something that the next step undoes.
func (s *state) passing(random *rand.Rand) act {
	back := func(name string, commands ...string) {
		a := steps(name, true, append(commands, s.paths()...)...)
		s.undo = &a
	}
	server := []string{"ip neigh replace 198.19.0.2 lladdr 02:00:00:00:13:02 dev wan nud permanent"}
	switch random.IntN(6) {
	case 0:
		back("link up", append(server, "ip address replace 2001:2:0:19::1/64 dev wan")...)
		s.undo.both = prefixed("ip link set wan up", s.undo.both)
		return steps("link down", true, "ip link set wan down")
	case 1:
		back("ip_forward on", "sysctl net.ipv4.ip_forward=1")
		return steps("ip_forward off", true, "sysctl net.ipv4.ip_forward=0")
	case 2:
		back("renamed back", "ip link set wan9 name wan")
		return steps("interface renamed", true, "ip link set wan name wan9")
	case 3:
		back("tc filter gone", "tc qdisc del dev lan clsact")
		return steps("foreign tc filter", true, "tc qdisc add dev lan clsact",
			"tc filter add dev lan ingress prio 1 protocol ip bpf da bytecode '4,40 0 0 36,21 0 1 10,6 0 0 2,6 0 0 0'")
	case 4:
		back("routes again")
		return act{name: "interface made anew", announced: true, both: func(r *rig) { r.t.Helper(); r.rewire(r.WAN.MAC) }}
	}
	back("third port up", "ip neigh replace 192.0.2.2 lladdr 02:00:00:00:14:02 dev dmz nud permanent",
		"ip address replace 2001:2:0:20::1/64 dev dmz", "ip neigh replace 2001:2:0:20::2 lladdr 02:00:00:00:14:02 dev dmz nud permanent",
		"ip route replace default via 192.0.2.2 dev dmz table 7")
	s.undo.both = prefixed("ip link set dmz up", s.undo.both)
	return steps("third port down", true, "ip link set dmz down")
}

// prefixed does a command, lets the kernel announce its addresses and routes, and goes on.
func prefixed(command string, then func(*rig)) func(*rig) {
	return func(r *rig) {
		r.t.Helper()
		r.do(command)
		then(r)
	}
}

// deaf reports whether no daemon listens now.
func (s *state) deaf() bool { return s.health != "" }

// fault does something to the daemon.
func (s *state) fault(random *rand.Rand) act {
	if s.health != "" {
		return s.recover()
	}
	kinds := []act{
		{name: "daemon killed", shunt: func(r *rig) { r.daemon.Kill9(); s.health = "dead" }},
		{name: "daemon hangs", shunt: func(r *rig) { r.signal(syscall.SIGSTOP); s.health = "hangs" }},
		{name: "daemon upgraded", shunt: func(r *rig) { r.terminate(); s.start(r) }},
		{name: "pause and resume", shunt: func(r *rig) {
			client := api.NewClient(r.daemon.Socket())
			r.must(client.Pause(context.Background()))
			time.Sleep(20 * time.Millisecond)
			r.must(client.Resume(context.Background()))
		}},
	}
	return kinds[random.IntN(len(kinds))]
}

// start starts the other build.
func (s *state) start(r *rig) {
	s.newer = !s.newer
	r.run(map[bool]string{false: program, true: upgrade}[s.newer], api.WayXDP)
}

// recover lets a daemon listen again.
func (s *state) recover() act {
	return act{name: "daemon listens", shunt: func(r *rig) {
		switch s.health {
		case "dead":
			s.start(r)
		case "hangs":
			r.signal(syscall.SIGCONT)
		}
		s.health, s.unfit = "", 0
	}}
}
