// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"shunt/internal/bench"
	"shunt/internal/lab"
)

// chainName is that of the lab which `up` leaves standing.
const chainName = "chain"

const (
	chainRoutes = 50000
	chainEchoes = 1000 // round trips of each way, number of routers and size, in each round
)

// chainFlags are what `shunt lab chain` takes beside the flags of all that measures.
type chainFlags struct {
	hops   string
	routes int
}

func (f *chainFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.hops, "hops", "1..9", "`routers` in a row: a number, or a range such as 1..9")
	cmd.Flags().IntVar(&f.routes, "routes", chainRoutes, "`routes` that each router has")
}

// read finds what is wrong with them before anything is made.
func (f *chainFlags) read() (hops []int, err error) {
	from, to, ranged := strings.Cut(f.hops, "..")
	if !ranged {
		to = from
	}
	first, err := strconv.Atoi(from)
	last, lastErr := strconv.Atoi(to)
	if err != nil || lastErr != nil || first < 1 || last < first || last > lab.MaxHops {
		return nil, usagef("chain: --hops %s: use a number from 1 to %d, or a range such as 1..%d", f.hops, lab.MaxHops, lab.MaxHops)
	}
	if f.routes < 0 || f.routes > lab.MaxRoutes {
		return nil, usagef("chain: --routes %d: use 0 to %d", f.routes, lab.MaxRoutes)
	}
	for n := first; n <= last; n++ {
		hops = append(hops, n)
	}
	return hops, nil
}

func (e *env) labChain() *cobra.Command {
	run := func(cmd *cobra.Command) *cobra.Command {
		var f chainFlags
		filing(e, cmd, func(ctx context.Context, o bench.Options) (*bench.ChainReport, error) {
			hops, err := f.read()
			if err != nil {
				return nil, err
			}
			return bench.Chain(ctx, o, bench.ChainSize{Hops: hops, Routes: f.routes, Sizes: bench.ChainSizes(), Echoes: chainEchoes})
		}, printChain, func(*bench.ChainReport) []bench.Target { return nil })
		f.add(cmd)
		return cmd
	}
	cmd := run(&cobra.Command{
		Use:   "chain [up|down|run]",
		Short: "Routers in a row: round trips of IP and of MPLS",
		Long: `One to nine routers in a row, with a host before the first and one behind each, and many
routes in each router:

  host ---- router 1 ---- router 2 ---- ... ---- router 9 ---- host
                |             |
               host          host

Alone, or as "run", it measures round trips (ICMP echo, one at a time): IP by the kernel, IP
by shunt, and MPLS by shunt, whose first router pushes a label that the last one takes off.
Each answer is looked at byte by byte, the labels on the wire at the last router, and the
counters of every router must agree, or the run is void. About two minutes.`,
		Example: `  shunt lab chain --hops 1..9 --routes 50000
  shunt lab chain --hops 3 --routes 1000 --rounds 1 --json
  shunt lab chain up --hops 3 && shunt lab chain down`,
	})
	inner := run(&cobra.Command{
		Use:     "run",
		Short:   "Measure it: the same as without a word",
		Long:    `Measures in labs of its own, which are removed at the end.`,
		Example: `  shunt lab chain run --hops 9 --rounds 1`,
	})
	var f chainFlags
	up := &cobra.Command{
		Use:   "up",
		Short: "Make the lab and leave it standing, with shunt on every router",
		Long: `Makes the chain, as long as the last of --hops, with a running shunt and its tables on every
router, leaves all standing, and says how to use it. It is there until "shunt lab chain down".`,
		Example: `  shunt lab chain up --hops 3 --routes 1000`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hops, err := f.read()
			if err != nil {
				return err
			}
			return e.chainUp(cmd.Context(), lab.ChainOptions{Name: chainName, Kept: true, Hops: slices.Max(hops), Routes: f.routes})
		},
	}
	f.add(up)
	return members(cmd, inner, up, labDown(chainName))
}

