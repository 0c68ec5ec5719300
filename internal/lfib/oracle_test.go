// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// switching is what a list makes of a packet with label 100 on top, byte by byte. The expected
// bytes are built by hand, from the clause that is named.
type switching struct {
	clause string
	list   string // options and instructions of NHLFE 7
	in     []byte
	reason string
	out    []byte
}

const hop = " send dev wan via inet 10.0.0.2"

func check100(t *testing.T, cases []switching, more ...string) {
	t.Helper()
	for _, c := range cases {
		tab := table(t, append(slices.Clone(more), "nhlfe add 7"+c.list, "ilm add 100 nhlfe 7")...)
		in := bytes.Clone(c.in)
		v := tab.Switch(0, in, someWAN)
		if v.Reason != c.reason || !bytes.Equal(v.Packet, c.out) {
			t.Errorf("%s:%s\n%x\n%s %x, not\n%s %x", c.clause, c.list, c.in, v.Reason, v.Packet, c.reason, c.out)
		}
		agree(t, tab, c.in, v, switchForms(tab, map[uint32]*Form{}, 0, c.in, someWAN))
		if !bytes.Equal(in, c.in) {
			t.Errorf("%s:%s: the packet itself was changed", c.clause, c.list)
		}
		want := uint16(EtherMPLS)
		if len(c.out) > 0 && c.out[0] == 0x45 {
			want = EtherIPv4
		} else if len(c.out) > 0 && c.out[0]>>4 == 6 {
			want = EtherIPv6
		}
		if c.out != nil && v.EtherType != want {
			t.Errorf("%s:%s: EtherType %#x, not %#x", c.clause, c.list, v.EtherType, want)
		}
	}
}

var someWAN = Env{
	Hash:      func([]byte, bool) uint32 { return 0x12345<<12 | 5 },
	Adjacency: func(s *Send) (int, bool) { return 200, s.Port == "wan" },
}

func TestSwap(t *testing.T) {
	check100(t, []switching{
		{"3032 §2.4.2, 5462: TTL-1, TC and S kept", " swap 200" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(bytesOf(t, "000c8b3f"), ip4(0, 9))},
		{"the same as pop push", " pop push 200" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(bytesOf(t, "000c8b3f"), ip4(0, 9))},
		{"not at the bottom", " swap 200" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 1, 1, 3), ip4(0, 9)), Switched, join(bytesOf(t, "000c8a3f"), entryOf(17, 1, 1, 3), ip4(0, 9))},
		{"7325 T#1: no bottom is looked for", " swap 200" + hop, join(entryOf(100, 0, 0, 64), []byte{1}), Switched, join(entryOf(200, 0, 0, 63), []byte{1})},
		{"3443 §3.5: alike in every model", " ttl pipe swap 200" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(200, 5, 1, 63), ip4(0, 9))},
		{"3032 §2.4.2: expired", " swap 200" + hop, join(entryOf(100, 0, 1, 1), ip4(0, 9)), Expired, nil},
		{"zero is never valid", " swap 200" + hop, join(entryOf(100, 0, 1, 0), ip4(0, 9)), TTLZero, nil},
		{"3032 §2.1: swap 3 is pop", " swap 3" + hop, join(entryOf(100, 0, 1, 64), ip4(0, 99)), Switched, ip4(0, 63)},
		{"said TC and TTL", " pop push 200 tc 3 ttl 9" + hop, join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(200, 3, 1, 9), ip4(0, 9))},
		{"set-tc", " swap 200 set-tc 1" + hop, join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(200, 1, 1, 63), ip4(0, 9))},
		{"pop and swap", " pop swap 200" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 1, 1, 3), ip4(0, 9)), Switched, join(entryOf(200, 5, 1, 63), ip4(0, 9))},
		{"pop and swap, pipe: the exposed TTL counts", " ttl pipe pop swap 200" + hop,
			join(entryOf(100, 5, 0, 1), entryOf(17, 1, 1, 3), ip4(0, 9)), Switched, join(entryOf(200, 1, 1, 2), ip4(0, 9))},
		{"nothing left to swap", " pop swap 200" + hop, join(entryOf(100, 5, 1, 64), ip4(0, 9)), Malformed, nil},
	})
}

