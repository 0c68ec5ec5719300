package exercise

import "math/big"

// Hash says where a key may be. It is NH (RFC 4418 5.2.2) with a finalizer, written
// from its definition with numbers of any size and explicit moduli, and slow.
type Hash struct {
	Secret [12]uint32
	Mask   uint32
}

// Hash returns the hash that this rig's table is placed by.
func (r *Rig) Hash() Hash {
	c := r.Control()
	return Hash{c.Secret, c.BucketMask}
}

// mod returns v mod 2^bits.
func mod(v *big.Int, bits uint) *big.Int {
	return v.Mod(v, new(big.Int).Lsh(big.NewInt(1), bits))
}

func number(v uint64) *big.Int { return new(big.Int).SetUint64(v) }

// product is one term of NH: words 2i and 2i+1 of the message with the key's.
func (h Hash) product(message []uint32, i int) *big.Int {
	a := mod(new(big.Int).Add(number(uint64(message[i])), number(uint64(h.Secret[i]))), 32)
	b := mod(new(big.Int).Add(number(uint64(message[i+1])), number(uint64(h.Secret[i+1]))), 32)
	return a.Mul(a, b)
}

// scatter multiplies what was folded onto itself with an odd number that the key knows.
func scatter(v *big.Int, shift uint, constant uint64, key uint32) *big.Int {
	v.Xor(v, new(big.Int).Rsh(v, shift))
	odd := new(big.Int).Xor(number(constant), new(big.Int).Lsh(number(uint64(key)), 1))
	return mod(v.Mul(v, odd), 64)
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
	sum = scatter(mod(sum, 64), 32, 0x9e3779b97f4a7c15, h.Secret[10])
	index := func(v *big.Int) uint32 {
		return uint32(new(big.Int).Rsh(v, 32).Uint64()) & h.Mask
	}
	first := index(sum)
	return [2]uint32{first, index(scatter(sum, 29, 0xbf58476d1ce4e5b9, h.Secret[11]))}
}
