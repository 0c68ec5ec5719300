// SPDX-License-Identifier: Apache-2.0

package change

import (
	"net/netip"
	"syscall"
	"time"

	"shunt/internal/lab"
)

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

var ruleKinds = []*kind{
	{name: "nft rule drops", announced: true, moves: 1, setup: lines(extra), change: drop, undo: undrop},
	{name: "nft set element", announced: true, moves: 1,
		setup:  lines("nft add set inet filter banned { type ipv4_addr; }; insert rule inet filter forward ip saddr @banned drop"),
		change: lines("nft add element inet filter banned { {banned} }"),
		undo:   lines("nft delete element inet filter banned { {banned} }")},
	{name: "nft flush ruleset", announced: true, moves: 1, router: lab.FirewallOptions{NAT: lab.NATMasquerade},
		setup:  (*rig).save,
		change: lines("nft flush ruleset"),
		undo:   func(r *rig) { r.must(r.LAN.NS.NFT(r.saved)) }},
	{name: "same ruleset again", announced: true, router: lab.FirewallOptions{NAT: lab.NATMasquerade},
		setup:  (*rig).save,
		change: func(r *rig) { r.must(r.LAN.NS.NFT("flush ruleset\n" + r.saved)) },
		undo:   func(*rig) {}},
	{name: "conntrack -D", announced: true, moves: 1, setup: lines(extra), prepare: (*rig).onlyKnown,
		change: lines("conntrack -D -p udp --dport 10"), undo: undrop},
}

// quietKinds are those that the daemon hears nothing of: the kernel does not tell, or nobody
// listens. Here a lease is 500 ms.
var quietKinds = []*kind{
	{name: "conntrack -D, older than the daemon", moves: 1, setup: lines(extra), prepare: (*rig).knownBefore,
		change: lines("conntrack -D -p udp --dport 10"), undo: undrop},
	{name: "iptables-legacy rule", moves: 1, needs: needs("iptables", "iptables-legacy", "-I", "FORWARD", "-p", "udp", "--dport", "10", "-j", "DROP"),
		change: lines("iptables-legacy -I FORWARD -p udp --dport 10 -j DROP"),
		undo:   lines("iptables-legacy -D FORWARD 1")},
	{name: "ipset element", moves: 1, needs: needs("ipset", "ipset", "create", "banned", "hash:ip"),
		setup:  lines("ipset create banned hash:ip", "iptables-legacy -I FORWARD -m set --match-set banned src -j DROP"),
		change: lines("ipset add banned {banned}"),
		undo:   lines("ipset del banned {banned}")},
	{name: "nft set element times out", moves: 1, prepare: (*rig).admitForNow,
		setup: lines(extra, "nft add set inet filter guests { type ipv4_addr; flags timeout; }; add element inet filter guests { {banned} };"+
			"add rule inet filter extra ip saddr {banned} ip saddr != @guests drop"),
		change: func(r *rig) { time.Sleep(time.Until(r.admitted)) },
		undo:   lines("nft add element inet filter guests { {banned} }")},
	{name: "daemon killed, nft rule drops", moves: 1, deaf: true, setup: lines(extra),
		prepare: func(r *rig) { r.alive(func() { r.daemon.Kill9() }) }, change: drop, undo: undoing(undrop, again)},
	{name: "daemon terminated, nft rule drops", moves: 1, deaf: true, setup: lines(extra),
		prepare: func(r *rig) { r.alive(r.terminate) }, change: drop, undo: undoing(undrop, again)},
	{name: "daemon hangs, nft rule drops", moves: 1, deaf: true, setup: lines(extra),
		prepare: func(r *rig) { r.alive(func() { r.signal(syscall.SIGSTOP) }) }, change: drop,
		undo: undoing(undrop, func(r *rig) { r.alive(func() { r.signal(syscall.SIGCONT) }) })},
	{name: "daemon stopped", deaf: true,
		change: func(r *rig) { r.alive(func() { r.must(r.daemon.Stop()) }) }, undo: again},
}

// alive does something to the daemon, if there is one.
func (r *rig) alive(do func()) {
	if r.way != "" {
		do()
	}
}

// again starts a daemon where there was one.
func again(r *rig) {
	r.t.Helper()
	r.alive(func() { r.run(program, r.way) })
}

// afresh starts the daemon anew where there is one: an egress that lost frames gets none by XDP
// for a while, but from a new daemon it does.
func afresh(r *rig) {
	r.t.Helper()
	r.alive(func() { r.must(r.daemon.Stop()) })
	again(r)
}

func undoing(steps ...func(*rig)) func(*rig) {
	return func(r *rig) {
		r.t.Helper()
		for _, s := range steps {
			s(r)
		}
	}
}

// save remembers the ruleset.
func (r *rig) save() {
	r.t.Helper()
	var err error
	r.saved, err = r.LAN.NS.Run("nft", "list", "ruleset")
	r.must(err)
}

// onlyKnown lets conntrack know the flow anew, now that somebody may listen for its end, and
// then lets only known connections pass.
func (r *rig) onlyKnown() {
	r.t.Helper()
	r.do("conntrack -D -p udp --dport 10", "nft add rule inet filter extra counter")
	time.Sleep(100 * time.Millisecond)
	r.do("nft insert rule inet filter extra ct state new udp dport 10 drop")
}

// knownBefore is onlyKnown with nobody listening as the connection is made: then the kernel does
// not announce its end (nf_conntrack_events = 2, nf_conntrack_ecache.c).
func (r *rig) knownBefore() {
	r.t.Helper()
	r.alive(func() { r.must(r.daemon.Stop()) })
	r.do("conntrack -D -p udp --dport 10")
	time.Sleep(100 * time.Millisecond)
	again(r)
	r.do("nft insert rule inet filter extra ct state new udp dport 10 drop")
}

// admitForNow lets the other host pass for a second and a half.
func (r *rig) admitForNow() {
	r.t.Helper()
	r.admitted = time.Now().Add(1500 * time.Millisecond)
	r.do(r.fill([]string{"nft delete element inet filter guests { {banned} }; add element inet filter guests { {banned} timeout 1500ms }"})...)
}
