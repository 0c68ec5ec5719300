// SPDX-License-Identifier: Apache-2.0

// Package always has a test that always fails, beside one that passes.
package always

import "testing"

func TestFails(t *testing.T) {
	t.Run("inside", func(t *testing.T) { t.Error("as always") })
}

func TestPasses(*testing.T) {}
