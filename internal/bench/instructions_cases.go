// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// way is who must have moved a case's frames. A bench that counts another way than it says
// is the commonest lie.
type way string

const (
	byKernel   way = "kernel"   // the kernel's own counters of IPv4 or IPv6 have every frame
	byXDP      way = "xdp"      // shunt's counters have every frame as a hit at XDP, the driver's as redirected
	byTC       way = "tc"       // shunt's counters have every frame as a hit at TC ingress
	byLabels   way = "labels"   // shunt's counters have every frame as switched, the driver's as redirected
	byRedirect way = "redirect" // other people's XDP: the driver's counter alone has them
	byOther    way = "other"    // none of these counts one: flow table, labels
)

// frameKind is what the generator sends.
type frameKind struct {
	v6    bool
	label uint32
	// another one, beneath that
	beneath uint32
	// headroom for what is pushed onto it: the sink's veth copies a frame that has less than 256 bytes
	// (veth_xdp_rcv_skb), at some 900 instructions that are none of the router's
	room int
}

var (
	ipv4    = frameKind{}
	ipv6    = frameKind{v6: true}
	pushed  = frameKind{room: 4}
	labeled = frameKind{label: lab.LabelIn}
	stacked = frameKind{label: lab.LabelOuter, beneath: lab.LabelIn}
)

// frameSize is the least with Ethernet's FCS left out. An IPv6 frame with the generator's mark
// needs 72.
const frameSize = 64

// insnCase is a way of a frame through the router.
type insnCase struct {
	name, title string
	lab         lab.FirewallOptions // what the router is
	mode        Mode                // what is on it
	xdp         string              // the daemon's --xdp
	frames      frameKind
	labels      lab.MPLS // what the kernel is to do to them
	tables      []string // what shunt is: lines of `shunt mpls apply`
	more        int      // labels that these have besides, by NHLFE 1; flows come with labels of their own
	out         uint32   // label that frames must arrive with
	way         way
	alone       bool                                      // counted with one flow: of 10,000 the kernel forwards some in many bursts
	start       func(*rig) (stop func() error, err error) // somebody else's fast path
	check       func(*rig, int) error                     // that the case is what it says, once it is warm
	probe       func() error                              // what the kernel or the machine lacks for it
	over        string                                    // the case that it is counted over, instead of generator and sink
}

var (
	router   = lab.FirewallOptions{Name: "insn", Neighbours: true, Open: true}
	firewall = lab.FirewallOptions{Name: "insn", Neighbours: true, NAT: lab.NATMasquerade}
	flowtab  = lab.FirewallOptions{Name: "insn", Neighbours: true, NAT: lab.NATMasquerade, Flowtable: true}
)

var (
	hasFlowtable = kernelHas("nft_flow_offload_eval", "nft_flow_offload")
	hasMPLS      = kernelHas("mpls_forward", "mpls_router")
)

