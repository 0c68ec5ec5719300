// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func parsePrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// Whatever a line is: changes that are the same when written and read again, and that a table
// takes or refuses in one line without a trace; or an error of one line.
func FuzzParse(f *testing.F) {
	for _, line := range plain {
		f.Add(line)
	}
	f.Add("route add 100 as 200/300 via inet 10.0.0.2 dev eth1 ttl-propagate disabled")
	f.Add("route del 100")
	f.Add("space set eth1 eth2 3 # both")
	f.Fuzz(func(t *testing.T, text string) {
		changes, err := Parse(text)
		if err != nil {
			oneLine(t, err)
			return
		}
		for _, c := range changes {
			again, err := Parse(c.String())
			if err != nil || len(again) != 1 || !reflect.DeepEqual(again[0], c) {
				t.Fatalf("%q: %q became %q: %v", text, c, again, err)
			}
		}
		tab := table(t, "map add gold dscp-to-tc 46:5", "map add back tc-to-dscp 5:46", "nhlfe add 9 drop", "nhlfe add 8 forward 9",
			"nhlfe add 7 pop by-hash 8 9", "ilm add 100 nhlfe 7", "ftn add 10.0.0.0/8 nhlfe 8", "space set eth1 3")
		before := strings.Join(tab.Save(), "\n")
		commit, err := tab.Apply("fuzz", changes)
		if err != nil {
			oneLine(t, err)
		} else {
			saved := tab.Save()
			if again := table(t, saved...).Save(); !reflect.DeepEqual(again, saved) {
				t.Fatalf("%q: what was saved as %q made %q", text, saved, again)
			}
			tab.Undo(commit)
		}
		consistent(t, tab)
		if after := strings.Join(tab.Save(), "\n"); after != before {
			t.Fatalf("%q left a trace:\n%s", text, after)
		}
	})
}

func oneLine(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); text == "" || strings.ContainsAny(text, "\n\r\u2028\u2029") {
		t.Fatalf("%q is not one line", text)
	}
}
