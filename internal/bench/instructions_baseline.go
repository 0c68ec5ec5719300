// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
)

// Baseline is what shunt's cases are known to cost: bench/baseline.json.
type Baseline struct {
	Kernel string         `json:"kernel"` // of the guest
	Clang  string         `json:"clang"`
	Cases  []BaselineCase `json:"cases"`
}

// BaselineCase is instructions per frame over what InstructionsCase.Over says.
type BaselineCase struct {
	Name  string  `json:"name"`
	Flows int     `json:"flows"`
	Net   float64 `json:"net"`
}

// baselineRoom is the part that a case may cost more than its baseline.
const baselineRoom = 0.02

// ours tells shunt's cases by their names. What others cost is theirs to change.
func ours(name string) bool { return strings.HasPrefix(name, "shunt-") }

// ReadBaseline reads a baseline file.
func ReadBaseline(path string) (*Baseline, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bench: baseline: %w; make one with make bench-baseline", err)
	}
	b := &Baseline{}
	if err := json.Unmarshal(text, b); err != nil {
		return nil, fmt.Errorf("bench: %s is no baseline: %w", path, err)
	}
	return b, nil
}

// WriteBaseline makes shunt's figures of a report the baseline.
func (f *InstructionsReport) WriteBaseline(path string) error {
	b := Baseline{Kernel: f.Kernel, Clang: f.Clang}
	for _, c := range f.Cases {
		if ours(c.Name) {
			b.Cases = append(b.Cases, BaselineCase{c.Name, c.Flows, math.Round(c.Net.Median)})
		}
	}
	if len(b.Cases) == 0 {
		return errNoFigures
	}
	text, err := json.MarshalIndent(b, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("bench: baseline: %w", err)
	}
	return nil
}

// Check holds a report against the baseline. Its error names each case that costs too much,
// or was not counted at all, with both figures and what to do.
func (b *Baseline) Check(f *InstructionsReport) error {
	var worse []string
	for _, want := range b.Cases {
		have := f.Find(want.Name, want.Flows)
		switch {
		case have == nil:
			worse = append(worse, fmt.Sprintf("%s, flows: %d: was not counted; the baseline has %.0f", want.Name, want.Flows, want.Net))
		case have.Net.Median > want.Net*(1+baselineRoom):
			worse = append(worse, fmt.Sprintf("%s, flows: %d: %.0f instructions, the baseline has %.0f (%+.1f %%)",
				want.Name, want.Flows, have.Net.Median, want.Net, 100*(have.Net.Median/want.Net-1)))
		}
	}
	if worse == nil {
		return nil
	}
	hint := ""
	if f.Kernel != b.Kernel {
		hint = fmt.Sprintf(" (the baseline is of kernel %s, this is %s)", b.Kernel, f.Kernel)
	}
	return fmt.Errorf("bench: over the baseline by more than %.0f %%: %s%s; make it cheaper, or, if it is worth that, commit what make bench-baseline writes, alone and with the reason",
		100*baselineRoom, strings.Join(worse, "; "), hint)
}
