package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"shunt/internal/config"
)

// TestPlace: one daemon at a time; what was not there before is gone after a start that
// failed, and what was there is not.
func TestPlace(t *testing.T) {
	paths := config.Paths{State: filepath.Join(t.TempDir(), "run", "shunt")}
	in := func() *place {
		t.Helper()
		p, err := enter(paths)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := in()
	if _, err := enter(paths); err == nil || !strings.Contains(err.Error(), "a daemon runs already") {
		t.Errorf("a second daemon: %v", err)
	}
	p.undo()
	p.close()
	if _, err := os.Stat(paths.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("made for a start that failed, and there: %v", err)
	}

	if err := os.Mkdir(paths.State, 0o750); err != nil {
		t.Fatal(err)
	}
	p = in()
	p.undo()
	p.close()
	if left, err := os.ReadDir(paths.State); err != nil || len(left) > 0 {
		t.Errorf("the operator's directory: %v, %v", left, err)
	}

	// the lock that a daemon removes as it ends is nobody's
	p = in()
	if err := os.Remove(paths.Lock()); err != nil {
		t.Fatal(err)
	}
	if p.current() {
		t.Error("a lock without a name holds nobody out")
	}
	p.close()
	p = in()
	if err := p.remove(); err != nil {
		t.Error(err)
	}
	p.close()
	if _, err := os.Stat(paths.State); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after stop: %v", err)
	}
}
