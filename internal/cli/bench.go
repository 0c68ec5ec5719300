// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/bench"
)

func (e *env) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench NAME",
		Short: "Measure shunt in a lab of namespaces",
		Long: `Measures in a lab that it makes and removes; the host's interfaces and a running daemon
are not touched. Progress goes to stderr, the result to stdout. A figure that misses its
target, or counters that do not add up, make the exit code 1. The machine should be quiet.`,
		Example: `  shunt bench firewall
  shunt bench flows --json`,
	}
	group(cmd, e.benchFirewall(), e.benchFlows(), e.benchRules(), e.benchTCP(), e.benchConnections(), e.benchInstructions(), e.benchChanges(),
		e.benchAttacks(), e.benchLabels(), e.benchCores())
	return cmd
}

// measuring makes a command of a bench: run measures, text prints what it returned, and
// targets picks the judgement.
func measuring[R any](e *env, cmd *cobra.Command, run func(context.Context, bench.Options) (R, error),
	text func(*page, R), targets func(R) []bench.Target) *cobra.Command {
	var rounds int
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if rounds < 0 || cmd.Flags().Changed("rounds") && rounds == 0 {
			return usagef("%s: rounds %d: use a number from 1 on", cmd.Name(), rounds)
		}
		binary, err := bench.Executable()
		if err != nil {
			return err
		}
		said := progress{Writer: e.err}
		report, err := run(cmd.Context(), bench.Options{Rounds: rounds, Binary: binary, Say: said.say})
		said.end()
		if err != nil {
			return err
		}
		if err := e.show(report, func(p *page) { text(p, report) }); err != nil {
			return err
		}
		if all := targets(report); bench.Missed(all) > 0 {
			return fmt.Errorf("%s: %d of %d targets missed; times, not instructions, need a quiet machine: if it was busy, measure again",
				strings.TrimPrefix(cmd.CommandPath(), "shunt "), bench.Missed(all), len(all))
		}
		return nil
	}
	cmd.Flags().IntVar(&rounds, "rounds", 0, "`times` that everything is measured, in turn (default: the bench's own)")
	cmd.Flags().BoolVar(&e.json, "json", false, "print JSON, with every sample")
	return cmd
}

// filed is a report that can be written to a directory.
type filed interface{ WriteFiles(dir string) error }

// filing is measuring with a flag for the directory that the report's tables and charts are written to.
func filing[R filed](e *env, cmd *cobra.Command, run func(context.Context, bench.Options) (R, error),
	text func(*page, R), targets func(R) []bench.Target) *cobra.Command {
	var out string
	measuring(e, cmd, func(ctx context.Context, o bench.Options) (report R, err error) {
		if out != "" { // what is wrong with it shows before minutes are spent
			if err := os.MkdirAll(out, 0o755); err != nil {
				return report, fmt.Errorf("--out: %w", err)
			}
		}
		if report, err = run(ctx, o); err == nil && out != "" {
			err = report.WriteFiles(out)
		}
		return report, err
	}, text, targets)
	cmd.Flags().StringVar(&out, "out", "", "`directory` to write tables and charts to, as Markdown, SVG and PNG")
	return cmd
}

// progress writes what a bench says of itself, and knows whether a line is unfinished.
type progress struct {
	io.Writer
	open bool
}

func (p *progress) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.open = !strings.HasSuffix(text, "\n")
	io.WriteString(p, text)
}

// end finishes the line, so that an error gets one of its own.
func (p *progress) end() {
	if p.open {
		p.say("\n")
	}
}

// firewallWindow is how long each phase of `shunt bench firewall` is measured.
const firewallWindow = time.Second

func (e *env) benchFirewall() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "firewall",
		Short: "64-byte packets through a stateful firewall",
		Long: `Sends 64-byte UDP through conntrack, masquerade and a drop policy, with generator, router
and sink on one core: with nothing attached, with shunt attached and its threshold out of
reach, with shunt, and with an empty XDP redirect, which is the limit. About a minute.`,
		Example: `  shunt bench firewall
  shunt bench firewall --json --rounds 9`,
	}, func(ctx context.Context, o bench.Options) (*bench.FirewallReport, error) {
		return bench.Firewall(ctx, o, firewallWindow)
	}, printFirewall, func(r *bench.FirewallReport) []bench.Target { return r.Targets })
}

func (e *env) benchFlows() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "flows",
		Short: "1, 1,000, 100,000 and 1,000,000 flows",
		Long: `Sends as much as the machine takes in 1, 1,000, 100,000 and (in the first round) 1,000,000
flows, with the default threshold and lease, and says what part went to the kernel. Without
room in conntrack for a million (nf_conntrack_max) these are only routed. About eight minutes.`,
		Example: `  shunt bench flows
  shunt bench flows --json --rounds 1`,
	}, bench.Flows, printFlowsReport, func(r *bench.FlowsReport) []bench.Target { return r.Targets })
}

func (e *env) benchRules() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "rules",
		Short: "1, 100 and 1,000 nft rules ahead of the accept",
		Long: `Measures how the length of the ruleset matters, with 1 and 1,000 flows: the kernel looks
at every rule for every packet, shunt only for those that prove a lease. About two minutes.`,
		Example: `  shunt bench rules
  shunt bench rules --json`,
	}, bench.Rules, printRules, func(r *bench.RulesReport) []bench.Target { return r.Targets })
}

