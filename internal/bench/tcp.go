// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"

	"shunt/internal/lab"
)

// TCPReport is what `shunt bench tcp` found.
type TCPReport struct {
	Head
	Cases   []TCPResult `json:"cases"`
	Targets []Target    `json:"targets"`
}

// TCPResult is one kind of traffic over one kind of veth. Rates are bits per second of
// payload (iperf3) or of IP (generator).
type TCPResult struct {
	Traffic  string  `json:"traffic"`  // "tcp", "udp 1400 iperf3" or "udp 1400 generator"
	Offloads string  `json:"offloads"` // "stack": as veth comes; "wire": off
	Kernel   Spread  `json:"kernel_bps"`
	Shunt    Spread  `json:"shunt_bps"`
	Ratio    Spread  `json:"ratio"`           // shunt over kernel
	AtLeast  float64 `json:"least,omitempty"` // ratio that is wanted; 0: not judged
}

const (
	// 1400 bytes of IP.
	largePacket = 1400
	largeFrame  = largePacket + 14
	// What counts as not slower: iperf3's own medians of five differ by as much.
	withinNoise = 0.95
)

// TCP measures bulk transfers with and without shunt, the programs where xdp = "auto"
// puts them.
func TCP(ctx context.Context, o Options) (*TCPReport, error) {
	report := &TCPReport{Head: o.head("tcp", 5,
		"Bits per second of bulk TCP, and of UDP in packets of 1400 bytes, with and without shunt",
		`iperf3 for 3 s, after 4 s of the same; offloads as veth comes ("stack") and off ("wire"); the generator's UDP as bench firewall; in turn; medians`)}
	for _, kind := range []struct {
		name     string
		offloads lab.Offloads
	}{{"stack", lab.Stack}, {"wire", lab.Wire}} {
		cases, err := tcpCases(ctx, o, kind.name, kind.offloads)
		if err != nil {
			return nil, interrupted(ctx, err)
		}
		report.Cases = append(report.Cases, cases...)
	}
	for _, c := range report.Cases {
		if c.AtLeast > 0 {
			report.Targets = append(report.Targets,
				atLeast(fmt.Sprintf("%s, %s, over kernel", c.Traffic, c.Offloads), c.Ratio.Median, c.AtLeast))
		}
	}
	return report, nil
}

// tcpCase is a kind of traffic and how to measure its bits per second once.
type tcpCase struct {
	traffic string
	atLeast float64
	run     func(context.Context, *rig) (float64, error)
}

func iperfCase(t transfer) func(context.Context, *rig) (float64, error) {
	return func(ctx context.Context, r *rig) (float64, error) { return r.iperf(ctx, t) }
}

// tcpCases begin with TCP, and with seconds of it that do not count: by them the daemon
// judges whether the client behaves like a wire.
func tcpCases(ctx context.Context, o Options, name string, offloads lab.Offloads) (results []TCPResult, err error) {
	cases := []tcpCase{
		{"tcp", withinNoise, iperfCase(transfer{omit: 4, seconds: 3})},
		{"udp 1400 iperf3", 0, iperfCase(transfer{udp: true, packet: largePacket, omit: 1, seconds: 2})},
	}
	if offloads == lab.Wire { // frames of the generator have whole checksums
		cases = append(cases, tcpCase{"udp 1400 generator", 1.6, largeUDP})
	}
	r, err := newRig(o.Binary, lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true, Offloads: offloads})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	rates := make([]map[Mode][]float64, len(cases))
	for round := range o.Rounds {
		for _, mode := range []Mode{Kernel, Shunt} {
			o.Say("%s, round %d of %d, %s:", name, round+1, o.Rounds, mode)
			if err := r.enter(ctx, mode); err != nil {
				return nil, err
			}
			for i, c := range cases {
				bits, err := c.run(ctx, r)
				if err != nil {
					return nil, err
				}
				if rates[i] == nil {
					rates[i] = map[Mode][]float64{}
				}
				rates[i][mode] = append(rates[i][mode], bits)
				o.Say("  %s %.2f Gbit/s", c.traffic, bits/1e9)
			}
			o.Say("\n")
		}
	}
	for i, c := range cases {
		results = append(results, TCPResult{
			Traffic: c.traffic, Offloads: name, AtLeast: c.atLeast,
			Kernel: spreadOf(rates[i][Kernel]), Shunt: spreadOf(rates[i][Shunt]),
			Ratio: spreadOf(ratios(rates[i][Shunt], rates[i][Kernel])),
		})
	}
	return results, nil
}

// largeUDP measures the generator's large packets in the mode the router is in, in bits
// per second of IP. The sink is there only meanwhile: iperf3 needs the server's stack.
func largeUDP(ctx context.Context, r *rig) (bits float64, err error) {
	if err := r.attachSink(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.detachSink()) }()
	g, err := r.source(largeFrame, 1)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	p, err := r.measure(ctx, r.mode, g, warmBurst, short)
	return p.PPS * largePacket * 8, err
}
