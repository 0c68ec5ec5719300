// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"
)

// check says what is wrong with a change in itself, whatever the tables hold.
func check(c Change) error {
	kind := kindOf(c.Object)
	if kind == "" {
		return fmt.Errorf("a %T is no entry: use ILM, NHLFE, FTN, Map or PortSpace", c.Object)
	}
	if !slices.Contains(verbsOf[kind], c.Verb) {
		return fmt.Errorf("%s cannot %s: use %v", kind, c.Verb, verbsOf[kind])
	}
	switch o := c.Object.(type) {
	case ILM:
		return o.check()
	case NHLFE:
		if o.ID == 0 {
			return errors.New("nhlfe 0: use an ID from 1 to 4294967295")
		}
		if c.Verb != Delete {
			return o.check()
		}
	case FTN:
		return checkPrefix(o.Prefix)
	case Map:
		if err := checkName(o.Name); err != nil || c.Verb == Delete {
			return err
		}
		return o.check()
	case PortSpace:
		if o.Space < -1 || o.Space > int(MaxSpace) {
			return fmt.Errorf("space %d: use a number from 0 to %d, or off", o.Space, MaxSpace)
		}
		if o.Upstream < -1 || o.Upstream > int(MaxSpace) {
			return fmt.Errorf("space %d: use a number from 0 to %d", o.Upstream, MaxSpace)
		}
		if o.Upstream >= 0 && o.Upstream == o.Space {
			return fmt.Errorf("space %d cannot have upstream-assigned labels too, which others gave out (RFC 5331): use another one for them", o.Space)
		}
		return checkPort(o.Port)
	}
	return nil
}

func (o *ILM) check() error {
	switch {
	case o.Label > MaxLabel:
		return errLabel(o.Label)
	case o.Label == ImplicitNull:
		return errors.New("label 3 is implicit null and never on the wire: use a label from 16 on")
	case o.Label < firstFree && o.Label != ExplicitNull4 && o.Label != ExplicitNull6:
		return fmt.Errorf("label %d is special-purpose and not yours to map: use 0, 2 or a label from 16 on", o.Label)
	case o.Space > MaxSpace:
		return fmt.Errorf("space %d: use a number from 0 to %d", o.Space, MaxSpace)
	case o.TC < -1 || o.TC > 7:
		return fmt.Errorf("tc %d: use a number from 0 to 7", o.TC)
	}
	return nil
}

func errLabel(l Label) error {
	return fmt.Errorf("label %d does not fit into 20 bits: use one up to %d", l, MaxLabel)
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("that is no prefix: write ADDRESS/LENGTH")
	case p.Addr().Is4In6():
		return fmt.Errorf("%s is IPv4 written as IPv6: write it as IPv4", p)
	case p != p.Masked():
		return fmt.Errorf("%s has bits behind its length: write %s", p, p.Masked())
	}
	return nil
}

// checkPort wants what the kernel takes for a name (dev_valid_name), and no start of a comment.
func checkPort(name string) error {
	bad := func(c rune) bool { return c == '/' || c == ':' || unicode.IsSpace(c) || !unicode.IsPrint(c) }
	switch {
	case name == "" || len(name) > 15 || name == "." || name == "..", name[0] == '#', strings.ContainsFunc(name, bad):
		return fmt.Errorf("%.20q can be no port: write the name of an interface, of up to 15 characters", name)
	}
	return nil
}

func checkName(name string) error {
	bad := func(c rune) bool {
		return c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("._-", c)
	}
	if name == "" || len(name) > 31 || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("%.40q is no name of a map: use up to 31 letters, digits, dots, dashes and underscores", name)
	}
	return nil
}

func (o *Map) check() error {
	if int(o.Kind) >= len(kindWords) {
		return fmt.Errorf("map %s is of no kind: use %s", o.Name, strings.Join(kindWords, " or "))
	}
	if len(o.To) == 0 {
		return fmt.Errorf("map %s maps nothing: write K:V behind its kind", o.Name)
	}
	for key, value := range o.To {
		if key < 0 || key >= o.Kind.keys() || value < 0 || value >= o.Kind.values() {
			return fmt.Errorf("map %s: %d:%d is out of range: %s takes 0 to %d and gives 0 to %d",
				o.Name, key, value, o.Kind, o.Kind.keys()-1, o.Kind.values()-1)
		}
	}
	return nil
}

// check looks at the list alone: that it ends once, at its end, and every instruction by itself.
func (o *NHLFE) check() error {
	if o.MTU != 0 && (o.MTU < MinMTU || o.MTU > MaxMTU) {
		return fmt.Errorf("mtu %d: use a number from %d to %d", o.MTU, MinMTU, MaxMTU)
	}
	if int(o.Model) >= len(modelWords) {
		return fmt.Errorf("ttl model %d is none: use %s", o.Model, strings.Join(modelWords, ", "))
	}
	if len(o.List) == 0 {
		return errNoInstruction
	}
	last := len(o.List) - 1
	for i := range o.List {
		in := &o.List[i]
		switch {
		case in.Op.ends() && i < last:
			return fmt.Errorf("%s stands behind %s, which ends the list: leave one away", &o.List[i+1], in)
		case !in.Op.ends() && i == last:
			return fmt.Errorf("the list ends in %s: end it in %s", in, endings)
		case in.Op == OpEntropy && (o.List[i+1].Op != OpPush || o.List[i+1].Label == ImplicitNull):
			return fmt.Errorf("%s stands behind entropy: put the push of the tunnel's label there", &o.List[i+1])
		}
		if err := in.check(); err != nil {
			return err
		}
	}
	if end := o.List[last].Op; o.MTU != 0 && (end == OpPeek || end == OpDeliver || end == OpDrop) {
		return fmt.Errorf("mtu %d counts for what is sent, not behind %s: leave it away", o.MTU, end)
	}
	return nil
}