func TestPush(t *testing.T) {
	check100(t, []switching{
		{"3443 §3.5: swap and push, uniform", " swap 200 push 300" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(300, 5, 0, 63), entryOf(200, 5, 1, 63), ip4(0, 9))},
		{"pipe: 255", " ttl pipe swap 200 push 300" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(300, 5, 0, 255), entryOf(200, 5, 1, 63), ip4(0, 9))},
		{"on top of what is there", " push 200 tc 1" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(200, 1, 0, 63), entryOf(100, 5, 1, 63), ip4(0, 9))},
		{"explicit null", " swap 0" + hop, join(entryOf(100, 3, 1, 65), ip4(0, 9)), Switched, join(bytesOf(t, "00000740"), ip4(0, 9))},
		{"a push and its pop are nothing", " push 200 tc 1 pop push 3" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(100, 5, 1, 63), ip4(0, 9))},
		{"6790 §4.2", " swap 200 entropy push 300" + hop,
			join(entryOf(100, 5, 1, 64), ip4(0, 9)), Switched, join(entryOf(300, 5, 0, 63), entryOf(7, 5, 0, 63), entryOf(0x12345, 0, 0, 0), entryOf(200, 5, 1, 63), ip4(0, 9))},
		{"6790 §4.2, on IP: S is the entropy label's", " pop entropy push 300 tc 2 ttl 8" + hop,
			join(entryOf(100, 5, 1, 64), ip4(5<<5, 99)), Switched, join(entryOf(300, 2, 0, 8), entryOf(7, 2, 0, 8), entryOf(0x12345, 0, 1, 0), ip4(5<<5, 63))},
		{"tc-map", " push 200 tc-map gold" + hop,
			join(entryOf(100, 5, 1, 64), ip4(46<<2, 9)), Switched, join(entryOf(200, 3, 0, 63), entryOf(100, 5, 1, 63), ip4(46<<2, 9))},
		{"3270 §3.2.1: what the map does not name is 0", " push 200 tc-map gold" + hop,
			join(entryOf(100, 5, 1, 64), ip4(45<<2, 9)), Switched, join(entryOf(200, 0, 0, 63), entryOf(100, 5, 1, 63), ip4(45<<2, 9))},
		{"tc-map of what is no IP", " push 200 tc-map gold" + hop, join(entryOf(100, 5, 1, 64), []byte{0}), Payload, nil},
		{"over the port's MTU", " push 200" + hop, join(entryOf(100, 0, 1, 64), ip4(0, 9, make([]byte, 165)...)), OverMTU,
			join(entryOf(200, 0, 0, 63), entryOf(100, 0, 1, 63), ip4(0, 9, make([]byte, 165)...))},
		{"as large as it", " push 200" + hop, join(entryOf(100, 0, 1, 64), ip4(0, 9, make([]byte, 164)...)), Switched,
			join(entryOf(200, 0, 0, 63), entryOf(100, 0, 1, 63), ip4(0, 9, make([]byte, 164)...))},
		{"over its own", " mtu 68 push 200" + hop, join(entryOf(100, 0, 1, 64), ip4(0, 9, make([]byte, 33)...)), OverMTU,
			join(entryOf(200, 0, 0, 63), entryOf(100, 0, 1, 63), ip4(0, 9, make([]byte, 33)...))},
		{"no port", " swap 200 send dev gone via inet 10.0.0.2", join(entryOf(100, 0, 1, 64), ip4(0, 9)), NoAdjacency, nil},
	}, "map add gold dscp-to-tc 46:3")
}

