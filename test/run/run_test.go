// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun runs packages that fail in all the ways there are, as make test runs this tree's.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "run")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, c := range []struct {
		pkg, want string
		flags     []string
		code      int
	}{
		{pkg: "other", want: "flaky: shunt/test/run/testdata/other TestOther/with_(odd)_name+\n2 passed, 0 failed, 0 skipped\n"},
		{pkg: "other", flags: []string{"-noisy", "-seed", "7"}, code: 1,
			want: "--- FAIL: shunt/test/run/testdata/other TestOther/with_(odd)_name+\nnoisy: seed was 7\n0 passed, 1 failed, 0 skipped\n"},
		{pkg: "always", want: "--- FAIL: shunt/test/run/testdata/always TestFails/inside\n1 passed, 1 failed, 0 skipped\n", code: 1},
		{pkg: "main", want: "--- FAIL: shunt/test/run/testdata/main\n1 passed, 1 failed, 0 skipped\n", code: 1},
		{pkg: "panics", want: "--- FAIL: shunt/test/run/testdata/panics TestPanics\n0 passed, 1 failed, 0 skipped\n", code: 1},
		{pkg: "broken", want: "--- FAIL: shunt/test/run/testdata/broken\n0 passed, 1 failed, 0 skipped\n", code: 1},
	} {
		t.Run(strings.Join(append(c.flags, c.pkg), " "), func(t *testing.T) {
			cmd := exec.Command(program, append(c.flags, "-events", filepath.Join(dir, c.pkg+".json"), "./test/run/testdata/"+c.pkg)...)
			cmd.Dir = "../.."
			cmd.Env = append(os.Environ(), "RUN_TEST_NOTE="+filepath.Join(t.TempDir(), "note"))
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); (code != 0) != (c.code != 0) || !strings.HasSuffix(string(out), "\n\n"+c.want) {
				t.Errorf("exit status %d, want %d:\n%s\nwant at its end:\n%s", code, c.code, out, c.want)
			}
		})
	}
}

// TestRead: what a test is called, from the events of its runs.
func TestRead(t *testing.T) {
	const begin, end = `{"Action":"start","Package":"p"}`, `{"Action":"fail","Package":"p"}`
	on := func(test, action string) string {
		return `{"Action":"` + action + `","Package":"p","Test":"` + test + `"}`
	}
	for _, c := range []struct {
		name, want string
		events     []string
	}{
		{"a test that no second run has met again", "--- FAIL: p T/gone\n1 passed, 1 failed, 0 skipped\n", []string{
			begin, on("T/gone", "run"), on("T/gone", "fail"), on("T", "fail"), end,
			begin, on("T", "run"), on("T", "pass"), `{"Action":"pass","Package":"p"}`}},
		{"a test that is skipped the second time", "--- FAIL: p T\n0 passed, 1 failed, 1 skipped\n", []string{
			begin, on("T", "run"), on("T", "fail"), end, begin, on("T", "run"), on("T", "skip"), `{"Action":"pass","Package":"p"}`}},
		{"a test that was under way when the process ended", "--- FAIL: p T\n0 passed, 1 failed, 0 skipped\n", []string{
			begin, on("T", "run"), end}},
		{"a package that fails by itself, beside a flaky test of another", "--- FAIL: q\nflaky: p T\n1 passed, 1 failed, 0 skipped\n", []string{
			begin, on("T", "run"), on("T", "fail"), end, `{"Action":"start","Package":"q"}`, `{"Action":"fail","Package":"q"}`,
			begin, on("T", "run"), on("T", "pass"), `{"Action":"pass","Package":"p"}`,
			`{"Action":"start","Package":"q"}`, `{"Action":"pass","Package":"q"}`}},
		{"an outer test that fails beside a flaky inner one", "--- FAIL: p T\nflaky: p T/in\n1 passed, 1 failed, 0 skipped\n", []string{
			begin, on("T/in", "run"), on("T/in", "fail"), on("T", "fail"), end,
			begin, on("T/in", "run"), on("T/in", "pass"), on("T", "fail"), end}},
	} {
		v, err := read(strings.NewReader(strings.Join(c.events, "\n")))
		if got := v.String() + v.Last() + "\n"; err != nil || got != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, c.want)
		}
	}
	if _, err := read(strings.NewReader("FAIL\n")); err == nil {
		t.Error("what is no event was read as one")
	}
}
