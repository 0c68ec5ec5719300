// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"shunt/internal/bench"
)

// One short round on each number of CPUs that is here: every CPU sinks what it sends, or the bench
// fails, and shunt repeats nearly all of it. How fast it is is not judged here.
func TestCores(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := bench.Options{Rounds: 1, Binary: binary, Say: func(string, ...any) {}}
	report, err := bench.Cores(context.Background(), o, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	most := map[bool]int{}
	for _, p := range report.Points {
		most[p.NAT] = max(most[p.NAT], p.CPUs)
		if len(p.Phases) != 3 || p.HitShare.Min < 0.99 || p.Kernel.Median <= 0 || p.Limit.Median <= 0 {
			t.Errorf("%d CPUs, NAT %t: %+v", p.CPUs, p.NAT, p)
		}
	}
	if most[true] != runtime.NumCPU() || most[false] != runtime.NumCPU() {
		t.Errorf("at most %v CPUs of %d", most, runtime.NumCPU())
	}
}
