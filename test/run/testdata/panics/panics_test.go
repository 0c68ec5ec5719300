// SPDX-License-Identifier: Apache-2.0

// Package panics has a test that panics the first time, and would pass the second.
package panics

import (
	"os"
	"testing"
)

func TestPanics(*testing.T) {
	note := os.Getenv("RUN_TEST_NOTE")
	if os.Remove(note) != nil {
		panic(os.WriteFile(note, nil, 0o600))
	}
}
