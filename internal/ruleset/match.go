// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// States are what conntrack may call a packet whose flow could be fast.
type States uint8

// The states. A connection is New until something comes back.
const (
	Established States = 1 << iota
	New
	Untracked // or without conntrack
	AnyState  = Established | New | Untracked
)

// Match says which packets a rule could touch: at most these. What is zero is any, but
// States, of which there is at least one.
type Match struct {
	Family                        uint8 // 4 or 6
	Proto                         uint8
	Source, Destination           netip.Prefix
	SourcePorts, DestinationPorts [2]uint16 // from, to
	In, Out                       Interfaces
	NotIn, NotOut                 Interfaces // by none of these
	States                        States
	Until                         Until
}

// Until bounds a Match by a counter of the connection: it fits while the counter is at most At.
// A zero Counter means no bound.
type Until struct {
	Counter   Counter
	Direction Direction
	At        uint64
}

// Counter is what nf_conntrack_acct counts.
type Counter uint8

// The counters.
const (
	Packets Counter = 1 + iota
	Bytes
)

func (c Counter) String() string { return [...]string{"", "packets", "bytes"}[c] }

// Direction is the direction of a connection that a counter is about.
type Direction uint8

// The directions. Both is the sum.
const (
	Original Direction = iota
	Reply
	Both
)

// both narrows a match by another one; false: no packet fits both. Where that cannot be
// said exactly it stays too wide.
func (m Match) both(o Match) (Match, bool) {
	ok := narrow(&m.Family, o.Family) && narrow(&m.Proto, o.Proto) &&
		narrowPrefix(&m.Source, o.Source) && narrowPrefix(&m.Destination, o.Destination) &&
		narrowPorts(&m.SourcePorts, o.SourcePorts) && narrowPorts(&m.DestinationPorts, o.DestinationPorts) &&
		narrowInterfaces(&m.In, &m.NotIn, o.In, o.NotIn) && narrowInterfaces(&m.Out, &m.NotOut, o.Out, o.NotOut)
	if o.Until.Counter != 0 {
		m.Until = o.Until
	}
	m.States &= o.States
	return m, ok && m.States != 0
}

func narrow(a *uint8, b uint8) bool {
	if *a == 0 {
		*a = b
	}
	return b == 0 || *a == b
}

func narrowPrefix(a *netip.Prefix, b netip.Prefix) bool {
	if a.IsValid() && b.IsValid() && !a.Overlaps(b) {
		return false
	}
	if b.IsValid() && (!a.IsValid() || b.Bits() > a.Bits()) {
		*a = b
	}
	return true
}

func narrowPorts(a *[2]uint16, b [2]uint16) bool {
	none := [2]uint16{}
	if *a == none {
		*a = b
	} else if b != none {
		*a = [2]uint16{max(a[0], b[0]), min(a[1], b[1])}
	}
	return a[0] <= a[1]
}

// covers reports whether all packets of another match fit this one, states aside; true only
// where it is plain.
func (m Match) covers(o Match) bool {
	return m.coversBut(o) && coversInterfaces(m.In, o.In) && coversInterfaces(m.Out, o.Out) &&
		m.NotIn.within(o.NotIn, o.In) && m.NotOut.within(o.NotOut, o.Out)
}

// coversBut is covers, interfaces aside.
func (m Match) coversBut(o Match) bool {
	return (m.Family == 0 || m.Family == o.Family) && (m.Proto == 0 || m.Proto == o.Proto) &&
		!m.Source.IsValid() && !m.Destination.IsValid() &&
		m.SourcePorts == [2]uint16{} && m.DestinationPorts == [2]uint16{} && m.Until == Until{}
}

var protoNames = map[uint8]string{protoICMP: "icmp", protoTCP: "tcp", protoUDP: "udp", 47: "gre", 50: "esp", protoICMPv6: "icmpv6", 132: "sctp"}

// String says for people what fits: "IPv4 udp to 192.0.2.0/24 port 53 in by lan, new".
func (m Match) String() string {
	var words []string
	add := func(is bool, text ...string) {
		if is {
			words = append(words, text...)
		}
	}
	add(m.Family != 0, "IPv"+strconv.Itoa(int(m.Family)))
	if m.Proto != 0 {
		name := protoNames[m.Proto]
		if name == "" {
			name = "protocol " + strconv.Itoa(int(m.Proto))
		}
		add(true, name)
	}
	add(m.Source.IsValid(), "from", m.Source.String())
	add(m.SourcePorts != [2]uint16{}, "from port", portWords(m.SourcePorts))
	add(m.Destination.IsValid(), "to", m.Destination.String())
	add(m.DestinationPorts != [2]uint16{}, "to port", portWords(m.DestinationPorts))
	add(m.In != "", "in by", m.In.String())
	add(m.NotIn != "", "not in by", m.NotIn.String())
	add(m.Out != "", "out by", m.Out.String())
	add(m.NotOut != "", "not out by", m.NotOut.String())
	add(len(words) == 0, "everything")
	text := strings.Join(words, " ")
	if m.States&AnyState != AnyState {
		var states []string
		for i, word := range []string{"established", "new", "untracked"} {
			if m.States&(1<<i) != 0 {
				states = append(states, word)
			}
		}
		text += ", " + strings.Join(states, " or ")
	}
	if m.Until.Counter != 0 {
		text += ", " + m.Until.String()
	}
	return text
}

// String says the bound for people: "until 6 original packets".
func (u Until) String() string {
	words := []string{"until", strconv.FormatUint(u.At, 10)}
	if u.Direction != Both {
		words = append(words, [...]string{"original", "reply"}[u.Direction])
	}
	return strings.Join(append(words, u.Counter.String()), " ")
}

func portWords(p [2]uint16) string {
	if p[0] == p[1] {
		return strconv.Itoa(int(p[0]))
	}
	return fmt.Sprintf("%d-%d", p[0], p[1])
}
