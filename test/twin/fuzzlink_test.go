// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// mutant is a frame of an armed flow while it is changed.
type mutant struct {
	*rand.Rand
	*conversation
	c      router
	way    int
	frame  []byte
	before []byte   // as it should be
	more   [][]byte // to be sent behind it
	done   []string
	taken  map[uint16]bool // director.taken
	port   uint16          // of those, this one's
}

// mutation is one thing that may happen to a frame. It returns false if it cannot be done
// to this one.
type mutation struct {
	name string
	do   func(m *mutant) bool
}

// More often than the rest is what leaves a frame that may still be repeated.
var mutations = slices.Concat(slices.Repeat(harmless, 14), linkMutations, ipMutations, ip6Mutations, l4Mutations)

func (m *mutant) mutate() {
	for {
		x := pick(m.Rand, mutations)
		if x.do(m) {
			m.did(x.name)
			return
		}
	}
}

func (m *mutant) did(name string) {
	m.done = append(m.done, name)
	m.keepApart()
	m.repair()
}

// repair makes the IPv4 header's checksum right again, and mostly that of L4, so that what
// was changed is judged and not its checksum.
func (m *mutant) repair() {
	v := look(m.frame)
	last := m.done[len(m.done)-1]
	if v.family == 4 && v.header <= len(m.frame)-14 && last != "ip-checksum" && m.IntN(20) > 0 {
		binary.BigEndian.PutUint16(m.frame[14+10:], 0)
		binary.BigEndian.PutUint16(m.frame[14+10:], ^fold(sum(m.frame[14:14+v.header])))
	}
	if last != "l4-checksum" && m.IntN(10) > 0 {
		v.seal()
	}
}

func (m *mutant) six() bool { return m.ends[0].source.Addr().Is6() }

// whole reports that the frame has a header of its family and 8 bytes behind it.
func (m *mutant) whole() bool {
	need := 14 + 20 + 8
	if m.six() {
		need = 14 + 40 + 8
	}
	return len(m.frame) >= need && binary.BigEndian.Uint16(m.frame[12:]) == m.ethertype()
}

func (m *mutant) ethertype() uint16 {
	if m.six() {
		return unix.ETH_P_IPV6
	}
	return unix.ETH_P_IP
}

// l4 is where L4 begins as long as nothing was put before it.
func (m *mutant) l4() []byte { return m.frame[m.sumStart():] }

// number16 is a number near another, an edge, or any.
func (m *mutant) number16(near uint16) uint16 {
	switch m.IntN(4) {
	case 0:
		return near + uint16(m.IntN(17)) - 8
	case 1:
		return pick(m.Rand, []uint16{0, 1, 7, 8, 20, 27, 28, 0x7fff, 0x8000, 0xffff})
	}
	return uint16(m.Uint32())
}

// field16 changes two bytes of the frame.
func field16(name string, at func(m *mutant) int) mutation {
	return mutation{name, func(m *mutant) bool {
		i := at(m)
		if i < 0 || i+2 > len(m.frame) {
			return false
		}
		binary.BigEndian.PutUint16(m.frame[i:], m.number16(binary.BigEndian.Uint16(m.frame[i:])))
		return true
	}}
}

// field8 changes one byte to any other.
func field8(name string, at func(m *mutant) int, mask byte) mutation {
	return mutation{name, func(m *mutant) bool {
		i := at(m)
		if i < 0 || i >= len(m.frame) {
			return false
		}
		m.frame[i] = m.frame[i]&^mask | byte(m.Uint32())&mask
		return true
	}}
}

// change changes one byte, if it is there.
func (m *mutant) change(at func(*mutant) int, to func(byte) byte) bool {
	i := at(m)
	if i < 0 || i >= len(m.frame) {
		return false
	}
	m.frame[i] = to(m.frame[i])
	return true
}

// in4 and in6 are places in a header of one family alone.
func in4(at int) func(*mutant) int {
	return func(m *mutant) int {
		if m.six() {
			return -1
		}
		return 14 + at
	}
}

func in6(at int) func(*mutant) int {
	return func(m *mutant) int {
		if !m.six() {
			return -1
		}
		return 14 + at
	}
}