func (e *env) benchTCP() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "tcp",
		Short: "Bulk TCP, and UDP of 1400 bytes",
		Long: `Measures iperf3's TCP with and without shunt, between veths with their offloads on and
off, and UDP of 1400 bytes by iperf3 (shown, not judged: the sender is the limit) and by
the lab's generator. About four minutes.`,
		Example: `  shunt bench tcp
  shunt bench tcp --json --rounds 1`,
	}, bench.TCP, printTCP, func(r *bench.TCPReport) []bench.Target { return r.Targets })
}

func (e *env) benchConnections() *cobra.Command {
	var (
		counted bool
		rate    int
		long    time.Duration
	)
	cmd := measuring(e, &cobra.Command{
		Use:   "connections",
		Short: "5,000 short TCP connections a second",
		Long: `Opens 5,000 TCP connections a second for 30 s, each too short to be repeated, with and
without shunt: what does it take of CPU and latency? About five minutes. Or, with --counted, 1,200
a second for 12 s, in a virtual machine whose clock is its instructions: this machine need not be
quiet. About ten minutes.`,
		Example: `  shunt bench connections
  shunt bench connections --json --rounds 1
  shunt bench connections --counted`,
	}, func(ctx context.Context, o bench.Options) (*bench.ConnectionsReport, error) {
		c := bench.ConnectionsOptions{Options: o, Rate: rate, Long: long}
		if rate < 0 || long < 0 {
			return nil, usagef("connections: --rate %d --long %v: neither may be negative", rate, long)
		}
		if counted {
			return bench.ConnectionsCounted(ctx, c)
		}
		return bench.Connections(ctx, c)
	}, printConnections, func(r *bench.ConnectionsReport) []bench.Target { return r.Targets })
	cmd.Flags().BoolVar(&counted, "counted", false, "count instructions in a virtual machine, instead of time")
	cmd.Flags().IntVar(&rate, "rate", 0, "`connections` a second (default 5000, counted 1200)")
	cmd.Flags().DurationVar(&long, "long", 0, "`time` in each mode and round (default 30s, counted 12s)")
	return cmd
}

// changesWindow is how long each phase of `shunt bench changes` is measured: over a lease.
const changesWindow = 10 * time.Second

// busyChanges is how many changes `shunt bench changes --busy` makes beside each load in a round.
const busyChanges = 50

func (e *env) benchChanges() *cobra.Command {
	busy := false
	cmd := measuring(e, &cobra.Command{
		Use:   "changes",
		Short: "1,000 route changes a second beside 1,000 flows",
		Long: `Sends 100,000 packets a second in 1,000 flows, without and with 1,000 changes a second of
routes that concern none of them: do the flows stay fast, and what does the daemon take? About a minute.
Or, with --busy, blocks and opens the route of one flow, beside nothing, two busy programs a CPU, and
a flood of packets besides: how soon is it obeyed? Under three minutes.`,
		Example: `  shunt bench changes
  shunt bench changes --json --rounds 1
  shunt bench changes --busy`,
	}, func(ctx context.Context, o bench.Options) (*bench.ChangesReport, error) {
		if busy {
			return bench.ChangesBusy(ctx, o, busyChanges)
		}
		return bench.Changes(ctx, o, changesWindow)
	}, printChanges, func(r *bench.ChangesReport) []bench.Target { return r.Targets })
	cmd.Flags().BoolVar(&busy, "busy", false, "measure how soon a change is obeyed on busy CPUs")
	return cmd
}

// coresWindow is how long each phase of `shunt bench cores` is measured.
const coresWindow = time.Second

func (e *env) benchCores() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "cores",
		Short: "1, 2, 4 and so on CPUs, with NAT and without",
		Long: `Sends 64-byte UDP through conntrack and a drop policy, in a flow for each CPU, whose generator, router
and sink share that CPU: with nothing attached, with shunt, and with an empty XDP redirect. Each CPU must
sink what it sent. About a minute on two CPUs, five on sixteen.`,
		Example: `  shunt bench cores
  shunt bench cores --json --rounds 1`,
	}, func(ctx context.Context, o bench.Options) (*bench.CoresReport, error) {
		return bench.Cores(ctx, o, coresWindow)
	}, printCores, func(r *bench.CoresReport) []bench.Target { return r.Targets })
}

// labelsSize is what `shunt bench labels` measures: changes are wanted for 5 s.
var labelsSize = bench.LabelsSize{Labels: 1_000_000, Long: 5 * time.Second}

func (e *env) benchLabels() *cobra.Command {
	return measuring(e, &cobra.Command{
		Use:   "labels",
		Short: "1 and 1,000,000 MPLS labels",
		Long: `Swaps a label of frames of 64 to 1,500 bytes, beside an empty redirect and plain IP of the
same lengths. Then loads a million labels by one transaction, each with an NHLFE of its own, and
swaps those of frames, of one label and of all; then changes NHLFEs while frames are switched, of
which none may be lost. About four minutes, and 2 GB of memory.`,
		Example: `  shunt bench labels
  shunt bench labels --json --rounds 1`,
	}, func(ctx context.Context, o bench.Options) (*bench.LabelsReport, error) {
		return bench.Labels(ctx, o, labelsSize)
	}, printLabels, func(r *bench.LabelsReport) []bench.Target { return r.Targets })
}
