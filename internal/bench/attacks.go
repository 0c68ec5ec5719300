// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// AttacksReport is what `shunt bench attacks` found.
type AttacksReport struct {
	Head
	Rate    float64        `json:"rate"` // frames per second that each attack sends
	Attacks []AttackResult `json:"attacks"`
	Targets []Target       `json:"targets"`
}

// AttackResult is what one attack did, by what defended.
type AttackResult struct {
	Name   string        `json:"name"`
	What   string        `json:"what"`
	Phases []AttackPhase `json:"phases"`
}

// Defence says who stood against an attack.
type Defence string

// The defences.
const (
	KernelAlone Defence = "kernel"
	ShuntThere  Defence = "shunt"
	ShuntPolice Defence = "shunt, [police]"
)

// AttackPhase is one attack against one router.
type AttackPhase struct {
	Defence Defence `json:"defence"`
	// A few frames of the attack, so slowly that none is lost for want of time.
	Tried   uint64 `json:"tried"`
	Through uint64 `json:"through"` // of these, came to the server
	// The flood.
	Offered   float64 `json:"offered_pps"`
	Delivered float64 `json:"delivered_pps"` // frames of it at the server
	Legit     Legit   `json:"legit"`
	Talking   int     `json:"talking"` // honest connections that were answered to the end; -1: there were none
	// What it left behind.
	Connections int    `json:"connections"` // conntrack's entries
	ArmedLegit  int    `json:"armed_legit"` // of the honest flows from the client
	Used        int    `json:"used_slots"`  // of the flow table
	Slots       int    `json:"slots"`       // there are
	MapBytes    uint64 `json:"map_bytes"`   // memory of all of shunt's maps
	SourceFull  uint64 `json:"source_full"` // packets that found no slot, by reason
	TableFull   uint64 `json:"table_full"`  // ...
	Policed     uint64 `json:"policed"`     // packets dropped for being over a rate
	Implausible uint64 `json:"implausible"` // FIN and RST dropped
	Closed      uint64 `json:"tcp_close"`   // FIN and RST that were believed
}

// AttacksOptions say how long and hard.
type AttacksOptions struct {
	Options
	Cases []string      // names of AttackCases; none: all
	Rate  float64       // frames per second; 0: 300,000
	Long  time.Duration // of each flood
}

const (
	attackRate  = 300000
	attackSlots = 65536 // so few that an attack can fill them
	// Frames of an attack that are sent slowly, to see what comes through.
	attempts = 1000
	tryRate  = 2000
	attackUp = 1200 * time.Millisecond // honest flows, until they are learned
	patience = 2 * time.Second         // of those who talk over TCP: what was lost is sent again
)

// Attacks sends each attack beside honest traffic, at the kernel alone and at shunt.
func Attacks(ctx context.Context, o AttacksOptions) (*AttacksReport, error) {
	if o.Rate == 0 {
		o.Rate = attackRate
	}
	report := &AttacksReport{Rate: o.Rate, Head: o.head("attacks", 1,
		"Honest traffic under attack: 100 UDP flows of sockets with 5,000 packets a second, or 50 TCP connections beside them, and their answers",
		"router and sink on one core (threaded NAPI), the attacker floods from the other; masquerade, INVALID dropped, a drop policy; 65,536 slots; a lab of its own for each line, half of the flows begin during the attack")}
	report.Command = strings.Join(append([]string{report.Command}, o.Cases...), " ")
	for _, a := range attackCases {
		if len(o.Cases) > 0 && !slices.Contains(o.Cases, a.name) {
			continue
		}
		result := AttackResult{Name: a.name, What: a.what}
		for range report.Rounds {
			if err := result.round(ctx, o, a); err != nil {
				return nil, interrupted(ctx, err)
			}
		}
		report.Attacks = append(report.Attacks, result)
		report.Targets = append(report.Targets, result.targets()...)
	}
	return report, nil
}

// round is the attack once against each router.
func (a *AttackResult) round(ctx context.Context, o AttacksOptions, of attack) error {
	o.Say("%s:", a.Name)
	for _, d := range []Defence{KernelAlone, ShuntThere, ShuntPolice} {
		if d == ShuntPolice && of.police == "" {
			continue
		}
		p, err := of.phase(ctx, o, d)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", a.Name, d, err)
		}
		a.Phases = append(a.Phases, p)
		o.Say("  %s %.1f %%", d, 100*p.Legit.Share())
	}
	o.Say("\n")
	return nil
}

