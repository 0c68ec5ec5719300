// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// ErrNothing is the error of OpenPinned where nothing is pinned.
var ErrNothing = errors.New("nothing is pinned")

// OpenPinned opens the maps that a daemon pinned in dir, to read them, and to pause and resume.
// It loads no program, attaches and detaches nothing, and does not count as a daemon. The
// error is ErrNothing where dir holds no data path; one of another ABI cannot be read.
func OpenPinned(dir string) (*Plane, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, err
	}
	p := &Plane{dir: dir, maps: map[string]*ebpf.Map{}}
	p.closers = append(p.closers, func() error {
		for _, m := range p.maps {
			m.Close()
		}
		return nil
	})
	if err := p.openMaps(mapNames(spec)); err != nil {
		p.Close()
		return nil, err
	}
	p.countedBefore()
	return p, nil
}

func (p *Plane) openMaps(names []string) error {
	for _, name := range append([]string{controlMap}, names...) {
		if p.maps[name] != nil {
			continue
		}
		m, err := ebpf.LoadPinnedMap(p.pin("maps", name), nil)
		if errors.Is(err, os.ErrNotExist) && name == controlMap {
			return fmt.Errorf("%s: %w", p.dir, ErrNothing)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.pin("maps", name), err)
		}
		p.maps[name] = m
		if name != controlMap {
			continue
		}
		if p.ctl, err = m.Memory(); err != nil {
			return fmt.Errorf("%s: %w", p.pin("maps", name), err)
		}
		if abi := p.control().Abi; int(abi) != ABIVersion {
			return fmt.Errorf("%s: its layout is %d, this shunt reads %d; use the shunt that made it", p.dir, abi, ABIVersion)
		}
	}
	return p.readMemory()
}

// readMemory opens the maps that are read by offset.
func (p *Plane) readMemory() (err error) {
	for name, memory := range map[string]**ebpf.Memory{
		controlMap: &p.ctl, flowsMap: &p.flows, countersMap: &p.count, transmitsMap: &p.sent,
		notebooksMap: &p.notes,
	} {
		if *memory, err = p.maps[name].Memory(); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
	}
	return nil
}

// SlotCount is the size of the flow table.
func (p *Plane) SlotCount() int { return int(p.flows.Size()) / int(tcAbiSLOT_SIZE) }

// Removing reports whether somebody began to remove the data path and could not end it.
func (p *Plane) Removing() bool { return p.control().Paused == removing }

// Kept is what the data path has of the settings of the last daemon, and when that was last
// alive. Times are in jiffies.
func (p *Plane) Kept() (s Settings, beat uint32) {
	c := p.control()
	return Settings{Threshold: c.Threshold, Lease: c.Lease, LeaseLive: c.LeaseLive, HZ: c.Hz, TCP: c.TcpOff == 0}, c.Beat
}

// Attached reads, from the pinned links, which ports have programs now. Links whose interface
// is gone are left out.
func (p *Plane) Attached() ([]Attach, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, "links"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var ports []Attach
	for _, e := range entries {
		number, kind, _ := strings.Cut(e.Name(), "-")
		index, err := strconv.Atoi(number)
		if err != nil || kind == imposerKind || !holds(filepath.Join(p.dir, "links", e.Name()), index) {
			continue
		}
		at := slices.IndexFunc(ports, func(a Attach) bool { return a.Index == index })
		if at < 0 {
			at = len(ports)
			ports = append(ports, Attach{Index: index})
		}
		ports[at].XDPReceive = ports[at].XDPReceive || kind == "xdp"
	}
	for i := range ports {
		var port tcPort
		if p.maps["ports"].Lookup(uint32(ports[i].Index), &port) == nil {
			ports[i].XDPTransmit = port.Flags&uint32(tcPortFlagPORT_XDP_TX) != 0
		}
	}
	return ports, nil
}

// holds reports whether a pinned link is attached to an interface.
func holds(path string, index int) bool {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return false
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false
	}
	if x := info.XDP(); x != nil {
		return int(x.Ifindex) == index
	}
	t := info.TCX()
	return t != nil && int(t.Ifindex) == index
}

// Jiffies is the kernel's clock, 32 bits of it, by which leases and heartbeats are dated. It
// does not count as a heartbeat.
func Jiffies() (uint32, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "shunt_jiffies", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()},
	})
	if err != nil {
		return 0, fmt.Errorf("jiffies: %w", err)
	}
	defer program.Close()
	now, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 14)})
	if err != nil {
		return 0, fmt.Errorf("jiffies: %w", err)
	}
	return now, nil
}

// Strays are the interfaces of this network namespace that have a tcx program of shunt, whoever
// attached it and wherever it is pinned.
func Strays() ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range interfaces {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			q, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: at})
			if err != nil {
				return nil, fmt.Errorf("query tcx programs: %w", err)
			}
			for _, a := range q.Programs {
				if strings.HasPrefix(programName(a.ID), "shunt_") && !slices.Contains(names, i.Name) {
					names = append(names, i.Name)
				}
			}
		}
	}
	return names, nil
}
