// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"shunt/internal/kernel"
)

// Two things no two performances have in common, or hardly two in 65,536. Each is counted, and printed.
//
//   - "drawn port": the source port of a connection was taken already behind the NAT, by one that mutants had made
//     from the other side, so the kernel drew another one (nf_nat_l4proto_unique_tuple).
//     Two performances without shunt differ there too (-self).
//   - "negative zero": where nft sets the DSCP and the IPv4 header's checksum comes out as 0 it writes 0xffff
//     (nft_csum_replace). shunt does what all else in the kernel does, and RFC 1624 asks for: it
//     writes 0. To a receiver both are the same number.
const (
	byDrawnPort    = "drawn port"
	byNegativeZero = "negative zero"
)

// tracked is a line of record.conntrack.
type tracked struct {
	proto       uint8
	source      netip.AddrPort // as the connection began
	dest        netip.AddrPort
	replyDest   netip.AddrPort
	what, where string // the connection, and all of the line but its port behind the NAT
}

// trackedForm is what trackedLine writes: a tuple begins with its protocol, source and destination.
var trackedForm = regexp.MustCompile(`^((original \{(\d+) (\S+) (\S+) [^}]*\}) reply \{\d+ \S+) (\S+)(.*)$`)

func trackedLine(c kernel.Connection) string {
	return fmt.Sprintf("original %v reply %v status %#x mark %#x tcp %d", c.Original, c.Reply, c.Status, c.Mark, c.TCPState)
}

func readTracked(line string) (c tracked) {
	m := trackedForm.FindStringSubmatch(line)
	if m == nil {
		return c
	}
	proto, _ := strconv.Atoi(m[3])
	c.proto = uint8(proto)
	c.source, _ = netip.ParseAddrPort(m[4])
	c.dest, _ = netip.ParseAddrPort(m[5])
	c.replyDest, _ = netip.ParseAddrPort(m[6])
	c.what = m[2]
	c.where = m[1] + " " + c.replyDest.Addr().String() + m[7]
	return c
}

// drawn finds the connections whose port was drawn in both performances, by the tuple of their frames, and takes them
// out of what is compared in the end.
func drawn(want, got *record) map[string]bool {
	other := map[string]tracked{}
	for _, line := range got.conntrack {
		c := readTracked(line)
		other[c.what] = c
	}
	tuples, lines := map[string]bool{}, map[string]bool{}
	for _, line := range want.conntrack {
		c := readTracked(line)
		o := other[c.what]
		if c.where != o.where || c.replyDest == o.replyDest || c.replyDest.Port() == c.source.Port() || o.replyDest.Port() == c.source.Port() {
			continue
		}
		tuples[fmt.Sprintf("%d %s %s %04x%04x", c.proto, c.source.Addr(), c.dest.Addr(), c.source.Port(), c.dest.Port())] = true
		lines[c.what] = true
	}
	is := func(line string) bool { return lines[readTracked(line).what] }
	want.conntrack, got.conntrack = slices.DeleteFunc(want.conntrack, is), slices.DeleteFunc(got.conntrack, is)
	return tuples
}

// chance says by which of them two frames differ that came out behind the same one; "" if by neither, or by more.
func (j *judgement) chance(x item, want, got []byte) string {
	v, w, g := look(untagged(x.frame)), look(want), look(got)
	same := slices.Clone(got)
	switch {
	case !w.ok || !g.ok || w.l4 != g.l4:
		return ""
	case j.drawn[v.tuple()]:
		at := w.sum()
		if at < 0 {
			return ""
		}
		none := w.proto == protoUDP && want[at]|want[at+1]|got[at]|got[at+1] == 0
		if !none && w.total()%0xffff != g.total()%0xffff {
			return ""
		}
		copy(same[w.l4:w.l4+2], want[w.l4:])
		copy(same[at:at+2], want[at:])
		if bytes.Equal(same, want) {
			return byDrawnPort
		}
	case w.family == 4 && bytes.Equal(want[24:26], []byte{0xff, 0xff}) && bytes.Equal(got[24:26], []byte{0, 0}):
		copy(same[24:26], want[24:])
		if bytes.Equal(same, want) {
			return byNegativeZero
		}
	}
	return ""
}
