// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// This file is about ports whose XDP program is not that of all: those with a label space.

// switchesLabels tells whether a link has the program of a port with a label space.
func switchesLabels(l link.Link) bool {
	info, err := l.Info()
	if err != nil {
		return false
	}
	prog, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return false
	}
	defer prog.Close()
	about, err := prog.Info()
	return err == nil && about.Name == "shunt_mpls"
}

// giveXDP has some ports have another XDP program than the rest, those that are attached and
// those that will be. It may be called beside Apply: who attaches and who replaces have
// a lock of their own, and links are found by their pins.
func (p *Plane) giveXDP(want map[int]*ebpf.Program) error {
	p.give.Lock()
	defer p.give.Unlock()
	p.remember(p.xdp)
	for _, prog := range want {
		p.remember(prog)
	}
	for index := range p.special {
		if want[index] == nil {
			if err := p.replaceXDP(index, p.xdp); err != nil {
				return err
			}
			delete(p.special, index)
		}
	}
	for index, prog := range want {
		if p.special[index] == prog {
			continue
		}
		if err := p.replaceXDP(index, prog); err != nil {
			return err
		}
		p.special[index] = prog
	}
	return nil
}

// replaceXDP does nothing to a port without XDP, or that has gone.
func (p *Plane) replaceXDP(index int, prog *ebpf.Program) error {
	l, err := link.LoadPinnedLink(p.pin("links", linkName(index, "xdp")), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("XDP of interface %d: %w", index, err)
	}
	defer l.Close()
	if err := l.Update(prog); err != nil && !errors.Is(err, unix.ENOLINK) {
		return fmt.Errorf("XDP of interface %d: %w", index, err)
	}
	return nil
}

// OwnsXDP tells whether the XDP program with this id is one that shunt attached there, if not
// the one that is there now: it may have been replaced (giveXDP) since the caller saw it.
func (p *Plane) OwnsXDP(index int, id uint32) bool {
	if p.owns(index, "xdp", ebpf.ProgramID(id)) {
		return true
	}
	p.give.Lock()
	defer p.give.Unlock()
	return p.links[linkName(index, "xdp")] != nil && p.given[ebpf.ProgramID(id)]
}

// remember takes a program for one of shunt's. The caller holds give.
func (p *Plane) remember(prog *ebpf.Program) {
	info, err := prog.Info()
	if err != nil {
		return
	}
	if id, ok := info.ID(); ok {
		p.given[id] = true
	}
}
