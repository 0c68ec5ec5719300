package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
)

func (e *env) explainCommand() *cobra.Command {
	return e.reader(&cobra.Command{
		Use:   "explain FLOW",
		Short: "Say why a flow is fast, or why it is not",
		Long: `Says for each direction of a conversation whether it is repeated, or the reason why not,
the rule behind it and what helps. FLOW is a source and a destination with the protocol,
from either end, and as it looks on either side of a NAT:

  ADDR:PORT ADDR:PORT/tcp        or udp, sctp, dccp, udplite
  [ADDR6]:PORT [ADDR6]:PORT/udp
  ADDR[:ID] ADDR/icmp            echo, with or without its id
  ADDR ADDR/gre                  any other protocol, by name or number`,
		Example: `  shunt explain 192.0.2.7:4000 198.51.100.9:443/tcp
  shunt explain [2001:db8::1]:4000 [2001:db8::2]:443/udp
  shunt explain 192.0.2.7 198.51.100.9/icmp`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := api.ParseFlow(args...)
			if err != nil {
				return usagef("explain: %w", err)
			}
			explanations, err := e.client().Explain(cmd.Context(), query)
			if err != nil {
				return err
			}
			return e.show(explanations, func(p *page) { printExplanations(p, query, explanations) })
		},
	})
}

func printExplanations(p *page, query api.FlowQuery, explanations []api.Explanation) {
	for i, x := range explanations {
		if i > 0 {
			p.line("")
		}
		subject := query
		if x.Flow != nil {
			subject = x.Flow.Query()
		}
		verdict := p.paint("not fast", yellow)
		if x.Fast {
			verdict = p.paint("fast", green)
		}
		p.line("%s: %s", p.paint(subject.String(), bold), verdict)
		t := newTable("", "")
		t.add("  reason", x.Reason+": "+x.Words)
		t.add("  rule", x.Rule)
		if x.Remedy != "" {
			t.add("  remedy", x.Remedy)
		}
		if x.Flow != nil {
			addFlowFacts(t, x.Flow)
		}
		p.table(t)
	}
}

// addFlowFacts says what is known of a flow.
func addFlowFacts(t *table, f *api.Flow) {
	t.add("  state", fmt.Sprintf("%s, %s packets sighted, last one %s ago (%s)",
		f.State, count(uint64(f.Sighted)), span(f.Idle), f.Why))
	if f.Key != 0 {
		t.add("  key", fmt.Sprintf("%#x (GRE key or ESP SPI)", f.Key))
	}
	if f.Way == "" {
		return
	}
	places := map[string]string{api.WayXDP: "in XDP", api.WayTC: "at TC ingress"}
	t.add("  way", fmt.Sprintf("in by %s, out by %s, repeated %s", f.Port, f.Out, places[f.Way]))
	if f.Rewrite != nil {
		t.add("  nat", natWords(f))
	}
	t.add("  leaves", leaves(f))
	t.add("  lease", fmt.Sprintf("%s left, proved again %s times, armed %s ago, generation %s",
		span(f.LeaseLeft), count(uint64(f.Renewals)), span(f.Age), count(uint64(f.Generation))))
	t.add("  repeated", fmt.Sprintf("%s packets, %s", count(f.Packets), octets(float64(f.Bytes))))
}

// leaves says what the frame looks like as it goes out.
func leaves(f *api.Flow) string {
	words := []string{f.SourceMAC + " to " + f.DestMAC}
	if f.DSCPIn != f.DSCPOut {
		words = append(words, fmt.Sprintf("DSCP %d instead of %d", f.DSCPOut, f.DSCPIn))
	}
	words = append(words, fmt.Sprintf("up to %d bytes of IP", f.MTU))
	if f.Conntrack {
		words = append(words, "known to conntrack")
	}
	return strings.Join(words, ", ")
}
