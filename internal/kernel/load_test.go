package kernel

import "testing"

// TestLoadConntrack: it comes back, whether there is a module to load or not.
func TestLoadConntrack(t *testing.T) { LoadConntrack() }
