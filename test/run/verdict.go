// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is a line of `go test -json`, as far as a verdict needs it (go doc cmd/test2json).
// gotestsum writes those of a second run behind those of the first.
type event struct {
	Action  string
	Package string
	Test    string
}

// verdict says what became of each test and of each package. A name is a package, or a
// package, a space and a test.
type verdict struct {
	passed, skipped int
	flaky, failed   []string
}

// outcome is what became of a name so far.
type outcome struct {
	last string // action: run, pass, fail or skip
	bad  bool   // failed at least once
}

// read judges the events of a whole run.
func read(r io.Reader) (verdict, error) {
	tests := map[string]*outcome{}
	unexplained := map[string]bool{} // packages that failed without a failed test
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	failures := map[string]int{} // of tests, since their package began
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return verdict{}, fmt.Errorf("%.100q: %w", lines.Text(), err)
		}
		switch {
		case e.Test != "":
			name := e.Package + " " + e.Test
			if tests[name] == nil {
				tests[name] = &outcome{}
			}
			if tests[name].take(e.Action); e.Action == "fail" {
				failures[e.Package]++
			}
		case e.Action == "start":
			failures[e.Package] = 0
		case e.Action == "fail" || e.Action == "pass":
			failures[e.Package] += unfinished(tests, e.Package)
			if e.Action == "fail" && failures[e.Package] == 0 {
				unexplained[e.Package] = true
			}
		}
	}
	return sum(tests, unexplained), lines.Err()
}

// take notes what happened to a test.
func (o *outcome) take(action string) {
	switch action {
	case "run", "pass", "skip":
		o.last = action
	case "fail":
		o.last, o.bad = action, true
	}
}

// unfinished fails the tests of a package that its process has left without an end, and
// returns their number.
func unfinished(tests map[string]*outcome, pkg string) (n int) {
	for name, o := range tests {
		if strings.HasPrefix(name, pkg+" ") && o.last == "run" {
			o.take("fail")
			n++
		}
	}
	return n
}

// sum counts the outcomes. Of tests that failed it leaves out those that did only because a
// test within them did.
func sum(tests map[string]*outcome, unexplained map[string]bool) verdict {
	v := verdict{failed: slices.Collect(maps.Keys(unexplained))}
	for name, o := range tests {
		switch {
		case o.last == "skip":
			v.skipped++
		case o.last == "pass":
			v.passed++
		}
		if !o.bad || within(tests, name) {
			continue
		}
		if o.last == "pass" {
			v.flaky = append(v.flaky, name)
		} else {
			v.failed = append(v.failed, name)
		}
	}
	slices.Sort(v.failed)
	slices.Sort(v.flaky)
	return v
}

// within reports whether a test inside the named one failed at least as lastingly.
func within(tests map[string]*outcome, name string) bool {
	for inner, o := range tests {
		if strings.HasPrefix(inner, name+"/") && o.bad && (o.last != "pass" || tests[name].last == "pass") {
			return true
		}
	}
	return false
}

// String names the tests that failed, as go test does, and those that are flaky.
func (v verdict) String() string {
	var s strings.Builder
	for _, name := range v.failed {
		fmt.Fprintf(&s, "--- FAIL: %s\n", name)
	}
	for _, name := range v.flaky {
		fmt.Fprintf(&s, "flaky: %s\n", name)
	}
	return s.String()
}

// Last is the line for machines.
func (v verdict) Last() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", v.passed, len(v.failed), v.skipped)
}