// Typical is, of the rounds with that defence, the one whose share of answered packets is the
// median. Without any it is nil.
func (a *AttackResult) Typical(d Defence) *AttackPhase {
	var rounds []AttackPhase
	for _, p := range a.Phases {
		if p.Defence == d {
			rounds = append(rounds, p)
		}
	}
	if rounds == nil {
		return nil
	}
	slices.SortFunc(rounds, func(a, b AttackPhase) int { return cmp.Compare(a.Legit.Share(), b.Legit.Share()) })
	return &rounds[(len(rounds)-1)/2]
}

// blind are guesses of a sequence number, of those tried, that may be right by chance.
const blind = 5

// targets want that shunt lets nothing through that the kernel alone would not have, and
// that honest users are not worse off for it: 5 % are for noise.
func (a *AttackResult) targets() []Target {
	kernel, shunt := a.Typical(KernelAlone), a.Typical(ShuntThere)
	allowed := kernel.Through + blind
	if kernel.Through > kernel.Tried/4 { // it forwards them, for what they are; the rest was lost for want of time
		allowed = kernel.Tried
	}
	targets := []Target{atMost(a.Name+": frames let through", float64(shunt.Through), float64(allowed))}
	if kernel.Talking >= 0 {
		targets = append(targets, atLeast(a.Name+": connections alive", float64(shunt.Talking), float64(kernel.Talking)))
	}
	return append(targets, atLeast(a.Name+": answered, over the kernel's",
		shunt.Legit.Share()/max(kernel.Legit.Share(), 0.001), 0.95))
}

// phase is one attack at one router.
func (a attack) phase(ctx context.Context, o AttacksOptions, d Defence) (p AttackPhase, err error) {
	r, err := a.rig(ctx, o, d)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	h, err := beHonest(r.top.Client, r.top.Server, legitFlows/2)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, h.end()) }()
	var t *talk
	if a.tcp {
		if t, err = beginTalk(r.top.Client, r.top.Server); err != nil {
			return p, err
		}
		defer func() { err = errors.Join(err, t.end()) }()
	}
	if err := pause(ctx, attackUp); err != nil {
		return p, err
	}
	p = AttackPhase{Defence: d, Talking: -1}
	if a.frames != nil {
		if err := a.try(ctx, r, &p); err != nil {
			return p, err
		}
	}
	if err := a.flood(ctx, o, r, h, &p); err != nil {
		return p, err
	}
	if t != nil {
		since := time.Now()
		time.Sleep(patience)
		p.Talking = t.alive(since)
	}
	return p, p.look(ctx, r)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// rig is a router with a core of its own, and what defends it.
