// SPDX-License-Identifier: Apache-2.0

// Package foreign plays other people's programs: it attaches to an interface, as any
// monitoring or filtering tool might, a program that lets every packet pass.
//
// It also lists whose programs sit at TC, where Debian's tools do not see them yet.
//
// End-to-end tests call it to see that shunt notices, keeps off the port and says so. The
// router does not. Limits: it attaches by BPF links, so what it did ends with Close or
// with the process.
package foreign

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// Verdicts that let a packet pass (enum tcx_action_base, enum xdp_action).
const (
	tcxNext = -1
	xdpPass = 2
)

// Program is one foreign program on one interface.
type Program struct {
	program *ebpf.Program
	link    link.Link
}

// TCX attaches a program at TC ingress of a device in a namespace.
func TCX(n *lab.NS, device string) (*Program, error) {
	return attach(n, device, ebpf.SchedCLS, tcxNext, func(p *ebpf.Program, index int) (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Program: p, Interface: index, Attach: ebpf.AttachTCXIngress})
	})
}

// TCXEgress attaches a program at TC egress of a device in a namespace.
func TCXEgress(n *lab.NS, device string) (*Program, error) {
	return attach(n, device, ebpf.SchedCLS, tcxNext, func(p *ebpf.Program, index int) (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Program: p, Interface: index, Attach: ebpf.AttachTCXEgress})
	})
}

// XDP attaches a program in the driver of a device in a namespace.
func XDP(n *lab.NS, device string) (*Program, error) {
	return attach(n, device, ebpf.XDP, xdpPass, func(p *ebpf.Program, index int) (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: p, Interface: index, Flags: link.XDPDriverMode})
	})
}

func attach(n *lab.NS, device string, kind ebpf.ProgramType, verdict int32,
	to func(*ebpf.Program, int) (link.Link, error)) (*Program, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: kind, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm32(asm.R0, verdict), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("foreign program: %w", err)
	}
	p := &Program{program: program}
	err = n.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		p.link, err = to(program, i.Index)
		return err
	})
	if err != nil {
		program.Close()
		return nil, fmt.Errorf("foreign program on %s in %s: %w", device, n.Name(), err)
	}
	return p, nil
}

// Attached returns the names of all programs at TC ingress and egress of a device,
// whoever put them there.
func Attached(n *lab.NS, device string) (names []string, err error) {
	err = n.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			q, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: at})
			if err != nil {
				return err
			}
			for _, a := range q.Programs {
				program, err := ebpf.NewProgramFromID(a.ID)
				if err != nil {
					return err
				}
				info, err := program.Info()
				program.Close()
				if err != nil {
					return err
				}
				names = append(names, info.Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("programs on %s in %s: %w", device, n.Name(), err)
	}
	return names, nil
}

// Close detaches and frees the program.
func (p *Program) Close() error {
	err := p.link.Close()
	p.program.Close()
	return err
}
