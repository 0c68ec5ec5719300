// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"shunt/internal/bench"
)

// One round of very short phases: all adds up (or Firewall fails) and the report has what
// is promised. How fast it is, is not judged here.
func TestFirewall(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	o := bench.Options{Rounds: 1, Binary: binary, Say: func(format string, args ...any) { fmt.Fprintf(&progress, format, args...) }}
	report, err := bench.Firewall(context.Background(), o, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, mode := range []bench.Mode{bench.Kernel, bench.Attached, bench.Shunt, bench.Limit} {
		p := report.Phases[i]
		if p.Mode != mode || p.Sunk == 0 || p.Sunk != p.Sent {
			t.Errorf("phase %d: want mode %s and every frame sunk: %+v", i, mode, p)
		}
		if hits := mode == bench.Shunt; hits != (p.Hits > 0) {
			t.Errorf("%s: %d hits", mode, p.Hits)
		}
		if mode != bench.Limit && p.Hits+p.Forwarded != p.Sunk {
			t.Errorf("%s: %d hits and %d forwarded are not %d sunk", mode, p.Hits, p.Forwarded, p.Sunk)
		}
		if !strings.Contains(progress.String(), string(mode)) {
			t.Errorf("progress says nothing of %s: %q", mode, progress.String())
		}
	}
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"kernel_pps", "attached_pps", "shunt_pps", "limit_pps", "speedup", "of_limit", "slow_path_tax",
		"hit_share", "spread", "phases", "targets", "bench", "command", "kernel", "clang", "date", "cpu",
	} {
		if fields[name] == nil {
			t.Errorf("the report has no %s", name)
		}
	}
}

func TestInterrupted(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	say := func(string, ...any) { cancel() } // at the first word
	_, err = bench.Firewall(ctx, bench.Options{Binary: binary, Say: say}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v", err)
	}
}
