// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"slices"
)

const (
	// run is how many keys that follow one another are looked at.
	run = 10000
	// passes end the search; about half of all secrets are good at the least, so it never comes to that.
	passes = 64
)

// Where ports, and the last halves of IPv4 addresses, begin in the two numbers that the first two
// secrets are multiplied by (flow_hash()): source, then destination.
var runsAt = [2][2]int{{16, 48}, {0, 16}}

// newSecret keys the flow hash of a table of so many buckets, so that nobody outside can aim at one.
//
// Keys that follow one another, as the ports of a busy client do, are laid out by multiply-shift as
// a lattice: by most secrets more evenly than by chance, by some onto few buckets. Such secrets are
// passed over. Good are between 48 (of 16,384 buckets) and 97 (of a million) in a hundred, of either
// half: what is improbable without the choice is about twice as probable for each with it, at the most.
func newSecret(buckets int) (s [8]uint64) {
	for i := range s {
		s[i] = random64() | 1
	}
	for i, at := range runsAt {
		for range passes {
			if !crowded(s[i], at[0], buckets) && !crowded(s[i], at[1], buckets) {
				break
			}
			s[i] = random64() | 1
		}
	}
	return s
}

// crowded reports whether a run of 16-bit words in network byte order, beginning at a bit of the
// number, gives more pairs that share a bucket than are to be expected by chance.
func crowded(secret uint64, at, buckets int) bool {
	shift := 64 - bits.Len(uint(buckets-1))
	var where [run]uint64
	for i := range where {
		where[i] = secret * (uint64(bits.ReverseBytes16(uint16(i))) << at) >> shift
	}
	slices.Sort(where[:])
	pairs, same := 0, 0
	for i := 1; i < run; i++ {
		if same++; where[i] != where[i-1] {
			same = 0
		}
		pairs += same
	}
	return pairs > run*(run-1)/2/buckets
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint64(b[:])
}
