// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	page       = "../../docs/mpls-conformance.md"
	kernelFile = "testdata/kernel.json" // what the kernel came to when it was run last
)

// report is the results of one router.
type report struct {
	Router  string
	Results []result
}

func (r report) write(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// of finds what a case came to.
func (r report) of(l result) (result, bool) {
	i := slices.IndexFunc(r.Results, func(x result) bool { return x.Rule == l.Rule && x.Name == l.Name })
	if i < 0 {
		return result{}, false
	}
	return r.Results[i], true
}

// hold compares the page with what shunt came to just now, line by line if only some rules
// were run, or writes it.
func hold(t *testing.T, results []result) {
	t.Helper()
	kernel, err := kernelReport(t)
	if err != nil {
		t.Fatal(err)
	}
	const mend = "run `make conformance`, or, where the kernel has nothing to do with it, go test ./test/mpls -run 'TestConformance$' -update"
	ours := report{"shunt", results}
	for _, l := range results {
		if _, ok := kernel.of(l); !ok {
			t.Errorf("%s %s: was never played against the kernel; run `make conformance`", l.Rule, l.Name)
		}
	}
	want := markdown(ours, kernel)
	if *update {
		if len(results) != len(trials()) {
			t.Fatal("-update: run all rules")
		}
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatalf("%v; %s", err, mend)
	}
	if len(results) == len(trials()) {
		if diff := cmp.Diff(want, string(have)); diff != "" {
			t.Errorf("%s is not what shunt does; %s, and read the difference (- is right):\n%s", page, mend, diff)
		}
		return
	}
	for _, l := range results {
		if line := ours.line(kernel, l); !strings.Contains(string(have), line) {
			t.Errorf("%s does not say %q; %s", page, line, mend)
		}
	}
}

// kernelReport is what the kernel came to: just now with -vm, else as it was kept. What it cannot
// be told to do need not be played.
func kernelReport(t *testing.T) (r report, err error) {
	if *guest {
		text, err := kernelInVM(t)
		if err != nil {
			return r, err
		}
		if err := os.MkdirAll(filepath.Dir(kernelFile), 0o755); err != nil {
			return r, err
		}
		if err := os.WriteFile(kernelFile, text, 0o644); err != nil {
			return r, err
		}
	}
	text, err := os.ReadFile(kernelFile)
	if err != nil {
		return r, fmt.Errorf("%w; run `make conformance`", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", kernelFile, err)
	}
	r.Results = slices.DeleteFunc(r.Results, func(l result) bool { return l.Verdict == notOffered })
	for _, c := range trials() {
		if words := new(linux).offers(c); words != "" {
			r.Results = append(r.Results, result{c.rule, c.clause, c.name, finding{notOffered, words, ""}})
		}
	}
	return r, nil
}

// markdown is the page of results.
func markdown(ours, kernel report) string {
	var out strings.Builder
	fmt.Fprintf(&out, pageHead, kernel.Router)
	totals(&out, ours, kernel)
	for _, c := range chapters {
		fmt.Fprintf(&out, "\n## %s\n\n| rule | clause | what is checked | %s | %s |\n|---|---|---|---|---|\n", c.title, ours.Router, kernel.Router)
		for _, rule := range rules {
			if !strings.HasPrefix(rule.id, c.letter) {
				continue
			}
			fmt.Fprintf(&out, "| **%s** | %s | **%s** | | |\n", rule.id, rule.clause, cell(rule.words))
			for _, l := range ours.Results {
				if l.Rule == rule.id {
					out.WriteString(ours.line(kernel, l))
				}
			}
		}
	}
	return out.String()
}

// chapters are the groups of rules, by the letter that their names begin with.
var chapters = []struct{ letter, title string }{
	{"P", "Framing and parsing"}, {"L", "Lookup"}, {"S", "Special-purpose labels"}, {"T", "TTL"}, {"Q", "TC, DSCP, ECN"},
	{"M", "MTU, fragments, ICMP"}, {"E", "Entropy labels, load balancing"}, {"O", "OAM, statistics"},
}

// line is a case's row.
func (r report) line(other report, l result) string {
	theirs, _ := other.of(l)
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", l.Rule, l.Clause, cell(l.Name), cell(l.short()), cell(theirs.short()))
}

// totals counts verdicts by chapter; those that no case came to are left out.
func totals(out *strings.Builder, both ...report) {
	type column struct {
		report
		verdict
	}
	var columns []column
	for _, r := range both {
		for _, v := range verdicts {
			if r.count("", v) > 0 {
				columns = append(columns, column{r, v})
			}
		}
	}
	out.WriteString("| cases |")
	for _, c := range columns {
		fmt.Fprintf(out, " %s: %s |", strings.Fields(c.Router)[0], c.verdict)
	}
	out.WriteString("\n|---|" + strings.Repeat("---:|", len(columns)) + "\n")
	row := func(title, letter string) {
		fmt.Fprintf(out, "| %s |", title)
		for _, c := range columns {
			fmt.Fprintf(out, " %d |", c.count(letter, c.verdict))
		}
		out.WriteString("\n")
	}
	for _, c := range chapters {
		row(c.title, c.letter)
	}
	row("**all**", "")
}

// count is how many cases of a chapter came to a verdict.
func (r report) count(letter string, v verdict) (n int) {
	for _, l := range r.Results {
		if strings.HasPrefix(l.Rule, letter) && l.Verdict == v {
			n++
		}
	}
	return n
}

// short is a verdict, with words where they are not the same in every line.
func (l result) short() string {
	switch {
	case l.Verdict == leftOut:
		return string(l.Verdict) + ": " + l.Words
	case l.Brief == "":
		return string(l.Verdict)
	}
	return string(l.Verdict) + ": " + l.Brief
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