func (a attack) rig(ctx context.Context, o AttacksOptions, d Defence) (*rig, error) {
	r, err := newRig(o.Binary, lab.FirewallOptions{Name: "bench", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		return nil, err
	}
	if err := r.attachSink(); err != nil {
		return nil, err
	}
	if err := a.prepare(ctx, r, d); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (a attack) prepare(ctx context.Context, r *rig, d Defence) error {
	// what an attacker makes the router answer has a way back; what is scanned is there
	lines := []string{"route add 198.18.0.64/26 dev lan"}
	for n := range million >> 14 {
		lines = append(lines,
			fmt.Sprintf("neighbour replace 198.19.0.%d lladdr %s dev wan nud permanent", 2+n, r.top.Server.MAC),
			fmt.Sprintf("neighbour replace 198.18.0.%d lladdr %s dev lan nud permanent", 66+n, attackerMAC))
	}
	if err := r.top.LAN.NS.IP(lines...); err != nil {
		return err
	}
	if err := r.top.LAN.NS.NFT("insert rule inet filter forward ct state invalid drop"); err != nil {
		return err
	}
	if err := r.ownCore(); err != nil {
		return err
	}
	if d == KernelAlone {
		return nil
	}
	file := filepath.Join(r.top.Dir(), "shunt.toml")
	text := fmt.Sprintf("flows = %d\n%s", attackSlots, a.config)
	if d == ShuntPolice {
		text += "[police]\n" + a.police + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	r.xdp, r.args = "on", []string{"--config", file}
	return r.enter(ctx, Shunt)
}

// ownCore has the router's ports polled by threads on the first core: the attacker's own core
// does nothing of the router's work then, and what the router has no time for is lost where
// it comes in, as in a network card's ring.
func (r *rig) ownCore() error {
	before, err := pollers()
	if err != nil {
		return err
	}
	if _, err := r.top.LAN.NS.Run("sh", "-c", "echo 1 > /sys/class/net/lan/threaded && echo 1 > /sys/class/net/wan/threaded"); err != nil {
		return err
	}
	after, err := pollers()
	if err != nil {
		return err
	}
	var first unix.CPUSet
	first.Set(0)
	for _, pid := range after {
		if slices.Contains(before, pid) {
			continue
		}
		if err := unix.SchedSetaffinity(pid, &first); err != nil {
			return fmt.Errorf("bench: pin the router's poller: %w", err)
		}
	}
	return nil
}

// pollers are the kernel threads that poll ports called lan and wan, on the whole machine.
func pollers() (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		name, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		if strings.HasPrefix(string(name), "napi/lan-") || strings.HasPrefix(string(name), "napi/wan-") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// generator sends the attack at a rate, from the last core.
func (a attack) generator(r *rig, rate float64, start uint64) (*traffic.Generator, error) {
	from := r.top.Client
	if a.behind {
		from = r.top.Server
	}
	return traffic.NewGenerator(traffic.Config{
		NS: from.NS, Device: from.Device, CPU: core(), Rate: rate, Smooth: rate > tryRate, Start: start, Frames: a.frames(r),
	})
}

// try sends some frames slowly.
func (a attack) try(ctx context.Context, r *rig, p *AttackPhase) error {
	g, err := a.generator(r, tryRate, 0)
	if err != nil {
		return err
	}
	if err := r.sink.Reset(); err != nil {
		return errors.Join(err, g.Close())
	}
	sent, err := g.Run(ctx, attempts)
	if err := errors.Join(err, g.Close(), ctx.Err()); err != nil {
		return err
	}
	stats, err := r.sink.Wait(attempts, stragglers)
	p.Tried, p.Through = sent.Sent, stats.Frames
	return err
}

// flood sends the attack and measures what is left for honest users, of whom half begin now.
func (a attack) flood(ctx context.Context, o AttacksOptions, r *rig, h *honest, p *AttackPhase) error {
	if err := r.sink.Reset(); err != nil {
		return err
	}
	window, cancel := context.WithTimeout(ctx, o.Long)
	defer cancel()
	flood := make(chan error, 1)
	var sent traffic.Result
	if a.frames == nil {
		flood <- nil
	} else {
		g, err := a.generator(r, o.Rate, attempts)
		if err != nil {
			return err
		}
		defer g.Close()
		go func() {
			var err error
			sent, err = g.Loop(window)
			flood <- err
		}()
	}
	time.Sleep(o.Long / 10)
	h.flows.Store(legitFlows)
	h.begin()
	time.Sleep(o.Long * 8 / 10)
	p.Legit = h.result()
	if r.client != nil {
		armed, err := r.client.Flows(ctx, api.FlowFilter{State: api.FlowArmed, Port: r.top.LAN.Device})
		if err != nil {
			return err
		}
		for _, f := range armed {
			if f.Source.Addr() == r.top.Client.V4.Addr() && f.Destination.Port() == legitService {
				p.ArmedLegit++
			}
		}
	}
	if err := errors.Join(<-flood, ctx.Err()); err != nil {
		return err
	}
	stats, err := r.sink.Wait(sent.Sent, stragglers/4)
	if seconds := sent.Duration.Seconds(); seconds > 0 {
		p.Offered, p.Delivered = float64(sent.Sent)/seconds, float64(stats.Frames)/seconds
	}
	return err
}

// look asks what the attack left behind.
func (p *AttackPhase) look(ctx context.Context, r *rig) error {
	err := r.top.LAN.NS.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err == nil {
			p.Connections, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	if err != nil || r.client == nil {
		return err
	}
	s, err := r.client.Status(ctx)
	if err != nil {
		return err
	}
	p.Slots, p.Used = s.Flows.Slots, s.Flows.Armed+s.Flows.Seen+s.Flows.Closed+s.Flows.Idle
	count := func(reason string) uint64 { return s.Counters[api.StageXDP][reason] }
	p.SourceFull, p.TableFull, p.Policed = count("source_full"), count("table_full"), count("policed")
	p.Implausible, p.Closed = count("tcp_implausible"), count("tcp_close")
	p.MapBytes, err = mapBytes(r.daemon.PID())
	return err
}
