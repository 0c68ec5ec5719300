// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// ChainReport is what `shunt lab chain` found: round trips over some routers, by way.
type ChainReport struct {
	Head
	Hops    []int         `json:"hops"`
	Routes  int           `json:"routes"` // that each router has
	Sizes   []int         `json:"sizes"`  // of frames without labels, in bytes of Ethernet without FCS
	Echoes  int           `json:"echoes"` // of each way, number of routers and size, in each round
	Results []ChainResult `json:"results"`
}

// ChainResult is one way over so many routers. Times are seconds, ratios are formed within a round.
type ChainResult struct {
	Way      ChainWay `json:"way"`
	Hops     int      `json:"hops"`
	Bytes    int      `json:"bytes"`
	Median   Spread   `json:"median_s"` // of a round's round trips
	P99      Spread   `json:"p99_s"`
	OfIP     Spread   `json:"of_ip"`     // its median over that of shunt's IP
	OfKernel Spread   `json:"of_kernel"` // over that of the kernel's IP
	Answered int      `json:"answered"`  // requests in all rounds: all of them
}

// ChainWay is how packets go.
type ChainWay string

// The ways.
const (
	ChainKernel ChainWay = "kernel" // IP, with nothing attached to any router
	ChainIP     ChainWay = "ip"     // IP, by shunt
	ChainMPLS   ChainWay = "mpls"   // labels, by shunt; over one router there is nothing to switch
)

// ChainWays are all, in the order of tables.
func ChainWays() []ChainWay { return []ChainWay{ChainKernel, ChainIP, ChainMPLS} }

// ChainSizes are the frame sizes of RFC 5695, 64 to 1518 bytes, less the FCS.
func ChainSizes() []int { return []int{60, 124, 252, 508, 1020, 1276, 1514} }

// ChainSize says how much `shunt lab chain` measures.
type ChainSize struct {
	Hops   []int // numbers of routers, each 1 to lab.MaxHops
	Routes int
	Sizes  []int // bytes of Ethernet without FCS and labels, 60 to 1514
	Echoes int   // round trips of each way, number of routers and size, in each round
}

// chainSlice is how many round trips are made one way before it is another's turn.
const chainSlice = 50

// Chain measures round trips over the routers of lab.Chain. Two chains stand side by side, one without shunt and
// one with; the ways have turns of some round trips, so that drift of the machine hits all alike.
func Chain(ctx context.Context, o Options, size ChainSize) (*ChainReport, error) {
	report := &ChainReport{Hops: size.Hops, Routes: size.Routes, Sizes: size.Sizes, Echoes: size.Echoes, Head: o.head("chain", 5,
		"Round trips over routers in a row, of IP by the kernel, IP by shunt and MPLS by shunt",
		fmt.Sprintf("ICMP echo, one at a time, all on one core; %s routes in each router; two chains, without shunt and with, in turns of %d; every answer and every router's counters verified; medians",
			Thousands(float64(size.Routes)), chainSlice))}
	report.Command = fmt.Sprintf("shunt lab chain --hops %s --routes %d --rounds %d", HopsText(size.Hops), size.Routes, report.Rounds)
	c := chain{report: report, size: size, say: o.Say, sent: map[uint32]uint64{}}
	defer c.Close()
	if err := c.build(ctx, o.Binary); err != nil {
		return nil, interrupted(ctx, err)
	}
	for round := range report.Rounds {
		o.Say("round %d of %d:", round+1, report.Rounds)
		if err := c.round(ctx); err != nil {
			return nil, interrupted(ctx, err)
		}
		o.Say("\n")
	}
	if err := c.audit(ctx); err != nil {
		return nil, interrupted(ctx, err)
	}
	report.sum()
	return report, c.Close()
}

// HopsText writes numbers of routers as `shunt lab chain --hops` takes them.
func HopsText(hops []int) string {
	if len(hops) == 1 {
		return fmt.Sprint(hops[0])
	}
	return fmt.Sprintf("%d..%d", slices.Min(hops), slices.Max(hops))
}

// chain is a measurement under way.
type chain struct {
	report  *ChainReport
	size    ChainSize
	say     func(string, ...any)
	plain   *lab.Chain    // without shunt
	fast    *lab.Chain    // with
	daemons []*lab.Daemon // of the fast one's routers
	clients []*api.Client
	sockets [2]int            // of the plain one's first host, and the fast one's; 0: none
	sent    map[uint32]uint64 // packets, by label that a router gets them with
}

// build makes both chains.
func (c *chain) build(ctx context.Context, binary string) (err error) {
	o := lab.ChainOptions{Hops: slices.Max(c.size.Hops), Routes: c.size.Routes}
	c.say("making two chains of %d routers with %s routes each\n", o.Hops, Thousands(float64(o.Routes)))
	o.Name = "chain-plain"
	if c.plain, err = lab.NewChain(o); err != nil {
		return err
	}
	o.Name = "chain-fast"
	if c.fast, err = lab.NewChain(o); err != nil {
		return err
	}
	if c.daemons, err = c.fast.StartDaemons(ctx, binary); err != nil {
		return err
	}
	if c.clients, err = ChainTables(ctx, c.fast, c.daemons); err != nil {
		return err
	}
	for i, of := range []*lab.Chain{c.plain, c.fast} {
		if c.sockets[i], err = packetSocket(of.First, etherIPv4); err != nil {
			return err
		}
	}
	for _, hops := range c.size.Hops {
		if hops > 1 {
			if err := c.wire(ctx, hops); err != nil {
				return err
			}
		}
		for _, bytes := range c.size.Sizes {
			for _, way := range ChainWays() {
				if way != ChainMPLS || hops > 1 {
					c.report.Results = append(c.report.Results, ChainResult{Way: way, Hops: hops, Bytes: bytes})
				}
			}
		}
	}
	return nil
}