func TestPenultimateHop(t *testing.T) {
	four, six := ip4(0xb9, 99), ip6(0xb9, 99) // EF, ECT(1)
	check100(t, []switching{
		{"3443 §3.5: uniform, a label", " pop" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 1, 1, 3), four), Switched, join(entryOf(17, 5, 1, 63), four)},
		{"pipe: its own", " ttl pipe pop" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 1, 1, 3), four), Switched, join(entryOf(17, 1, 1, 2), four)},
		{"short pipe: as it is", " ttl short-pipe pop" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 1, 1, 3), four), Switched, join(entryOf(17, 1, 1, 3), four)},
		{"uniform, IPv4; 3168 §5: ECN stays", " pop" + hop, join(entryOf(100, 4, 1, 64), four), Switched, ip4(4<<5|1, 63)},
		{"uniform, IPv6", " pop" + hop, join(entryOf(100, 4, 1, 64), six), Switched, ip6(4<<5|1, 63)},
		{"uniform: a DSCP of the class stays", " pop" + hop, join(entryOf(100, 5, 1, 64), four), Switched, ip4(0xb9, 63)},
		{"uniform: a TTL is never raised", " pop" + hop, join(entryOf(100, 5, 1, 200), six), Switched, ip6(0xb9, 99)},
		{"pipe, IP", " ttl pipe pop" + hop, join(entryOf(100, 4, 1, 64), six), Switched, ip6(0xb9, 98)},
		{"short pipe, IP", " ttl short-pipe pop" + hop, join(entryOf(100, 4, 1, 64), four), Switched, four},
		{"3032 §2.4.2: not stripped and forwarded", " ttl short-pipe pop" + hop, join(entryOf(100, 4, 1, 1), four), Expired, nil},
		{"short pipe: the exposed TTL is not checked", " ttl short-pipe pop" + hop, join(entryOf(100, 4, 1, 64), ip4(0, 1)), Switched, ip4(0, 1)},
		{"pipe: it is", " ttl pipe pop" + hop, join(entryOf(100, 4, 1, 64), ip4(0, 1)), Expired, nil},
		{"3032 §2.2: no IP", " pop" + hop, join(entryOf(100, 4, 1, 64), []byte{0x10, 0, 0, 0}), Payload, nil},
		{"half an IP header", " pop" + hop, join(entryOf(100, 4, 1, 64), four[:19]), Payload, nil},
		{"no entry beneath", " pop" + hop, join(entryOf(100, 4, 0, 64), []byte{0, 1, 0}), Malformed, nil},
		{"more pops than labels", " pop pop" + hop, join(entryOf(100, 4, 1, 64), four), Malformed, nil},
		{"6790 §4.2: entropy label goes, too", " pop" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(7, 0, 0, 0), entryOf(999, 0, 1, 0), four), Switched, ip4(0xb9, 63)},
		{"6790 §4.2: ELI at the bottom", " pop" + hop, join(entryOf(100, 5, 0, 64), entryOf(7, 0, 1, 0), four), Malformed, nil},
		{"set-dscp", " ttl pipe pop set-dscp 10" + hop, join(entryOf(100, 5, 1, 64), four), Switched, ip4(10<<2|1, 98)},
		{"dscp-map by what was popped last", " ttl pipe pop pop dscp-map back" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 2, 1, 7), four), Switched, ip4(22<<2|1, 98)},
		{"dscp-map, uniform: TC was handed down", " pop pop dscp-map back" + hop,
			join(entryOf(100, 5, 0, 64), entryOf(17, 2, 1, 7), four), Switched, ip4(55<<2|1, 63)},
		{"set-dscp with a label left", " pop set-dscp 10" + hop, join(entryOf(100, 5, 0, 64), entryOf(17, 2, 1, 7), four), Malformed, nil},
		{"set-tc without one", " pop set-tc 1" + hop, join(entryOf(100, 5, 1, 64), four), Malformed, nil},
		{"no swap behind a choice", " pop by-hash 6", join(entryOf(100, 0, 1, 64), four), Switched, join(entryOf(300, 0, 1, 63), ip4(1, 63))},
	}, "map add back tc-to-dscp 2:22 5:55", "nhlfe add 6 push 300"+hop)
}

