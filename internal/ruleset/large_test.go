// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLarge: a ruleset of 100,000 rules, and one with a set of 100,000 elements, are read
// in a moment, and what they say of packets is the same as if they were small.
func TestLarge(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		name string
		text func(*strings.Builder)
		want string
	}{
		{"rules", func(b *strings.Builder) {
			b.WriteString("chain many {\n")
			for i := range 100_000 {
				fmt.Fprintf(b, "ip saddr 10.%d.%d.%d tcp dport %d counter drop\n", i>>16, i>>8&255, i&255, 1+i%60000)
			}
			b.WriteString("}\nchain f { type filter hook forward priority 0; jump many; ct state established accept; limit rate 5/second accept; }")
		}, "limit: everything, new or untracked"},
		{"elements", func(b *strings.Builder) {
			b.WriteString("set banned { type ipv4_addr; elements = {")
			for i := range 100_000 {
				fmt.Fprintf(b, "10.%d.%d.%d,\n", i>>16, i>>8&255, i&255)
			}
			b.WriteString("}; }\nchain f { type filter hook forward priority 0; ip saddr @banned limit rate 5/second drop; }")
		}, "limit: IPv4"},
		{"chains", func(b *strings.Builder) {
			for i := range 5_000 {
				fmt.Fprintf(b, "chain c%d { limit rate 5/second accept; }\n", i)
			}
			b.WriteString("chain f { type filter hook forward priority 0;\n")
			for i := range 5_000 {
				fmt.Fprintf(b, "ip saddr 10.0.%d.%d jump c%d\n", i>>8, i&255, i)
			}
			b.WriteString("}")
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			b.WriteString("table inet t {\n")
			c.text(&b)
			b.WriteString("\n}")
			p.nft(b.String())
			begin := time.Now()
			r := p.read()
			took := time.Since(begin)
			t.Logf("read in %v; %d findings, %d rules count", took, len(r.Enforcing), r.Counted)
			if took > time.Minute {
				t.Errorf("read in %v", took)
			}
			if c.want != "" {
				holdOne(t, r, "inet t ", c.want)
				return
			}
			last := r.Enforcing[len(r.Enforcing)-1]
			if len(r.Enforcing) != MaxFindings+1 || last.Rule != allTheOthers || last.Touches[0] != (Match{States: AnyState}) {
				t.Errorf("%d findings, the last one %+v", len(r.Enforcing), last)
			}
		})
	}
	p.nft("")
}
