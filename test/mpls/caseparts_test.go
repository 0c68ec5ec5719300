// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Parts of frames and lines that several tables use.

// sixteenLabels swaps to 200 and pushes 201 to 215.
func sixteenLabels() string {
	var b strings.Builder
	b.WriteString("swap 200 ")
	for i := 201; i < 216; i++ {
		fmt.Fprintf(&b, "push %d ", i)
	}
	return b.String()
}

// sixteenEntries are these on the wire.
func sixteenEntries(ttl uint8) (s stack) {
	for i := 215; i >= 200; i-- {
		s = append(s, l(uint32(i), 0, ttl))
	}
	return s
}

// openStack is a payload of entries, none of which has S.
func openStack(n int) (r raw) {
	for i := range n {
		r = binary.BigEndian.AppendUint32(r, l(uint32(1000+i), uint8(i%8), uint8(i)).open().word(false))
	}
	return r
}

// swapDepths are frames with one entry on top of many.
func swapDepths(at port, top entry) (frames []frame) {
	for _, depth := range []int{16, 17, 64, 200} {
		s := stack{top}
		for i := range depth {
			s = append(s, l(uint32(1000+i), uint8(i%8), uint8(i)))
		}
		frames = append(frames, on(at, s, v4(64)))
	}
	return frames
}

// repeat is an entry many times, and others behind it.
func repeat(n int, e entry, behind ...entry) (s stack) {
	for range n {
		s = append(s, e)
	}
	return append(s, behind...)
}

// fragment6 is an IPv6 packet with a fragment header (RFC 8200 §4.5), in parts of at most
// limit bytes: the first word of its offset and M is that of the whole.
func fragment6(ttl uint8, size, limit int) (parts []packet) {
	whole := v6(ttl)
	whole.data = filler(size)
	whole.next = protoFragment
	room := (limit - 48) &^ 7
	for at := 0; at < size; at += room {
		part := whole
		part.data = whole.data[at:min(at+room, size)]
		word := uint16(at)
		if at+room < size {
			word |= 1
		}
		part.options = []byte{protoUDP, 0, byte(word >> 8), byte(word), 0, 0, 0x12, 0x34}
		parts = append(parts, part)
	}
	return parts
}
