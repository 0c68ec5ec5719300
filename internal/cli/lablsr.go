// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/bench"
	"shunt/internal/lab"
)

// lsrName is that of the lab which `up` leaves standing.
const lsrName = "lsr"

// lsrSize is what `shunt lab lsr` measures.
var lsrSize = bench.LSRSize{Sizes: []int{60, 128, 256, 512, 1024, 1500}, Long: 300 * time.Millisecond, Warm: 50 * time.Millisecond}

func (e *env) labLSR() *cobra.Command {
	run := func(cmd *cobra.Command) *cobra.Command {
		return filing(e, cmd, func(ctx context.Context, o bench.Options) (*bench.LSRReport, error) {
			return bench.LSR(ctx, o, lsrSize)
		}, printLSR, func(r *bench.LSRReport) []bench.Target { return r.Targets })
	}
	cmd := run(&cobra.Command{
		Use:   "lsr [up|down|run]",
		Short: "A label switching router between two hosts",
		Long: `A router that switches labels, without rules, between two hosts:

  client  eth0 ------ lan  router  wan ------ eth0  server
  198.18.0.2                                  198.19.0.2

Alone, or as "run", it measures frames of 60 to 1500 bytes: push, swap, pop and swap, PHP
and plain IP, beside the kernel's IP and an empty redirect, on one core and on two. The
sink takes a frame only with the right EtherType, label and stack depth, and the counters of
shunt, of each label and of the kernel must agree with it, or the run is void. About five minutes.`,
		Example: `  shunt lab lsr --out figures
  shunt lab lsr --json --rounds 1
  shunt lab lsr up && shunt lab lsr down`,
	})
	inner := run(&cobra.Command{
		Use:     "run",
		Short:   "Measure it: the same as without a word",
		Long:    `Measures in a lab of its own, which is removed at the end.`,
		Example: `  shunt lab lsr run --rounds 1`,
	})
	return members(cmd, inner, &cobra.Command{
		Use:   "up",
		Short: "Make the lab and leave it standing, with shunt and its tables",
		Long: `Makes the lab with a running shunt that has all tables, leaves both standing, and says how
to use them. It is there until "shunt lab lsr down".`,
		Example: `  shunt lab lsr up`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return e.lsrUp(cmd.Context(), lsrName) },
	}, labDown(lsrName))
}

// labDown is the command that removes what `up` has made.
func labDown(name string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab and everything that runs in it",
		Long: `Removes what "up" made: the daemons, the namespaces, the directories and whatever was
started in the namespaces.`,
		Example: fmt.Sprintf("  shunt lab %s down", name),
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return lab.Down(name) },
	}
}

// members gives a command that does something by itself others below it. What is none of them is told so.
func members(cmd *cobra.Command, others ...*cobra.Command) *cobra.Command {
	does := cmd.RunE
	group(cmd, others...)
	cmd.RunE = does
	return cmd
}

// lsrUp leaves nothing behind if it fails.
func (e *env) lsrUp(ctx context.Context, name string) error {
	binary, err := bench.Executable()
	if err != nil {
		return err
	}
	top, err := lab.LSR(name, true)
	if err != nil {
		return err
	}
	if err := startLSR(ctx, top, binary); err != nil {
		return errors.Join(err, top.Close())
	}
	p := &page{colour: e.colour()}
	printLSRLab(p, binary, top)
	_, err = e.out.Write([]byte(p.String()))
	return err
}

// startLSR starts the daemon, gives it its tables, and lets the lab stay.
func startLSR(ctx context.Context, top *lab.Topology, binary string) error {
	file := filepath.Join(top.Dir(), "shunt.toml")
	if err := os.WriteFile(file, []byte(bench.LSRConfig), 0o600); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	daemon, err := top.StartDaemon(ctx, top.LAN.NS, binary, "--config", file, "--xdp", "on", "--port", top.LAN.Device, "--port", top.WAN.Device)
	if err != nil {
		return err
	}
	change := api.MPLSChange{Lines: top.LSRTables(), Origin: "lab"}
	if _, err := api.NewClient(daemon.Socket()).MPLSApply(ctx, change); err != nil {
		return err
	}
	return top.Keep()
}

