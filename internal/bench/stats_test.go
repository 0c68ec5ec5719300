// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Spread
	}{
		{nil, Spread{}},
		{[]float64{7}, Spread{7, 7, 7, 0, []float64{7}}},
		{[]float64{4, 1}, Spread{2.5, 1, 4, 1.5, []float64{4, 1}}},
		// One wild sample moves neither the median nor the MAD.
		{[]float64{10, 900, 12, 9, 11}, Spread{11, 9, 900, 1, []float64{10, 900, 12, 9, 11}}},
	} {
		if diff := cmp.Diff(c.want, spreadOf(c.samples)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.samples, diff)
		}
	}
}

func TestMedianLeavesTheOrder(t *testing.T) {
	samples := []float64{3, 1, 2}
	if m := median(samples); m != 2 || samples[0] != 3 {
		t.Errorf("median %v, samples now %v", m, samples)
	}
}

func TestMidmean(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{4, 1}, 2.5},
		{[]float64{900, 1, 3, 5}, 4}, // of 1, 3, 5, 900
		{[]float64{8, 7, 6, 5, 4, 3, 2, 900}, 5.5},
	} {
		if got := midmean(c.samples); got != c.want {
			t.Errorf("%v: %v, want %v", c.samples, got, c.want)
		}
	}
}

func TestRatios(t *testing.T) {
	got := ratios([]float64{10, 8, 5, 1}, []float64{2, 0, 4})
	if diff := cmp.Diff([]float64{5, 0, 1.25}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPercentile(t *testing.T) {
	samples := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for share, want := range map[float64]int64{0: 1, 0.5: 5, 0.51: 6, 0.99: 10, 1: 10} {
		if got := percentile(samples, share); got != want {
			t.Errorf("%v: %d, want %d", share, got, want)
		}
	}
	if percentile([]int64(nil), 0.5) != 0 {
		t.Error("of nothing")
	}
}
