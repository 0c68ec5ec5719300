// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestSplit: words are those of strings.Fields, whatever the line; a plain line has nothing to be
// looked for.
func TestSplit(t *testing.T) {
	for _, line := range []string{
		"", " ", "a", " a ", "a\tb  c\t", "a\rb", "a\nb", "a\vb\fc", "a\u00a0b", "a\u2003b c", "caf\u00e9 au lait", "a\x00b c", "a\x7fb c",
		"\xffa b", "a b\xff", strings.Repeat("w ", 40), "\u3000", "ilm add 100 nhlfe 7 # \u00e9",
	} {
		words, plain := split(nil, line)
		if want := strings.Fields(line); !slices.Equal(words, want) {
			t.Errorf("%q: %q, not %q", line, words, want)
		}
		odd := strings.ContainsFunc(line, func(c rune) bool { return c > unicode.MaxASCII || !unicode.IsPrint(c) && c != '\t' })
		if plain == odd {
			t.Errorf("%q: plain is %v", line, plain)
		}
	}
	all := []Change{{Delete, ILM{Label: 100, TC: -1}}}
	got, err := ParseTo(all, "space set eth0 eth1 0 upstream 3")
	if err != nil || len(got) != 3 || got[0] != all[0] || got[2].Object != any(PortSpace{"eth1", 0, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = ParseTo(all, "route add 100 dev lo x"); err == nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
