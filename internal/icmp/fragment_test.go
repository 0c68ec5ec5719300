// SPDX-License-Identifier: Apache-2.0

package icmp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// rejoin puts fragments together again as who receives them does: the payload, where it begins,
// and whether more follow. Each must be whole, have the stack, and fit.
func rejoin(t testing.TB, p Packet, parts [][]byte, mtu int) (load []byte, offset int, more bool) {
	t.Helper()
	offset = -1
	for i, b := range parts {
		var at, n int
		var q Packet
		var ok bool
		if q, ok = Parse(map[bool]uint16{true: EtherMPLS, false: EtherIPv4}[len(p.Stack) > 0], b); !ok || !bytes.Equal(q.Stack, p.Stack) ||
			len(b) != len(q.Stack)+len(q.IP) || len(b) > mtu {
			t.Fatalf("part %d of %d bytes: %x", i, len(b), b)
		}
		if q.isIPv6() {
			f, _ := q.fragmentHeader()
			word := binary.BigEndian.Uint16(q.IP[f+2:])
			at, more, n = int(word&^7), word&1 != 0, f+8
		} else {
			word := binary.BigEndian.Uint16(q.IP[6:])
			at, more, n = int(word&0x1fff)*8, word&0x2000 != 0, int(q.IP[0]&15)*4
		}
		if offset < 0 {
			offset = at
		}
		if at != offset+len(load) || !more && i < len(parts)-1 {
			t.Fatalf("part %d is at %d, and %d bytes came before it; more: %v", i, at, len(load), more)
		}
		load = append(load, q.IP[n:]...)
	}
	return load, offset, more
}

func TestFragments(t *testing.T) {
	header := func(word uint16) []byte { return binary.BigEndian.AppendUint16([]byte{17, 0}, word) }
	fragment6 := func(word uint16, n int) []byte {
		return six(44, slices.Concat(header(word), []byte{1, 2, 3, 4}, filled(n)))
	}
	for _, c := range []struct {
		name   string
		ip     []byte
		mtu    int
		parts  int // 0: it cannot be
		offset int
		more   bool
	}{
		{"two", four(0, 17, filled(100)), 4 + 20 + 64, 2, 0, false},
		{"as much as fits", four(0, 17, filled(128)), 4 + 20 + 64 + 7, 2, 0, false},
		{"one byte more", four(0, 17, filled(129)), 4 + 20 + 64, 3, 0, false},
		{"eight bytes each", four(0, 17, filled(64)), 4 + 20 + 8, 8, 0, false},
		{"not one of eight", four(0, 17, filled(64)), 4 + 20 + 7, 0, 0, false},
		{"less than the labels", four(0, 17, filled(64)), 3, 0, 0, false},
		{"DF", four(0x4000, 17, filled(100)), 88, 0, 0, false},
		{"a fragment, more follow", four(0x2003, 17, filled(96)), 88, 2, 24, true},
		{"the last fragment", four(0x0003, 17, filled(97)), 88, 2, 24, false},
		{"a fragment that is none", four(0x2003, 17, filled(97)), 88, 0, 0, false},
		{"behind the end", four(0x1fff, 17, filled(97)), 88, 0, 0, false},
		{"IPv6 without a fragment header", six(17, filled(500)), 300, 0, 0, false},
		{"IPv6", fragment6(1, 480), 4 + 48 + 240, 2, 0, true},
		{"IPv6, the last", fragment6(80, 481), 4 + 48 + 240, 3, 80, false},
		{"IPv6 over 1280", fragment6(1, 1240), 700, 0, 0, false},
		{"IPv6 that is none", fragment6(1, 481), 300, 0, 0, false},
		{"IPv6 without room", fragment6(1, 480), 4 + 48 + 7, 0, 0, false},
	} {
		p := parsed(t, c.ip)
		parts := p.Fragments(c.mtu)
		if len(parts) != c.parts {
			t.Errorf("%s: %d parts, want %d", c.name, len(parts), c.parts)
		}
		if len(parts) == 0 {
			continue
		}
		load, offset, more := rejoin(t, p, parts, c.mtu)
		if offset != c.offset || more != c.more || !bytes.HasSuffix(p.IP, load) {
			t.Errorf("%s: at %d, more %v, %d bytes", c.name, offset, more, len(load))
		}
	}
}

// Options without the copied flag are in the first fragment alone (RFC 791 §3.1).
func TestFragmentOptions(t *testing.T) {
	options := unhex(t, "0703 04 94040000 01") // record route, router alert, no-operation
	parts := parsed(t, four(0, 17, filled(48), options...)).Fragments(4 + 28 + 24)
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	for i, want := range [][]byte{options, unhex(t, "010101 94040000 01")} {
		if got := parts[i][24:32]; !bytes.Equal(got, want) {
			t.Errorf("part %d: %x, want %x", i, got, want)
		}
	}
}

// Whatever comes is whole, or is left alone; what is made of it is whole, and no larger than it
// may be.
func FuzzPunt(f *testing.F) {
	f.Add(uint16(EtherMPLS), slices.Concat(one, four(0, 17, filled(200))), 100)
	f.Add(uint16(EtherMPLS), slices.Concat(one, four(0x2000, 17, filled(200), 0x94, 4, 0, 0)), 100)
	f.Add(uint16(EtherMPLS), slices.Concat(one, six(44, slices.Concat([]byte{17, 0, 0, 1, 1, 2, 3, 4}, filled(200)))), 100)
	f.Add(uint16(EtherMPLS), slices.Concat(one, six(0, unhex(f, "3a00000000000000 80000000"))), 60)
	f.Add(uint16(EtherIPv6), six(58, []byte{128, 0, 0, 0}), 1280)
	f.Fuzz(func(t *testing.T, ether uint16, b []byte, mtu int) {
		kept := slices.Clone(b)
		p, ok := Parse(ether, b)
		if !ok {
			return
		}
		if p.Answerable() {
			from := netip.MustParseAddr("198.18.0.1")
			if p.isIPv6() {
				from = netip.MustParseAddr("2001:2::1")
			}
			sound(t, TimeExceeded(p, from))
			sound(t, TooBig(p, mtu, from))
			if e := p.Relabel(TimeExceeded(p, from)); len(p.Stack) > 0 && stackLen(e) != len(p.Stack) {
				t.Errorf("%x in front", e)
			}
		}
		if mtu > 1<<16 {
			return
		}
		if parts := p.Fragments(mtu); len(parts) > 0 {
			load, _, _ := rejoin(t, p, parts, mtu)
			if !bytes.HasSuffix(p.IP, load) {
				t.Errorf("%x became %x", p.IP, load)
			}
		}
		if !bytes.Equal(b, kept) {
			t.Error("what came in was changed")
		}
	})
}
