// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"strings"
)

// lsp is one label switched path: all IP packets to a prefix.
type lsp struct {
	family int // 4 or 6
	labels int // that the ingress pushes
	pipe   bool
}

// lsps are all of them: twelve.
func lsps() (all []lsp) {
	for _, family := range []int{4, 6} {
		for labels := 1; labels <= 3; labels++ {
			all = append(all, lsp{family, labels, false}, lsp{family, labels, true})
		}
	}
	return all
}

// number tells them apart.
func (l lsp) number() int {
	n := l.labels * 2
	if l.family == 6 {
		n += 10
	}
	if l.pipe {
		n++
	}
	return n
}

// prefix is its FEC: of documentation (RFC 5737, RFC 3849).
func (l lsp) prefix() netip.Prefix {
	if l.family == 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(l.number() * 16)}), 28)
	}
	return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::/48", l.number()))
}

// top is the label that the ingress pushes last, and the transit swaps.
func (l lsp) top() int { return 1000 + l.number()*10 }

// ends are the labels that the egress takes off, the topmost first.
func (l lsp) ends() (all []int) {
	for i := range l.labels {
		all = append(all, 2000+l.number()*10+i)
	}
	return all
}

// pushed is the stack behind the ingress, the topmost first.
func (l lsp) pushed() []int { return append([]int{l.top()}, l.ends()[1:]...) }

// via names a next hop in both languages.
func (l lsp) via(next hopAddress) string {
	if l.family == 6 {
		return "via inet6 " + next.v6.String()
	}
	return "via inet " + next.v4.String()
}

// kernelLines are what `ip` is told at each place.
func (l lsp) kernelLines(at place, next hopAddress) (lines []string) {
	model := ""
	switch at {
	case ingress:
		if l.pipe {
			model = " ttl 255"
		}
		stack := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(l.pushed())), "/"), "[]")
		return []string{fmt.Sprintf("route add %s encap mpls %s%s %s dev wan", l.prefix(), stack, model, l.via(next))}
	case transit:
		return []string{fmt.Sprintf("-f mpls route add %d as %d %s dev wan", l.top(), l.ends()[0], l.via(next))}
	}
	if l.pipe {
		model = " ttl-propagate disabled"
	}
	for i, label := range l.ends() {
		to := "dev lo" // to be looked up again
		if i == l.labels-1 {
			to = l.via(next) + " dev wan"
		}
		lines = append(lines, fmt.Sprintf("-f mpls route add %d %s%s", label, to, model))
	}
	return lines
}

// shuntLines are what `shunt mpls` is told.
func (l lsp) shuntLines(at place, next hopAddress) (lines []string) {
	model := ""
	if l.pipe {
		model = "ttl pipe "
	}
	send := "send dev wan " + l.via(next)
	switch at {
	case ingress:
		push := ""
		for _, label := range l.pushed() {
			push = fmt.Sprintf("push %d ", label) + push
		}
		return []string{fmt.Sprintf("nhlfe add %d %s%s%s", l.top(), model, push, send), fmt.Sprintf("ftn add %s nhlfe %d", l.prefix(), l.top())}
	case transit:
		return []string{fmt.Sprintf("nhlfe add %d %sswap %d %s", l.top(), model, l.ends()[0], send), fmt.Sprintf("ilm add %d nhlfe %[1]d", l.top())}
	}
	for i, label := range l.ends() {
		do := "pop peek"
		if i == l.labels-1 {
			do = "pop deliver"
		}
		lines = append(lines, fmt.Sprintf("nhlfe add %d %s%s", label, model, do), fmt.Sprintf("ilm add %d nhlfe %[1]d", label))
	}
	return lines
}

// became says what a packet's TTL and DSCP are behind the path.
//
// The ingress counts the TTL down, and so does the egress: of the packet, if it is a pipe,
// else of the label that has been counted down in between. But the kernel does not write the
// TTL of a popped label into one that it lays bare (mpls_forward), so behind several of them
// there is the one that the ingress wrote into the last.
//
// Every label that the kernel pushes or swaps has TC 0 (mpls_entry_encode). It leaves the DSCP
// as it is; so does shunt in a pipe. Uniform it takes the class from the label, and where
// that is another one than the packet's, the packet has it from then on.
func (l lsp) became(egress kind, ttl, dscp byte) (byte, byte) {
	const tc = 0 // a kernel has swapped or pushed it, on each of the paths
	switch {
	case l.pipe:
		return ttl - 2, dscp
	case egress == kernel && l.labels > 1:
		return ttl - 2, dscp
	case egress == shunt && dscp>>3 != tc:
		return ttl - 3, tc << 3
	}
	return ttl - 3, dscp
}