// insnCases are all, in the order of tables. Those of one router stand together, so that it is made once.
var insnCases = []insnCase{
	{name: "limit", title: "empty XDP redirect", lab: firewall, mode: Limit, frames: ipv4, way: byRedirect},
	{name: "shunt-xdp", title: "shunt, XDP, IPv4 NAT", lab: firewall, mode: Shunt, xdp: "auto", frames: ipv4, way: byXDP},
	{name: "shunt-xdp6", title: "shunt, XDP, IPv6", lab: firewall, mode: Shunt, xdp: "auto", frames: ipv6, way: byXDP},
	{name: "shunt-tc", title: "shunt, TC, IPv4 NAT", lab: firewall, mode: Shunt, xdp: "off", frames: ipv4, way: byTC},
	{name: "masquerade", title: "conntrack and masquerade", lab: firewall, mode: Kernel, frames: ipv4, way: byKernel},
	{name: "shunt-tax", title: "shunt, slow-path tax", lab: firewall, mode: Attached, xdp: "on", frames: ipv4, way: byKernel, over: "masquerade"},
	{name: "flowtable", title: "nf_flow_table, same rules", lab: flowtab, mode: Kernel, frames: ipv4, way: byOther,
		probe: hasFlowtable, check: offloaded},
	{name: "xdp-flowtable", title: "xdp-forward, flow table", lab: flowtab, mode: Kernel, frames: ipv4, way: byRedirect,
		probe: all(hasXDPForward, hasFlowtable, kernelHas("bpf_xdp_flow_lookup", "nf_flow_table")), start: xdpForward("flowtable"), check: offloaded},
	{name: "xdp-fib", title: "xdp-forward, FIB", lab: router, mode: Kernel, frames: ipv4, way: byRedirect,
		probe: hasXDPForward, start: xdpForward("fib")},
	{name: "ipv4", title: "kernel IPv4 forwarding", lab: router, mode: Kernel, frames: ipv4, way: byKernel},
	{name: "ipv6", title: "kernel IPv6 forwarding", lab: router, mode: Kernel, frames: ipv6, way: byKernel},
	{name: "mpls-limit", title: "empty XDP redirect, labelled", lab: router, mode: Limit, frames: labeled, out: lab.LabelIn, way: byRedirect},
	{name: "shunt-swap", title: "shunt, MPLS swap", lab: router, mode: Shunt, xdp: "on", frames: labeled,
		tables: tables("swap %d", lab.LabelOut), out: lab.LabelOut, way: byLabels},
	{name: "shunt-swap-million", title: "shunt, MPLS swap, 1,000,000 labels", lab: router, mode: Shunt, xdp: "on", frames: labeled,
		tables: tables("swap %d", lab.LabelOut), more: 1_000_000 - 1, out: lab.LabelOut, way: byLabels},
	{name: "shunt-php", title: "shunt, MPLS PHP: pop and send", lab: router, mode: Shunt, xdp: "on", frames: labeled,
		tables: tables("pop"), way: byLabels},
	{name: "shunt-pop", title: "shunt, MPLS pop, then a fast flow", lab: router, mode: Shunt, xdp: "on", frames: labeled,
		tables: []string{"space set lan 0", "nhlfe add 1 pop deliver", fmt.Sprintf("ilm add %d nhlfe 1", lab.LabelIn)}, way: byXDP, alone: true},
	{name: "shunt-push", title: "shunt, MPLS push onto a fast flow", lab: router, mode: Shunt, xdp: "on", frames: pushed,
		tables: []string{fmt.Sprintf("nhlfe add 1 push %d send dev wan via inet 198.19.0.2", lab.LabelOut), "ftn add 198.19.0.2/32 nhlfe 1"},
		out:    lab.LabelOut, way: byXDP, alone: true},
	{name: "shunt-pop-swap", title: "shunt, MPLS pop and swap", lab: router, mode: Shunt, xdp: "on", frames: stacked,
		tables: append(tables("swap %d", lab.LabelOut), "nhlfe add 2 pop peek", fmt.Sprintf("ilm add %d nhlfe 2", lab.LabelOuter)),
		out:    lab.LabelOut, way: byLabels},
	{name: "mpls-swap", title: "kernel MPLS swap", lab: router, mode: Kernel, frames: labeled,
		labels: lab.MPLSSwap, out: lab.LabelOut, way: byOther, probe: hasMPLS},
	{name: "mpls-php", title: "kernel MPLS PHP", lab: router, mode: Kernel, frames: labeled,
		labels: lab.MPLSPHP, way: byOther, probe: hasMPLS},
	{name: "mpls-pop", title: "kernel MPLS pop, then IPv4", lab: router, mode: Kernel, frames: labeled,
		labels: lab.MPLSPop, way: byKernel, probe: hasMPLS},
	{name: "mpls-pop-swap", title: "kernel MPLS pop and swap", lab: router, mode: Kernel, frames: stacked,
		labels: lab.MPLSPopSwap, out: lab.LabelOut, way: byOther, probe: hasMPLS},
	{name: "mpls-push", title: "kernel MPLS push", lab: router, mode: Kernel, frames: pushed,
		labels: lab.MPLSPush, out: lab.LabelOut, way: byKernel, probe: all(hasMPLS, kernelHas("mpls_xmit", "mpls_iptunnel"))},
}