func TestLookUps(t *testing.T) {
	four := ip4(0xb8, 99)
	check100(t, []switching{
		{"3443 §3.4: uniform, handed on", " pop peek",
			join(entryOf(100, 5, 0, 64), entryOf(101, 1, 1, 3), four), Switched, join(entryOf(201, 5, 1, 63), four)},
		{"pipe: its own", " ttl pipe pop peek",
			join(entryOf(100, 5, 0, 1), entryOf(101, 1, 1, 3), four), Switched, join(entryOf(201, 1, 1, 2), four)},
		{"5331: a context label", " pop peek space 9",
			join(entryOf(100, 5, 0, 64), entryOf(101, 5, 1, 3), four), Switched, join(entryOf(209, 5, 1, 63), four)},
		{"an entry for a TC goes first", " pop peek space 9",
			join(entryOf(100, 3, 0, 64), entryOf(101, 5, 1, 3), four), Discarded, nil},
		{"3031 §3.18", " pop peek space 8", join(entryOf(100, 5, 0, 64), entryOf(101, 5, 1, 3), four), NoLabel, nil},
		{"peek with no label left delivers", " pop peek", join(entryOf(100, 5, 1, 64), four), Delivered, ip4(0xb8, 64)},
		{"delivery checks no TTL", " ttl pipe pop deliver", join(entryOf(100, 5, 1, 0), ip4(0, 1)), Delivered, ip4(0, 1)},
		{"delivery wants the bottom", " pop deliver", join(entryOf(100, 5, 0, 64), entryOf(101, 5, 1, 3), four), Malformed, nil},
		{"and IP", " pop deliver", join(entryOf(100, 5, 1, 64), []byte{0x50}), Payload, nil},
		{"drop does nothing before", " pop pop drop", join(entryOf(100, 5, 1, 64), four), Discarded, nil},
		{"explicit null beneath", " pop peek", join(entryOf(100, 5, 0, 64), entryOf(0, 0, 1, 9), four), Delivered, ip4(0xb8, 64)},
		{"4182: not at the bottom", " pop peek",
			join(entryOf(100, 5, 0, 64), entryOf(2, 5, 0, 9), entryOf(101, 1, 1, 3), four), Switched, join(entryOf(201, 5, 1, 63), four)},
		{"explicit null of the other family", " pop peek", join(entryOf(100, 5, 0, 64), entryOf(2, 0, 1, 9), four), Payload, nil},
		{"router alert", " pop peek", join(entryOf(100, 5, 0, 64), entryOf(1, 0, 0, 9), entryOf(101, 5, 1, 3), four), Alert, nil},
		{"3032 §2.1: not at the bottom", " pop peek", join(entryOf(100, 5, 0, 64), entryOf(1, 0, 1, 9), four), Malformed, nil},
		{"GAL", " pop peek", join(entryOf(100, 5, 0, 64), entryOf(13, 0, 1, 9), four), OAM, nil},
		{"6790 §4.3: ELI on top", " peek space 7", join(entryOf(100, 5, 0, 64), four), NoLabel, nil},
		{"bounded", " peek", join(entryOf(100, 5, 1, 64), four), TooDeep, nil},
		{"by-tc goes by the TC before the pop", " ttl pipe pop by-tc 5:6 1:5", join(entryOf(100, 5, 0, 9), entryOf(101, 1, 1, 3), four), Switched, join(entryOf(301, 1, 1, 2), four)},
		{"3270 §2.6.2.1: or behind it", " ttl short-pipe pop by-tc 5:6 1:5", join(entryOf(100, 5, 0, 9), entryOf(101, 1, 1, 3), four), Discarded, nil},
		{"a hole drops", " by-tc 5:6", join(entryOf(100, 4, 1, 9), four), Discarded, nil},
		{"by-dscp", " by-dscp 46:6", join(entryOf(100, 4, 1, 9), four), Switched, join(entryOf(301, 4, 1, 8), four)},
		{"by-dscp of what is no IP", " by-dscp 46:6", join(entryOf(100, 4, 1, 9), []byte{1}), Payload, nil},
		{"by-dscp without a bottom", " by-dscp 46:6", entryOf(100, 4, 0, 9), Malformed, nil},
		{"by-hash, bucket 5", " by-hash 5 5000 5001 5002 5003 6", join(entryOf(100, 4, 1, 9), four), Switched, join(entryOf(301, 4, 1, 8), four)},
	}, "nhlfe add 1 swap 201"+hop, "ilm add 101 nhlfe 1", "nhlfe add 2 swap 209"+hop, "ilm add 101 space 9 nhlfe 2",
		"nhlfe add 5 drop", "ilm add 101 space 9 tc 3 nhlfe 5", "nhlfe add 6 swap 301"+hop,
		"nhlfe add 5000 drop", "nhlfe add 5001 drop", "nhlfe add 5002 drop", "nhlfe add 5003 drop")
}

// What one NHLFE leaves behind for the next: an MTU until the next look-up, the least of them;
// the TC that by-tc goes by, through choices.
func TestFromOneToTheNext(t *testing.T) {
	stack := join(entryOf(100, 5, 0, 9), entryOf(101, 4, 0, 9), entryOf(102, 3, 1, 9))
	large := ip4(0, 64, make([]byte, 50)...) // 78 bytes
	check100(t, []switching{
		{"the lesser MTU, behind", " mtu 200 swap 200 forward 5", join(entryOf(100, 0, 1, 9), large), OverMTU, join(entryOf(200, 0, 1, 8), large)},
		{"the lesser MTU, before", " mtu 80 swap 200 forward 4", join(entryOf(100, 0, 1, 9), large), OverMTU, join(entryOf(200, 0, 1, 8), large)},
		{"the lesser MTU, before a choice", " mtu 80 by-hash 4", join(entryOf(100, 0, 1, 9), large), OverMTU, join(entryOf(100, 0, 1, 8), large)},
		{"none behind a look-up", " mtu 80 by-hash 3", join(entryOf(100, 0, 0, 9), entryOf(101, 0, 1, 9), large), Switched, join(entryOf(201, 0, 1, 8), large)},
		{"short pipe, then pipe: the TC before the second pop", " ttl short-pipe pop by-hash 2", join(stack, large), Switched, join(entryOf(204, 3, 1, 8), large)},
		{"pipe, then short pipe: the TC behind it", " ttl pipe pop by-hash 1", join(stack, large), Switched, join(entryOf(203, 3, 1, 8), large)},
		{"pipe twice: the TC of the look-up", " ttl pipe pop by-hash 2", join(stack, large), Switched, join(entryOf(205, 3, 1, 8), large)},
	}, "nhlfe add 205 swap 205"+hop, "nhlfe add 204 swap 204"+hop, "nhlfe add 203 swap 203"+hop, "nhlfe add 201 swap 201"+hop,
		"nhlfe add 5 mtu 80 send dev wan via inet 10.0.0.2", "nhlfe add 4 mtu 100 send dev wan via inet 10.0.0.2", "nhlfe add 3 pop peek",
		"nhlfe add 2 ttl pipe pop by-tc 5:205 4:204 3:203", "nhlfe add 1 ttl short-pipe pop by-tc 5:205 4:204 3:203", "ilm add 101 nhlfe 201")
}

