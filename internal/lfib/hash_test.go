// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"bytes"
	"testing"
)

// What must make no difference to the way a packet takes, and what must.
func TestHashKey(t *testing.T) {
	stack := func(first, second []byte, ip []byte) []byte { return join(first, second, ip) }
	a, b := entryOf(100, 0, 0, 64), entryOf(101, 0, 1, 64)
	plain := stack(a, b, ip4(0, 64))
	other := func(at int, value byte, p []byte) []byte {
		p = bytes.Clone(p)
		p[at] = value
		return p
	}
	for name, p := range map[string][]byte{
		"TC, TTL":                stack(entryOf(100, 5, 0, 3), entryOf(101, 1, 1, 9), ip4(0, 64)),
		"DSCP, ECN, IP TTL":      stack(a, b, ip4(0xff, 3)),
		"a special label":        join(a, entryOf(1, 0, 0, 3), b, ip4(0, 64)),
		"an extended one":        join(a, entryOf(15, 0, 0, 3), entryOf(20, 0, 0, 3), b, ip4(0, 64)),
		"checksum and IP ID":     stack(a, b, other(5, 99, ip4(0, 64))),
		"the data behind a port": stack(a, b, ip4(0, 64, 1, 2, 3)),
	} {
		if !bytes.Equal(HashKey(p, true), HashKey(plain, true)) {
			t.Errorf("%s has a part in the hash", name)
		}
	}
	for name, p := range map[string][]byte{
		"label":    stack(entryOf(99, 0, 0, 64), b, ip4(0, 64)),
		"address":  stack(a, b, other(15, 99, ip4(0, 64))),
		"protocol": stack(a, b, other(9, 6, ip4(0, 64))),
		"port":     stack(a, b, other(20, 99, ip4(0, 64))),
		"family":   stack(a, b, ip6(0, 64)),
		"entropy":  join(a, entryOf(7, 0, 0, 64), entryOf(999, 0, 0, 0), b, ip4(0, 64)),
	} {
		if bytes.Equal(HashKey(p, true), HashKey(plain, true)) {
			t.Errorf("%s has no part in the hash", name)
		}
	}
	if bytes.Equal(HashKey(ip6(0, 64), false), HashKey(other(6, 6, ip6(0, 64)), false)) ||
		!bytes.Equal(HashKey(ip6(0, 64), false), HashKey(other(3, 9, ip6(0xff, 3)), false)) {
		t.Error("of IPv6, the next header has a part in the hash, traffic class, flow label and hop limit have none")
	}
	// 6790 §4.3: the entropy label alone. 7325: no payload that is not IP, no port that is none.
	same := map[string][2][]byte{
		"behind an entropy label": {join(a, entryOf(7, 0, 0, 64), entryOf(999, 1, 1, 0), ip4(0, 64)), join(entryOf(55, 0, 0, 64), entryOf(7, 0, 0, 64), entryOf(999, 0, 0, 0), b)},
		"no IP":                   {stack(a, b, []byte{0x10, 1, 2, 3}), stack(a, b, []byte{0, 0, 0, 0, 9})},
		"fragment":                {stack(a, b, other(7, 9, ip4(0, 64))), stack(a, b, other(20, 99, other(7, 9, ip4(0, 64))))},
		"IP options":              {stack(a, b, other(0, 0x46, ip4(0, 64))), stack(a, b, other(20, 99, other(0, 0x46, ip4(0, 64))))},
	}
	for name, pair := range same {
		if !bytes.Equal(HashKey(pair[0], true), HashKey(pair[1], true)) {
			t.Errorf("%s: something else has a part in the hash", name)
		}
	}
	if !bytes.Equal(HashKey(ip4(0, 64), false), HashKey(plain, true)[8:]) {
		t.Error("an unlabelled packet hashes otherwise than the payload of a labelled one")
	}
}

func TestEntropyLabelIsNeverSpecial(t *testing.T) {
	for _, hash := range []uint32{0, 0xfff, 1 << 12, 15 << 12, 7<<12 | 5, 16 << 12, 1<<32 - 1} {
		if l := EntropyLabel(hash); l < 16 || l > MaxLabel {
			t.Errorf("hash %#x: entropy label %d", hash, l)
		}
	}
}

func TestBucketsAreByWeight(t *testing.T) {
	for _, c := range []struct{ weights, want []int }{
		{[]int{1}, []int{64}},
		{[]int{3, 1}, []int{48, 16}},
		{[]int{1, 1, 1, 1}, []int{16, 16, 16, 16}},
		{[]int{1, 1, 1}, []int{22, 21, 21}},
		{[]int{65535, 1}, []int{63, 1}}, // everyone has one
		{[]int{5, 2, 1}, []int{40, 16, 8}},
	} {
		var members []Choice
		for i, w := range c.weights {
			members = append(members, Choice{ID: uint32(i + 1), Weight: w})
		}
		got := make([]int, len(members))
		for _, id := range buckets(members) {
			got[id-1]++
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("weights %d: %d buckets, not %d", c.weights, got, c.want)
				break
			}
		}
	}
}
