// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/explain"
	"shunt/internal/kernel"
)

// Pinned answers for a data path without its daemon, from what is pinned: for one that died or was
// ended by SIGTERM, and for one that lives and does not answer. It can pause and resume, too.
type Pinned struct {
	plane *dataplane.Plane
	paths config.Paths
	now   uint32 // jiffies
	hz    uint32
	links map[int]kernel.Link
}

// OpenPinned opens the data path that belongs to paths. Where there is none, it returns nil and no error.
func OpenPinned(paths config.Paths) (*Pinned, error) {
	paths, err := Locate(paths)
	if err != nil {
		return nil, err
	}
	plane, err := dataplane.OpenPinned(paths.BPFFS)
	if errors.Is(err, dataplane.ErrNothing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("no daemon answers, and what it left cannot be read: %w", err)
	}
	p := &Pinned{plane: plane, paths: paths, links: map[int]kernel.Link{}}
	if err := p.look(); err != nil {
		plane.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pinned) look() (err error) {
	if t := readTraces(p.paths); t.Netns != 0 {
		here, err := netnsInode()
		if err != nil {
			return err
		}
		if here != t.Netns {
			return fmt.Errorf("%s: no daemon answers, and its data path is in another network namespace (inode %d); run this there, see \"ip netns\"", p.paths.State, t.Netns)
		}
	}
	if p.hz, err = kernel.HZ(); err != nil {
		return err
	}
	if p.now, err = dataplane.Jiffies(); err != nil {
		return err
	}
	links, err := kernel.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		p.links[l.Index] = l
	}
	return nil
}

// Close ends the look. The data path goes on.
func (p *Pinned) Close() error { return p.plane.Close() }

func (p *Pinned) seconds(jiffies uint32) float64 { return float64(jiffies) / float64(p.hz) }

// Status is api.Backend's.
func (p *Pinned) Status() (api.Status, error) {
	kept, beat := p.plane.Kept()
	s := api.Status{
		Version: api.Version(), ABI: dataplane.ABIVersion, State: api.StateUnattended, PID: max(0, holder(p.paths.Lock())),
		Paused: p.plane.Paused(), Generation: p.plane.Generation(), Threshold: kept.Threshold,
		LeaseSeconds: p.seconds(kept.Lease), LeaseLiveSeconds: p.seconds(kept.LeaseLive),
		Counters: map[string]map[string]uint64{}, Events: map[string]uint64{},
	}
	if v, err := kernel.Version(); err == nil {
		s.Kernel = v.Text
	}
	if err := addCounters(&s, p.plane); err != nil {
		return s, err
	}
	ports, err := p.Ports()
	if err != nil {
		return s, err
	}
	s.Problems = append([]api.Check{p.unattended(ports, s.PID, p.seconds(p.now-beat))}, problems(ports, nil)...)
	s.Flows, err = p.explainer().Count()
	s.Flows.Slots = p.plane.SlotCount()
	return s, err
}

// unattended is the finding about the daemon itself.
func (p *Pinned) unattended(ports []api.Port, pid int, silent float64) api.Check {
	c := api.Check{Name: "daemon", Level: api.LevelFail}
	since := (time.Duration(silent*10) * time.Second / 10).String()
	var names []string
	for _, a := range ports {
		names = append(names, a.Name)
	}
	if pid > 0 {
		c.Finding = fmt.Sprintf("the daemon, pid %d, does not answer; its last heartbeat was %s ago; its programs stay attached to %s and go on",
			pid, since, strings.Join(names, ", "))
		c.Remedy = fmt.Sprintf("%q takes over from it", p.paths.Command("run --replace"))
		return c
	}
	switch {
	case p.plane.Removing():
		c.Finding = "no daemon lives, and its data path was removed in part: nothing is repeated"
	case len(names) == 0:
		c.Finding = fmt.Sprintf("no daemon lives, the last one ended %s ago; its maps are pinned, no program is attached", since)
	default:
		c.Finding = fmt.Sprintf("no daemon lives, the last one ended %s ago; its programs stay attached to %s and go on", since, strings.Join(names, ", "))
	}
	c.Remedy = fmt.Sprintf("%q takes over, %q removes it all", p.paths.Command("run"), p.paths.Command("stop"))
	return c
}

// Ports are those that have programs now.
func (p *Pinned) Ports() ([]api.Port, error) {
	attached, err := p.plane.Attached()
	if err != nil {
		return nil, err
	}
	var list []api.Port
	for _, at := range attached {
		l := p.links[at.Index]
		a := api.Port{Name: l.Name, Index: at.Index, Driver: l.Driver, MTU: l.MTU, Qdisc: l.Qdisc, State: api.PortTC,
			XDPReceive: at.XDPReceive, XDPTransmit: at.XDPTransmit}
		if at.XDPReceive {
			a.State = api.PortXDPAndTC
		}
		if err := addFigures(&a, p.plane); err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b api.Port) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Beats reports whether the daemon's last heartbeat is as young as the data path wants it.
func (p *Pinned) Beats() bool {
	_, beat := p.plane.Kept()
	return p.seconds(p.now-beat) <= 3
}

func (p *Pinned) explainer() *explain.Look {
	kept, _ := p.plane.Kept()
	l := &explain.Look{Plane: p.plane, Now: p.now, HZ: p.hz, TCP: kept.TCP, Ports: map[int]explain.Port{}, Kernel: asker{}}
	attached, _ := p.plane.Attached()
	for _, at := range attached {
		l.Ports[at.Index] = explain.Port{Name: p.links[at.Index].Name, XDP: at.XDPReceive}
	}
	return l
}

// Flows is api.Backend's.
func (p *Pinned) Flows(filter api.FlowFilter) ([]api.Flow, error) { return p.explainer().Flows(filter) }

// Explain is api.Backend's; of rules it knows nothing.
func (p *Pinned) Explain(q api.ExplainQuery) ([]api.Explanation, error) {
	return p.explainer().Explain(q)
}

// Pause is api.Backend's. It outlasts this process, and the next daemon finds it.
func (p *Pinned) Pause(paused bool) error {
	if p.plane.Removing() {
		return fmt.Errorf("the data path was removed in part: nothing is repeated; %q removes the rest", p.paths.Command("stop"))
	}
	p.plane.Pause(paused)
	return nil
}