func (in *Instruction) check() error {
	switch in.Op {
	case OpPop, OpEntropy, OpDeliver, OpDrop:
		return nil
	case OpPush, OpSwap:
		return in.checkLabel()
	case OpSetTC:
		return within("tc", in.N, 7)
	case OpSetDSCP:
		return within("dscp", in.N, 63)
	case OpTCMap, OpDSCPMap:
		return checkName(in.Map)
	case OpPeek:
		if in.Space != nil {
			return within("space", int(*in.Space), int(MaxSpace))
		}
		return nil
	case OpSend:
		if in.Upstream && !toGroup(in.MAC) {
			return fmt.Errorf("%s: only frames to a group have upstream-assigned labels (RFC 5332): write lladdr 01:00:5e:80:00:00, or another up to 01:00:5e:8f:ff:ff", in)
		}
		return (&Send{in.Port, in.Via, in.MAC}).check()
	case OpForward:
		return checkID(in.ID)
	case OpByTC:
		return in.checkKeys(7)
	case OpByDSCP:
		return in.checkKeys(63)
	case OpByHash:
		return in.checkMembers()
	}
	return fmt.Errorf("instruction %d is none: use %s", in.Op, strings.Join(opWords[OpPop:], ", "))
}

func within(what string, n, high int) error {
	if n < 0 || n > high {
		return fmt.Errorf("%s %d: use a number from 0 to %d", what, n, high)
	}
	return nil
}

func checkID(id uint32) error {
	if id == 0 {
		return errors.New("nhlfe 0: use an ID from 1 to 4294967295")
	}
	return nil
}

func (in *Instruction) checkLabel() error {
	switch {
	case in.Label > MaxLabel:
		return errLabel(in.Label)
	case in.Label == ELI:
		return fmt.Errorf("%s: label 7 is the entropy label indicator: write \"entropy\" before the tunnel's push", in.Op)
	case in.Label < firstFree && in.Label != ExplicitNull4 && in.Label != ExplicitNull6 && in.Label != ImplicitNull:
		return fmt.Errorf("%s %d: the label is special-purpose: use 0, 2, 3 or one from 16 on", in.Op, in.Label)
	case in.Op == OpSwap:
		return nil
	case in.TC != nil && in.Map != "":
		return fmt.Errorf("%s has two values for its TC: leave one away", in)
	case in.TC != nil && *in.TC > 7:
		return within("tc", int(*in.TC), 7)
	case in.TTL != nil && *in.TTL == 0:
		return fmt.Errorf("%s would be expired: use a ttl from 1 to 255", in)
	case in.Map != "":
		return checkName(in.Map)
	}
	return nil
}

// toGroup tells whether a MAC is one of the groups of labelled frames: 01-00-5e-8v-wx-yz, where
// vwxyz is as long as a label (RFC 5332 §8).
func toGroup(mac net.HardwareAddr) bool {
	return len(mac) == 6 && mac[0] == 1 && mac[1] == 0 && mac[2] == 0x5e && mac[3]>>4 == 8
}

func (s *Send) check() error {
	if err := checkPort(s.Port); err != nil {
		return err
	}
	switch {
	case s.MAC != nil:
		if len(s.MAC) != 6 || s.MAC[0]&1 != 0 && !toGroup(s.MAC) || net.HardwareAddr.String(s.MAC) == "00:00:00:00:00:00" {
			return fmt.Errorf("lladdr %s is no MAC address of one station, nor of an MPLS group: write that of the next hop", s.MAC)
		}
		if s.Via.IsValid() {
			return fmt.Errorf("send has both via %s and lladdr %s: leave one away", s.Via, s.MAC)
		}
	case !s.Via.IsValid():
		return fmt.Errorf("send dev %s names no next hop: write \"via inet ADDR\" or \"lladdr MAC\" behind it", s.Port)
	case s.Via.IsUnspecified() || s.Via.IsMulticast() || s.Via.Is4In6() || s.Via.Zone() != "":
		return fmt.Errorf("via %s is no address of one station, or not written plainly: write that of the next hop", s.Via)
	}
	return nil
}

func (in *Instruction) checkKeys(high int) error {
	if len(in.Choices) == 0 && in.Default == nil {
		return fmt.Errorf("%s chooses nothing: write KEY:ID or \"default ID\" behind it", in.Op)
	}
	seen := map[int]bool{}
	for _, c := range in.Choices {
		if err := within(strings.TrimPrefix(in.Op.String(), "by-"), c.Key, high); err != nil {
			return err
		}
		if seen[c.Key] {
			return fmt.Errorf("%s names %d twice: leave one away", in.Op, c.Key)
		}
		seen[c.Key] = true
		if err := checkID(c.ID); err != nil {
			return err
		}
	}
	if in.Default != nil {
		return checkID(*in.Default)
	}
	return nil
}

func (in *Instruction) checkMembers() error {
	if n := len(in.Choices); n == 0 || n > MaxMembers {
		return fmt.Errorf("by-hash has %d members: write 1 to %d of them, as ID or ID*WEIGHT", n, MaxMembers)
	}
	seen := map[uint32]bool{}
	for _, c := range in.Choices {
		switch {
		case c.Weight < 1 || c.Weight > MaxWeight:
			return fmt.Errorf("by-hash: weight %d of nhlfe %d: use a number from 1 to %d", c.Weight, c.ID, MaxWeight)
		case seen[c.ID]:
			return fmt.Errorf("by-hash names nhlfe %d twice: write it once, as ID*WEIGHT", c.ID)
		}
		seen[c.ID] = true
		if err := checkID(c.ID); err != nil {
			return err
		}
	}
	return nil
}
