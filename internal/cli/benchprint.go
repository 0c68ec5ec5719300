// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"shunt/internal/bench"
)

// printHead says what the figures below are.
func printHead(p *page, h bench.Head) {
	p.line("")
	p.wrap(h.What+".", 80)
	p.line("")
	p.wrap("How: "+h.How+".", 80)
	p.line("")
	t := newTable("", "")
	t.add(cell{"where", bold}, fmt.Sprintf("%s, %d cores, Linux %s", h.CPU, h.Cores, h.Kernel))
	t.add("", h.Clang+", shunt "+h.Version)
	t.add(cell{"when", bold}, fmt.Sprintf("%s, load average %.1f", h.Date.Format("2006-01-02 15:04 MST"), h.Load))
	t.add(cell{"again", bold}, h.Command)
	p.table(t)
	p.line("")
}

// wrap writes a paragraph in lines of at most width characters.
func (p *page) wrap(text string, width int) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			p.line("%s", line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	p.line("%s", line)
}

// printTargets judges.
func printTargets(p *page, targets []bench.Target) {
	p.line("")
	t := newTable("TARGET", "", ">GOT", "", ">WANTED")
	for _, target := range targets {
		verdict, sign := cell{"PASS", green}, "at least"
		if !target.Pass {
			verdict = cell{"FAIL", red}
		}
		if target.AtMost {
			sign = "at most"
		}
		t.add(target.Name, verdict, fixed(target.Got, 3), sign, fixed(target.Limit, 2))
	}
	p.table(t)
}

func fixed(n float64, digits int) string { return fmt.Sprintf("%.*f", digits, n) }

// rateRow is a spread of packets per second.
func rateRow(name string, s bench.Spread) []any {
	return []any{name, bench.Thousands(s.Median), bench.Thousands(s.Min), bench.Thousands(s.Max), bench.Thousands(s.MAD)}
}

func printFirewall(p *page, r *bench.FirewallReport) {
	printHead(p, r.Head)
	t := newTable("PACKETS A SECOND", ">MEDIAN", ">LEAST", ">MOST", ">MAD")
	t.add(rateRow("nothing attached", r.Spread["kernel_pps"])...)
	t.add(rateRow("attached, out of reach", r.Spread["attached_pps"])...)
	t.add(rateRow("shunt", r.Spread["shunt_pps"])...)
	t.add(rateRow("limit: empty redirect", r.Spread["limit_pps"])...)
	p.table(t)
	p.line("")
	t = newTable("RATIO, ROUND BY ROUND", ">MEDIAN", ">LEAST", ">MOST", ">MAD")
	for _, name := range []string{"speedup", "of_limit", "slow_path_tax", "hit_share"} {
		s := r.Spread[name]
		t.add(name, fixed(s.Median, 4), fixed(s.Min, 4), fixed(s.Max, 4), fixed(s.MAD, 4))
	}
	p.table(t)
	printTargets(p, r.Targets)
}

func printFlowsReport(p *page, r *bench.FlowsReport) {
	printHead(p, r.Head)
	t := newTable(">FLOWS", ">KERNEL PPS", ">SHUNT PPS", ">LIMIT PPS", ">OF LIMIT", ">LEAST", ">MOST", ">TO KERNEL")
	for _, c := range r.Counts {
		t.add(bench.Thousands(float64(c.Flows)), bench.Thousands(c.KernelPPS.Median), bench.Thousands(c.ShuntPPS.Median),
			bench.Thousands(c.LimitPPS.Median), fixed(c.OfLimit.Median, 3), fixed(c.OfLimit.Min, 3), fixed(c.OfLimit.Max, 3),
			fixed(100*c.KernelShare.Median, 3)+" %")
	}
	p.table(t)
	p.line("")
	t = newTable(">FLOWS", "THE KERNEL", ">ARMED", ">SLOTS", ">MAPS", ">BYTES A SLOT", ">A FLOW")
	for _, c := range r.Counts {
		does := "masquerades"
		if c.Routed {
			does = "routes"
		}
		t.add(bench.Thousands(float64(c.Flows)), does, bench.Thousands(c.Armed.Median), bench.Thousands(float64(c.Slots)),
			fixed(float64(c.MapBytes)/1e6, 1)+" MB", bench.Thousands(c.BytesPer(float64(c.Slots))), bench.Thousands(c.BytesPer(c.Armed.Median)))
	}
	p.table(t)
	if r.ConntrackBytes > 0 {
		p.line("A connection takes conntrack %d bytes and its extensions, for both directions.", r.ConntrackBytes)
	}
	printTargets(p, r.Targets)
}

func printRules(p *page, r *bench.RulesReport) {
	printHead(p, r.Head)
	t := newTable(">RULES", ">FLOWS", ">KERNEL PPS", ">MAD", ">SHUNT PPS", ">MAD", ">SPEEDUP")
	for _, c := range r.Cases {
		t.add(bench.Thousands(float64(c.Rules)), bench.Thousands(float64(c.Flows)),
			bench.Thousands(c.KernelPPS.Median), bench.Thousands(c.KernelPPS.MAD),
			bench.Thousands(c.ShuntPPS.Median), bench.Thousands(c.ShuntPPS.MAD), fixed(c.Speedup.Median, 2)+"x")
	}
	p.table(t)
	printTargets(p, r.Targets)
}

func printTCP(p *page, r *bench.TCPReport) {
	printHead(p, r.Head)
	t := newTable("GBIT/S", "OFFLOADS", ">KERNEL", ">MAD", ">SHUNT", ">MAD", ">RATIO", ">LEAST", ">MOST")
	for _, c := range r.Cases {
		t.add(c.Traffic, c.Offloads, fixed(c.Kernel.Median/1e9, 2), fixed(c.Kernel.MAD/1e9, 2),
			fixed(c.Shunt.Median/1e9, 2), fixed(c.Shunt.MAD/1e9, 2),
			fixed(c.Ratio.Median, 3), fixed(c.Ratio.Min, 3), fixed(c.Ratio.Max, 3))
	}
	p.table(t)
	printTargets(p, r.Targets)
}

