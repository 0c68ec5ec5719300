// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"shunt/internal/bench"
)

var spread = bench.Spread{Median: 1234567, Min: 999999, Max: 12345678, MAD: 54321}

func benchHead(name string) bench.Head {
	return bench.Head{
		Bench: name, What: "Frames per second, " + strings.Repeat("of many kinds, ", 8) + "in all",
		How: "in turn; medians", Command: "shunt bench " + name + " --rounds 5", Rounds: 5, Date: noon,
		Version: "0.1.0+0123456789ab", Kernel: "6.18.44", CPU: "Intel(R) Xeon(R) Processor", Cores: 2, Clang: "Debian clang version 19.1.7 (3~deb12u1)",
	}
}

var benchTargets = []bench.Target{
	{Name: "speedup", Got: 5.9, Limit: 5, Pass: true},
	{Name: "frames out of order", Got: 3, Limit: 0, AtMost: true},
}

// pages are reports of all kinds with numbers as long as they get.
func pages() map[string]func(*page) {
	ratio := bench.Spread{Median: 0.8, Min: 0.75, Max: 1.01, MAD: 0.013}
	all := map[string]bench.Spread{}
	for _, name := range []string{"kernel_pps", "attached_pps", "shunt_pps", "limit_pps"} {
		all[name] = spread
	}
	for _, name := range []string{"speedup", "of_limit", "slow_path_tax", "hit_share"} {
		all[name] = ratio
	}
	seconds := map[string]bench.Spread{"cpu_s": ratio, "p50_seconds": {Median: 0.000123}, "p99_seconds": {Median: 0.001234}}
	gbits := bench.Spread{Median: 41.2e9, MAD: 0.5e9}
	demo := &bench.DemoReport{
		UDP: bench.DemoPair{Off: 13e9, On: 41e9}, TCP: bench.DemoPair{Off: 11e9, On: 12e9}, Packets: 123456789, Seconds: 50,
	}
	for _, size := range []int{64, 128, 256, 512, 1024, 1500} {
		demo.Sizes = append(demo.Sizes, bench.DemoSize{
			Bytes: size, Off: 1200000, Before: 1250000, After: 1150000, On: 17000000, Limit: 20000000, HitShare: 0.99999,
		})
	}
	return map[string]func(*page){
		"bench-firewall": func(p *page) {
			printFirewall(p, &bench.FirewallReport{Head: benchHead("firewall"), Spread: all, Targets: benchTargets})
		},
		"bench-flows": func(p *page) {
			printFlowsReport(p, &bench.FlowsReport{Head: benchHead("flows"), ConntrackBytes: 256, Counts: []bench.FlowsResult{{
				Flows: 1000000, Slots: 2097152, MapBytes: 402900000, Armed: bench.Spread{Median: 993123}, KernelPPS: spread, ShuntPPS: spread, LimitPPS: spread, OfLimit: ratio, KernelShare: bench.Spread{Median: 0.00123},
			}}})
		},
		"bench-rules": func(p *page) {
			printRules(p, &bench.RulesReport{Head: benchHead("rules"), Cases: []bench.RulesResult{{
				Rules: 1000, Flows: 1000, KernelPPS: spread, ShuntPPS: spread, Speedup: bench.Spread{Median: 104.2},
			}}})
		},
		"bench-tcp": func(p *page) {
			printTCP(p, &bench.TCPReport{Head: benchHead("tcp"), Cases: []bench.TCPResult{{
				Traffic: "udp 1400 generator", Offloads: "stack", Kernel: gbits, Shunt: gbits, Ratio: ratio,
			}}})
		},
		"bench-connections": func(p *page) {
			printConnections(p, &bench.ConnectionsReport{Head: benchHead("connections"), Modes: []bench.ConnectionsMode{
				{Mode: bench.Kernel, Connections: 1350000, Resets: 12345, Figures: seconds}, {Mode: bench.Shunt, Figures: seconds},
			}, Targets: benchTargets})
		},
		"bench-attacks": func(p *page) {
			kernel := bench.AttackPhase{Defence: bench.KernelAlone, Tried: 3000, Through: 3000, Delivered: 241755, Talking: -1, Connections: 262144,
				Offered: 299999, Legit: bench.Legit{Sent: 8000, Answered: 5754, P50: 0.001448, P99: 0.031087}}
			shunt := kernel
			shunt.Defence, shunt.Slots, shunt.Used, shunt.ArmedLegit, shunt.MapBytes, shunt.Talking = bench.ShuntThere, 65536, 16584, 100, 13821856, 50
			police := shunt
			police.Defence = bench.ShuntPolice
			printAttacks(p, &bench.AttacksReport{Head: benchHead("attacks"), Rate: 300000, Targets: benchTargets, Attacks: []bench.AttackResult{
				{Name: "spray-spoofed", What: "UDP, one packet for each of a million keys", Phases: []bench.AttackPhase{kernel, shunt, police}},
			}})
		},
		"bench-instructions": func(p *page) {
			over := 1234.0
			net := bench.Spread{Median: 12345}
			printInstructions(p, &bench.InstructionsReport{Head: benchHead("instructions"), Cases: []bench.InstructionsCase{
				{Name: "limit", Title: "empty XDP redirect", Flows: 1, Gross: net, Net: bench.Spread{Median: 418}, Apart: 0.0024},
				{Name: "xdp-flowtable", Title: "nf_flow_table, same rules", Flows: 10000, Gross: net, Net: net, OverLimit: &over},
			}, Skipped: []bench.Skipped{{Name: "mpls-push", Probe: "/proc/kallsyms has no mpls_xmit, and modprobe mpls_iptunnel: exit status 1: not found"}},
				Targets: benchTargets})
		},
		"bench-changes": func(p *page) {
			printChanges(p, &bench.ChangesReport{Head: benchHead("changes"), Modes: []bench.ChangesResult{
				{HitShare: ratio, DaemonCPU: ratio}, {Changing: true, HitShare: ratio, DaemonCPU: ratio, Made: bench.Spread{Median: 999.6}, Reordered: 12345},
			}, Targets: benchTargets})
		},
		"bench-changes-busy": func(p *page) {
			printChanges(p, &bench.ChangesReport{Head: benchHead("changes --busy"), Busy: []bench.BusyResult{
				{Load: bench.LoadNone, P50: 0.0101, P99: 0.0123, Max: 0.0134, Hits: 0.87, Samples: make([]float64, 150)},
				{Load: bench.LoadFlood, P50: 0.0101, P99: 0.1157, Max: 0.2, Hits: 0.5, Samples: make([]float64, 150)},
			}, Targets: benchTargets})
		},
		"bench-cores": func(p *page) {
			printCores(p, &bench.CoresReport{Head: benchHead("cores"), Points: []bench.CoresPoint{
				{NAT: true, CPUs: 1, Kernel: spread, Shunt: spread, Limit: spread, Speedup: ratio},
				{CPUs: 16, Kernel: spread, Shunt: bench.Spread{Median: 123456789}, Limit: bench.Spread{Median: 123456789}, Speedup: bench.Spread{Median: 13.8}},
			}, Targets: benchTargets})
		},
		"bench-labels": func(p *page) {
			printLabels(p, &bench.LabelsReport{Head: benchHead("labels"), Labels: 1000000, Load: bench.Spread{Median: 12.34, Min: 9.8, Max: 101.2}, Batch: 100, Rate: 100000,
				Replace: spread, Changes: spread, Singly: spread, MapBytes: 500e6, EmptyBytes: 30e6, OwnBytes: 1234e6,
				Counts: []bench.LabelsResult{{Labels: 1, PPS: spread}, {Labels: 1000000, PPS: spread}},
				Sizes:  []bench.LabelsBySize{{Bytes: 1500, Limit: spread, IP: spread, One: spread, All: spread, OfLimit: 0.874, OfIP: 1.034}}, Targets: benchTargets})
		},
		"lab-lsr":   func(p *page) { printLSR(p, exampleLSR()) },
		"lab-chain": func(p *page) { printChain(p, exampleChain()) },
		"demo":      func(p *page) { printDemo(p, demo) },
		"demo-noisy": func(p *page) {
			noisy := *demo
			noisy.Sizes = slices.Clone(demo.Sizes)
			noisy.Sizes[0].Limit = 8e6     // less than shunt reached
			noisy.Sizes[3].After = 800_000 // a third less than before
			printDemo(p, &noisy)
		},
	}
}

