// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reread returns what is in a journal.
func reread(t *testing.T, path string) (lines []string, torn bool) {
	t.Helper()
	_, torn, err := readJournal(path, func(r record) error {
		lines = append(lines, r.Origin+": "+strings.Join(r.Lines, ", "))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines, torn
}

func begun(t *testing.T, path string, lines ...string) *journal {
	t.Helper()
	j, err := newJournal(path, record{Origin: "all", Lines: lines})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.close)
	return j
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if lines, torn := reread(t, path); len(lines) > 0 || torn {
		t.Errorf("none: %v, %v", lines, torn)
	}
	j := begun(t, path)
	if lines, torn := reread(t, path); len(lines) > 0 || torn {
		t.Errorf("an empty one: %v, %v", lines, torn)
	}
	add := func(lines ...string) {
		t.Helper()
		if err := j.add(record{Origin: "cli", Lines: lines}); err != nil {
			t.Fatal(err)
		}
	}
	add("a", "b")
	before := j.size
	add("refused")
	if err := j.drop(before); err != nil {
		t.Fatal(err)
	}
	add("c\nd")
	lines, torn := reread(t, path)
	if diff := cmp.Diff([]string{"cli: a, b", "cli: c\nd"}, lines); diff != "" || torn {
		t.Errorf("torn %v\n%s", torn, diff)
	}
	if err := j.compact(record{Origin: "all", Lines: []string{"abcd"}}); err != nil {
		t.Fatal(err)
	}
	add("e") // behind it
	lines, _ = reread(t, path)
	if diff := cmp.Diff([]string{"all: abcd", "cli: e"}, lines); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if err := j.compact(record{Origin: "all"}); err != nil || j.size != 0 {
		t.Errorf("empty tables: %d bytes, %v", j.size, err)
	}
}

// TestJournalTorn: what a dying daemon has not written to its end never was, wherever it ends.
func TestJournalTorn(t *testing.T) {
	dir := t.TempDir()
	whole := `{"time":"2026-07-01T12:00:00Z","origin":"cli","lines":["a"]}` + "\n"
	last := `{"time":"2026-07-01T12:00:00Z","origin":"cli","lines":["b"]}` + "\n"
	for n := 1; n < len(last); n++ {
		path := filepath.Join(dir, "journal")
		if err := os.WriteFile(path, []byte(whole+last[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		lines, torn := reread(t, path)
		if diff := cmp.Diff([]string{"cli: a"}, lines); diff != "" || !torn {
			t.Fatalf("%d bytes: torn %v\n%s", n, torn, diff)
		}
	}
	// blocks that were never written are zeros
	path := filepath.Join(dir, "zeros")
	if err := os.WriteFile(path, []byte(whole+strings.Repeat("\x00", 100)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if lines, torn := reread(t, path); len(lines) != 1 || !torn {
		t.Errorf("zeros: %v, %v", lines, torn)
	}
}

// TestJournalBroken: what is wrong in the middle is nobody's to guess.
func TestJournalBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path, []byte("{}\n{\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := readJournal(path, func(record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), path+": line 2: ") || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(path, []byte("{}\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = readJournal(path, func(record) error { return errors.New("label 3: never") })
	if err == nil || !strings.Contains(err.Error(), "line 1: label 3: never") {
		t.Errorf("%v", err)
	}
}

// TestJournalIsBounded: it is compacted before it is more than so much too long.
func TestJournalIsBounded(t *testing.T) {
	j := begun(t, filepath.Join(t.TempDir(), "journal"))
	big := record{Lines: []string{strings.Repeat("x", 1<<20)}}
	for n := 0; !j.long(); n++ {
		if n > 20 {
			t.Fatalf("%d bytes and not long", j.size)
		}
		if err := j.add(big); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.compact(big); err != nil || j.long() || j.base != j.size {
		t.Errorf("long %v, %d of %d bytes, %v", j.long(), j.base, j.size, err)
	}
}

// TestJournalKept: where a journal cannot be written anew the old one goes on behind its last whole
// transaction, and a file that is not there is made as soon as there is room for it.
func TestJournalKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := begun(t, path, "a")
	if err := j.add(record{Origin: "cli", Lines: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.file.WriteString(`{"time":`); err != nil {
		t.Fatal(err)
	}
	whole, torn, err := readJournal(path, func(record) error { return nil })
	if err != nil || !torn || whole != j.size {
		t.Fatalf("%d bytes are whole, torn %v, %v; want %d", whole, torn, err, j.size)
	}
	j = keepJournal(path, whole)
	defer j.close()
	if err := j.add(record{Origin: "cli", Lines: []string{"c"}}); err != nil {
		t.Fatal(err)
	}
	if lines, torn := reread(t, path); torn || !cmp.Equal(lines, []string{"all: a", "cli: b", "cli: c"}) {
		t.Errorf("torn %v, %q", torn, lines)
	}

	later := filepath.Join(t.TempDir(), "not", "yet")
	j = keepJournal(filepath.Join(later, "journal"), 0)
	defer func() { j.close() }()
	if err := j.add(record{Lines: []string{"a"}}); err == nil || !strings.Contains(err.Error(), "--state") {
		t.Errorf("%v", err)
	}
	if err := os.MkdirAll(later, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.add(record{Origin: "cli", Lines: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if lines, torn := reread(t, j.path); torn || !cmp.Equal(lines, []string{"cli: b"}) {
		t.Errorf("torn %v, %q", torn, lines)
	}
}