// harmless are changes that the flow's rewrite fits all the same.
var harmless = []mutation{
	field8("ecn", func(m *mutant) int {
		if m.six() {
			return -1
		}
		return 15
	}, 3),
	field16("ip-id", in4(4)),
	{"df", func(m *mutant) bool { return m.change(in4(6), func(b byte) byte { return b ^ 0x40 }) }},
	{"ttl-alive", func(m *mutant) bool {
		alive := func(byte) byte { return byte(2 + m.IntN(254)) }
		return m.change(in4(8), alive) || m.change(in6(7), alive)
	}},
	{"payload", func(m *mutant) bool {
		if len(m.frame) < 80 {
			return false
		}
		for i := 75; i < len(m.frame); i++ {
			m.frame[i] = byte(m.Uint32())
		}
		return true
	}},
	{"trailer", func(m *mutant) bool {
		if len(m.frame) > 1400 {
			return false
		}
		for range 1 + m.IntN(60) {
			m.frame = append(m.frame, byte(m.Uint32()))
		}
		return true
	}},
	{"l4-checksum", func(m *mutant) bool {
		at := sumAt(m.proto)
		if at < 0 || !m.whole() || len(m.l4()) < at+2 {
			return false
		}
		binary.BigEndian.PutUint16(m.l4()[at:], m.number16(binary.BigEndian.Uint16(m.l4()[at:])))
		return true
	}},
}

// linkMutations are about Ethernet and about the frame's end.
var linkMutations = []mutation{
	{"mac-bit", func(m *mutant) bool { m.frame[m.IntN(12)] ^= 1 << m.IntN(8); return true }},
	{"mac", func(m *mutant) bool {
		at := 6 * m.IntN(2)
		mac := pick(m.Rand, [][]byte{{255, 255, 255, 255, 255, 255}, {1, 0, 0x5e, 0, 0, 1}, {0x33, 0x33, 0, 0, 0, 1},
			{0, 0, 0, 0, 0, 0}, {2, 0, 0, 0, 18, 1}, {2, 0, 0, 0, 19, 1}, {2, 9, 9, 9, 9, byte(m.IntN(4))}})
		copy(m.frame[at:], mac)
		return true
	}},
	{"ethertype", func(m *mutant) bool {
		binary.BigEndian.PutUint16(m.frame[12:], pick(m.Rand, []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP,
			0x8847, 0x8100, 0x88a8, 0x0200, 0x88cc, uint16(m.Uint32())}))
		return true
	}},
	{tagged, func(m *mutant) bool {
		tag := []byte{pick(m.Rand, []byte{0x81, 0x88}), 0, byte(m.IntN(256)), byte(m.IntN(2) * 7)}
		if tag[0] == 0x88 {
			tag[1] = 0xa8
		}
		if m.IntN(2) == 0 {
			tag[2], tag[3] = 0, 0 // priority only: the kernel takes it off
		}
		if len(m.frame) > 1500 {
			return false
		}
		m.frame = slices.Insert(m.frame, 12, tag...)
		return true
	}},
	{"truncated", func(m *mutant) bool { m.frame = m.frame[:14+m.IntN(len(m.frame)-13)]; return true }},
	{"truncated-headers", func(m *mutant) bool { m.frame = m.frame[:min(len(m.frame), 14+m.IntN(70))]; return true }},
	{"bits", func(m *mutant) bool {
		for range 1 + m.IntN(3) {
			at := m.IntN(min(len(m.frame), 80))
			if !m.source(at) {
				m.frame[at] ^= 1 << m.IntN(8)
			}
		}
		return true
	}},
	{"garbage", func(m *mutant) bool {
		for i := 14 + m.IntN(40); i < len(m.frame); i++ {
			if !m.source(i) {
				m.frame[i] = byte(m.Uint32())
			}
		}
		return true
	}},
	{"twice", func(m *mutant) bool { m.more = append(m.more, slices.Clone(m.frame)); return true }},
}

// source reports that a byte is of the source address: if two sources with one port go to
// the same server, NAT draws a new port for the second, by chance.
func (m *mutant) source(at int) bool {
	if m.six() {
		return at >= 14+8 && at < 14+24
	}
	return at >= 14+12 && at < 14+16
}

// addresses are what a mutated frame may come from or go to.
var addresses4 = []string{"198.18.0.2", "198.18.0.1", "198.19.0.1", "198.19.0.2", "198.19.0.77", "0.0.0.0", "127.0.0.1",
	"255.255.255.255", "224.0.0.5", "198.18.0.255", "240.0.0.1", "10.1.2.3", "198.18.0.100", "198.18.0.130", "198.19.0.100"}
var addresses6 = []string{"2001:2:0:18::2", "2001:2:0:18::1", "2001:2:0:19::1", "2001:2:0:19::2", "2001:2:0:19::77", "::", "::1",
	"ff02::1", "ff0e::5", "fe80::1", "2001:db8::3", "2001:2:0:18::100", "2001:2:0:18::8003", "::ffff:198.18.0.2", "2001:2:0:19::"}

