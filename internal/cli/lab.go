// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"shunt/internal/bench"
	"shunt/internal/lab"
)

// labName is that of the lab which `up` leaves standing.
const labName = "firewall"

func (e *env) labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab NAME",
		Short: "Make a small network to try shunt in",
		Long: `Makes networks of namespaces on this machine, with a shunt of their own. The host's
interfaces and a running daemon are not touched.`,
		Example: `  shunt lab firewall run
  shunt lab lsr --out figures
  shunt lab chain --hops 1..9 --routes 50000`,
	}
	group(cmd, e.labFirewall(), e.labLSR(), e.labChain())
	return cmd
}

// group makes a command that only holds others: alone it shows its help.
func group(cmd *cobra.Command, members ...*cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(members...)
}

func (e *env) labFirewall() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "firewall {up|down|run}",
		Short: "A client, a stateful firewall with masquerade, and a server",
		Long: `A client, a router and a server. The router has an nftables firewall (policy drop,
established accept) and masquerade:

  client  eth0 ------ lan  router  wan ------ eth0  server
  198.18.0.2                                  198.19.0.2`,
		Example: `  shunt lab firewall run
  shunt lab firewall up && shunt lab firewall down`,
	}
	group(cmd, e.labFirewallRun(), &cobra.Command{
		Use:   "up",
		Short: "Make the lab and leave it standing, with shunt running",
		Long: `Makes the lab with a running shunt, leaves both standing, and says how to use them. It is
there until "shunt lab firewall down".`,
		Example: `  shunt lab firewall up`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return e.labUp(cmd.Context()) },
	}, &cobra.Command{
		Use:   "down",
		Short: "Remove the lab and everything that runs in it",
		Long: `Removes what "up" made: the daemon, the namespaces, the directories and whatever was
started in the namespaces.`,
		Example: `  shunt lab firewall down`,
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return lab.Down(labName) },
	})
	return cmd
}

func (e *env) labFirewallRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Show the router with shunt off, on and off again, in a minute",
		Long: `Shows packets per second by size, bulk transfers and round trips with shunt off, on and
off again, and says in plain words what was seen. The lab is private and removed at the end.`,
		Example: `  shunt lab firewall run
  shunt lab firewall run --json 2>/dev/null`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.labRun(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&e.json, "json", false, "print JSON instead of the tables")
	return cmd
}

// labUp leaves nothing behind if it fails.
func (e *env) labUp(ctx context.Context) error {
	binary, err := bench.Executable()
	if err != nil {
		return err
	}
	top, err := lab.Firewall(lab.FirewallOptions{Name: labName, Kept: true, NAT: lab.NATMasquerade})
	if err != nil {
		return err
	}
	if _, err = top.StartDaemon(ctx, top.LAN.NS, binary, "--port", top.LAN.Device, "--port", top.WAN.Device); err == nil {
		err = top.Keep()
	}
	if err != nil {
		return errors.Join(err, top.Close())
	}
	p := &page{colour: e.colour()}
	printLab(p, binary, top)
	_, err = e.out.Write([]byte(p.String()))
	return err
}

// printLab says what stands and what to try, as lines to be copied.
func printLab(p *page, binary string, top *lab.Topology) {
	client, server := top.Client.V4.Addr(), top.Server.V4.Addr()
	p.line("The lab is up, with shunt on the router's ports lan and wan:")
	p.line("")
	p.line("  client  eth0 ------ lan  router  wan ------ eth0  server")
	p.line("  %-43s %s", client, server)
	p.line("")
	p.line("%s", p.paint("Make traffic from the client to the server:", bold))
	p.line("  ip netns exec %s iperf3 -s -D", top.Server.NS.Name())
	p.line("  ip netns exec %s iperf3 -c %s -t 600 >/dev/null &", top.Client.NS.Name(), server)
	p.line("  ip netns exec %s ping -i 0.05 %s", top.Client.NS.Name(), server)
	p.line("")
	p.line("%s", p.paint("See what shunt makes of it:", bold))
	for _, command := range []string{
		"flows", "top", "ports", "status", fmt.Sprintf("explain %s %s/icmp", client, server), "pause", "resume",
	} {
		p.line("  %s %s --state %s", binary, command, top.State())
	}
	p.line("")
	p.line("%s", p.paint("Change the kernel's mind, and see it obeyed at once:", bold))
	p.line("  ip netns exec %s nft list ruleset", top.LAN.NS.Name())
	p.line("  ip netns exec %s nft insert rule inet filter forward ip protocol icmp drop", top.LAN.NS.Name())
	p.line("")
	p.line("%s", p.paint("Take it down:", bold))
	p.line("  %s lab firewall down", binary)
}

// labRun is the demo: progress and tables are one text on stdout, unless JSON goes there.
func (e *env) labRun(ctx context.Context) error {
	binary, err := bench.Executable()
	if err != nil {
		return err
	}
	said := progress{Writer: e.out}
	if e.json {
		said.Writer = e.err
	}
	report, err := bench.Demo(ctx, bench.Options{Binary: binary, Say: said.say})
	said.end()
	if err != nil {
		return err
	}
	return e.show(report, func(p *page) { printDemo(p, report) })
}
