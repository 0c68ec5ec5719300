// SPDX-License-Identifier: Apache-2.0

// Package rules keeps the tree in shape: who may import what, how long a file may get,
// which licence stands on top. Each rule is a test that names the file and the fix.
//
// It reads sources only, needs no root, and knows nothing of what they do. Generated
// files (*_bpfel.go) are left out.
package rules

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	top      = "../.."
	maxLines = 500
)

// sources calls f for every file of the tree with one of the extensions; path is
// relative to the tree's top.
func sources(t *testing.T, f func(path string, text []byte), extensions ...string) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(top, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, _ := filepath.Rel(top, at)
		if e.IsDir() && (path == ".git" || path == "build") {
			return filepath.SkipDir
		}
		if e.IsDir() || strings.HasSuffix(path, "_bpfel.go") || !hasSuffix(path, extensions) {
			return nil
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		found++
		f(path, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Fatal("no sources found: this test looks in the wrong place")
	}
}

func hasSuffix(path string, suffixes []string) bool {
	for _, s := range suffixes {
		if strings.HasSuffix(path, s) {
			return true
		}
	}
	return false
}

// mayImport are the packages that only some directories may import (and those below).
var mayImport = []struct {
	imported string
	by       []string
	why      string
}{
	{"github.com/cilium/ebpf", []string{"internal/dataplane"}, "only internal/dataplane knows BPF"},
	{"github.com/vishvananda/netlink", []string{"internal/kernel", "internal/lab"}, "only internal/kernel, internal/nft and internal/lab speak netlink"},
	{"github.com/vishvananda/netns", []string{"internal/kernel", "internal/lab"}, "only internal/kernel, internal/nft and internal/lab speak netlink"},
	{"github.com/mdlayher/netlink", []string{"internal/kernel", "internal/nft", "internal/nl", "internal/lab"}, "only internal/kernel, internal/nft and internal/lab speak netlink"},
	{"github.com/mdlayher/genetlink", []string{"internal/kernel", "internal/nft", "internal/nl", "internal/lab"}, "only internal/kernel, internal/nft and internal/lab speak netlink"},
}

func TestImports(t *testing.T) {
	sources(t, func(path string, text []byte) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, spec := range file.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			for _, rule := range mayImport {
				if within(name, rule.imported) && !withinAny(path, rule.by) {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			}
		}
	}, ".go")
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func withinAny(path string, dirs []string) bool {
	for _, dir := range dirs {
		if within(path, dir) {
			return true
		}
	}
	return false
}

func TestFilesFitInAHead(t *testing.T) {
	sources(t, func(path string, text []byte) {
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, over %d: split it by what it does", path, n, maxLines)
		}
	}, ".go", ".c", ".h")
}

// Written apart, so that this file does not find itself.
var leftOver = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

func TestNothingLeftOver(t *testing.T) {
	sources(t, func(path string, text []byte) {
		for i, line := range bytes.Split(text, []byte("\n")) {
			if leftOver.Match(line) {
				t.Errorf("%s:%d: do it, or open an issue: %s", path, i+1, bytes.TrimSpace(line))
			}
		}
	}, ".go", ".c", ".h", ".md", "Makefile")
}

// Of a file that begins with #! the second line counts.
func TestLicenceOnTop(t *testing.T) {
	check := func(licence, where string, extensions ...string) {
		sources(t, func(path string, text []byte) {
			head, rest, _ := bytes.Cut(text, []byte("\n"))
			if bytes.HasPrefix(head, []byte("#!")) {
				head, _, _ = bytes.Cut(rest, []byte("\n"))
			}
			if !bytes.HasSuffix(bytes.TrimRight(head, " */"), []byte("SPDX-License-Identifier: "+licence)) {
				t.Errorf("%s: the first line must name the licence, as %s says: SPDX-License-Identifier: %s", path, where, licence)
			}
		}, extensions...)
	}
	check("GPL-2.0-only OR BSD-2-Clause", "bpf/LICENSE", ".c", ".h")
	check("Apache-2.0", "LICENSE", ".go", ".py", ".sh", "Makefile", ".ci/run")
}

func TestEveryPackageHasAnEssay(t *testing.T) {
	described := map[string]bool{}
	sources(t, func(path string, text []byte) {
		dir := filepath.Dir(path)
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Error(err)
			return
		}
		described[dir] = described[dir] || file.Doc != nil
	}, ".go")
	for dir, ok := range described {
		if !ok {
			t.Errorf("%s: no file has a package comment; say what it keeps, who calls it, and its limits", dir)
		}
	}
}

// The data path reads no clock that somebody can set: jiffies, and nanoseconds since boot.
var clocks = regexp.MustCompile(`\bbpf_(ktime_get\w*|jiffies64)\b`)

func TestClocksCannotBeSet(t *testing.T) {
	found := 0
	sources(t, func(path string, text []byte) {
		if !within(path, "bpf") {
			return
		}
		for _, name := range clocks.FindAllString(string(text), -1) {
			found++
			if name != "bpf_jiffies64" && name != "bpf_ktime_get_ns" {
				t.Errorf("%s: %s: a lease must not end because a clock was set; use bpf_jiffies64", path, name)
			}
		}
	}, ".c", ".h")
	if found == 0 {
		t.Error("no clock is read at all: this test looks in the wrong place")
	}
}