// tables are those by which labels that the generator sends get to the server.
func tables(list string, args ...any) []string {
	return []string{
		"space set lan 0",
		fmt.Sprintf("nhlfe add 1 "+list, args...) + " send dev wan via inet 198.19.0.2",
		fmt.Sprintf("ilm add %d nhlfe 1", lab.LabelIn),
	}
}

// lines are all of tables.
func (c insnCase) lines() []string {
	lines := slices.Clone(c.tables)
	for n := range c.more {
		lines = append(lines, fmt.Sprintf("ilm add %d nhlfe 1", lab.LabelIn+1+n))
	}
	return lines
}

// insnFlows are the numbers of flows that each case is counted with.
var insnFlows = []int{1, 10000}

// chosen are the cases of these names, and the ones they are counted over.
func chosen(names []string) ([]insnCase, error) {
	wanted := map[string]bool{}
	for _, name := range names {
		found := false
		for _, c := range insnCases {
			if c.name == name {
				found, wanted[c.name] = true, true
				if c.over != "" {
					wanted[c.over] = true
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("bench: %s: no such case; there are %s", name, strings.Join(InstructionCases(), ", "))
		}
	}
	var cases []insnCase
	for _, c := range insnCases {
		if len(names) == 0 || wanted[c.name] {
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// CheckCases says which name is none of a case.
func CheckCases(names []string) error {
	_, err := chosen(names)
	return err
}

// InstructionCases are the names of all cases.
func InstructionCases() (names []string) {
	for _, c := range insnCases {
		names = append(names, c.name)
	}
	return names
}

// frameOf lays out what a case's generator sends.
func (c insnCase) frameOf(r *rig, flows int) traffic.Frames {
	f := r.udp(frameSize, flows)
	f.Label, f.Beneath, f.Room = c.frames.label, c.frames.beneath, c.frames.room
	f.Labels = c.more > 0 && flows > 1
	if c.frames.v6 {
		f.Source = addr(r.top.Client.V6, f.Source)
		f.Dest = addr(r.top.Server.V6, f.Dest)
	}
	f.Size = max(f.Size, f.MinSize())
	return f
}

// kernelHas probes for a function of the kernel, which may be in a module that must be
// loaded first. The function and not the module is what counts: it may be built in.
func kernelHas(function, module string) func() error {
	return func() error {
		out, failed := exec.Command("modprobe", module).CombinedOutput()
		symbols, err := os.ReadFile("/proc/kallsyms")
		if err != nil {
			return err
		}
		// Lines are: address type name, and the module if it is in one.
		if regexp.MustCompile(`(?m)^\S+ [tT] ` + function + `(\s|$)`).Match(symbols) {
			return nil
		}
		err = fmt.Errorf("/proc/kallsyms has no %s", function)
		if failed != nil {
			err = fmt.Errorf("%w, and modprobe %s: %v: %s", err, module, failed, tail(string(out)))
		}
		return err
	}
}

// all probes for several things.
func all(probes ...func() error) func() error {
	return func() error {
		for _, probe := range probes {
			if err := probe(); err != nil {
				return err
			}
		}
		return nil
	}
}

// offloaded wants conntrack to say that each flow is in the kernel's flow table. Those of earlier
// cases of the lab may still be there.
func offloaded(r *rig, flows int) error {
	got := 0
	err := r.top.LAN.NS.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
		got = strings.Count(string(text), "[OFFLOAD]")
		return err
	})
	if err == nil && got < flows {
		err = fmt.Errorf("conntrack has %d flows of %d as [OFFLOAD]", got, flows)
	}
	return err
}