func printConnections(p *page, r *bench.ConnectionsReport) {
	printHead(p, r.Head)
	t := newTable("MODE", ">CPU S", ">MAD", ">P50 US", ">MAD", ">P99 US", ">MAD", ">CONNECTIONS", ">RESETS")
	for _, m := range r.Modes {
		row := []any{string(m.Mode)}
		for _, figure := range []struct {
			name   string
			scale  float64
			digits int
		}{{"cpu_s", 1, 2}, {"p50_seconds", 1e6, 0}, {"p99_seconds", 1e6, 0}} {
			s := m.Figures[figure.name]
			row = append(row, fixed(s.Median*figure.scale, figure.digits), fixed(s.MAD*figure.scale, figure.digits))
		}
		t.add(append(row, bench.Thousands(float64(m.Connections)), fmt.Sprint(m.Resets))...)
	}
	p.table(t)
	printTargets(p, r.Targets)
}

func printBusy(p *page, r *bench.ChangesReport) {
	t := newTable("BESIDE", ">CHANGES", ">VOID", ">P50 MS", ">P99 MS", ">MOST MS", ">HITS")
	for _, b := range r.Busy {
		t.add(string(b.Load), fmt.Sprint(len(b.Samples)), fmt.Sprint(b.Void), fixed(1000*b.P50, 1), fixed(1000*b.P99, 1), fixed(1000*b.Max, 1), fixed(100*b.Hits, 1)+" %")
	}
	p.table(t)
	p.line("Void: the sender stood still meanwhile.")
	printTargets(p, r.Targets)
}

func printChanges(p *page, r *bench.ChangesReport) {
	printHead(p, r.Head)
	if r.Busy != nil {
		printBusy(p, r)
		return
	}
	t := newTable(">CHANGES/S", ">HITS", ">LEAST", ">MOST", ">DAEMON", ">LEAST", ">MOST", ">LATE")
	for _, m := range r.Modes {
		percent := func(x float64) string { return fixed(100*x, 2) + " %" }
		t.add(bench.Thousands(m.Made.Median), percent(m.HitShare.Median), percent(m.HitShare.Min), percent(m.HitShare.Max),
			percent(m.DaemonCPU.Median), percent(m.DaemonCPU.Min), percent(m.DaemonCPU.Max), fmt.Sprint(m.Reordered))
	}
	p.table(t)
	p.line("Daemon: of one CPU. Late: frames that came after a later one of their flow.")
	printTargets(p, r.Targets)
}

func printCores(p *page, r *bench.CoresReport) {
	printHead(p, r.Head)
	t := newTable(">CPUS", "NAT", ">KERNEL PPS", ">A CPU", ">SHUNT PPS", ">A CPU", ">LIMIT PPS", ">SPEEDUP")
	for _, c := range r.Points {
		nat := "no"
		if c.NAT {
			nat = "yes"
		}
		n := float64(c.CPUs)
		t.add(fmt.Sprint(c.CPUs), nat, bench.Thousands(c.Kernel.Median), si(c.Kernel.Median/n), bench.Thousands(c.Shunt.Median), si(c.Shunt.Median/n),
			bench.Thousands(c.Limit.Median), fixed(c.Speedup.Median, 2)+"x")
	}
	p.table(t)
	printTargets(p, r.Targets)
}

func printLabels(p *page, r *bench.LabelsReport) {
	printHead(p, r.Head)
	t := newTable(">LABELS", ">PACKETS/S", ">LEAST", ">MOST", ">MAD")
	for _, c := range r.Counts {
		t.add(rateRow(bench.Thousands(float64(c.Labels)), c.PPS)...)
	}
	p.table(t)
	p.line("")
	t = newTable(">BYTES", ">LIMIT", ">PLAIN IP", ">SWAP", ">OF LIMIT", ">OF IP", ">ALL LABELS")
	for _, s := range r.Sizes {
		t.add(bench.Thousands(float64(s.Bytes)), bench.Thousands(s.Limit.Median), bench.Thousands(s.IP.Median), bench.Thousands(s.One.Median),
			fixed(s.OfLimit, 2), fixed(s.OfIP, 2), bench.Thousands(s.All.Median))
	}
	p.table(t)
	p.line("")
	t = newTable(fmt.Sprintf("CHANGES/S, BESIDE %s PACKETS/S", bench.Thousands(float64(r.Rate))), ">MEDIAN", ">LEAST", ">MOST", ">MAD")
	t.add(rateRow("one transaction of all", r.Replace)...)
	t.add(rateRow(fmt.Sprintf("transactions of %d", r.Batch), r.Changes)...)
	t.add(rateRow("transactions of one", r.Singly)...)
	p.table(t)
	p.line("")
	labels := float64(r.Labels)
	p.line("Loaded in %s s (%s to %s), %s us a label.", fixed(r.Load.Median, 1), fixed(r.Load.Min, 1), fixed(r.Load.Max, 1), fixed(r.Load.Median/labels*1e6, 1))
	p.line("Maps: %s MB, %s bytes a label. Daemon: %s MB, %s bytes a label.", fixed(float64(r.MapBytes)/1e6, 0), bench.Thousands(float64(r.MapBytes)/labels),
		fixed(float64(r.OwnBytes)/1e6, 0), bench.Thousands((float64(r.OwnBytes)-float64(r.EmptyBytes))/labels))
	printTargets(p, r.Targets)
}
