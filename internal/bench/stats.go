// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
)

// Spread is a figure that was taken several times.
type Spread struct {
	Median  float64   `json:"median"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	MAD     float64   `json:"mad"`     // median of the distances from the median
	Samples []float64 `json:"samples"` // in the order they were taken
}

// spreadOf describes samples. Without any, all is zero.
func spreadOf(samples []float64) Spread {
	if len(samples) == 0 {
		return Spread{}
	}
	s := Spread{Median: median(samples), Min: slices.Min(samples), Max: slices.Max(samples), Samples: samples}
	distances := make([]float64, len(samples))
	for i, x := range samples {
		distances[i] = math.Abs(x - s.Median)
	}
	s.MAD = median(distances)
	return s
}

// median is the middle sample, or the mean of the two in the middle; 0 without any.
func median(samples []float64) float64 {
	n := len(samples)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// midmean is the mean of the middle half of the samples: as steady as a mean, and as deaf to a wild
// sample as a median; 0 without any.
func midmean(samples []float64) (m float64) {
	sorted := slices.Sorted(slices.Values(samples))
	middle := sorted[len(sorted)/4 : len(sorted)-len(sorted)/4]
	for _, x := range middle {
		m += x / float64(len(middle))
	}
	return m
}

// ratios divides sample by sample: what was measured in one round by what was measured
// in the same round. A divisor of zero gives zero, which JSON can write.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		if b[i] != 0 {
			r[i] = a[i] / b[i]
		}
	}
	return r
}

// percentile is the sample below which a share (0 to 1) of all lie; the samples must be
// sorted. It is the nearest rank, so always one of them; 0 without any.
func percentile[T int64 | float64](sorted []T, share float64) T {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(share * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
