// SPDX-License-Identifier: Apache-2.0

// Package verdict finds the rule of nftables that drops a packet.
//
// It evaluates the rules as the kernel keeps them for one packet, of which it knows what all packets of
// its flow share: addresses, L4 ports, interfaces, conntrack's state. Where a rule asks for more, the
// rule may match or not, and so may what comes after it: an answer says whether it is sure. The daemon
// asks it for "shunt explain", about flows whose packets come in and do not go out.
//
// Limits: legacy iptables, extensions of iptables-nft, concatenated intervals and chains of bridges and
// devices are not followed. Nothing is learned or refused by what it says.
package verdict

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/nft"
)

// Packet is a packet of a flow, as far as rules can ask for what all packets of the flow share. What
// NAT makes of it applies from the hook on at which the kernel makes it.
type Packet struct {
	Proto               uint8
	Source, Destination netip.AddrPort // as it comes in
	NATSource, NATDest  netip.AddrPort // as it leaves
	ICMPType            uint8
	In, Out             string // names of interfaces; Out is "" of what is for this host
	InIndex, OutIndex   int
	New                 bool // conntrack knows no answer of its connection
	Untracked           bool // conntrack does not know it
}

// Drop is a rule, or a policy, that drops a packet.
type Drop struct {
	Rule string // where it stands, and its text
	Sure bool   // else it or an earlier rule asks for what is not known of the packet
}

// Drops reads nftables and returns the first rule that drops a packet on its way through this host; nil if
// none does. Legacy iptables, chains of bridges and of devices are not followed.
func Drops(p Packet) (*Drop, error) {
	n, err := nft.Read()
	if err != nil {
		return nil, err
	}
	d := drops{n: n, p: p, rules: map[nft.Ref][]nft.Rule{}}
	var bases []nft.Chain
	passed := map[nft.Table]bool{}
	for _, c := range n.Chains {
		if c.Base && c.Type != "nat" && d.passes(c) {
			bases = append(bases, c)
			passed[c.Table] = true
		}
	}
	for _, c := range n.Chains {
		if !passed[c.Table] {
			continue
		}
		if err := n.Rules(c.Ref, func(r nft.Rule) { d.rules[c.Ref] = append(d.rules[c.Ref], r) }); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(bases, func(a, b nft.Chain) int {
		if a.Hook != b.Hook {
			return int(a.Hook) - int(b.Hook)
		}
		return int(a.Priority) - int(b.Priority)
	})
	for _, c := range bases {
		d.hook, d.priority = c.Hook, c.Priority
		end := d.chain(c.Ref, true, 0)
		if end == goesOn && c.Policy == nfDrop {
			d.found = append(d.found, Drop{fmt.Sprintf("the policy of chain %s %s: drop", c.Table, c.Name), d.sure})
			end = dropped
		}
		if end == dropped {
			break
		}
	}
	if len(d.found) == 0 {
		return nil, nil
	}
	best := max(0, slices.IndexFunc(d.found, func(f Drop) bool { return f.Sure }))
	return &d.found[best], nil
}

const (
	nfDrop   = 0 // NF_DROP
	nfAccept = 1

	// NF_INET_*
	hookPrerouting  = 0
	hookIn          = 1
	hookForward     = 2
	hookPostrouting = 4

	conntrackPriority = -200 // NF_IP_PRI_CONNTRACK: no chain up to there knows a state
	natBefore         = -100 // NF_IP_PRI_NAT_DST
	natBehind         = 100  // NF_IP_PRI_NAT_SRC

	protoICMP, protoICMPv6 = 1, 58

	mostSteps  = 2_000_000 // rules met
	mostNested = 32        // jumps; the kernel takes 16
)

// How a chain, or a rule, ends for the packet.
type ending int

const (
	goesOn ending = iota
	accepted
	dropped
)

// tri is what is known of a match.
type tri int

const (
	no tri = iota
	maybe
	yes
)

// drops follows one packet through nftables.
type drops struct {
	n        *nft.Ruleset
	p        Packet
	rules    map[nft.Ref][]nft.Rule
	hook     uint32 // of the base chain
	priority int32
	sure     bool // the packet surely came to where the walk is
	found    []Drop
	steps    int
}

// passes reports whether the packet comes through a base chain.
func (d *drops) passes(c nft.Chain) bool {
	family := uint8(unix.NFPROTO_IPV4)
	if d.p.Source.Addr().Is6() {
		family = unix.NFPROTO_IPV6
	}
	if c.Table.Family != unix.NFPROTO_INET && c.Table.Family != family {
		return false
	}
	if d.p.Out == "" {
		return c.Hook == hookPrerouting || c.Hook == hookIn
	}
	return c.Hook == hookPrerouting || c.Hook == hookForward || c.Hook == hookPostrouting
}

// chain follows the packet through a chain. It changes sure to what is known at its end.
func (d *drops) chain(at nft.Ref, sure bool, depth int) ending {
	d.sure = sure
	if depth > mostNested {
		return goesOn
	}
	for _, r := range d.rules[at] {
		if d.steps++; d.steps > mostSteps {
			return goesOn
		}
		e := evaluation{drops: d, table: at.Table, fits: yes}
		for i := range r.Exprs {
			if e.step(&r.Exprs[i]); e.fits == no || e.verdict != nil {
				break
			}
		}
		if e.fits == no || e.verdict == nil {
			continue
		}
		certain := e.fits == yes
		switch code := e.verdict.Code; {
		case code == nfDrop:
			d.found = append(d.found, Drop{fmt.Sprintf("rule %s %s handle %d: %s", at.Table, at.Name, r.Handle, e.text(r.Comment)), certain && d.sure})
			if certain {
				return dropped
			}
		case code == nfAccept:
			if certain {
				return accepted
			}
			d.sure = false
		case code == unix.NFT_RETURN:
			if certain {
				return goesOn
			}
			d.sure = false
		case code == unix.NFT_JUMP || code == unix.NFT_GOTO:
			was := d.sure
			end := d.chain(nft.Ref{Table: at.Table, Name: e.verdict.Chain}, was && certain, depth+1)
			if certain && (end != goesOn || code == unix.NFT_GOTO) {
				return end
			}
			d.sure = d.sure && was && (certain || end == goesOn)
		}
	}
	return goesOn
}
