// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"testing"
	"time"

	"shunt/internal/bench"
)

// One short round with few labels: all frames are accounted for by the counters of the labels and
// of the NHLFEs, which Labels itself asserts. How fast anything is is not judged here.
func TestLabels(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := bench.Options{Rounds: 1, Binary: binary, Say: t.Logf}
	const labels = 5000
	report, err := bench.Labels(t.Context(), o, bench.LabelsSize{Labels: labels, Long: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, labels} {
		c := report.Counts[i]
		if c.Labels != want || c.PPS.Median < 1000 || c.Phases[0].Hits != c.Phases[0].Sunk {
			t.Errorf("%d labels: %+v", want, c)
		}
	}
	for what, got := range map[string]bench.Spread{"loaded": report.Load, "replaced": report.Replace, "changed": report.Changes, "singly": report.Singly} {
		if got.Median <= 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if report.MapBytes < 400<<20 || report.OwnBytes < report.EmptyBytes || report.EmptyBytes == 0 {
		t.Errorf("%+v", report)
	}
	if len(report.Sizes) != 6 || len(report.Targets) != 2+2*len(report.Sizes) {
		t.Errorf("%d sizes, %d targets", len(report.Sizes), len(report.Targets))
	}
	for _, s := range report.Sizes {
		if min(s.Limit.Median, s.IP.Median, s.One.Median, s.All.Median) < 1000 || s.OfLimit <= 0 || s.OfIP <= 0 {
			t.Errorf("%+v", s)
		}
	}
}
