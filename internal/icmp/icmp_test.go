// SPDX-License-Identifier: Apache-2.0

package icmp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func unhex(t testing.TB, words ...string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(strings.Join(words, ""), " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// four is an IPv4 packet of a protocol from 198.18.0.2 to 198.19.0.2 with a right checksum.
func four(word uint16, proto byte, load []byte, options ...byte) []byte {
	h := make([]byte, 20, 20+len(options)+len(load))
	h = append(h, options...)
	h[0], h[8], h[9] = 0x40|byte(len(h)/4), 1, proto
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(load)))
	binary.BigEndian.PutUint16(h[4:], 0x1234)
	binary.BigEndian.PutUint16(h[6:], word)
	copy(h[12:], []byte{198, 18, 0, 2, 198, 19, 0, 2})
	binary.BigEndian.PutUint16(h[10:], checksum(0, h))
	return append(h, load...)
}

// six is an IPv6 packet from 2001:2::2 to 2001:2::3.
func six(proto byte, load []byte) []byte {
	h := make([]byte, 40, 40+len(load))
	h[0], h[6], h[7] = 0x60, proto, 1
	binary.BigEndian.PutUint16(h[4:], uint16(len(load)))
	copy(h[8:], netip.MustParseAddr("2001:2::2").AsSlice())
	copy(h[24:], netip.MustParseAddr("2001:2::3").AsSlice())
	return append(h, load...)
}

