package daemon

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/doctor"
	"shunt/internal/kernel"
	"shunt/internal/reason"
)

// Status implements api.Backend.
func (d *Daemon) Status() (api.Status, error) {
	s := api.Status{
		Version: api.Version(), ABI: dataplane.ABIVersion, PID: os.Getpid(), Started: d.started,
		Paused: d.plane.Paused(), Generation: d.plane.Generation(), Threshold: d.cfg.Threshold,
		LeaseSeconds: d.cfg.Lease.Seconds(), Counters: map[string]map[string]uint64{}, Events: map[string]uint64{},
	}
	if v, err := kernel.Version(); err == nil {
		s.Kernel = v.Text
	}
	d.mu.Lock()
	s.LeaseLiveSeconds = max(d.lease.now, d.cfg.Lease).Seconds()
	for k, n := range d.events {
		s.Events[k] = n
	}
	d.mu.Unlock()
	for stage, word := range dataplane.Stages {
		c, err := d.plane.Totals(stage)
		if err != nil {
			return s, err
		}
		s.Counters[word] = map[string]uint64{}
		for i, n := range c.Packets {
			if n > 0 {
				s.Counters[word][dataplane.Reasons[i]] = n
			}
		}
		if stage != dataplane.StageTCEgress {
			s.Hits += c.Of("hit")
		}
		if stage == dataplane.StageTCIngress {
			s.Punts = c.Total() - c.Of("hit") - c.Of("tcp_implausible")
		}
	}
	s.Flows.Slots = d.cfg.Flows
	err := d.plane.Flows(func(f dataplane.Flow) bool {
		switch f.State {
		case api.FlowArmed:
			s.Flows.Armed++
		case api.FlowClosed:
			s.Flows.Closed++
		default:
			s.Flows.Seen++
		}
		return true
	})
	return s, err
}

