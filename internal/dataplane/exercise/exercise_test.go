// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

func openRig(t *testing.T) *Rig {
	t.Helper()
	r, err := Open(Options{Name: "exercise"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// randomPacket is one that TC ingress claims a slot for, of either family.
func randomPacket(r *Rig, random *rand.Rand) Packet {
	address := func(v6 bool) netip.Addr {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if v6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte(b[:]))
	}
	v6 := random.IntN(2) == 1
	p := Packet{To: r.LAN.MAC, From: r.Client.MAC, TTL: 64,
		Src: netip.AddrPortFrom(address(v6), uint16(random.Uint32())),
		Dst: netip.AddrPortFrom(address(v6), uint16(random.Uint32()))}
	protocols := []layers.IPProtocol{layers.IPProtocolUDP, layers.IPProtocolTCP,
		layers.IPProtocolSCTP, layers.IPProtocolESP, layers.IPProtocolGRE, 200}
	p.Proto = uint8(protocols[random.IntN(len(protocols))])
	p.TCP = TCP{Seq: 1, Ack: 1, Window: 1000, ACK: true}
	p.Payload = make([]byte, 8+random.IntN(100))
	for i := range p.Payload {
		p.Payload[i] = byte(random.Uint32())
	}
	if p.Proto == uint8(layers.IPProtocolGRE) {
		p.Payload[1] &^= 7 // other versions are the kernel's
	}
	return p
}

// TestPlaces: what the program claims for random keys is in the very bucket where NH,
// worked out from its definition, says.
func TestPlaces(t *testing.T) {
	r := openRig(t)
	random := rand.New(rand.NewPCG(1, 2))
	var second, full int
	for i := range 2000 {
		p := randomPacket(r, random)
		if _, err := r.Ingress(r.LANIndex, p.Bytes(), Buffer{}); err != nil {
			t.Fatal(err)
		}
		k, w := KeyOf(p, r.LANIndex)
		_, at, found := r.Find(k, w)
		if !found && r.full(k, w) {
			full++
			continue
		}
		if !found {
			t.Fatalf("packet %d: %+v: no slot in buckets %d, first by %+v", i, p, r.Hash().Places(k, w), k)
		}
		if at.Bucket != r.Hash().Places(k, w)[0] {
			second++
		}
	}
	if second == 0 || full > 200 {
		t.Errorf("%d of 2000 keys in their second bucket, %d without a place", second, full)
	}
}

// full tells whether all four slots of a key are taken by others.
func (r *Rig) full(k Key, w Words) bool {
	for _, n := range r.Hash().Places(k, w) {
		for way := uint32(0); way < ways; way++ {
			if s, err := r.At(Place{n, way}); err != nil || s.State == 0 {
				return false
			}
		}
	}
	return true
}

// TestHashIsKeyed: another secret, other places.
func TestHashIsKeyed(t *testing.T) {
	a := Hash{Secret: [8]uint64{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9}, Mix: 1, Buckets: 1 << 20}
	b := a
	b.Secret[0] = 0x94d049bb133111eb
	same := 0
	for i := range uint32(1000) {
		k := Key{Saddr: i, Daddr: ^i, Kind: Kind(1, 4, 17)}
		if a.Places(k, Words{})[0] == b.Places(k, Words{})[0] {
			same++
		}
	}
	if same > 10 {
		t.Errorf("%d of 1000 keys are at the same place under two secrets", same)
	}
}

func TestTally(t *testing.T) {
	got, err := ParseTally("xdp hit, tc-ingress learning 3, xdp hit")
	if err != nil || got.String() != "tc-ingress learning 3, xdp hit 2" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"xdp", "xdp hits", "tc hit", "xdp hit many", "xdp hit 1 2"} {
		if got, err := ParseTally(bad); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
	before := Tally{"xdp hit": 5, "xdp ttl": 1}
	if d := (Tally{"xdp hit": 7, "xdp ttl": 1}).Minus(before); d.String() != "xdp hit 2" {
		t.Errorf("difference %v", d)
	}
}
