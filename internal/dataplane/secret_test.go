// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math/bits"
	"testing"
)

// TestSecret: whatever the secret, the flows of a client, its ports one after the other from anywhere, share
// about as many buckets at the most as they would by chance. A secret that is not chosen often fails that; and
// enough are good, of each half, for one that is chosen to be hard to guess.
func TestSecret(t *testing.T) {
	const secrets = 40
	for _, buckets := range []int{1 << 10, 1 << 14, 1 << 17, 1 << 20} {
		t.Run(fmt.Sprint(buckets), func(t *testing.T) {
			chance := run * run / 2 / buckets
			limit := chance + chance/2 + run/50 // another place in the table, the low byte's turns
			var worst, unchosen int
			for range secrets {
				worst = max(worst, shared(newSecret(buckets), buckets))
				var s [8]uint64
				s[0], s[1] = random64()|1, random64()|1
				if shared(s, buckets) > limit {
					unchosen++
				}
			}
			t.Logf("%d pairs by chance; %d with the worst secret; %d of %d secrets that are not chosen are worse than %d", chance, worst, unchosen, secrets, limit)
			for i, at := range runsAt {
				good := 0
				for range 100 {
					if s := random64() | 1; !crowded(s, at[0], buckets) && !crowded(s, at[1], buckets) {
						good++
					}
				}
				t.Logf("half %d: %d of 100 are good", i, good)
				if good < 25 {
					t.Errorf("half %d: only %d of 100 secrets are good", i, good)
				}
			}
			if worst > limit {
				t.Errorf("%d pairs of flows share a bucket; at most %d should", worst, limit)
			}
		})
	}
}

// shared counts the pairs of flows that share their first bucket: the worst of three clients.
func shared(secret [8]uint64, buckets int) (worst int) {
	p := placing{secret: secret, shift: 32 - bits.Len(uint(buckets-1))}
	k := tcFlowKey{Saddr: uint32(random64()), Daddr: uint32(random64()), Kind: 2<<9 | 17}
	for _, vary := range []func(uint16){
		func(n uint16) { k.Sport = n },
		func(n uint16) { k.Dport = n },
		func(n uint16) { k.Saddr = k.Saddr&0xffff | uint32(n)<<16 },
	} {
		first, pairs, filled := uint16(random64()), 0, map[uint32]int{}
		for n := range uint16(run) {
			vary(bits.ReverseBytes16(first + n))
			b := uint32(p.hash(&k, &tcFlowWords{})>>32) >> p.shift
			pairs += filled[b]
			filled[b]++
		}
		worst = max(worst, pairs)
	}
	return worst
}
