// SPDX-License-Identifier: Apache-2.0

package ruleset

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestMatches: what matches say of each other, beside a slow oracle that tries every packet of a
// small world. A match that is narrowed may stay too wide, never get too narrow; one that
// covers another one does so for all packets; and what is taken away is no more than what was sent.
func TestMatches(t *testing.T) {
	type packet struct {
		in, out string
		family  uint8
		proto   uint8
		state   States
	}
	var world []packet
	names := []string{"lan", "lan1", "wan", "wlan"}
	for _, in := range names {
		for _, out := range names {
			for _, family := range []uint8{4, 6} {
				for _, proto := range []uint8{6, 17} {
					for _, s := range []States{Established, New, Untracked} {
						world = append(world, packet{in, out, family, proto, s})
					}
				}
			}
		}
	}
	index := func(name string) int { return 2 + strings.Index("lan  lan1 wan  wlan", name)/5 }
	fits := func(m Match, p packet) bool {
		excluded := func(not Interfaces, name string) bool { return not != "" && not.Has(name, index(name)) }
		return (m.Family == 0 || m.Family == p.family) && (m.Proto == 0 || m.Proto == p.proto) && m.States&p.state != 0 &&
			m.In.Has(p.in, index(p.in)) && m.Out.Has(p.out, index(p.out)) && !excluded(m.NotIn, p.in) && !excluded(m.NotOut, p.out)
	}
	random := rand.New(rand.NewPCG(1, 2))
	lists := []Interfaces{"", "", "", "lan", "lan wan", "lan*", "wan wlan", "/2", "lan1", "w*"}
	draw := func() Match {
		pick := func(all ...uint8) uint8 { return all[random.IntN(len(all))] }
		return Match{Family: pick(0, 0, 4, 6), Proto: pick(0, 0, 6, 17), States: States(1 + random.IntN(7)),
			In: lists[random.IntN(len(lists))], Out: lists[random.IntN(len(lists))],
			NotIn: lists[random.IntN(5)], NotOut: lists[random.IntN(5)]}
	}
	any := func(list []Match, p packet) bool {
		for _, m := range list {
			if fits(m, p) {
				return true
			}
		}
		return false
	}
	for range 20_000 {
		a, b, c := draw(), draw(), draw()
		both, ok := a.both(b)
		left := without([]Match{a}, b, []Match{c})
		merged := merge([]Match{a, b}, c)
		for _, p := range world {
			in := fits(a, p) && fits(b, p)
			switch {
			case in && (!ok || !fits(both, p)):
				t.Fatalf("%+v and %+v are %+v, %v, which lacks %+v", a, b, both, ok, p)
			case a.covers(b) && a.States&p.state != 0 && fits(b, p) && !fits(a, p):
				t.Fatalf("%+v does not cover %+v: %+v", a, b, p)
			case fits(a, p) && !fits(b, p) && !any(left, p):
				t.Fatalf("%+v without %+v is %+v, which lacks %+v", a, b, left, p)
			case (fits(a, p) || fits(b, p) || fits(c, p)) && !any(merged, p):
				t.Fatalf("%+v, %+v and %+v are %+v, which lacks %+v", a, b, c, merged, p)
			}
		}
	}
	if text := fmt.Sprint(Match{NotIn: "lan", Out: "/2", States: New, Until: Until{Bytes, Both, 7}}); text != "not in by lan out by interface 2, new, until 7 bytes" {
		t.Error(text)
	}
}