// ChainTables gives the daemons of a chain their tables.
func ChainTables(ctx context.Context, of *lab.Chain, daemons []*lab.Daemon) (clients []*api.Client, err error) {
	for i, d := range daemons {
		client := api.NewClient(d.Socket())
		if _, err := client.MPLSApply(ctx, api.MPLSChange{Lines: of.Tables(i), Origin: "lab"}); err != nil {
			return nil, fmt.Errorf("router %d: %w", i+1, err)
		}
		clients = append(clients, client)
	}
	return clients, nil
}

// Close removes both chains.
func (c *chain) Close() error {
	var errs []error
	for _, fd := range c.sockets {
		if fd != 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	for _, d := range c.daemons {
		errs = append(errs, d.Stop())
	}
	for _, l := range []*lab.Chain{c.plain, c.fast} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	c.plain, c.fast, c.daemons, c.sockets = nil, nil, nil, [2]int{}
	return errors.Join(errs...)
}

// way lays out the echoes of a way.
func (c *chain) way(way ChainWay, hops, bytes int) *echoes {
	fd, of := c.sockets[1], c.fast
	if way == ChainKernel {
		fd, of = c.sockets[0], c.plain
	}
	w := echoWay{from: of.First, source: of.First.V4.Addr(), to: of.Routers[0].West, dest: of.Hosts[hops-1].V4.Addr(),
		hops: hops, id: uint16(hops), ethernet: bytes}
	if way == ChainMPLS {
		w.source, w.dest = of.Switched(0), of.Switched(hops)
	}
	return newEchoes(fd, w)
}

// chainCase is one way over so many routers with one size.
type chainCase struct {
	*echoes
	result *ChainResult
	took   []float64 // this round's round trips, in seconds
}

// round measures everything once, in turns of some round trips.
func (c *chain) round(ctx context.Context) error {
	var all []*chainCase
	for i := range c.report.Results {
		r := &c.report.Results[i]
		all = append(all, &chainCase{echoes: c.way(r.Way, r.Hops, r.Bytes), result: r})
	}
	if err := c.warm(ctx, all); err != nil {
		return err
	}
	if _, err := c.turns(ctx, all, c.size.Echoes); err != nil {
		return err
	}
	for _, one := range all {
		slices.Sort(one.took)
		r := one.result
		r.Median.Samples = append(r.Median.Samples, percentile(one.took, 0.5))
		r.P99.Samples = append(r.P99.Samples, percentile(one.took, 0.99))
		r.Answered += len(one.took)
	}
	return nil
}

// turns makes so many round trips of each, and checks all counters. It returns the part of the packets at
// shunt's routers that their kernels have forwarded.
func (c *chain) turns(ctx context.Context, all []*chainCase, count int) (slow float64, err error) {
	before, err := c.counters(ctx)
	if err != nil {
		return 0, err
	}
	for _, one := range all {
		one.took, one.sent = nil, 0
	}
	err = pinned(func() (err error) {
		for left := count; left > 0; left -= chainSlice {
			for _, one := range all {
				if ctx.Err() != nil {
					return errInterrupted
				}
				if one.took, err = one.trips(min(left, chainSlice), one.took); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	after, err := c.counters(ctx)
	if err != nil {
		return 0, err
	}
	var forwarded, hits uint64
	for i := range after.fast {
		forwarded += after.fast[i].forwarded - before.fast[i].forwarded
		hits += after.fast[i].hits - before.fast[i].hits
	}
	return share(forwarded, forwarded+hits), c.went(all, before, after)
}

// warm sends until shunt has learned what is IP.
func (c *chain) warm(ctx context.Context, all []*chainCase) error {
	for deadline := time.Now().Add(warmPatience); ; {
		slow, err := c.turns(ctx, all, chainSlice)
		if err != nil || slow <= 1-warmHits {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("bench: after %v the kernel of routers with shunt still forwards %.0f %% of the packets; a daemon's log ends: %s",
				warmPatience, 100*slow, tail(c.daemons[0].Log()))
		}
	}
}

// Find is a result, or nil.
func (f *ChainReport) Find(way ChainWay, hops, bytes int) *ChainResult {
	for i := range f.Results {
		if r := &f.Results[i]; r.Way == way && r.Hops == hops && r.Bytes == bytes {
			return r
		}
	}
	return nil
}

func (f *ChainReport) sum() {
	for i := range f.Results {
		r := &f.Results[i]
		r.Median, r.P99 = spreadOf(r.Median.Samples), spreadOf(r.P99.Samples)
		r.OfIP = spreadOf(ratios(r.Median.Samples, f.Find(ChainIP, r.Hops, r.Bytes).Median.Samples))
		r.OfKernel = spreadOf(ratios(r.Median.Samples, f.Find(ChainKernel, r.Hops, r.Bytes).Median.Samples))
	}
}
