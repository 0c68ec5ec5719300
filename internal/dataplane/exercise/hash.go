// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"math/big"
	"unsafe"
)

// Hash says where a key may be. It is multiply-shift, and pair-multiply-shift for the rest
// of IPv6 addresses, written from the definitions with numbers of any size and explicit
// moduli, and slow.
type Hash struct {
	Secret  [8]uint64
	Mix     uint64
	Buckets int64 // a power of two
}

// Hash returns the hash that this rig's table is placed by.
func (r *Rig) Hash() Hash {
	c := r.Control()
	return Hash{c.Secret, c.Mix, int64(r.flows.Size()) / (ways * int64(unsafe.Sizeof(Slot{})))}
}

// mod returns v mod 2^bits.
func mod(v *big.Int, bits uint) *big.Int {
	return v.Mod(v, new(big.Int).Lsh(big.NewInt(1), bits))
}

func number(v uint64) *big.Int { return new(big.Int).SetUint64(v) }

// term is (a + x)(b + y).
func term(a uint64, x uint32, b uint64, y uint32) *big.Int {
	p := new(big.Int).Add(number(a), number(uint64(x)))
	return p.Mul(p, new(big.Int).Add(number(b), number(uint64(y))))
}

// Places are the two buckets that a key may be in, the first choice first.
func (h Hash) Places(k Key, w Words) [2]uint32 {
	sum := new(big.Int)
	for i, half := range [2][2]uint32{{k.Saddr, k.Daddr}, {uint32(k.Sport) + uint32(k.Dport)*65536, k.Kind}} {
		x := new(big.Int).Lsh(number(uint64(half[1])), 32)
		x.Add(x, number(uint64(half[0])))
		sum.Add(sum, x.Mul(x, number(h.Secret[i])))
	}
	if k.IPv6() {
		rest := append(w.Saddr[:], w.Daddr[:]...)
		for i := 0; i < 6; i += 2 {
			sum.Add(sum, term(h.Secret[i+2], rest[i], h.Secret[i+3], rest[i+1]))
		}
	}
	mod(sum, 64)
	index := func(v *big.Int) uint32 { // the part of the table that v is of 2^64
		n := new(big.Int).Mul(v, big.NewInt(h.Buckets))
		return uint32(n.Rsh(n, 64).Uint64())
	}
	first := index(sum)
	sum.Xor(sum, new(big.Int).Rsh(sum, 29))
	return [2]uint32{first, index(mod(sum.Mul(sum, number(h.Mix)), 64))}
}