// Every special-purpose label on top.
func TestSpecialLabels(t *testing.T) {
	tab := New()
	for label, want := range []string{Delivered, Malformed, Payload, Special, Special, Special, Special, Special,
		Special, Special, Special, Special, Special, OAM, Special, Special, NoLabel} {
		if v := tab.Switch(0, join(entryOf(label, 0, 1, 1), ip4(0, 9)), Env{}); v.Reason != want {
			t.Errorf("label %d: %s, not %s", label, v.Reason, want)
		}
	}
	for n := range lseLen {
		if v := tab.Switch(0, make([]byte, n), Env{}); v.Reason != Malformed {
			t.Errorf("%d bytes: %s", n, v.Reason)
		}
	}
}

// A wrong checksum stays wrong, so that it is seen where it counts.
func TestWrongChecksumStaysWrong(t *testing.T) {
	tab := table(t, "nhlfe add 7 pop"+hop, "ilm add 100 nhlfe 7")
	p := ip4(0, 99)
	p[10] ^= 0x40
	v := tab.Switch(0, join(entryOf(100, 0, 1, 64), p), Env{})
	if v.Reason != Switched || ip4Sum(v.Packet[:20]) == 0 {
		t.Errorf("%s %x", v.Reason, v.Packet)
	}
	want := ip4(0, 63)
	want[10] ^= 0x40
	if sum := binary.BigEndian.Uint16(v.Packet[10:]); ip4Sum(v.Packet[:20]) != ip4Sum(p[:20]) {
		t.Errorf("checksum %#x, off by another amount than before", sum)
	}
}

func TestImpose(t *testing.T) {
	tab := table(t, "nhlfe add 7 push 200"+hop, "nhlfe add 8 ttl pipe push 0 push 200 tc 1"+hop, "nhlfe add 9 deliver", "nhlfe add 6 by-tc 0:9 default 7",
		"ftn add 198.51.100.0/24 nhlfe 7", "ftn add 198.51.0.0/16 nhlfe 9", "ftn add 2001:db8::/32 nhlfe 8", "ftn add ::/0 nhlfe 6")
	for _, c := range []struct {
		in     []byte
		reason string
		out    []byte
	}{
		{ip4(0xb8, 63), Switched, join(entryOf(200, 5, 1, 63), ip4(0xb8, 63))}, // the kernel has taken the TTL step
		{ip6(0, 63), Switched, join(entryOf(200, 1, 0, 255), entryOf(0, 0, 1, 255), ip6(0, 63))},
		{ip4(0, 1), Switched, join(entryOf(200, 0, 1, 1), ip4(0, 1))},
		{ip4(0, 0), TTLZero, nil},
	} {
		v, ok := tab.Impose(c.in, Env{})
		agree(t, tab, c.in, v, imposeForms(tab, map[uint32]*Form{}, c.in, Env{}))
		if !ok || v.Reason != c.reason || !bytes.Equal(v.Packet, c.out) || v.Reason == Switched && v.EtherType != EtherMPLS {
			t.Errorf("%x: %v %s %x, not %s %x", c.in, ok, v.Reason, v.Packet, c.reason, c.out)
		}
	}
	p := ip4(0, 64)
	p[18] = 7 // 198.51.7.9
	if v, ok := tab.Impose(p, Env{}); !ok || v.Reason != Delivered || !bytes.Equal(v.Packet, p) {
		t.Errorf("the shorter prefix: %v %s", ok, v.Reason)
	}
	p[16] = 10
	if _, ok := tab.Impose(p, Env{}); ok {
		t.Error("a packet without a prefix was taken")
	}
}
