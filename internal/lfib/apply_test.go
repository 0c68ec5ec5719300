// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

var small = []string{
	"map add back tc-to-dscp 5:46", "map add gold dscp-to-tc 46:5",
	"nhlfe add 9 send dev wan via inet 10.0.0.2", "nhlfe add 8 push 300 tc-map gold forward 9",
	"nhlfe add 7 pop by-hash 8 9*2", "nhlfe add 6 pop dscp-map back deliver",
	"ilm add 100 nhlfe 7", "ilm add 100 tc 5 nhlfe 6", "ftn add 10.0.0.0/8 nhlfe 8", "space set lan 0",
}

// What a table says of a change, in the tables that small makes.
func TestApplyRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"ilm add 100 nhlfe 9":             "ilm add 100 nhlfe 9: there is ilm 100 already: replace it",
		"ilm add 101 nhlfe 5":             "ilm add 101 nhlfe 5: there is no nhlfe 5: add it first",
		"ilm change 101 nhlfe 9":          "there is no ilm 101: name one that is there",
		"ilm del 100 space 1":             "there is no ilm 100 space 1: name",
		"ftn add 10.0.0.0/8 nhlfe 9":      "there is ftn 10.0.0.0/8 already: replace it",
		"ftn add 11.0.0.0/8 nhlfe 5":      "there is no nhlfe 5",
		"ftn add 11.0.0.0/8 nhlfe 7":      "nhlfe 7 works on a label, and what an ftn leads there has none: use a list without pop, swap",
		"ftn del 11.0.0.0/8":              "there is no ftn 11.0.0.0/8",
		"map add gold dscp-to-tc 1:1":     "there is map gold already: replace it",
		"map replace gold tc-to-dscp 1:1": "nhlfe 8 uses the map as dscp-to-tc: give the new one another name",
		"map del gold":                    "map del gold: nhlfe 8 refers to it: delete or change that first",
		"map del silver":                  "there is no map silver",
		"nhlfe add 9 drop":                "there is nhlfe 9 already: replace it",
		"nhlfe change 5 drop":             "there is no nhlfe 5: name one that is there",
		"nhlfe del 5":                     "there is no nhlfe 5",
		"nhlfe del 7":                     "nhlfe del 7: ilm 100 refers to it: delete or change that first",
		"nhlfe del 6":                     "ilm 100 tc 5 refers to it",
		"nhlfe del 8":                     "ftn 10.0.0.0/8 refers to it",
		"nhlfe add 5 forward 4":           "there is no nhlfe 4: add it first",
		"nhlfe add 5 by-tc 0:9 default 4": "there is no nhlfe 4",
		"nhlfe add 5 forward 5":           "nhlfe 5 > 5 is a loop of forwards: let one of them end elsewhere",
		"nhlfe replace 9 by-dscp 0:7":     "nhlfe 9 > 7 > 8 > 9 is a loop of forwards",
		"nhlfe replace 9 forward 8":       "nhlfe 9 > 8 > 9 is a loop",
		"nhlfe add 5 tc-map silver send dev a via inet 10.0.0.2": "there is no map silver: add it first, as dscp-to-tc",
		"nhlfe add 5 pop dscp-map gold deliver":                  "dscp-map gold: map gold is dscp-to-tc: name one that is tc-to-dscp",

		"nhlfe replace 9 pop pop send dev wan via inet 10.0.0.2": "or delete ftn 10.0.0.0/8 first", // reached by 8, which the ftn leads to
		"nhlfe replace 8 peek":                                                  "nhlfe 8 works on a label",
		"nhlfe replace 8 set-tc 3 forward 9":                                    "works on a label",
		"nhlfe replace 9 deliver":                                               "nhlfe 8 leads to nhlfe 9, where deliver stands behind a push or swap",
		"nhlfe add 5 push 200 deliver":                                          "deliver stands behind a push or swap: it works on what a pop exposed; send instead",
		"nhlfe add 5 push 200 peek":                                             "peek stands behind a push or swap",
		"nhlfe add 5 set-tc 3 deliver":                                          "deliver stands behind set-tc or tc-map, where a label is left",
		"nhlfe add 5 set-tc 3 pop deliver":                                      "pop takes away the label that set-tc or tc-map wrote to: write behind the pop",
		"nhlfe add 5 tc-map gold swap 200 drop":                                 "pop takes away the label that set-tc",
		"nhlfe add 5 set-dscp 3 pop deliver":                                    "pop stands behind set-dscp or dscp-map, where no label is left",
		"nhlfe add 5 pop set-dscp 3 peek":                                       "peek stands behind set-dscp or dscp-map, where no label is left: deliver instead",
		"nhlfe add 5 pop set-dscp 3 set-tc 1 drop":                              "set-tc 1 stands behind set-dscp or dscp-map",
		"nhlfe add 5 pop set-tc 1 set-dscp 3 drop":                              "set-dscp 3 stands behind set-tc or tc-map, where a label is left",
		"nhlfe add 5 pop set-dscp 1 dscp-map back drop":                         "dscp-map back writes the DSCP a second time",
		"nhlfe add 5 pop push 200 set-dscp 3 drop":                              "set-dscp 3 stands behind a push or swap, which covers the IP header",
		"nhlfe add 5 push 200 tc 3 set-tc 4 forward 9":                          "set-tc 4 writes the TC of a label that has been given one",
		"nhlfe add 5 set-tc 3 tc-map gold forward 9":                            "tc-map gold writes the TC of a label that has been given one",
		"nhlfe add 5 pop set-tc 3 by-hash 9":                                    "by-hash stands behind a write of TC or DSCP: write in the NHLFEs that it chooses",
		"nhlfe add 5" + strings.Repeat(" pop", 17) + " peek":                    "the list pops more than 16 labels",
		"nhlfe add 5" + strings.Repeat(" push 200", 17) + " forward 9":          "push 200 makes 17 labels: push no more than 16",
		"nhlfe add 5 swap 200" + strings.Repeat(" push 200", 16) + " forward 9": "makes 17 labels",
		"nhlfe add 5 entropy" + strings.Repeat(" push 200", 15) + " forward 9":  "makes 17 labels",
		"nhlfe add 5 ttl pipe pop forward 7":                                    "nhlfe 5 leads to nhlfe 7, where a pop in ttl model uniform follows one in pipe: give both",
	} {
		tab := table(t, small...)
		before := tab.Save()
		_, err := tab.Apply("test", parse(t, "nhlfe replace 4000 drop", "ilm replace 4000 nhlfe 4000", line))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), brief(line)+": ") {
			t.Errorf("%s:\n%v\nwants %s", line, err, want)
		}
		if after := tab.Save(); err != nil && !reflect.DeepEqual(after, before) {
			t.Errorf("%s left a trace: %q", line, after)
		}
		consistent(t, tab)
	}
}

