// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// openRouter makes the router that -router names.
func openRouter(name string) (*rig, error) {
	open := map[string]func() (*rig, error){
		"shunt": newShunt, "kernel": newLinux, "none": newOperator, "oracle": newOracle,
		"reference": func() (*rig, error) { return newReference("") },
	}
	if open[name] == nil {
		return nil, fmt.Errorf("-router %s: use shunt, kernel, oracle, reference or none", name)
	}
	return open[name]()
}

// needed are the words of a case's needs that a list names.
func needed(c trial, list string) (words []string) {
	for _, word := range strings.Fields(c.needs) {
		if slices.Contains(strings.Split(list, ","), word) {
			words = append(words, word)
		}
	}
	return words
}

// asked is the router of -router, for the length of a test.
func asked(t *testing.T) *rig {
	t.Helper()
	r, err := openRouter(*routerName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestConformance plays every case against the router that -router names, and prints what
// it came to. Failing cases fail the test, except those of the kernel: what that one does is
// to be known, not to be mended here.
func TestConformance(t *testing.T) {
	r := asked(t)
	var results []result
	for _, group := range rules {
		t.Run(group.id, func(t *testing.T) {
			for _, c := range trials() {
				if c.rule == group.id {
					t.Run(c.name, func(t *testing.T) { results = append(results, r.run(t, c)) })
				}
			}
		})
	}
	fmt.Print(table(r.name(), results))
	switch {
	case *resultFile != "":
		if err := (report{release(), results}).write(*resultFile); err != nil {
			t.Error(err)
		}
	case r.name() == "shunt" && *without == notYet:
		hold(t, results)
	}
}

// TestRoutes plays the cases that can be told in the words of iproute2 by these.
func TestRoutes(t *testing.T) {
	r := asked(t)
	for _, c := range trials() {
		if c, ok := asRoutes(c); ok && len(needed(c, *without)) == 0 {
			t.Run(c.rule+" "+c.name, func(t *testing.T) { r.run(t, c) })
		}
	}
}

// run plays one case and makes a line of the table.
func (r *rig) run(t *testing.T, c trial) result {
	line := result{c.rule, c.clause, c.name, finding{}}
	leave := *without
	if leave == notYet && r.name() != "shunt" {
		leave = "" // that list is about shunt
	}
	if words := needed(c, leave); len(words) > 0 {
		var why []string
		for _, w := range words {
			why = append(why, w+": "+needs[w])
		}
		line.finding = finding{leftOut, strings.Join(why, "; "), ""}
		return line
	}
	var err error
	if line.finding, err = r.judge(c, r.name() == "shunt"); err != nil {
		t.Fatal(err)
	}
	if line.Verdict == failed && r.name() != "kernel" {
		t.Errorf("%s (%s): %s", c.name, c.clause, line.Words)
	}
	return line
}

// table is what a run prints.
func table(router string, results []result) string {
	var out strings.Builder
	width := 0
	for _, l := range results {
		width = max(width, len(l.Clause))
	}
	fmt.Fprintf(&out, "\n%-5s %-*s %s\n", "rule", width, "clause", "case: result of "+router)
	count := map[verdict]int{}
	for _, l := range results {
		count[l.Verdict]++
		fmt.Fprintf(&out, "%-5s %-*s %s: %s", l.Rule, width, l.Clause, l.Name, l.Verdict)
		if l.Words != "" {
			fmt.Fprintf(&out, " (%s)", l.Words)
		}
		out.WriteString("\n")
	}
	return out.String() + summary(count, len(results))
}

// verdicts in the order of a summary.
var verdicts = []verdict{passed, otherwise, failed, notOffered, leftOut}

func summary(count map[verdict]int, all int) string {
	var parts []string
	for _, v := range verdicts {
		if count[v] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
		}
	}
	return fmt.Sprintf("%d cases: %s\n", all, strings.Join(parts, ", "))
}
