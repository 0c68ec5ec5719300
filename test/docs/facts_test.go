// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := filepath.Join(top, filepath.Dir(page), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: link to %s, which is not there", page, m[1])
			}
		}
	}
}

var (
	named     = regexp.MustCompile("`(\\w+)\\(\\)`")
	inTree    = regexp.MustCompile("`((?:bpf|cmd|internal|test|docs)(?:/[\\w.-]+)*/?)`")
	tableLine = regexp.MustCompile(`(?m)^\|.*\|$`)
)

// TestNamedFilesExist: a path in backticks is there, in all pages; and a function named in a
// line of a table, or in a paragraph, stands in one of the files named beside it.
func TestNamedFilesExist(t *testing.T) {
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range inTree.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(top, m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", page, m[1])
			}
		}
	}
	for _, line := range tableLine.FindAllString(read(t, "ARCHITECTURE.md"), -1) {
		functionsIn(t, line, line)
	}
	text := read(t, "ARCHITECTURE.md")
	functionsIn(t, text, "`bpf/` `internal/`")
}

// functionsIn looks up the functions named in a text in the files named in `where`.
func functionsIn(t *testing.T, text, where string) {
	t.Helper()
	var sources strings.Builder
	for _, m := range inTree.FindAllStringSubmatch(where, -1) {
		err := filepath.WalkDir(filepath.Join(top, m[1]), func(at string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := os.ReadFile(at)
			sources.Write(data)
			return err
		})
		if err != nil {
			return // TestNamedFilesExist tells
		}
	}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if sources.Len() > 0 && !regexp.MustCompile(`\b`+m[1]+`\b`).MatchString(sources.String()) {
			t.Errorf("ARCHITECTURE.md names %s(), which is not in %s", m[1], oneLine(where))
		}
	}
}

// firstColumn lists the names in backticks that begin the lines of the table under a heading.
func firstColumn(t *testing.T, page, heading string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, page), heading)
	if !ok {
		t.Fatalf("%s has no %q", page, heading)
	}
	if end := strings.Index(rest, "\n## "); end >= 0 {
		rest = rest[:end]
	}
	var names []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(rest, -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	return names
}

func TestEveryDependencyHasItsReason(t *testing.T) {
	const page = "docs/decisions/dependencies.md"
	same(t, "the tree", imported(t), page, firstColumn(t, page, "## Go modules"))

	text := strings.ReplaceAll(read(t, "Makefile"), "\\\n", " ")
	m := regexp.MustCompile(`(?m)^PACKAGES := (.*)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the Makefile has no PACKAGES")
	}
	packages := strings.Fields(m[1])
	slices.Sort(packages)
	same(t, "the Makefile", packages, page, firstColumn(t, page, "## Debian packages"))
}

// imported are the modules of go.mod that the tree's own sources import.
func imported(t *testing.T) []string {
	t.Helper()
	var modules, found []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		modules = append(modules, m[1])
	}
	err := filepath.WalkDir(top, func(at string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(at, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), at, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			for _, m := range modules {
				if (name == m || strings.HasPrefix(name, m+"/")) && !slices.Contains(found, m) {
					found = append(found, m)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func same(t *testing.T, source string, have []string, page string, told []string) {
	t.Helper()
	for _, name := range have {
		if !slices.Contains(told, name) {
			t.Errorf("%s has %s; give its reason in %s", source, name, page)
		}
	}
	for _, name := range told {
		if !slices.Contains(have, name) {
			t.Errorf("%s tells of %s; %s does not have it", page, name, source)
		}
	}
}

// figures is the table that README.md shares with docs/bench.md.
func figures(t *testing.T, page string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, page), "<!-- figures:")
	_, rest, _ = strings.Cut(rest, "-->\n")
	table, _, closed := strings.Cut(rest, "<!-- end of figures -->")
	if !ok || !closed {
		t.Fatalf("%s has no figures", page)
	}
	return table
}

func TestFiguresAgree(t *testing.T) {
	if figures(t, "README.md") != figures(t, "docs/bench.md") {
		t.Error("README.md and docs/bench.md give different figures")
	}
}