// exampleLSR has numbers as long as they get.
func exampleLSR() *bench.LSRReport {
	r := &bench.LSRReport{Head: benchHead("lsr"), Sizes: []int{60, 1500}, Targets: benchTargets}
	ratio := bench.Spread{Median: 0.987, Min: 0.9, Max: 10.04}
	for _, cores := range []int{1, 2} {
		for _, size := range r.Sizes {
			for _, op := range bench.LSROperations() {
				r.Results = append(r.Results, bench.LSRResult{Operation: op, Cores: cores, Bytes: size,
					PPS: bench.Spread{Median: 12345678}, OfLimit: ratio, OfIP: ratio, OfKernel: bench.Spread{Median: 12.34}})
			}
		}
	}
	return r
}

// exampleChain is another one.
func exampleChain() *bench.ChainReport {
	r := &bench.ChainReport{Head: benchHead("chain"), Hops: []int{1, 9}, Routes: 50000, Sizes: bench.ChainSizes(), Echoes: 1000}
	for _, way := range bench.ChainWays() {
		for _, hops := range r.Hops {
			if way == bench.ChainMPLS && hops == 1 {
				continue
			}
			for _, size := range r.Sizes {
				ratio := bench.Spread{Median: 0.987, Min: 0.9, Max: 1.04}
				r.Results = append(r.Results, bench.ChainResult{Way: way, Hops: hops, Bytes: size, Answered: 5000,
					Median: bench.Spread{Median: 123.4e-6}, P99: bench.Spread{Median: 234.5e-6}, OfIP: ratio, OfKernel: ratio})
			}
		}
	}
	return r
}