// Ports implements api.Backend.
func (d *Daemon) Ports() ([]api.Port, error) {
	var list []api.Port
	for _, p := range d.showing() {
		a, err := d.port(p)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	for _, name := range d.cfg.Exact() {
		if !slices.ContainsFunc(list, func(p api.Port) bool { return p.Name == name }) {
			list = append(list, api.Port{Name: name, State: api.PortAbsent, Reason: "no such interface now"})
		}
	}
	slices.SortFunc(list, func(a, b api.Port) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (d *Daemon) showing() []shown {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shown
}

// port is a port in the API's words, with its counters of now.
func (d *Daemon) port(p shown) (api.Port, error) {
	index := p.link.Index
	a := api.Port{
		Name: p.link.Name, Index: index, Driver: p.link.Driver, MTU: p.link.MTU, Qdisc: p.link.Qdisc,
		State: api.PortTC, Reason: p.decision.Reason, Remedy: p.decision.Remedy,
		XDPReceive: p.decision.XDPReceive, XDPTransmit: p.decision.XDPTransmit,
	}
	switch {
	case !p.decision.Attach:
		a.State = api.PortRefused
	case p.decision.XDPReceive:
		a.State = api.PortXDPAndTC
	}
	x, err := d.plane.Counters(dataplane.StageXDP, index)
	if err != nil {
		return a, err
	}
	c, err := d.plane.Counters(dataplane.StageTCIngress, index)
	if err != nil {
		return a, err
	}
	a.Hits = x.Of("hit") + c.Of("hit")
	a.Punts = c.Total() - c.Of("hit") - c.Of("tcp_implausible")
	if t, err := d.plane.Transmit(index); err == nil {
		a.Sent, a.Drops, a.Errors = t.Sent, t.Drops, t.Errors
	}
	return a, nil
}

// clock turns the data path's jiffies into seconds.
type clock struct {
	now, hz, gen uint32
	names        map[int]string
}

func (d *Daemon) clock() clock {
	c := clock{hz: d.hz, gen: d.plane.Generation(), names: map[int]string{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.now = d.beaten.jiffies + d.jiffies(time.Since(d.beaten.at))
	for _, p := range d.shown {
		c.names[p.link.Index] = p.link.Name
	}
	return c
}

// since is how long ago a jiffy was, in seconds; negative in the future.
func (c clock) since(jiffy uint32) float64 {
	return float64(int32(c.now-jiffy)) / float64(c.hz)
}

const icmp, icmpv6, gre, esp = 1, 58, 47, 50

func (c clock) flow(f dataplane.Flow) api.Flow {
	a := api.Flow{
		Port: c.names[f.Port], Family: 6, Proto: api.ProtoName(f.Proto), Source: f.In.Source, Destination: f.In.Destination,
		State: f.State, Why: f.Why, DSCPIn: f.DSCPIn, DSCPOut: f.DSCPOut, Generation: f.Generation,
		Conntrack: f.Conntrack, Renewals: f.Renewals, Packets: f.Packets, Bytes: f.Bytes, Sighted: f.Count,
		Idle: max(0, c.since(f.Seen)),
	}
	if f.In.Source.Addr().Is4() {
		a.Family = 4
	}
	nat := f.NAT
	switch f.Proto {
	case icmp, icmpv6: // the type stands where the destination port would
		t := uint8(f.In.Destination.Port() >> 8)
		a.ICMPType = &t
		a.Destination = withPort(a.Destination, f.In.Source)
		nat.Destination = withPort(nat.Destination, nat.Source)
	case gre, esp:
		a.Key = uint32(f.In.Source.Port())<<16 | uint32(f.In.Destination.Port())
		a.Source, a.Destination = withoutPort(a.Source), withoutPort(a.Destination)
		nat.Source, nat.Destination = withoutPort(nat.Source), withoutPort(nat.Destination)
	}
	if f.State != api.FlowArmed {
		return a
	}
	left := -c.since(f.Lease)
	switch {
	case f.Generation != c.gen:
		a.State = api.FlowOld
	case left <= 0:
		a.State = api.FlowExpired
	}
	a.LeaseLeft = max(0, left)
	a.Age = max(0, c.since(f.Born))
	a.Out, a.MTU = c.names[f.Out], f.MTU
	a.DestMAC, a.SourceMAC = f.MACOut[0].String(), f.MACOut[1].String()
	a.Way = api.WayTC
	if f.XDP {
		a.Way = api.WayXDP
	}
	if f.Translated {
		a.Rewrite = &api.Rewrite{Source: nat.Source, Destination: nat.Destination}
	}
	return a
}

func withPort(a, from netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), from.Port())
}

func withoutPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }

// Flows implements api.Backend.
func (d *Daemon) Flows(filter api.FlowFilter) ([]api.Flow, error) {
	c := d.clock()
	var all []api.Flow
	if err := d.plane.Flows(func(f dataplane.Flow) bool {
		all = append(all, c.flow(f))
		return true
	}); err != nil {
		return nil, err
	}
	return filter.Select(all), nil
}

// Explain implements api.Backend.
func (d *Daemon) Explain(q api.FlowQuery) ([]api.Explanation, error) {
	c := d.clock()
	var found []api.Explanation
	paused := d.plane.Paused()
	if err := d.plane.Flows(func(f dataplane.Flow) bool {
		if a := c.flow(f); q.Match(&a) {
			found = append(found, explain(a, paused))
		}
		return true
	}); err != nil {
		return nil, err
	}
	if found == nil {
		e := notSeen
		if paused {
			e = explanation("paused")
		}
		found = append(found, e)
	}
	return found, nil
}

// notSeen is the answer about a flow of which nothing is kept. It is no reason of the data
// path: every packet of the flow was counted under the reason that it met.
var notSeen = api.Explanation{
	Reason: "not_seen",
	Words:  "no packet of it was seen, or none that could be repeated: shunt status counts why packets went to the kernel",
	Rule:   "the first packets of every flow take the kernel's way, and are watched",
	Remedy: "send traffic, then ask again",
}

func explanation(word string) api.Explanation {
	words, rule, remedy := reason.Words(word)
	return api.Explanation{Reason: word, Words: words, Rule: rule, Remedy: remedy}
}

// differs are the reasons for which packets of an armed flow go to the kernel. Every
// renewal of the flow sets its reason to hit again, so one of these is how it stands.
var differs = []string{"mac_differs", "dscp_differs", "label_differs", "over_mtu"}

// explain says what the next ordinary packet of a flow would meet.
func explain(f api.Flow, paused bool) api.Explanation {
	word := f.Why
	switch {
	case paused:
		word = "paused"
	case f.State == api.FlowArmed && !slices.Contains(differs, word):
		word = "hit"
	case f.State == api.FlowExpired:
		word = "lease_ended"
	case f.State == api.FlowOld:
		word = "old_generation"
	case f.State == api.FlowClosed:
		word = "closed"
	}
	e := explanation(word)
	e.Flow, e.Fast = &f, word == "hit"
	return e
}

// Doctor implements api.Backend.
func (d *Daemon) Doctor() ([]api.Check, error) { return doctor.Run(d.paths, d.cfg.Ports) }

// Pause implements api.Backend.
func (d *Daemon) Pause(paused bool) error {
	d.plane.Pause(paused)
	word := "resumed"
	if paused {
		word = "paused"
	}
	d.log.Info(word)
	return nil
}

// Stop implements api.Backend.
func (d *Daemon) Stop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		// a moment for the answer to reach the client
		time.AfterFunc(20*time.Millisecond, func() { close(d.stop) })
	}
	return nil
}
