// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
)

// table is one made of lines.
func table(t testing.TB, lines ...string) *Table {
	t.Helper()
	tab := New()
	apply(t, tab, lines...)
	return tab
}

func apply(t testing.TB, tab *Table, lines ...string) *Commit {
	t.Helper()
	c, err := tab.Apply("test", parse(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func parse(t testing.TB, lines ...string) (changes []Change) {
	t.Helper()
	for _, line := range lines {
		c, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, c...)
	}
	return changes
}

// bytesOf reads hex with spaces in it.
func bytesOf(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// entryOf is one label stack entry.
func entryOf(label, tc, s, ttl int) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(label<<12|tc<<9|s<<8|ttl))
}

// ip4 is a UDP packet of IPv4 with a right header checksum.
func ip4(tos, ttl byte, data ...byte) []byte {
	p := []byte{0x45, tos, 0, byte(28 + len(data)), 0x12, 0x34, 0x40, 0, ttl, 17, 0, 0, 192, 0, 2, 7, 198, 51, 100, 9}
	binary.BigEndian.PutUint16(p[10:], ip4Sum(p))
	return append(append(p, 0x0f, 0xa0, 0, 53, 0, byte(8+len(data)), 0, 0), data...)
}

// ip6 is a UDP packet of IPv6.
func ip6(class, ttl byte, data ...byte) []byte {
	p := make([]byte, 40, 60)
	binary.BigEndian.PutUint32(p, 6<<28|uint32(class)<<20|0xabcde)
	p[5], p[6], p[7] = byte(8+len(data)), 17, ttl
	copy(p[8:], []byte{0x20, 1, 0xd, 0xb8, 15: 7})
	copy(p[24:], []byte{0x20, 1, 0xd, 0xb8, 1, 15: 9})
	return append(append(p, 0x0f, 0xa0, 0, 53, 0, byte(8+len(data)), 0, 0), data...)
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// randomIP is one of either family, or something that is none.
func randomIP(r *rand.Rand) []byte {
	ttl := byte(r.Uint32())
	if r.IntN(3) == 0 {
		ttl %= 4
	}
	data := make([]byte, r.IntN(30))
	var p []byte
	switch r.IntN(9) {
	case 0:
		p = append([]byte{byte(r.Uint32())}, data...)
		if p[0]>>4 == 4 { // an IPv4 header has a right checksum here
			p[0] ^= 0x10
		}
	case 1, 2, 3:
		p = ip6(byte(r.Uint32()), ttl, data...)
	default:
		p = ip4(byte(r.Uint32()), ttl, data...)
	}
	if r.IntN(12) == 0 {
		p = p[:r.IntN(len(p)+1)]
	}
	return p
}

// randomStack is a packet with labels, of which most are such as the tables have.
func randomStack(r *rand.Rand) (p []byte) {
	depth := 1 + r.IntN(5)
	if r.IntN(12) == 0 {
		depth = r.IntN(24)
	}
	for i := range depth {
		label := 16 + r.IntN(12)
		switch r.IntN(12) {
		case 0:
			label = r.IntN(16)
		case 1:
			label = []int{0, 2, 7}[r.IntN(3)]
		}
		ttl := r.IntN(256)
		if r.IntN(3) == 0 {
			ttl %= 4
		}
		s := 0
		if i == depth-1 && r.IntN(40) > 0 || r.IntN(60) == 0 {
			s = 1
		}
		p = append(p, entryOf(label, r.IntN(8), s, ttl)...)
	}
	p = append(p, randomIP(r)...)
	if r.IntN(40) == 0 {
		p = p[:r.IntN(len(p)+1)]
	}
	return p
}