func TestChainsAndWaysAreBounded(t *testing.T) {
	tab := table(t, "nhlfe add 1 send dev wan via inet 10.0.0.2")
	for id := 2; id <= MaxForwards+1; id++ {
		apply(t, tab, fmt.Sprintf("nhlfe add %d forward %d", id, id-1))
	}
	apply(t, tab, "nhlfe add 98 drop")
	refused(t, tab, "nhlfe replace 1 forward 98", "nhlfe 17 leads to nhlfe 98, where more than 16 forwards lie behind each other")
	refused(t, tab, fmt.Sprintf("nhlfe add 99 forward %d", MaxForwards+1), "more than 16 forwards lie behind each other")

	// Each level of choices has three ways, to the ones below.
	tab = table(t, "nhlfe add 1 send dev wan via inet 10.0.0.2", "nhlfe add 2 drop", "nhlfe add 3 drop")
	for id := 4; id < 16; id++ {
		apply(t, tab, fmt.Sprintf("nhlfe add %d by-tc 0:%d 1:%d 2:%d", id, id-1, id-2, id-3))
	}
	apply(t, tab, "nhlfe add 50 push 20 by-hash 9")
	refused(t, tab, "nhlfe add 51 push 20 by-hash 15", "there are more than 1024 ways through choices behind a push or mtu")
	apply(t, tab, "nhlfe add 51 by-hash 15") // by ID there is one way
}

func refused(t *testing.T, tab *Table, line, want string) {
	t.Helper()
	_, err := tab.Apply("test", parse(t, line))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, wants %s", line, err, want)
	}
}

