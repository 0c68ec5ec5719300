// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"shunt/internal/vm"
	"shunt/test/suite"
)

// TestTooOld: Debian 12's own kernel is below the floor. Both commands that need a kernel say
// so in one line with its release and what is needed, fail, and leave nothing.
func TestTooOld(t *testing.T) {
	program := filepath.Join(t.TempDir(), "shunt")
	if err := suite.Build(program, ""); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code, err := vm.Run(t.Context(), vm.Options{
		Kernel: "6.1", Timeout: 5 * time.Minute, Output: &out, Progress: os.Stdout,
		Command: []string{"sh", "-c", `
			"$1" run --port lo 2>/run/errors; code=$?
			echo "run $code: $(cat /run/errors)"
			"$1" doctor >/run/output 2>&1; code=$?
			echo "doctor $code: $(cat /run/output)"
			echo "left: $(ls -d /run/shunt /sys/fs/bpf/* 2>/dev/null)"`, "sh", program},
	})
	if err != nil || code != 0 {
		t.Fatalf("exit code %d, %v\n%s", code, err, &out)
	}
	t.Logf("\n%s", &out)
	for _, want := range []string{
		`(?m)^run 1: shunt: kernel 6\.1\.\S+ is too old: shunt needs 6\.6 or later.*\ndoctor `,
		`(?ms)^doctor 1: .*6\.1\..*Linux 6\.6 or newer`,
		`(?m)^left: $`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("not as it should be: %s", want)
		}
	}
}
