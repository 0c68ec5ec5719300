// SPDX-License-Identifier: Apache-2.0

// Package ruleset reads the firewall and finds rules that look at each packet.
//
// shunt repeats what the kernel did to a flow's earlier packets. A rule with a limit, a
// quota, a queue, or a match on what differs from one packet of a flow to the next would
// have done something else to the later ones (design rule 7). This package says which
// rules of nftables and of legacy iptables are of that kind, whether forwarded packets
// can reach them, and which flows they could touch, as widely as need be. An expression or
// extension is stable only if its whole form, or its arguments, prove so; anything else
// counts as looking at each packet, and what cannot be bounded as everything. Rules that
// only count or log are told apart: nothing is refused for them, unless another rule asks
// what they count (named.go). What packets only keep from running out bounds the leases (clock.go).
//
// What makes common firewalls fast is the rule that accepts established connections: the
// rules behind it see first packets only. So packets are followed by what conntrack calls
// them (States) and by interface, and a rule that is reached by new ones alone touches nothing else.
//
// Safe are matches on what a hit compares or what all packets of a flow have in common:
// addresses, ports, MACs, DSCP, IPv6 flow label, marks, conntrack's state, direction,
// status and zone, sets, fib, sockets. So are TCP flags that a repeated packet cannot have
// (SYN, FIN, RST, no ACK).
//
// A Reader needs CAP_NET_ADMIN and works in the network namespace of the thread; the daemon
// and the doctor call it. Chains that hook devices (netdev, ingress) and bridges are not
// its affair: their ports are not fast.
package ruleset

import (
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// Bounds of a Report.
const (
	MaxFindings = 64 // rules that are named; one more stands for all the others, and for everything
	maxMatches  = 16 // what one rule could touch, before that is everything
	maxCounting = 10 // rules that only count, named
)

// Finding is a rule that looks at each packet, and what it could touch: any of Touches.
type Finding struct {
	Rule    string // where it stands, as its tool shows it
	Why     string // what in it looks at each packet
	Touches []Match
}

func (f Finding) String() string { return fmt.Sprintf("%s (%s)", f.Rule, f.Why) }

// Report is what was found in a ruleset.
type Report struct {
	Enforcing []Finding // in the order in which packets meet them
	Counting  []string  // the first rules that only count or log
	Counted   int       // how many such there are
	// Silent is what can change without the kernel saying so, in words: rules of legacy
	// iptables, members of an ipset, elements of a set that packets add or that time out.
	Silent []string
	// Clock is the one that runs out first of those that repeated packets would wind (clock.go).
	Clock Clock
	// Elements reports that Clock depends on timeouts of elements, which are announced as such.
	Elements bool
}

// Reader reads the ruleset again and again, and of nftables what changed. Its methods are for one
// goroutine. The zero value has read nothing.
type Reader struct {
	nft    memory
	tables []nft.XTable
}

// Read reads the ruleset of this network namespace and judges it, whatever is known of it.
func (r *Reader) Read() (Report, error) { return r.Update(nft.Touched{All: true}) }

// Update is Read, for what was announced since the last time. A chain of 100,000 rules takes
// seconds, which the kernel needs to list them; one that is not touched takes none.
func (r *Reader) Update(touched nft.Touched) (Report, error) {
	w := newWalk()
	if err := r.nft.update(w, touched); err != nil {
		r.nft = memory{}
		return Report{}, err
	}
	tables, err := nft.ReadXTables()
	if err != nil {
		return Report{}, err
	}
	r.tables = tables
	for _, t := range tables {
		w.addXTable(t)
	}
	if err := w.readIPSets(); err != nil {
		return Report{}, err
	}
	return w.run(), nil
}

// Stale tells whether legacy iptables, which announces nothing, has other rules than when
// they were read.
func (r *Reader) Stale() (bool, error) {
	tables, err := nft.ReadXTables()
	return !reflect.DeepEqual(tables, r.tables), err
}

// The hooks that forwarded packets pass, NF_INET_*.
const (
	hookPrerouting  = 0
	hookForward     = 2
	hookPostrouting = 4
)

func forwarded(hook uint32) bool {
	return hook == hookPrerouting || hook == hookForward || hook == hookPostrouting
}

// conntrackPriority is NF_IP_PRI_CONNTRACK: no chain up to there knows a state.
const conntrackPriority = -200

// nftSource is the first word of a rule's name: nft's family.
func nftSource(family uint8) string {
	return map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}[family]
}

// families are those whose packets a table sees.
func families(nfproto uint8) []uint8 {
	switch nfproto {
	case unix.NFPROTO_IPV4:
		return []uint8{4}
	case unix.NFPROTO_IPV6:
		return []uint8{6}
	}
	return []uint8{4, 6}
}

// Priorities of the tables of legacy iptables (enum nf_ip_hook_priorities).
var xPriorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}

// addXTable takes a table of legacy iptables, but for nat.
func (w *walk) addXTable(t nft.XTable) {
	priority, known := xPriorities[t.Name]
	if t.Name == "nat" {
		return
	}
	if !known {
		priority = conntrackPriority // nothing is known of state there
	}
	source := "iptables"
	if t.Family == unix.NFPROTO_IPV6 {
		source = "ip6tables"
	}
	rules := 0
	for name, list := range t.Chains {
		rules += len(list)
		at := chainName{source, t.Name, name}
		j := judged{chain: chain{name: at}}
		for i, r := range list {
			j.put(compileX(r, i+1))
		}
		w.add(&j)
	}
	if rules > len(t.Hooks) { // the last one of each built-in chain is its policy
		w.silent(fmt.Sprintf("rules of %s -t %s (legacy)", source, t.Name))
	}
	for _, hook := range []uint32{hookPrerouting, hookForward, hookPostrouting} {
		if name, ok := t.Hooks[hook]; ok {
			w.bases = append(w.bases, base{chainName{source, t.Name, name}, hook, priority, families(t.Family)})
		}
	}
}

// sortBases puts chains in the order in which packets meet them.
func sortBases(bases []base) {
	slices.SortStableFunc(bases, func(a, b base) int {
		if a.hook != b.hook {
			return int(a.hook) - int(b.hook)
		}
		return int(a.priority) - int(b.priority)
	})
}
