// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// MaxPolicyRules and MaxPolicyGroups bound a Policy.
const (
	MaxPolicyRules  = int(tcPolicySizePOLICY_RULES)
	MaxPolicyGroups = int(tcPolicySizePOLICY_GROUPS)
)

// What conntrack calls a packet, in PolicyRule.States. UDP that nobody answers stays new.
const (
	StateEstablished = uint8(tcPolicyStatePOLICY_ESTABLISHED)
	StateNew         = uint8(tcPolicyStatePOLICY_NEW)
	StateUntracked   = uint8(tcPolicyStatePOLICY_UNTRACKED) // or without conntrack
	StateAny         = StateEstablished | StateNew | StateUntracked
)

// Counters of a connection, in PolicyRule.Counter; directions of one, in PolicyRule.Direction.
const (
	CountPackets = uint8(tcPolicyCounterPOLICY_PACKETS)
	CountBytes   = uint8(tcPolicyCounterPOLICY_BYTES)

	DirectionOriginal, DirectionReply, DirectionBoth = uint8(0), uint8(1), uint8(2)
)

// PortRange is from, to. The zero value is any port.
type PortRange [2]uint16

// PolicyRule says of the packets that it fits whether their flow may be learned. What is
// zero fits everything. An address or port fits as it comes in or as it goes out.
type PolicyRule struct {
	Family              uint8 // 4 or 6
	Proto               uint8
	Source, Destination netip.Prefix
	SourcePorts         PortRange
	DestinationPorts    PortRange
	In, Out             uint32 // one bit: a group of ports (Policy.Groups)
	States              uint8  // State*
	Reason              string // "hit": it may, whatever the rules behind say
	Counter, Direction  uint8  // Count*: it fits while this counter of the connection is at most Until
	Until               uint64
}

// Policy says which flows may be learned: of its rules the first that fits counts.
type Policy struct {
	Marked      bool // only connections whose connmark & Mask is Value
	Value, Mask uint32
	Rules       []PolicyRule
	Groups      map[int]uint32 // by ifindex of every port there is or may be: bits of the groups that it is in
}

// SetPolicy puts a policy in force: what was learned under another one must be learned
// again. It costs nothing if it is in force already. Ports that it does not name learn
// nothing, if there are rules.
func (p *Plane) SetPolicy(policy Policy) error {
	next, err := policy.bank()
	if err != nil {
		return err
	}
	memory, err := p.maps[policyMap].Memory()
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	all := new(tcPolicies)
	raw := unsafe.Slice((*byte)(unsafe.Pointer(all)), unsafe.Sizeof(*all))
	if _, err := memory.ReadAt(raw, 0); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	old := all.Bank & 1
	members, same, err := p.members(old, policy.Groups)
	if err != nil || same && all.Banks[old] == *next {
		return err
	}
	bank := 1 - old
	for index, m := range members {
		m.Groups[bank] = policy.Groups[int(index)]
		if err := p.maps["members"].Put(index, m); err != nil {
			return fmt.Errorf("policy: groups of port %d: %w", index, err)
		}
	}
	size := unsafe.Sizeof(*next)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(next)), size)
	if _, err := memory.WriteAt(bytes, int64(unsafe.Offsetof(all.Banks)+uintptr(bank)*size)); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if _, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, bank), int64(unsafe.Offsetof(all.Bank))); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	p.Bump()
	return nil
}

// SetUnread says that nobody knows what is in the ruleset, or again that the policy in force
// knows. Until then nothing is learned; what was learned before stays.
func (p *Plane) SetUnread(unread bool) error {
	memory, err := p.maps[policyMap].Memory()
	if err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	var n uint32
	if unread {
		n = 1
	}
	if _, err := memory.WriteAt(binary.NativeEndian.AppendUint32(nil, n), int64(unsafe.Offsetof(tcPolicies{}.Unread))); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

const policyMap = ".data.policy"

// members are the ports that are known or wanted, as the map has them, without those that
// are neither; and whether the groups in a bank are those that are wanted.
func (p *Plane) members(bank uint32, want map[int]uint32) (known map[uint32]tcMember, same bool, err error) {
	known, same = map[uint32]tcMember{}, true
	var index uint32
	var m tcMember
	var gone []uint32
	it := p.maps["members"].Iterate()
	for it.Next(&index, &m) {
		if groups, ok := want[int(index)]; ok {
			known[index] = m
			same = same && groups == m.Groups[bank]
		} else {
			gone = append(gone, index)
		}
	}
	if err := it.Err(); err != nil {
		return nil, false, fmt.Errorf("policy: groups: %w", err)
	}
	for _, index := range gone {
		if err := p.maps["members"].Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, false, fmt.Errorf("policy: groups of port %d: %w", index, err)
		}
	}
	for index := range want {
		if _, ok := known[uint32(index)]; !ok {
			known[uint32(index)], same = tcMember{}, false
		}
	}
	return known, same, nil
}

func (policy Policy) bank() (*tcPolicyBank, error) {
	if len(policy.Rules) > MaxPolicyRules {
		return nil, fmt.Errorf("policy: %d rules, over %d", len(policy.Rules), MaxPolicyRules)
	}
	b := &tcPolicyBank{Rules: uint32(len(policy.Rules)), Value: policy.Value, Mask: policy.Mask}
	if policy.Marked {
		b.Marked = 1
	}
	for i, r := range policy.Rules {
		reason := slices.Index(Reasons, r.Reason)
		if reason < 0 {
			return nil, fmt.Errorf("policy: no reason %q", r.Reason)
		}
		b.Rule[i] = r.encode(uint8(reason))
	}
	return b, nil
}

func (r PolicyRule) encode(reason uint8) tcPolicyRule {
	e := tcPolicyRule{In: r.In, Out: r.Out, States: r.States, Reason: reason, Counter: r.Counter, Direction: r.Direction, Until: r.Until}
	e.Saddr, e.Smask = encodePrefix(r.Source)
	e.Daddr, e.Dmask = encodePrefix(r.Destination)
	e.Sport, e.Dport = r.SourcePorts.encode(), r.DestinationPorts.encode()
	if r.Family != 0 {
		e.KindMask = uint16(tcKindKIND_IPV6)
	}
	if r.Family == 6 {
		e.Kind = uint16(tcKindKIND_IPV6)
	}
	if r.Proto != 0 {
		e.Kind |= uint16(r.Proto)
		e.KindMask |= math.MaxUint8
	}
	return e
}

func (r PortRange) encode() [2]uint16 {
	if r == (PortRange{}) {
		r[1] = math.MaxUint16
	}
	return r
}

// encodePrefix gives address and mask in wire order; IPv4 in the last word.
func encodePrefix(p netip.Prefix) (addr, mask [4]uint32) {
	if !p.IsValid() {
		return addr, mask
	}
	bytes := p.Masked().Addr().AsSlice()
	ones := make([]byte, len(bytes))
	for bit := range p.Bits() {
		ones[bit/8] |= 0x80 >> (bit % 8)
	}
	first := 4 - len(bytes)/4
	for i := first; i < 4; i++ {
		at := (i - first) * 4
		addr[i], mask[i] = binary.NativeEndian.Uint32(bytes[at:]), binary.NativeEndian.Uint32(ones[at:])
	}
	return addr, mask
}
