// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"encoding/json"
	"testing"
	"time"

	"shunt/internal/bench"
	"shunt/internal/lab"
)

// One round of very short phases: LSR itself asserts that every frame came with the right label and by the
// right way, and the counters of all labels. Here: that it measured what it says. How fast is not judged.
func TestLSR(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := bench.Options{Rounds: 1, Binary: binary, Say: t.Logf}
	size := bench.LSRSize{Sizes: []int{60, 1500}, Long: 20 * time.Millisecond, Warm: 10 * time.Millisecond}
	report, err := bench.LSR(t.Context(), o, size)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(bench.LSROperations()) * len(size.Sizes) * 2; len(report.Results) != want {
		t.Errorf("%d results, want %d", len(report.Results), want)
	}
	labels := map[bench.LSROperation][2]int{lab.OpPush: {0, 1}, lab.OpSwap: {1, 1}, lab.OpPopSwap: {2, 1}, lab.OpPHP: {1, 0}}
	for _, r := range report.Results {
		l := labels[r.Operation]
		if r.BytesIn != r.Bytes+4*l[0] || r.BytesOut != r.Bytes+4*l[1] || len(r.Phases) != o.Rounds {
			t.Errorf("%+v", r)
		}
		for _, p := range r.Phases {
			want := map[bench.LSROperation][3]bool{ // switched, hits, forwarded by the kernel
				bench.LSRLimit: {}, bench.LSRKernel: {2: true}, lab.OpIP: {1: true}, lab.OpPush: {1: true},
				lab.OpSwap: {0: true}, lab.OpPopSwap: {0: true}, lab.OpPHP: {0: true},
			}[r.Operation]
			if push := r.Operation == lab.OpPush; p.Imposed > 0 != push {
				t.Errorf("%s: %+v", r.Operation, p)
			}
			if p.Sent == 0 || p.Sunk != p.Sent || p.PPS <= 0 || want != [3]bool{p.Switched > 0, p.Hits > 0, want[2] && p.Forwarded > 0} {
				t.Errorf("%s, cores: %d: %+v", r.Operation, r.Cores, p)
			}
		}
		if r.OfIP.Median <= 0 || r.OfLimit.Median <= 0 || r.OfKernel.Median <= 0 {
			t.Errorf("%s: %+v", r.Operation, r)
		}
	}
	if len(report.Targets) != len(size.Sizes)+2 {
		t.Errorf("%+v", report.Targets)
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var fields struct {
		Results []map[string]any `json:"results"`
		Command string           `json:"command"`
	}
	if err := json.Unmarshal(text, &fields); err != nil || fields.Command != "shunt lab lsr --rounds 1" {
		t.Fatalf("%v: %s", err, text)
	}
	for _, name := range []string{"operation", "cores", "bytes", "bytes_in", "bytes_out", "pps", "of_limit", "of_ip", "of_kernel", "phases"} {
		if fields.Results[0][name] == nil {
			t.Errorf("a result has no %s", name)
		}
	}
}
