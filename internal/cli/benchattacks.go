// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/bench"
)

// attackWindow is how long each flood of `shunt bench attacks` lasts.
const attackWindow = 2 * time.Second

func (e *env) benchAttacks() *cobra.Command {
	var cases []string
	var rate float64
	cmd := measuring(e, &cobra.Command{
		Use:   "attacks [CASE]...",
		Short: "Honest traffic under attack, with shunt and without",
		Long: `Floods a router that has one core for itself, beside honest flows and connections, and says
what is left for these, what came through, and what is left behind: with the kernel alone,
with shunt, and with rates in [police] where they help. About two minutes for all cases:
  ` + strings.Join(bench.AttackCases(), " "),
		Example: `  shunt bench attacks
  shunt bench attacks spray rst --rate 500000`,
	}, func(ctx context.Context, o bench.Options) (*bench.AttacksReport, error) {
		return bench.Attacks(ctx, bench.AttacksOptions{Options: o, Cases: cases, Rate: rate, Long: attackWindow})
	}, printAttacks, func(r *bench.AttacksReport) []bench.Target { return r.Targets })
	cmd.Flags().Float64Var(&rate, "rate", 0, "`frames` a second of each attack (default 300000)")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		cases = args
		for _, name := range args {
			if !slices.Contains(bench.AttackCases(), name) {
				return usagef("bench: %s: no such case; there are %s", name, strings.Join(bench.AttackCases(), ", "))
			}
		}
		if cmd.Flags().Changed("rate") && (rate < 1000 || rate > 1e8) {
			return usagef("bench: --rate %g: use 1000 to 100000000", rate)
		}
		return nil
	}
	return cmd
}

func printAttacks(p *page, r *bench.AttacksReport) {
	printHead(p, r.Head)
	defences := []bench.Defence{bench.KernelAlone, bench.ShuntThere, bench.ShuntPolice}
	each := func(t *table, row func(*bench.AttackPhase) []any) {
		for i := range r.Attacks {
			a, name := &r.Attacks[i], r.Attacks[i].Name
			for _, d := range defences {
				if phase := a.Typical(d); phase != nil {
					t.add(append([]any{name, string(d)}, row(phase)...)...)
					name = ""
				}
			}
		}
		p.table(t)
		p.line("")
	}
	each(newTable("HONEST USERS", "ROUTER", ">ANSWERED", ">P50 US", ">P99 US", ">ARMED", ">ALIVE"),
		func(a *bench.AttackPhase) []any {
			armed, alive := "", ""
			if a.Slots > 0 {
				armed = fmt.Sprint(a.ArmedLegit)
			}
			if a.Talking >= 0 {
				alive = fmt.Sprint(a.Talking)
			}
			return []any{fixed(100*a.Legit.Share(), 1) + " %", fixed(a.Legit.P50*1e6, 0), fixed(a.Legit.P99*1e6, 0), armed, alive}
		})
	each(newTable("THE ATTACK'S", "ROUTER", ">THROUGH", ">OFFERED", ">DELIVERED", ">SLOTS", ">CONNTRACK"),
		func(a *bench.AttackPhase) []any {
			slots := ""
			if a.Slots > 0 {
				slots = bench.Thousands(float64(a.Used))
			}
			return []any{through(a), bench.Thousands(a.Offered), bench.Thousands(a.Delivered),
				slots, bench.Thousands(float64(a.Connections))}
		})
	for _, a := range r.Attacks {
		p.wrap(a.Name+": "+a.What+".", 80)
	}
	p.line("")
	p.wrap(fmt.Sprintf("Before each attack 1,000 of its frames are sent so slowly that none is lost for want of time: THROUGH. Then it sends "+
		"%s a second, or what this machine can, OFFERED, of which the server gets what is DELIVERED. "+
		"ARMED are those of the 100 honest flows that shunt repeats, ALIVE those of 50 connections that are answered. SLOTS are those in use at the end, honest ones included; the memory of shunt's maps is the same throughout, %s.",
		bench.Thousands(r.Rate), mapsOf(r)), 80)
	printTargets(p, r.Targets)
}

// through is the part of an attack's frames that no rule stops.
func through(a *bench.AttackPhase) string {
	if a.Tried == 0 {
		return ""
	}
	return fixed(100*float64(a.Through)/float64(a.Tried), 1) + " %"
}

// mapsOf is the memory of the maps, which no attack changes.
func mapsOf(r *bench.AttacksReport) string {
	least, most := ^uint64(0), uint64(0)
	for _, a := range r.Attacks {
		for _, phase := range a.Phases {
			if phase.Slots > 0 {
				least, most = min(least, phase.MapBytes), max(most, phase.MapBytes)
			}
		}
	}
	text := fixed(float64(most)/1e6, 1) + " MB"
	if least < most {
		text = fixed(float64(least)/1e6, 1) + " to " + text
	}
	return text
}
