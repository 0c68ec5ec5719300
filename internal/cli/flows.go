// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

// tableLimit is how many flows a table shows unless it is asked for more.
const tableLimit = 100

func (e *env) flowsCommand() *cobra.Command {
	var filter api.FlowFilter
	var all bool
	cmd := e.reader(&cobra.Command{
		Use:   "flows",
		Short: "Show flows, one direction a line",
		Long: `Shows the flows in the table as they come in, and what is done to them. SOURCE and
DESTINATION can be given to "shunt explain" as they stand. WHY is the reason for which
the kernel had the flow's last packet that was not repeated. Flows of which no packet came for
5 seconds are left out; --all shows what is still kept of them.`,
		Example: `  shunt flows --sort bytes --limit 20
  shunt flows --only armed --port eth0
  shunt flows --json | jq length`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.json && !cmd.Flags().Changed("limit") {
				filter.Limit = 0
			}
			if e.json && !cmd.Flags().Changed("sort") {
				filter.Sort = api.SortPackets
			}
			filter.Live = !all
			if err := filter.Check(); err != nil {
				return usagef("flows: %w", err)
			}
			flows, err := e.flows(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return e.show(flows, func(p *page) { e.sayUnattended(p); printFlows(p, flows, filter.Limit) })
		},
	})
	flags := cmd.Flags()
	flags.IntVar(&filter.Limit, "limit", tableLimit, "`number` of flows, 0 for all; with --json all is the default")
	flags.StringVar(&filter.Sort, "sort", api.SortRate, "`measure` by which the largest come first: rate (packets a second, now), packets, bytes or age; with --json packets is the default")
	flags.BoolVar(&all, "all", false, "flows that have ended, too, as long as they are kept")
	flags.StringVar(&filter.State, "only", "", "flows in this `state`: seen, armed, expired, old or closed")
	flags.StringVar(&filter.Port, "port", "", "flows that come in by this `interface`")
	return cmd
}

func printFlows(p *page, flows []api.Flow, limit int) {
	t := newTable("IN", "OUT", "WAY", "STATE", "SOURCE", "DESTINATION", "NAT", ">PACKETS", ">BYTES", ">AGE", ">LEASE", "WHY")
	for i := range flows {
		f := &flows[i]
		source, dest := f.Query().Ends()
		t.add(f.Port, or(f.Out, "-"), or(f.Way, "-"), flowState(f.State), source, dest, natWords(f),
			count(f.Packets), octets(float64(f.Bytes)), span(f.Age), span(f.LeaseLeft), f.Why)
	}
	p.table(t)
	if limit > 0 && len(flows) == limit {
		p.line("%s", p.paint("the first "+count(uint64(limit))+"; --limit 0 shows all", dim))
	}
}

func flowState(state string) cell {
	styles := map[string]style{api.FlowArmed: green, api.FlowExpired: yellow, api.FlowOld: yellow, api.FlowClosed: dim}
	return cell{state, styles[state]}
}

// natWords says what NAT makes of a flow's ends: only what changes.
func natWords(f *api.Flow) string {
	if f.Rewrite == nil {
		return "-"
	}
	after := f.Query()
	after.Source, after.Destination = f.Rewrite.Source, f.Rewrite.Destination
	oldSource, oldDest := f.Query().Ends()
	source, dest := after.Ends()
	var words []string
	if source != oldSource {
		words = append(words, "from "+source)
	}
	if dest != oldDest {
		words = append(words, "to "+dest)
	}
	return strings.Join(words, " ")
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
