// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// awaited are packets that are under way, by number: what they are to be when they come.
type awaited map[uint32]arrival

type arrival struct {
	flow  *flow
	frame []byte
}

func (w awaited) add(p packet, frame []byte) { w[p.number] = arrival{p.flow, frame} }

// take compares a frame with the packet that it has the number of, which must not have come
// before, nor behind a later one of its flow.
func (w awaited) take(got []byte) error {
	number := binary.BigEndian.Uint32(got[len(got)-4:])
	a, ok := w[number]
	switch {
	case !ok:
		return fmt.Errorf("came, and was not sent, or came before: %x", got)
	case !bytes.Equal(a.frame, got):
		return fmt.Errorf("packet %d: %s", number, differ(a.frame, got))
	case number < a.flow.last:
		return fmt.Errorf("packet %d came behind %d of the same flow", number, a.flow.last)
	}
	a.flow.last = number
	delete(w, number)
	return nil
}

// String is one of them.
func (w awaited) String() string {
	for number, a := range w {
		return fmt.Sprintf("%d, which was to be %x", number, a.frame[:min(len(a.frame), 80)])
	}
	return "none"
}

// differ names the first byte that is not as it should be.
func differ(want, got []byte) string {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("byte %d is %#02x, want %#02x: %x", i, got[i], want[i], got[:min(len(got), 80)])
		}
	}
	return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
}

// TestAwaited: what is wrong with what came is seen.
func TestAwaited(t *testing.T) {
	f := &flow{}
	frame := func(number uint32) []byte {
		return binary.BigEndian.AppendUint32(bytes.Repeat([]byte{7}, 20), number)
	}
	changed := frame(3)
	changed[9]++
	w := awaited{}
	const sevens = 0x07070707
	for _, n := range []uint32{0, 1, 2, 3, sevens} {
		w.add(packet{flow: f, number: n}, frame(n))
	}
	for _, c := range []struct {
		got  []byte
		says string
	}{
		{frame(0), ""}, {frame(2), ""},
		{frame(2), "came, and was not sent, or came before"},
		{frame(4), "came, and was not sent, or came before"},
		{frame(1), "packet 1 came behind 2"},
		{changed, "packet 3: byte 9 is 0x08, want 0x07"},
		{frame(sevens)[1:], "packet 117901063: 23 bytes, want 24"},
		{frame(3), ""}, {frame(sevens), ""},
	} {
		if err := w.take(c.got); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%x: %v, want %q", c.got, err, c.says)
		}
	}
	if len(w) != 1 || !strings.HasPrefix(w.String(), "1, ") {
		t.Errorf("left: %s", w)
	}
}

// TestPackets: packets say of themselves what they are, and are no longer than fits.
func TestPackets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 1<<14)
	longest := map[lsp]int{}
	for _, l := range lsps() {
		all := makeFlows(rng, [2]lsp{l, l})
		for n := range 2000 {
			p := draw(rng, all[n%flows], uint32(n), noise)
			ip := p.frame(make([]byte, 6), make([]byte, 6))[ethernetBytes:]
			longest[l] = max(longest[l], len(ip))
			length, addresses, l4 := binary.BigEndian.Uint16(ip[2:]), ip[12:20], p.headerBytes()
			if l.family == 6 {
				length, addresses = binary.BigEndian.Uint16(ip[4:])+40, ip[8:40]
			} else if header := ip[:ip[0]&15*4]; fold(sum(0, header)) != 0xffff {
				t.Fatalf("header %x: wrong checksum", header)
			}
			l4 -= map[bool]int{true: 20, false: 8}[p.proto == protoTCP]
			seed := sum(uint32(p.proto)+uint32(len(ip)-l4), addresses)
			if p.proto == protoICMP {
				seed = 0
			}
			if int(length) != len(ip) || int(length) != p.octets() || fold(sum(seed, ip[l4:])) != 0xffff {
				t.Fatalf("%+v: length %d of %d, or a wrong checksum: %x", p, length, len(ip), ip)
			}
			if !l.prefix().Contains(p.dest) {
				t.Fatalf("%s is not in %s", p.dest, l.prefix())
			}
		}
		if longest[l] != mtu-4*l.labels {
			t.Errorf("%+v: the longest packet has %d bytes", l, longest[l])
		}
	}
}
