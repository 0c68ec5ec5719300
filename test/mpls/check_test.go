// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// describe writes a frame for people.
func describe(b []byte) string {
	if len(b) < ethernetBytes {
		return fmt.Sprintf("%x", b)
	}
	var words strings.Builder
	kind, rest := binary.BigEndian.Uint16(b[12:]), b[ethernetBytes:]
	if kind == kindVLAN && len(rest) >= 4 {
		fmt.Fprintf(&words, "tag %d ", binary.BigEndian.Uint16(rest)&0xfff)
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	fmt.Fprintf(&words, "%04x", kind)
	if kind == kindMPLS || kind == kindUpstream {
		for n := 0; len(rest) >= entryBytes; n++ {
			e, bottom := parseEntry(rest)
			rest = rest[entryBytes:]
			if n < 20 {
				fmt.Fprintf(&words, " [%d tc %d ttl %d%s]", e.label, e.tc, e.ttl, map[bool]string{true: " S"}[bottom])
			}
			if bottom {
				break
			}
		}
	}
	return words.String() + describeIP(rest)
}

func describeIP(b []byte) string {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		source, _ := netip.AddrFromSlice(b[12:16])
		dest, _ := netip.AddrFromSlice(b[16:20])
		words := fmt.Sprintf(" %s > %s ttl %d tos %#02x len %d", source, dest, b[8], b[1], binary.BigEndian.Uint16(b[2:]))
		if n := int(b[0]&15) * 4; n >= 20 && n <= len(b) && sum(b[:n]) != 0 {
			words += " BAD CHECKSUM"
		}
		if fragment := binary.BigEndian.Uint16(b[6:]); fragment != 0 {
			words += fmt.Sprintf(" frag %#04x", fragment)
		}
		if b[9] == protoICMP && len(b) >= 28 {
			words += fmt.Sprintf(" icmp %d/%d %x", b[20], b[21], b[24:28])
		}
		return words
	case len(b) >= 40 && b[0]>>4 == 6:
		source, _ := netip.AddrFromSlice(b[8:24])
		dest, _ := netip.AddrFromSlice(b[24:40])
		words := fmt.Sprintf(" %s > %s ttl %d tos %#02x len %d", source, dest, b[7], b[0]<<4|b[1]>>4, 40+int(binary.BigEndian.Uint16(b[4:])))
		if b[6] == protoICMPv6 && len(b) >= 48 {
			words += fmt.Sprintf(" icmpv6 %d/%d %x", b[40], b[41], b[44:48])
		}
		return words
	}
	return fmt.Sprintf(" +%d bytes", len(b))
}

// choice is what must be true of frames that a hash leads to label 201 or 202. The
// numbers are those of the frames as they are sent, and they come in this order.
type choice struct {
	same              [][]int // the frames of each go one way
	spread, andSpread []int   // these go by both ways
	share             [2]float64
}

func (w choice) check(in []frame, came [][]byte) error {
	if len(came) != len(in) {
		return fmt.Errorf("%d of %d frames came", len(came), len(in))
	}
	way := make([]uint32, len(in))
	for i, got := range came {
		want := in[i]
		want.at = b
		want.stack = append(stack{}, want.stack...)
		top, _ := parseEntry(got[ethernetBytes:])
		if top.label != 201 && top.label != 202 {
			return fmt.Errorf("frame %d came as %s", i, describe(got))
		}
		want.stack[0].label, want.stack[0].ttl = top.label, want.stack[0].ttl-1
		// Without MACs a frame begins with its EtherType.
		if expected := want.expected(place{}, nil); !bytes.Equal(expected, got[12:]) {
			whole := slices.Concat(got[:12], expected)
			var said wrongs
			if alike(whole, got) {
				said.fields(got, whole)
			}
			return fmt.Errorf("frame %d with %s: came as %s, want %s", i, strings.Join(said.words(), "; "), describe(got), describe(whole))
		}
		way[i] = top.label
	}
	for _, group := range w.same {
		for _, i := range group {
			if way[i] != way[group[0]] {
				return fmt.Errorf("frames %d and %d went by %d and %d, and are of one flow: %s", group[0], i, way[group[0]], way[i], describe(came[i]))
			}
		}
	}
	for _, group := range [][]int{w.spread, w.andSpread} {
		first := 0
		for _, i := range group {
			if way[i] == 201 {
				first++
			}
		}
		share := float64(first) / float64(max(1, len(group)))
		if len(group) > 0 && (first == 0 || first == len(group)) {
			return fmt.Errorf("all %d flows went one way", len(group))
		}
		if len(group) > 0 && w.share[1] > 0 && (share < w.share[0] || share > w.share[1]) {
			return fmt.Errorf("%.3f of the flows went the first way, want %v", share, w.share)
		}
	}
	return nil
}

// entropyOfFlows wants <200, ELI, EL, 150> in front of each packet: the same EL for the two
// packets of a flow, and not many flows with one EL.
func entropyOfFlows(n int) func([]frame, [][]byte) error {
	return func(in []frame, came [][]byte) error {
		if len(came) != len(in) {
			return fmt.Errorf("%d of %d frames came", len(came), len(in))
		}
		labels := map[uint32]bool{}
		for i, got := range came {
			want := on(b, l(200, 0, 63), eli(0, 63), entropy(), l(150, 0, 63), in[i].load)
			if !bytes.Equal(want.expected(place{}, got), got[12:]) {
				return fmt.Errorf("frame %d came as %s", i, describe(got))
			}
			first, _ := parseEntry(came[i%n][ethernetBytes+2*entryBytes:])
			this, _ := parseEntry(got[ethernetBytes+2*entryBytes:])
			if first.label != this.label || this.label < 16 {
				return fmt.Errorf("flow %d has the entropy labels %d and %d", i%n, first.label, this.label)
			}
			labels[this.label] = true
		}
		if len(labels) < n*3/4 {
			return fmt.Errorf("%d flows have %d entropy labels", n, len(labels))
		}
		return nil
	}
}

// answersLimited wants some answers and not all of them; they come out of A.
func answersLimited(in []frame, came [][]byte) error {
	if len(came) == 0 || len(came) >= len(in) {
		return fmt.Errorf("%d answers to %d frames", len(came), len(in))
	}
	for _, got := range came {
		if len(got) < ethernetBytes+28 || got[ethernetBytes+9] != protoICMP || got[ethernetBytes+20] != 11 {
			return fmt.Errorf("came as %s", describe(got))
		}
	}
	return nil
}

// flowSource is the address that a flow comes from.
func flowSource(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(10 + i)}) }

// oneWayEach wants a short packet and two fragments of each flow, by one of the labels 201 and
// 202, and some flows by each.
func oneWayEach(in []frame, came [][]byte) error {
	if len(came) != len(in)/2*3 {
		return fmt.Errorf("%d frames came of %d", len(came), len(in))
	}
	ways, count := map[netip.Addr]uint32{}, map[uint32]int{}
	for _, got := range came {
		top, _ := parseEntry(got[ethernetBytes:])
		from := netip.AddrFrom4([4]byte(got[ethernetBytes+entryBytes+12:]))
		if way, ok := ways[from]; ok && way != top.label {
			return fmt.Errorf("of %s some go by %d: %s", from, way, describe(got))
		}
		ways[from] = top.label
		count[top.label]++
	}
	if count[201]+count[202] != len(came) || count[201] == 0 || count[202] == 0 {
		return fmt.Errorf("frames by label: %v", count)
	}
	return nil
}
