// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// loadProgram loads the one program that objects names, with its maps and with
// these values in its global variables.
func loadProgram(objects any, globals map[string]any) error {
	spec, err := loadBpf()
	if err != nil {
		return fmt.Errorf("traffic: %w", err)
	}
	for name, value := range globals {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("traffic: set %s: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(objects, nil); err != nil {
		return fmt.Errorf("traffic: load program: %w", err)
	}
	return nil
}

// sendTo makes a device the one that a program redirects to.
func sendTo(n *lab.NS, device string, out *ebpf.Map) error {
	return n.Do(func() error {
		// A devmap takes the index to be of the namespace of the thread that writes it.
		i, err := net.InterfaceByName(device)
		if err != nil {
			return fmt.Errorf("traffic: %s in %s: %w", device, n.Name(), err)
		}
		if err := out.Put(uint32(0), uint32(i.Index)); err != nil {
			return fmt.Errorf("traffic: redirect to %s in %s: %w", device, n.Name(), err)
		}
		return nil
	})
}

// attach puts a program on a device of a namespace, in native mode.
func attach(n *lab.NS, device string, p *ebpf.Program) (link.Link, error) {
	var l link.Link
	err := n.Do(func() (err error) {
		l, err = attachHere(device, p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("traffic: %s: %w", n.Name(), err)
	}
	return l, nil
}

// attachHere does it in the namespace of this thread.
func attachHere(device string, p *ebpf.Program) (link.Link, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", device, err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: i.Index, Flags: link.XDPDriverMode})
	if err != nil {
		return nil, fmt.Errorf("attach XDP to %s: %w", device, err)
	}
	return l, nil
}
