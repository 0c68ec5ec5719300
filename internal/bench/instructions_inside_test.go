// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"shunt/internal/bench"
)

// On this machine the figures are times, but every case goes the way that it says, or
// CountInside fails; and what the kernel lacks is told by the probe that found out.
func TestCountInside(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	o := bench.InstructionsOptions{
		Options: bench.Options{Binary: binary, Say: func(format string, args ...any) { fmt.Fprintf(&said, format, args...) }},
		Cases:   []string{"limit", "shunt-xdp6", "shunt-tc", "flowtable", "ipv6", "mpls-swap", "mpls-push"},
		Flows:   []int{2},
	}
	counted, err := bench.CountInside(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range o.Cases {
		has := slices.IndexFunc(counted.Cases, func(c bench.CountedCase) bool { return c.Name == name })
		lacks := slices.IndexFunc(counted.Skipped, func(s bench.Skipped) bool { return s.Name == name })
		switch {
		case has >= 0 && lacks < 0:
			if c := counted.Cases[has]; c.Flows != 2 || len(c.Gross) == 0 || slices.Max(c.Gross) <= 0 || slices.Max(c.Floor) <= 0 {
				t.Errorf("%+v", c)
			}
		case has < 0 && lacks >= 0:
			if s := counted.Skipped[lacks]; !strings.Contains(s.Probe, "kallsyms has no") || !strings.Contains(said.String(), s.String()[len(name):]) {
				t.Errorf("%s is skipped, and no probe is told: %s", name, s)
			}
		default:
			t.Errorf("%s is neither counted nor skipped, or both", name)
		}
	}
	for _, name := range []string{"limit", "shunt-xdp6", "shunt-tc", "ipv6"} {
		if !slices.ContainsFunc(counted.Cases, func(c bench.CountedCase) bool { return c.Name == name }) {
			t.Errorf("%s was not counted: every kernel has it", name)
		}
	}
}
