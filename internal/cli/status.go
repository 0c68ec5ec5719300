// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/reason"
)

func (e *env) statusCommand() *cobra.Command {
	var differences, check bool
	cmd := e.reader(&cobra.Command{
		Use:   "status",
		Short: "Show the daemon at a glance, and where packets left",
		Long: `Shows first whether all is as it should be: "degraded" is a daemon with ports that cannot
be fast, "unattended" a data path whose daemon is gone, and each problem stands below with its
remedy. Then the daemon, how full the flow table is, and for every reason how many packets
left the programs by it at each stage. A packet may be counted once at each stage: one
that XDP gave to the kernel is seen again at TC ingress.

With --check: prints nothing but the state; exit code 0 if it is "running", else 1.

With --differences: what renewals found that the kernel does in another way than shunt did
until then, though it had announced no change. The last 256 are kept, the latest first.`,
		Example: `  shunt status
  shunt status --check || logger "shunt needs a look"
  shunt status --differences
  shunt status --json | jq .counters.xdp.hit`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if differences {
				return e.showDifferences(cmd.Context())
			}
			status, err := e.status(cmd.Context())
			if err != nil {
				return err
			}
			if check {
				return e.check(status)
			}
			return e.show(status, func(p *page) { printStatus(p, status) })
		},
	})
	cmd.Flags().BoolVar(&differences, "differences", false, "show what renewals found that no event had announced")
	cmd.Flags().BoolVar(&check, "check", false, "print the state alone; exit code 1 if it is not \"running\"")
	cmd.MarkFlagsMutuallyExclusive("check", "differences")
	return cmd
}

// check is an error unless all is as it should be: for scripts.
func (e *env) check(s api.Status) error {
	if s.State == api.StateRunning || e.json {
		if err := e.show(s, func(p *page) { p.line("%s", s.State) }); err != nil || s.State == api.StateRunning {
			return err
		}
	}
	words := s.State
	if s.State == api.StatePaused {
		words += `: everything goes to the kernel, until "shunt resume"`
	}
	if len(s.Problems) > 0 {
		words += ": " + sentence(s.Problems[0].Finding, s.Problems[0].Remedy)
	}
	if more := len(s.Problems) - 1; more > 0 {
		words += fmt.Sprintf("; and %d more, see \"shunt status\"", more)
	}
	return errors.New(words)
}

// stateCell is the state as the first row has it.
func stateCell(s api.Status) cell {
	switch {
	case s.State == api.StateUnattended && s.Paused:
		return cell{`unattended, and paused: everything goes to the kernel, until "shunt resume"`, red}
	case s.State == api.StateUnattended:
		return cell{"unattended: no daemon answers", red}
	case s.Paused:
		return cell{`paused: everything goes to the kernel, until "shunt resume"`, yellow}
	case s.State == api.StateDegraded:
		return cell{"degraded: not all flows can be fast", yellow}
	}
	return cell{"running", green}
}

func printStatus(p *page, s api.Status) {
	facts := newTable("", "")
	facts.add("state", stateCell(s))
	head := "problem"
	for _, c := range s.Problems {
		facts.add(head, c.Finding)
		if c.Remedy != "" {
			facts.add("", cell{"remedy: " + c.Remedy, dim})
		}
		head = ""
	}
	facts.add("shunt", s.Version+", kernel "+s.Kernel)
	if s.PID != 0 && s.State != api.StateUnattended {
		facts.add("daemon", "pid "+plainInt(s.PID)+", up "+span(now().Sub(s.Started).Seconds())+", abi "+plainInt(s.ABI))
	}
	facts.add("flows", count(uint64(s.Flows.Armed))+" armed, "+count(uint64(s.Flows.Seen))+" seen, "+
		count(uint64(s.Flows.Closed))+" closed, "+count(uint64(s.Flows.Idle))+" idle, of "+count(uint64(s.Flows.Slots))+" slots")
	facts.add("lease", span(s.LeaseSeconds)+", "+span(s.LeaseLiveSeconds)+" while the daemon lives; learned after "+
		count(uint64(s.Threshold))+" packets")
	facts.add("repeated", share(s.Hits, s.Hits+s.Punts)+" of packets: "+count(s.Hits)+", the kernel had "+count(s.Punts))
	facts.add("changes", events(s))
	if s.Differences > 0 {
		facts.add("unannounced", cell{count(s.Differences) + `; see "shunt status --differences"`, yellow})
	}
	if len(s.Policed) > 0 {
		facts.add("policed", "dropped: "+strings.Join(counted(s.Policed), ", "))
	}
	p.table(facts)
	if len(s.Counters) > 0 {
		p.line("")
		p.table(countersTable(s.Counters))
	}
}

// events lists what the kernel announced, with the generation that came of it.
func events(s api.Status) string {
	return strings.Join(append([]string{"generation " + count(uint64(s.Generation))}, counted(s.Events)...), ", ")
}

// counted lists words with their numbers.
func counted(numbers map[string]uint64) (words []string) {
	for _, word := range slices.Sorted(maps.Keys(numbers)) {
		words = append(words, word+" "+count(numbers[word]))
	}
	return words
}

// countersTable has a row for each reason, the most frequent first.
func countersTable(counters map[string]map[string]uint64) *table {
	stages, heads := []string{api.StageXDP, api.StageTCIngress, api.StageTCEgress}, []string{"REASON", ">XDP", ">TC INGRESS", ">TC EGRESS"}
	if len(counters[api.StageMPLS]) > 0 {
		stages, heads = append(stages, api.StageMPLS), append(heads, ">MPLS")
	}
	most := map[string]uint64{}
	for _, stage := range stages {
		for name, n := range counters[stage] {
			most[name] = max(most[name], n)
		}
	}
	names := slices.SortedFunc(maps.Keys(most), func(a, b string) int {
		return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b))
	})
	t := newTable(append(heads, "MEANING")...)
	for _, name := range names {
		row := []any{name}
		for _, stage := range stages {
			n := ""
			if counters[stage][name] > 0 {
				n = count(counters[stage][name])
			}
			row = append(row, n)
		}
		words, _, _ := reason.Words(name)
		t.add(append(row, cell{words, dim})...)
	}
	return t
}
