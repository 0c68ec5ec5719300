// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"encoding/json"
	"testing"

	"shunt/internal/bench"
)

// One or two routers, a few echoes: Chain itself asserts every answer, the label that the last router is sent, and
// the counters of all routers and labels. How fast it is, is not judged here.
func TestChain(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	size := bench.ChainSize{Hops: []int{1, 2}, Routes: 100, Sizes: []int{60, 1514}, Echoes: 60}
	o := bench.Options{Rounds: 2, Binary: binary, Say: t.Logf}
	report, err := bench.Chain(t.Context(), o, size)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range bench.ChainWays() {
		for _, hops := range size.Hops {
			for _, bytes := range size.Sizes {
				r := report.Find(way, hops, bytes)
				if way == bench.ChainMPLS && hops == 1 { // no label, no figure
					if r != nil {
						t.Errorf("%+v", r)
					}
					continue
				}
				if r == nil || r.Answered != o.Rounds*size.Echoes || r.Median.Median <= 0 || r.P99.Median < r.Median.Median ||
					len(r.OfIP.Samples) != o.Rounds || len(r.OfKernel.Samples) != o.Rounds {
					t.Errorf("%s, routers: %d, %d bytes: %+v", way, hops, bytes, r)
				}
			}
		}
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var fields struct {
		Results []map[string]any `json:"results"`
		Command string           `json:"command"`
	}
	if err := json.Unmarshal(text, &fields); err != nil || fields.Command != "shunt lab chain --hops 1..2 --routes 100 --rounds 2" {
		t.Fatalf("%v: %s", err, text)
	}
	for _, name := range []string{"way", "hops", "bytes", "median_s", "p99_s", "of_ip", "of_kernel", "answered"} {
		if fields.Results[0][name] == nil {
			t.Errorf("a result has no %s", name)
		}
	}
}