// printLSRLab says what stands and what to try, as lines to be copied.
func printLSRLab(p *page, binary string, top *lab.Topology) {
	in, out := lab.OpSwap.Labels(false)
	p.line("The lab is up, with shunt and label space 0 on the router's ports lan and wan:")
	p.line("")
	p.line("  client  eth0 ------ lan  router  wan ------ eth0  server")
	p.line("  %-43s %s", top.Client.V4.Addr(), top.Server.V4.Addr())
	p.line("")
	p.line("%s", p.paint("See the tables, and what they count:", bold))
	for _, command := range []string{"ilm", "nhlfe", "stats"} {
		p.line("  %s mpls %s --state %s", binary, command, top.State())
	}
	p.line("")
	p.line("%s", p.paint(fmt.Sprintf("Watch the server, and send it a frame with label %d, which comes with %d:", in[0], out), bold))
	p.line("  ip netns exec %s tcpdump -n -e -i eth0 mpls &", top.Server.NS.Name())
	p.line("  ip netns exec %s python3 -c 'from socket import *; s = socket(AF_PACKET, SOCK_RAW); s.bind((", top.Client.NS.Name())
	p.line("    \"eth0\", 0)); s.send(bytes.fromhex(")
	p.line("    \"%s\"))'", lsrFrame(top, in[0]))
	p.line("")
	p.line("%s", p.paint("Change what is done with it:", bold))
	p.line("  %s mpls nhlfe replace 1 swap 300 push 400 send dev wan \\", binary)
	p.line("    via inet %s --state %s", top.Server.V4.Addr(), top.State())
	p.line("")
	p.line("%s", p.paint("Take it down:", bold))
	p.line("  %s lab lsr down", binary)
}

// lsrFrame is a frame from the client to the server, in hexadecimal: MAC addresses, a label, and an
// IPv4 header whose protocol (253, for trials) nobody has.
func lsrFrame(top *lab.Topology, label uint32) string {
	mac := func(a fmt.Stringer) string { return strings.ReplaceAll(a.String(), ":", "") }
	from, to := top.Client.V4.Addr().As4(), top.Server.V4.Addr().As4()
	header := fmt.Sprintf("450000140000400040fd%%04x%x%x", from, to)
	sum := uint32(0)
	for i, zero := 0, fmt.Sprintf(header, 0); i < len(zero); i += 4 {
		var word uint32
		fmt.Sscanf(zero[i:i+4], "%04x", &word)
		sum += word
	}
	sum = sum&0xffff + sum>>16
	return mac(top.LAN.MAC) + mac(top.Client.MAC) + "8847" + fmt.Sprintf("%08x", label<<12|1<<8|64) + fmt.Sprintf(header, 0xffff&^sum)
}

func printLSR(p *page, r *bench.LSRReport) {
	printHead(p, r.Head)
	names := map[bench.LSROperation]string{bench.LSRLimit: "LIMIT", bench.LSRKernel: "KERNEL IP", lab.OpIP: "SHUNT IP"}
	title := func(op bench.LSROperation) string {
		if name := names[op]; name != "" {
			return ">" + name
		}
		return ">" + strings.ToUpper(string(op))
	}
	operations := bench.LSROperations()
	for cores := 1; cores <= 2; cores++ {
		p.line("%s", p.paint(map[int]string{1: "One core, million frames a second", 2: "Two cores, both directions, million frames a second"}[cores], bold))
		columns := []string{">BYTES"}
		for _, op := range operations {
			columns = append(columns, title(op))
		}
		t := newTable(columns...)
		for _, size := range r.Sizes {
			row := []any{plainInt(size)}
			for _, op := range operations {
				row = append(row, fixed(r.Find(op, cores, size).PPS.Median/1e6, 2))
			}
			t.add(row...)
		}
		p.table(t)
		p.line("")
		printLSRRatios(p, r, cores)
	}
	p.wrap("Medians of the rounds; ratios are formed in each round, with the least and the most of them. Bytes are those of a frame without labels "+
		"and FCS, of which each label is four more. Limit: an empty redirect, of IP.", 80)
	printTargets(p, r.Targets)
}

// printLSRRatios says what MPLS is beside IP and the limit.
func printLSRRatios(p *page, r *bench.LSRReport, cores int) {
	t := newTable(">BYTES", "", ">OF SHUNT'S IP", ">OF KERNEL'S IP", ">OF THE LIMIT")
	for _, size := range r.Sizes {
		text := plainInt(size)
		for _, op := range bench.LSROperations()[3:] {
			of := r.Find(op, cores, size)
			t.add(text, string(op), spreadText(of.OfIP), fixed(of.OfKernel.Median, 1), spreadText(of.OfLimit))
			text = ""
		}
	}
	p.table(t)
	p.line("")
}