func filled(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

var one = []byte{0, 6, 0x41, 1} // label 100, S, TTL 1

func parsed(t testing.TB, b []byte) Packet {
	t.Helper()
	p, ok := Parse(EtherMPLS, slices.Concat(one, b))
	if !ok {
		t.Fatalf("%x is a whole packet", b)
	}
	return p
}

func TestParse(t *testing.T) {
	whole := four(0, 17, filled(32))
	spoilt := slices.Clone(whole)
	spoilt[10]++
	short := slices.Clone(whole)
	short[0] = 0x44
	deep := bytes.Repeat([]byte{0, 6, 0x40, 9}, MostLabels)
	last := slices.Clone(deep)
	last[len(last)-2] |= 1
	for _, c := range []struct {
		name  string
		ether uint16
		in    []byte
		stack int
		ip    int // 0: not to be had
	}{
		{"one label", EtherMPLS, slices.Concat(one, whole), 4, 52},
		{"padding", EtherMPLS, slices.Concat(one, whole, filled(9)), 4, 52},
		{"IPv6, padded", EtherMPLS, slices.Concat(one, six(17, filled(10)), filled(9)), 4, 50},
		{"no label", EtherIPv4, whole, 0, 52},
		{"as many labels as may be", EtherMPLS, slices.Concat(last, whole), 4 * MostLabels, 52},
		{"one more", EtherMPLS, slices.Concat(deep, one, whole), 0, 0},
		{"no bottom", EtherMPLS, deep[:12], 0, 0},
		{"nothing", EtherMPLS, nil, 0, 0},
		{"half a label", EtherMPLS, one[:3], 0, 0},
		{"nothing beneath", EtherMPLS, one, 0, 0},
		{"not whole", EtherMPLS, slices.Concat(one, whole[:51]), 0, 0},
		{"IPv6, not whole", EtherMPLS, slices.Concat(one, six(17, filled(10))[:49]), 0, 0},
		{"a wrong checksum", EtherMPLS, slices.Concat(one, spoilt), 0, 0},
		{"a short header", EtherMPLS, slices.Concat(one, short), 0, 0},
		{"a control word", EtherMPLS, slices.Concat(one, filled(60)), 0, 0},
		{"no IP by its type", 0x0806, whole, 0, 0},
	} {
		p, ok := Parse(c.ether, c.in)
		if ok != (c.ip > 0) || ok && (len(p.Stack) != c.stack || len(p.IP) != c.ip) {
			t.Errorf("%s: %d and %d bytes, %v", c.name, len(p.Stack), len(p.IP), ok)
		}
	}
}

func TestAnswerable(t *testing.T) {
	from := func(b []byte, at int, address string) []byte {
		a := netip.MustParseAddr(address)
		copy(b[at:], a.AsSlice())
		if a.Is4() {
			b[10], b[11] = 0, 0
			binary.BigEndian.PutUint16(b[10:], checksum(0, b[:20]))
		}
		return b
	}
	type question struct {
		name string
		b    []byte
		want bool
	}
	cases := []question{
		{"UDP", four(0, 17, filled(32)), true},
		{"echo", four(0, 1, []byte{8, 0, 0, 0}), true},
		{"the first fragment", four(0x2000, 17, filled(32)), true},
		{"another one", four(0x0001, 17, filled(32)), false},
		{"unreachable", four(0, 1, []byte{3, 1, 0, 0}), false},
		{"redirect", four(0, 1, []byte{5, 1, 0, 0}), false},
		{"an unknown type", four(0, 1, []byte{77, 0, 0, 0}), false},
		{"no type", four(0, 1, nil), false},
		{"IPv6", six(17, filled(32)), true},
		{"IPv6 echo", six(58, []byte{128, 0, 0, 0}), true},
		{"IPv6 error", six(58, []byte{1, 0, 0, 0}), false},
		{"IPv6 redirect", six(58, []byte{137, 0, 0, 0}), false},
		{"IPv6 without a type", six(58, nil), false},
		{"IPv6 error behind an option", six(0, unhex(t, "3a00000000000000 01000000")), false},
		{"IPv6 echo behind an option", six(0, unhex(t, "3a00000000000000 80000000")), true},
		{"IPv6 options that do not end", six(0, unhex(t, "3a09000000000000")), false},
		{"IPv6 first fragment", six(44, unhex(t, "1100000112345678 00000000")), true},
		{"IPv6 another fragment", six(44, unhex(t, "1100000912345678 00000000")), false},
		{"IPv6 half a fragment header", six(44, unhex(t, "11000001")), false},
		{"to a group", from(four(0, 17, filled(32)), 16, "224.0.0.5"), false},
		{"to all", from(four(0, 17, filled(32)), 16, "255.255.255.255"), false},
		{"IPv6 to a group", from(six(17, filled(32)), 24, "ff02::5"), false},
	}
	for _, who := range []string{"0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.5", "240.0.0.1", "255.255.255.255"} {
		cases = append(cases, question{who, from(four(0, 17, filled(32)), 12, who), false})
	}
	for _, who := range []string{"::", "::1", "ff02::5", "fe80::1", "::ffff:1.2.3.4"} {
		cases = append(cases, question{who, from(six(17, filled(32)), 8, who), false})
	}
	for _, c := range cases {
		if got := parsed(t, c.b).Answerable(); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The whole of two errors, byte by byte; sizes and sums of others.
func TestErrors(t *testing.T) {
	router := netip.MustParseAddr("198.18.0.1")
	ip := four(0, 17, filled(32))
	got := TimeExceeded(parsed(t, ip), router)
	binary.BigEndian.PutUint16(got[4:], 0)
	binary.BigEndian.PutUint16(got[10:], 0)
	want := slices.Concat(
		unhex(t, "45c000a8 00000000 40010000 c6120001 c6120002", "0b00 0000 00200000"), ip, make([]byte, 128-len(ip)),
		unhex(t, "2000 0000 00080101 00064101"))
	binary.BigEndian.PutUint16(want[20+8+128+2:], checksum(0, want[20+8+128:]))
	binary.BigEndian.PutUint16(want[22:], checksum(0, want[20:]))
	if len(got) != 168 || !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}

	ip = six(17, filled(1400))
	got = TooBig(parsed(t, ip), 1396, netip.MustParseAddr("2001:2::1"))
	if len(got) != 1280 || !bytes.Equal(got[40:42], []byte{2, 0}) || binary.BigEndian.Uint32(got[44:]) != 1396 || !bytes.Equal(got[48:], ip[:1232]) {
		t.Errorf("%x", got)
	}
	for _, c := range []struct {
		p      []byte
		labels int
		length int // of all
		quoted int // in the message's length field
		at     int
	}{
		{four(0, 17, filled(1000)), 1, 576, 134, 25},
		{four(0, 17, filled(1000)), MostLabels, 576, 71, 25},
		{four(0, 17, filled(109)), 1, 20 + 8 + 132 + 12, 33, 25},
		{six(17, filled(1400)), 1, 1276, 152, 44},
		{six(17, filled(89)), 2, 40 + 8 + 136 + 16, 17, 44},
		{six(17, filled(1400)), MostLabels, 1280, 121, 44},
	} {
		stack := make([]byte, 4*c.labels)
		stack[len(stack)-2] = 1
		p := Packet{Stack: stack, IP: c.p}
		from := router
		if p.isIPv6() {
			from = netip.MustParseAddr("2001:2::1")
		}
		got := TimeExceeded(p, from)
		if len(got) != c.length || int(got[c.at]) != c.quoted {
			t.Errorf("%d labels on %d bytes: %d bytes, length %d; want %d, %d", c.labels, len(c.p), len(got), got[c.at], c.length, c.quoted)
		}
		sound(t, got)
	}
}

// sound wants right lengths and checksums of an ICMP error.
func sound(t testing.TB, b []byte) {
	t.Helper()
	if wholeIP(b) != len(b) {
		t.Fatalf("%x is not whole", b)
	}
	if b[0]>>4 == 4 {
		if len(b) > 576 || checksum(0, b[20:]) != 0 {
			t.Errorf("%d bytes, or a wrong checksum: %x", len(b), b)
		}
		return
	}
	if pseudo := uint32(^checksum(uint32(len(b)-40)+58, b[8:40])); len(b) > 1280 || checksum(pseudo, b[40:]) != 0 {
		t.Errorf("%d bytes, or a wrong checksum: %x", len(b), b)
	}
}

func TestRelabel(t *testing.T) {
	p := Packet{Stack: unhex(t, "00064a01 0012d3ff")}
	if got, want := p.Relabel([]byte{0x45}), unhex(t, "00064a40 0012d340 45"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if p.Stack[3] != 1 {
		t.Error("the stack of the packet has changed")
	}
}

func TestBucket(t *testing.T) {
	b := NewBucket(10, 3)
	now := time.Unix(1000, 0)
	took := func(after time.Duration) (n int) {
		now = now.Add(after)
		for b.Take(now) {
			n++
		}
		return n
	}
	for i, c := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {0, 0}, {99 * time.Millisecond, 0}, {101 * time.Millisecond, 2}, {time.Hour, 3}, {-time.Hour, 0}, {100 * time.Millisecond, 1}} {
		if got := took(c.after); got != c.want {
			t.Errorf("step %d: %d, want %d", i, got, c.want)
		}
	}
}