// Reports fit a terminal of 80 columns, and hold no escapes where there is none.
func TestBenchReports(t *testing.T) {
	for name, draw := range pages() {
		p := &page{}
		draw(p)
		golden(t, name, p.String())
		for line := range strings.Lines(p.String()) {
			if n := utf8.RuneCountInString(line) - 1; n > 80 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		if strings.Contains(p.String(), "\x1b") {
			t.Errorf("%s: escapes without a terminal", name)
		}
	}
}

func TestBenchWrongUse(t *testing.T) {
	for args, want := range map[string]string{
		"bench fast":                   `shunt: fast: no such command; see "shunt bench --help"`,
		"bench firewall --rounds 0":    "shunt: firewall: rounds 0: use a number from 1 on",
		"bench flows --rounds x":       `shunt: flows: invalid argument "x" for "--rounds"`,
		"bench instructions fast":      "shunt: bench: fast: no such case; there are limit, ",
		"bench attacks fast":           "shunt: bench: fast: no such case; there are none, syn, ",
		"bench attacks --rate 1":       "shunt: bench: --rate 1: use 1000 to ",
		"bench instructions --flows 0": "shunt: instructions: --flows 0: use 1 to ",
		"bench tcp now":                `shunt: tcp: takes no argument "now"`,
		"lab bridge":                   `shunt: bridge: no such command; see "shunt lab --help"`,
		"lab firewall upp":             `shunt: upp: no such command; did you mean "up"?`,
		"lab firewall run --rounds 1":  "shunt: run: unknown flag: --rounds",
		"lab lsr upp":                  `shunt: upp: no such command; did you mean "up"?`,
		"lab chain --hops 0..3":        "shunt: chain: --hops 0..3: use a number from 1 to 9, or a range such as 1..9",
		"lab chain --hops 3..1":        "shunt: chain: --hops 3..1: use a number",
		"lab chain run --hops 10":      "shunt: chain: --hops 10: use a number",
		"lab chain up --hops many":     "shunt: chain: --hops many: use a number",
		"lab chain --routes -1":        "shunt: chain: --routes -1: use 0 to 983040",
		"lab lsr --rounds 0":           "shunt: lsr: rounds 0: use a number from 1 on",
		"lab lsr run --rounds -1":      "shunt: run: rounds -1: use a number from 1 on",
	} {
		code, _, err := shunt(strings.Fields(args)...)
		if code != 2 || !strings.HasPrefix(err, want) {
			t.Errorf("shunt %s: exit %d, %s\nwant %s", args, code, err, want)
		}
	}
}