// keepApart keeps NAT from drawing a port by chance: it does if two connections want one
// tuple, and if a low port calls a high one (tuple_force_port_remap). So what the two
// directions of a conversation have of new ports is even and odd, and a source port that is new is
// nobody else's. And no connection gets a
// segment that was made for another, whose numbers would be a surprise to both.
func (m *mutant) keepApart() {
	at, n := m.sumStart(), 2
	switch {
	case len(m.frame) < at+8 || len(m.before) < at+8 || look(m.frame).l4 != at:
		return
	case m.proto == protoICMP || m.proto == protoICMPv6:
		at, n = at+4, 1
	case sumAt(m.proto) < 0 && m.proto != protoSCTP:
		return
	}
	changed := false
	for i := at; i < at+2*n; i += 2 {
		if [2]byte(m.frame[i:]) != [2]byte(m.before[i:]) {
			if m.ofConversations(binary.BigEndian.Uint16(m.frame[i:])) {
				m.frame[i] ^= 0x40
			}
			m.frame[i+1] = m.frame[i+1]&^1 | byte(m.way)
			changed = true
			if i > at && m.frame[at] < 64 {
				m.frame[i] &= 0x7f
			}
			if i == at {
				m.ownPort(m.frame[at:])
			}
		}
	}
	if changed {
		look(m.frame).seal()
	}
}

// ofConversations are ports that a segment made for another connection may not have.
func (m *mutant) ofConversations(port uint16) bool {
	return m.proto == protoTCP && (port/100 == 200 || port/1000 == 30)
}

// ownPort makes a source port one that no other mutant has.
func (m *mutant) ownPort(at []byte) {
	port := binary.BigEndian.Uint16(at)
	for m.taken[port] && port != m.port || m.ofConversations(port) {
		port += 2
	}
	m.port, m.taken[port] = port, true
	binary.BigEndian.PutUint16(at, port)
}

// newSource gives a frame a port of its own (keepApart), a fragment is to be put together
// with another, the header of one that is alone is taken off, and behind a tag nothing is in
// its place: no more is done to these.
const newSource, inFragments, alone, tagged = "ip-source", "fragments", "ip6-atomic", "vlan"

func (m *mutant) last() bool {
	done := m.done[len(m.done)-1]
	return done == newSource || done == inFragments || done == alone || done == tagged
}

// address puts another one in. A new source gets a port of its own (see source).
func (m *mutant) address(dest bool) bool {
	if !m.whole() || look(m.frame).l4 != m.sumStart() {
		return false
	}
	at, size, all := 14+12, 4, addresses4
	if m.six() {
		at, size, all = 14+8, 16, addresses6
	}
	if dest {
		at += size
	}
	copy(m.frame[at:at+size], netip.MustParseAddr(pick(m.Rand, all)).AsSlice())
	if !dest {
		switch m.proto {
		case protoTCP, protoUDP, protoSCTP, protoUDPLite:
			binary.BigEndian.PutUint16(m.l4(), uint16(1024+m.IntN(18000)))
		case protoICMP, protoICMPv6:
			binary.BigEndian.PutUint16(m.l4()[4:], uint16(1024+m.IntN(18000)))
		default:
			return m.c.nat == lab.NATNone || m.c.open
		}
	}
	return true
}

var ipMutations = []mutation{
	field8("ip-version", in4(0), 0xf0),
	field8("ip-ihl", in4(0), 0x0f),
	field8("dscp", in4(1), 0xfc),
	field16("ip-length", in4(2)),
	field16("ip-flags", in4(6)),
	field16("ip-checksum", in4(10)),
	{"ip-ttl", func(m *mutant) bool { return m.change(in4(8), func(byte) byte { return byte(m.IntN(3)) }) }},
	protocol("ip-protocol", in4(9)),
	{newSource, func(m *mutant) bool { return m.address(false) }},
	{"ip-dest", func(m *mutant) bool { return m.address(true) }},
	{"ip-options", ipOptions},
	{inFragments, fragmented},
	{"long", func(m *mutant) bool {
		for len(m.frame) < 1500 {
			m.frame = append(m.frame, byte(m.IntN(256)))
		}
		m.lengths()
		return m.whole()
	}},
}

// protocol makes it another one. With NAT that is none with ports: it would find them taken.
func protocol(name string, at func(*mutant) int) mutation {
	ported := []byte{protoICMP, protoTCP, protoUDP, 33, protoICMPv6, protoSCTP, protoUDPLite}
	return mutation{name, func(m *mutant) bool {
		return m.change(at, func(byte) byte {
			next := byte(m.Uint32())
			if m.c.nat != lab.NATNone && slices.Contains(ported, next) {
				next = 200
			}
			return next
		})
	}}
}

// lengths makes the length fields say what is there.
func (m *mutant) lengths() {
	if !m.whole() {
		return
	}
	if m.six() {
		binary.BigEndian.PutUint16(m.frame[18:], uint16(len(m.frame)-54))
	} else {
		binary.BigEndian.PutUint16(m.frame[16:], uint16(len(m.frame)-14))
	}
	if m.proto == protoUDP {
		binary.BigEndian.PutUint16(m.l4()[4:], uint16(len(m.l4())))
	}
}
