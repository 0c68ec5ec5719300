package exercise

import (
	"math/big"
	"unsafe"
)

// Hash says where a key may be. It is pair-multiply-shift, written from its definition
// with numbers of any size and explicit moduli, and slow.
type Hash struct {
	Secret [10]uint64
	Mix    uint64
	Mask   uint32
}

// Hash returns the hash that this rig's table is placed by.
func (r *Rig) Hash() Hash {
	c := r.Control()
	return Hash{c.Secret, c.Mix, r.flows.Size()/(ways*uint32(unsafe.Sizeof(Slot{}))) - 1}
}

// mod returns v mod 2^bits.
func mod(v *big.Int, bits uint) *big.Int {
	return v.Mod(v, new(big.Int).Lsh(big.NewInt(1), bits))
}

func number(v uint64) *big.Int { return new(big.Int).SetUint64(v) }

// product is one term: words 2i and 2i+1 of the message with the key's.
func (h Hash) product(message []uint32, i int) *big.Int {
	a := new(big.Int).Add(number(uint64(message[i])), number(h.Secret[i]))
	b := new(big.Int).Add(number(uint64(message[i+1])), number(h.Secret[i+1]))
	return a.Mul(a, b)
}

// Buckets are the two buckets that a key may be in, the first choice first.
func (h Hash) Buckets(k Key, w Words) [2]uint32 {
	message := []uint32{k.Saddr, k.Daddr,
		uint32(k.Sport) + uint32(k.Dport)*65536, k.Port*256 | uint32(k.Proto)}
	if k.Family == 6 {
		message = append(message, w.Saddr[:]...)
		message = append(message, w.Daddr[:]...)
	}
	sum := new(big.Int)
	for i := 0; i < len(message); i += 2 {
		sum.Add(sum, h.product(message, i))
	}
	mod(sum, 64)
	index := func(v *big.Int) uint32 {
		return uint32(new(big.Int).Rsh(v, 32).Uint64()) & h.Mask
	}
	first := index(sum)
	sum.Xor(sum, new(big.Int).Rsh(sum, 29))
	return [2]uint32{first, index(mod(sum.Mul(sum, number(h.Mix)), 64))}
}