func TestCommitTellsWhatChanged(t *testing.T) {
	tab := table(t, small...)
	first := uint64(len(small))
	c, err := tab.Apply("fpm", parse(t, "nhlfe replace 9 send dev wan via inet 10.0.0.3", "ilm replace 100 nhlfe 7",
		"ilm del 100 tc 5", "space set lan 2", "space set dmz off", "map replace gold dscp-to-tc 46:4", "ftn del 10.0.0.0/8"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, e := range c.Events() {
		got = append(got, fmt.Sprintf("%s %s %s: %s", e.Origin, e.Verb, e.Kind, e.Line))
		if e.Seq != first+uint64(i)+1 || e.Time.IsZero() {
			t.Errorf("event %d has number %d, time %v", i, e.Seq, e.Time)
		}
	}
	want := []string{ // neither the ilm that stays as it is nor the port that is off already
		"fpm replace nhlfe: nhlfe replace 9 send dev wan via inet 10.0.0.3", "fpm del ilm: ilm del 100 tc 5",
		"fpm set space: space set lan 2", "fpm replace map: map replace gold dscp-to-tc 46:4", "fpm del ftn: ftn del 10.0.0.0/8",
	}
	if !reflect.DeepEqual(got, want) || c.Seq != first+5 {
		t.Errorf("commit %d: %q", c.Seq, got)
	}
	above := map[uint32]bool{}
	for _, id := range c.Touched.NHLFEs {
		above[id] = true
	}
	if c.Touched.NHLFEs[0] != 9 || len(c.Touched.NHLFEs) != 3 || !above[8] || !above[7] {
		t.Errorf("touched nhlfes %v, not 9 and those that lead there, 8 and 7", c.Touched.NHLFEs)
	}
	c.Touched.NHLFEs = nil
	if got, want := c.Touched, (Touched{nil, []ILMKey{{TC: 5, Label: 100}}, []netip.Prefix{parsePrefix("10.0.0.0/8")}, []string{"gold"}, []string{"lan"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("touched %v, not %v", got, want)
	}
	if c, err = tab.Apply("fpm", parse(t, "ilm replace 100 nhlfe 7")); err != nil || c.Seq != first+5 || c.Changed() > 0 || len(c.Touched.ILMs) > 0 {
		t.Errorf("what changes nothing: %+v, %v", c, err)
	}
}

// Random transactions, done, refused and undone, on a table that is compared with one that is
// made from its lines.
func TestAllOrNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tab := randomTable(t, r, map[string]int{})
	done, failed := 0, 0
	for range 3000 {
		before, seq := strings.Join(tab.Save(), "\n"), tab.seq
		var changes []Change
		for range 1 + r.IntN(4) {
			if c, err := Parse(randomChange(r)); err == nil {
				changes = append(changes, c...)
			}
		}
		c, err := tab.Apply("test", changes)
		switch {
		case err != nil:
			failed++
		case r.IntN(2) == 0:
			tab.Undo(c)
		default:
			done++
			seq, before = c.Seq, strings.Join(tab.Save(), "\n")
		}
		if after := strings.Join(tab.Save(), "\n"); after != before || tab.seq != seq {
			t.Fatalf("%q: %v\nseq %d, not %d\n%s\nbecame\n%s", changes, err, tab.seq, seq, before, after)
		}
		consistent(t, tab)
	}
	saved := tab.Save()
	if again := table(t, saved...).Save(); !reflect.DeepEqual(saved, again) {
		t.Errorf("saved %q, made %q", saved, again)
	}
	if done < 100 || failed < 100 {
		t.Errorf("%d transactions done, %d refused: too few to say anything", done, failed)
	}
}

func randomChange(r *rand.Rand) string {
	id := 1 + r.IntN(16)
	switch r.IntN(12) {
	case 0:
		return fmt.Sprintf("nhlfe del %d", id)
	case 1:
		return fmt.Sprintf("ilm del %d", randomLabel(r))
	case 2:
		return fmt.Sprintf("ilm add %d nhlfe %d", randomLabel(r), id)
	case 3:
		return fmt.Sprintf("ilm replace %d tc %d nhlfe %d", randomLabel(r), r.IntN(8), id)
	case 4:
		return fmt.Sprintf("map %s m%d", []string{"del", "replace n tc-to-dscp 1:1", "replace m dscp-to-tc 1:2"}[r.IntN(3)], r.IntN(2))
	case 5:
		return fmt.Sprintf("space set p%d %s", r.IntN(3), []string{"off", "0", "1"}[r.IntN(3)])
	case 6:
		return fmt.Sprintf("ftn replace 10.%d.0.0/16 nhlfe %d", r.IntN(4), id)
	case 7:
		return fmt.Sprintf("ftn del 10.%d.0.0/16", r.IntN(4))
	}
	return fmt.Sprintf("nhlfe %s %d%s%s", []string{"add", "change", "replace"}[r.IntN(3)], id, randomOptions(r), randomList(r, 99))
}
