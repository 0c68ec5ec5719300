// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"

	"github.com/cilium/ebpf"
)

// Sources is the name of the map that counts the slots of each source.
const Sources = ".data.sources"

// Size of struct notebook, and where its hand is, in bytes.
const notebookSize, handAt = 64 + 256*64, 16

// sourceNumbers is how many sources are told apart.
const sourceNumbers = 1 << 16

// Source is the number of a key's source: port and IPv4 address, or /64.
func (h Hash) Source(k Key, w Words) uint32 {
	a, b := k.Saddr, uint32(0)
	if k.IPv6() {
		a, b = w.Saddr[0], w.Saddr[1]
	}
	sum := term(h.Secret[2], a, h.Secret[3], b)
	sum.Add(sum, new(big.Int).Mul(number(h.Secret[4]), number(uint64(k.Port()))))
	return uint32(mod(sum, 64).Rsh(sum, 48).Uint64())
}

// Held are the slots that each source holds, as the programs count them.
func (r *Rig) Held() ([]int32, error) {
	raw := make([]byte, r.maps[Sources].ValueSize())
	if err := r.maps[Sources].Lookup(uint32(0), &raw); err != nil {
		return nil, err
	}
	held := make([]int32, sourceNumbers)
	_, err := binary.Decode(raw, binary.NativeEndian, held)
	return held, err
}

// Shared returns the bytes of what all CPUs write: the flow table and the counts of sources.
func (r *Rig) Shared() ([]byte, error) {
	table := make([]byte, r.flows.Size())
	if _, err := r.flows.ReadAt(table, 0); err != nil {
		return nil, err
	}
	counts := make([]byte, r.maps[Sources].ValueSize())
	err := r.maps[Sources].Lookup(uint32(0), &counts)
	return append(table, counts...), err
}

// Hands returns how many buckets each CPU has looked at for slots that nobody uses.
func (r *Rig) Hands() (hands []uint32, err error) {
	notes, err := r.maps[".data.notebooks"].Memory()
	if err != nil {
		return nil, err
	}
	var hand [4]byte
	for at := int64(0); at < int64(notes.Size()); at += notebookSize {
		if _, err := notes.ReadAt(hand[:], at+handAt); err != nil {
			return nil, err
		}
		hands = append(hands, binary.NativeEndian.Uint32(hand[:]))
	}
	return hands, nil
}

// Recount is what Held must be: the keys of all slots, looked at one by one.
func (r *Rig) Recount() ([]int32, error) {
	held, h := make([]int32, sourceNumbers), r.Hash()
	for bucket := range uint32(h.Buckets) {
		for way := range uint32(ways) {
			s, err := r.At(Place{bucket, way})
			if err != nil {
				return nil, err
			}
			if s.Key.Port() != 0 {
				held[h.Source(s.Key, s.In6)]++
			}
		}
	}
	return held, nil
}

// Exhaust gives all reasons a rate, and empties their buckets on all CPUs for good, or fills
// them again.
func (r *Rig) Exhaust(empty bool) error {
	r.Edit(func(c *Control) { c.Policed = math.MaxUint64 })
	meters := make([]struct{ Full, Dropped uint64 }, ebpf.MustPossibleCPU())
	if empty {
		for i := range meters {
			meters[i].Full = math.MaxUint64
		}
	}
	for reason := range r.maps["meters"].MaxEntries() {
		if err := r.maps["meters"].Put(reason, slices.Clone(meters)); err != nil {
			return err
		}
	}
	return nil
}
