// SPDX-License-Identifier: Apache-2.0

// Package other has a test that fails every other time.
package other

import (
	"os"
	"testing"
)

func TestOther(t *testing.T) {
	t.Run("with (odd) name+", func(t *testing.T) {
		note := os.Getenv("RUN_TEST_NOTE")
		if os.Remove(note) != nil {
			if err := os.WriteFile(note, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Error("this time")
		}
	})
}
