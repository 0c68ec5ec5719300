// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/bench"
)

// instructionsFlags are what `shunt bench instructions` takes beside --rounds and --json.
type instructionsFlags struct {
	flows         []int
	out           string // directory
	baseline      string // file to hold the report against
	writeBaseline string // file to make of it
	inside        string // file; set in the guest alone
}

func (e *env) benchInstructions() *cobra.Command {
	var (
		f      instructionsFlags
		cases  []string
		report *bench.InstructionsReport
	)
	cmd := measuring(e, &cobra.Command{
		Use:   "instructions [CASE]...",
		Short: "Instructions per packet, beside what the kernel has",
		Long: `Counts the instructions of one 64-byte packet, in a virtual machine with Debian's kernel
whose clock is its instructions: this machine need not be quiet. Each round is a boot, of
about eleven minutes with all cases:
  ` + strings.Join(bench.InstructionCases(), " "),
		Example: `  shunt bench instructions --out docs/bench
  shunt bench instructions --rounds 1 --flows 1 limit shunt-xdp`,
	}, func(ctx context.Context, o bench.Options) (_ *bench.InstructionsReport, err error) {
		report, err = bench.Instructions(ctx, bench.InstructionsOptions{Options: o, Cases: cases, Flows: f.flows})
		return report, err
	}, printInstructions, func(r *bench.InstructionsReport) []bench.Target { return r.Targets })
	flags := cmd.Flags()
	flags.IntSliceVar(&f.flows, "flows", nil, "`numbers` of flows (default 1,10000)")
	flags.StringVar(&f.out, "out", "", "`directory` to write a table and a chart to, as Markdown, SVG and PNG")
	flags.StringVar(&f.baseline, "baseline", "", "`file` with what shunt's cases may cost; over 2 % more fails")
	flags.StringVar(&f.writeBaseline, "write-baseline", "", "`file` to write for --baseline")
	flags.StringVar(&f.inside, "inside", "", "`file` for the figures, in the guest")
	flags.Lookup("inside").Hidden = true

	measure := cmd.RunE
	cmd.Args = func(_ *cobra.Command, args []string) error {
		cases = args
		return f.check(args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.inside != "" {
			return e.countInside(cmd.Context(), f, cases)
		}
		err := measure(cmd, args)
		if report == nil {
			return err
		}
		used := f.use(report) // even if it is not as wanted
		if err != nil && used != nil {
			return fmt.Errorf("%w; %w", err, used)
		}
		return errors.Join(err, used)
	}
	return cmd
}

// check finds what is wrong before minutes are spent.
func (f *instructionsFlags) check(cases []string) error {
	if err := bench.CheckCases(cases); err != nil {
		return usageError{err}
	}
	for _, n := range f.flows {
		if n < 1 || n > bench.MaxInstructionFlows {
			return usagef("instructions: --flows %d: use 1 to %d", n, bench.MaxInstructionFlows)
		}
	}
	if f.baseline != "" {
		_, err := bench.ReadBaseline(f.baseline)
		return err
	}
	return nil
}

// use does with a report what the flags say.
func (f *instructionsFlags) use(r *bench.InstructionsReport) (err error) {
	if f.out != "" {
		err = r.WriteFiles(f.out)
	}
	if f.writeBaseline != "" {
		err = errors.Join(err, r.WriteBaseline(f.writeBaseline))
	}
	if f.baseline != "" {
		baseline, readErr := bench.ReadBaseline(f.baseline)
		if readErr != nil {
			return errors.Join(err, readErr)
		}
		err = errors.Join(err, baseline.Check(r))
	}
	return err
}

// countInside is the guest's part: it counts, and leaves the figures in a file.
func (e *env) countInside(ctx context.Context, f instructionsFlags, cases []string) error {
	binary, err := bench.Executable()
	if err != nil {
		return err
	}
	said := progress{Writer: e.err}
	counted, err := bench.CountInside(ctx, bench.InstructionsOptions{
		Options: bench.Options{Binary: binary, Say: said.say}, Cases: cases, Flows: f.flows,
	})
	said.end()
	if err != nil {
		return err
	}
	text, err := json.Marshal(counted)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.inside, text, 0o644); err != nil {
		return fmt.Errorf("bench instructions: %w", err)
	}
	return nil
}

func printInstructions(p *page, r *bench.InstructionsReport) {
	printHead(p, r.Head)
	t := newTable("CASE", "", ">FLOWS", ">GROSS", ">NET", ">+LIMIT", ">APART")
	for _, c := range r.Cases {
		over, apart := "", ""
		if c.OverLimit != nil {
			over = bench.Thousands(*c.OverLimit)
		}
		if r.Rounds > 1 {
			apart = fixed(100*c.Apart, 2) + " %"
		}
		t.add(c.Name, c.Title, bench.Thousands(float64(c.Flows)), bench.Thousands(c.Gross.Median), bench.Thousands(c.Net.Median), over, apart)
	}
	p.table(t)
	p.line("")
	p.wrap("GROSS: with generator and sink. NET: without; of shunt-tax: less that of masquerade. "+
		"+LIMIT: more than the empty redirect. APART: the largest difference between rounds.", 80)
	for _, s := range r.Skipped {
		p.line("")
		p.wrap("skipped: "+s.String(), 80)
	}
	printTargets(p, r.Targets)
}
