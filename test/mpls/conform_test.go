package mpls

import (
	"encoding/json"
	"fmt"
	"os"
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
	if err := write(t, r.name(), results); err != nil {
		t.Error(err)
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
	line := result{Rule: c.rule, Clause: c.clause, Name: c.name}
	leave := *without
	if leave == notYet && r.name() != "shunt" {
		leave = "" // that list is about shunt
	}
	if words := needed(c, leave); len(words) > 0 {
		var why []string
		for _, w := range words {
			why = append(why, w+": "+needs[w])
		}
		line.Verdict, line.Words = leftOut, strings.Join(why, "; ")
		return line
	}
	var err error
	if line.Verdict, line.Words, err = r.judge(c, r.name() == "shunt"); err != nil {
		t.Fatal(err)
	}
	if line.Verdict == failed && r.name() != "kernel" {
		t.Errorf("%s (%s): %s", c.name, c.clause, line.Words)
	}
	return line
}

// write keeps the results where the flags say.
func write(t *testing.T, router string, results []result) error {
	if *resultFile != "" {
		text, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return err
		}
		return os.WriteFile(*resultFile, text, 0o644)
	}
	if *page == "" {
		return nil
	}
	kernel, err := kernelInVM(t)
	if err != nil {
		return err
	}
	return os.WriteFile(*page, []byte(markdown(router, results, kernel)), 0o644)
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

// markdown is the page of results.
func markdown(router string, results, kernel []result) string {
	var out strings.Builder
	fmt.Fprintf(&out, `# MPLS conformance

Every case of `+"`test/mpls`"+`: frames in, frames out, byte by byte. Written by
`+"`go test ./test/mpls -run TestConformance -write docs/mpls-conformance.md`"+`; the kernel is Debian's 6.12 in
a virtual machine, told by `+"`ip -f mpls route`"+`. "Not offered": it has no words for what the case wants. "Left out":
not built yet. "Otherwise": in another way that the RFCs allow.

`)
	other := map[string]result{}
	count := map[string]map[verdict]int{router: {}, "kernel": {}}
	for _, l := range kernel {
		other[l.Rule+l.Name] = l
		count["kernel"][l.Verdict]++
	}
	for _, l := range results {
		count[router][l.Verdict]++
	}
	fmt.Fprintf(&out, "* %s: %s* kernel: %s\n| rule | clause | case | %[1]s | kernel |\n|---|---|---|---|---|\n",
		router, summary(count[router], len(results)), summary(count["kernel"], len(kernel)))
	for _, l := range results {
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", l.Rule, l.Clause, cell(l.Name), cell(l.short()), cell(other[l.Rule+l.Name].short()))
	}
	return out.String()
}

// short is a verdict, with words where they are not the same in every line.
func (l result) short() string {
	if l.Words == "" || l.Verdict == notOffered || l.Verdict == leftOut {
		return string(l.Verdict)
	}
	return string(l.Verdict) + ": " + l.Words
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
