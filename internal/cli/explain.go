// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/reason"
)

func (e *env) explainCommand() *cobra.Command {
	var query api.ExplainQuery
	var all bool
	cmd := e.reader(&cobra.Command{
		Use:   "explain FLOW | REASON | --top N | --all",
		Short: "Say why a flow is fast, or why it is not",
		Long: `Says for each direction of a conversation whether it is repeated, or the reason why not,
the rule behind it and what helps. FLOW is a source and a destination with the protocol,
from either end, and as it looks on either side of a NAT:

  ADDR:PORT ADDR:PORT/tcp        or udp, sctp, dccp, udplite
  [ADDR6]:PORT [ADDR6]:PORT/udp
  ADDR[:ID] ADDR/icmp            echo, with or without its id
  ADDR ADDR/gre                  any other protocol, by name or number

Other flows between the same addresses are told behind it. REASON is a word that
"shunt status" counts: what it means, where it was counted, and who met it lately.`,
		Example: `  shunt explain 192.0.2.7:4000 198.51.100.9:443/tcp
  shunt explain [2001:db8::1]:4000 [2001:db8::2]:443/udp
  shunt explain 192.0.2.7 198.51.100.9/icmp
  shunt explain ip_options
  shunt explain --top 20`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := readExplain(&query, all, args, cmd.Flags().Changed("top")); err != nil {
				return usagef("explain: %w", err)
			}
			explanations, err := e.explain(cmd.Context(), query)
			if err != nil {
				return err
			}
			return e.show(explanations, func(p *page) { e.sayUnattended(p); printExplanations(p, query, explanations) })
		},
	})
	cmd.Flags().IntVar(&query.Top, "top", 0, "explain the busiest flows of this moment, so many: a `number`")
	cmd.Flags().BoolVar(&all, "all", false, "explain every flow, and packets that are of none")
	return cmd
}

// readExplain fills in what a query's words and flags say.
func readExplain(q *api.ExplainQuery, all bool, args []string, top bool) error {
	switch {
	case (all || top) && (len(args) > 0 || all && top):
		return errors.New("give one of FLOW, REASON, --top and --all")
	case top && q.Top < 1:
		return fmt.Errorf("--top %d: use a number of flows", q.Top)
	case all || top:
		return nil
	case len(args) == 1 && slices.Contains(reason.Names(), args[0]):
		q.Reason = args[0]
		return nil
	}
	flow, err := api.ParseFlow(args...)
	if err != nil && len(args) == 1 && reasonLike.MatchString(args[0]) {
		return fmt.Errorf("%s: no such reason; %s\"shunt status\" counts them, docs/reasons.md lists them", args[0], meant(args[0], reason.Names()))
	}
	q.Flow = &flow
	return err
}

// reasonLike is what can only be meant for a reason.
var reasonLike = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)

func printExplanations(p *page, query api.ExplainQuery, explanations []api.Explanation) {
	for i := range explanations {
		x := &explanations[i]
		if i > 0 {
			p.line("")
		}
		if x.Near && !explanations[i-1].Near {
			p.line("between the same addresses:")
			p.line("")
		}
		verdict := p.paint("not fast", yellow)
		if x.Fast {
			verdict = p.paint("fast", green)
		}
		if query.Reason == "" {
			p.line("%s: %s", p.paint(subject(query, x), bold), verdict)
		} else {
			p.line("%s", p.paint(query.Reason, bold))
		}
		t := newTable("", "")
		t.add("  reason", x.Reason+": "+x.Words)
		if x.Detail != "" {
			t.add("  which", x.Detail)
		}
		t.add("  rule", x.Rule)
		if x.Remedy != "" {
			t.add("  remedy", x.Remedy)
		}
		if x.Flow != nil {
			addFlowFacts(t, x.Flow)
		}
		addBesides(t, x, query.Reason != "")
		p.table(t)
	}
}

// subject is what an explanation is about.
func subject(query api.ExplainQuery, x *api.Explanation) string {
	switch {
	case x.Flow != nil:
		return x.Flow.Query().String()
	case len(x.Also) > 0:
		return wire(&x.Also[0])
	case query.Flow != nil:
		return query.Flow.String()
	}
	return x.Reason
}

// wire is a packet's flow, as far as it could be read.
func wire(a *api.Also) string {
	proto, _ := api.ProtoNumber(a.Proto)
	text := api.FlowQuery{Source: a.Source, Destination: a.Destination, Proto: proto, AnyID: a.Source.Port() == 0}.String()
	if a.VLAN != 0 {
		text += fmt.Sprintf(" in VLAN %d", a.VLAN)
	}
	return text
}

// addBesides says what else its packets met, and where packets were counted. Of a word that was
// asked for, who met it is what counts; else it is the word.
func addBesides(t *table, x *api.Explanation, asked bool) {
	head := "  also"
	if asked {
		head = "  met by"
	}
	for i := range x.Also {
		a := &x.Also[i]
		words := []string{a.Reason}
		if asked {
			words[0] = wire(a)
		}
		if a.Port != "" {
			words = append(words, "in by "+a.Port)
		}
		if a.Packets > 0 {
			words = append(words, packets(uint64(a.Packets)))
		}
		if a.Ago > 0 {
			words = append(words, span(a.Ago)+" ago")
		}
		line := strings.Join(words, ", ")
		if !asked && a.Reason != x.Reason {
			line += ": " + a.Words
		}
		t.add(head, line)
		head = ""
	}
	head = "  counted"
	for _, c := range x.Counted {
		line := fmt.Sprintf("%s at %s on %s", count(c.Packets), c.Stage, c.Port)
		if !asked {
			line = c.Reason + ": " + line
		}
		t.add(head, line)
		head = ""
	}
}

func packets(n uint64) string {
	if n == 1 {
		return "1 packet"
	}
	return count(n) + " packets"
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
	out := "out by " + f.Out
	if f.LSP {
		out = "routed to " + f.Out + ", but gets labels and goes into an LSP"
	}
	t.add("  way", fmt.Sprintf("in by %s, %s, repeated %s", f.Port, out, places[f.Way]))
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
