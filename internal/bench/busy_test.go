// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"context"
	"testing"

	"shunt/internal/bench"
)

// A few changes beside each load: each is seen to be obeyed, none before the daemon gathers
// changes, and the packets in between are hits. How soon is not judged here.
func TestChangesBusy(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := bench.Options{Rounds: 1, Binary: binary, Say: func(string, ...any) {}}
	report, err := bench.ChangesBusy(context.Background(), o, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Busy) != 3 || len(report.Targets) != 9 {
		t.Errorf("%+v", report)
	}
	for _, b := range report.Busy {
		if len(b.Samples)+b.Void != 3 || len(b.Samples) > 0 && b.P50 < 0.002 || b.Max < b.P99 || b.P99 < b.P50 {
			t.Errorf("beside %s: %+v", b.Load, b)
		}
		if b.Hits <= 0 || b.Hits > 1 {
			t.Errorf("beside %s: hit share %v", b.Load, b.Hits)
		}
	}
}
