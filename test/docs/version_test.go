// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVersionNamesTheCommit: a build of a clone says which commit it is of. make has git answer
// about a clone that is somebody else's, too.
func TestVersionNamesTheCommit(t *testing.T) {
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = top
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := run("git", "rev-parse", "HEAD")
	program := filepath.Join(t.TempDir(), "shunt")
	run("go", "build", "-buildvcs=auto", "-o", program, "./cmd/shunt")
	if got := run(program, "--version"); !strings.Contains(got, "+"+commit[:12]) {
		t.Errorf("%q does not name commit %s", got, commit)
	}
}