// chainUp leaves nothing behind if it fails.
func (e *env) chainUp(ctx context.Context, o lab.ChainOptions) error {
	binary, err := bench.Executable()
	if err != nil {
		return err
	}
	c, err := lab.NewChain(o)
	if err != nil {
		return err
	}
	daemons, err := c.StartDaemons(ctx, binary)
	if err == nil {
		_, err = bench.ChainTables(ctx, c, daemons)
	}
	if err == nil {
		err = c.Keep()
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	p := &page{colour: e.colour()}
	printChainLab(p, binary, c)
	_, err = e.out.Write([]byte(p.String()))
	return err
}

// printChainLab says what stands and what to try, as lines to be copied.
func printChainLab(p *page, binary string, c *lab.Chain) {
	last := len(c.Routers)
	p.line("The lab is up, with shunt on each of %d routers:", last)
	p.line("")
	p.line("  host a ---- west r1 east ---- west r2 east ---- ...")
	p.line("  10.128.0.2     host              host")
	p.line("                   |                 |")
	p.line("                host h1           host h2")
	p.line("                10.128.1.2        10.128.2.2")
	p.line("")
	p.line("%s", p.paint(fmt.Sprintf("From the first host to the one behind router %d, by IP:", last), bold))
	p.line("  ip netns exec %s ping -i 0.05 %s", c.First.NS.Name(), c.Hosts[last-1].V4.Addr())
	if last > 1 {
		p.line("%s", p.paint("The same way by labels, forth and back:", bold))
		p.line("  ip netns exec %s ping -i 0.05 -I %s %s", c.First.NS.Name(), c.Switched(0), c.Switched(last))
	}
	p.line("")
	p.line("%s", p.paint("See what the routers make of it:", bold))
	for _, command := range []string{"flows", "mpls ilm", "mpls stats"} {
		p.line("  %s %s --state %s", binary, command, c.StateAt(fmt.Sprintf("r%d", last)))
	}
	p.line("")
	p.line("%s", p.paint("Take it down:", bold))
	p.line("  %s lab chain down", binary)
}

func printChain(p *page, r *bench.ChainReport) {
	printHead(p, r.Head)
	for _, bytes := range []int{r.Sizes[0], r.Sizes[len(r.Sizes)-1]} {
		p.line("%s", p.paint(fmt.Sprintf("Round trip of %d bytes, microseconds: IP by the kernel, IP and MPLS by shunt", bytes), bold))
		t := newTable(">HOPS", ">KERNEL", ">P99", ">IP", ">P99", ">MPLS", ">P99", ">MPLS OF IP", ">OF KERNEL")
		for _, hops := range r.Hops {
			row := []any{plainInt(hops)}
			for _, way := range bench.ChainWays() {
				if of := r.Find(way, hops, bytes); of != nil {
					row = append(row, fixed(of.Median.Median*1e6, 1), fixed(of.P99.Median*1e6, 1))
				}
			}
			if mpls := r.Find(bench.ChainMPLS, hops, bytes); mpls != nil {
				row = append(row, spreadText(mpls.OfIP), fixed(mpls.OfKernel.Median, 2))
			}
			t.add(row...)
		}
		p.table(t)
		p.line("")
		if len(r.Sizes) == 1 {
			break
		}
	}
	last := slices.Max(r.Hops)
	p.line("%s", p.paint(fmt.Sprintf("Over %d routers, by size, microseconds", last), bold))
	t := newTable(">BYTES", ">KERNEL", ">IP", ">MPLS", ">MPLS OF IP", ">OF KERNEL")
	for _, bytes := range r.Sizes {
		row := []any{plainInt(bytes)}
		for _, way := range bench.ChainWays() {
			if of := r.Find(way, last, bytes); of != nil {
				row = append(row, fixed(of.Median.Median*1e6, 1))
			}
		}
		if mpls := r.Find(bench.ChainMPLS, last, bytes); mpls != nil {
			row = append(row, spreadText(mpls.OfIP), spreadText(mpls.OfKernel))
		}
		t.add(row...)
	}
	p.table(t)
	p.line("")
	p.wrap(fmt.Sprintf("Medians over the rounds of each round's median and 99th percentile of %s round trips; ratios are of the medians, "+
		"formed in each round, with the least and the most of them. Bytes are those of a frame without labels and FCS.", bench.Thousands(float64(r.Echoes))), 80)
}

// spreadText is a ratio with the least and the most round.
func spreadText(s bench.Spread) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Min, s.Max)
}
