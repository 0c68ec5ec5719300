// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// What happens to a packet, or behind its back, between TC ingress and TC egress takes
// a microsecond and another CPU. A meddler makes it happen for certain: a program of a
// few instructions that runs at a port's egress right before shunt's.

// SetBefore lets every packet that leaves by a port find a word of a map changed: `size`
// bytes (1 or 4) at an offset of the value. The returned function ends it.
func (r *Rig) SetBefore(index int, inMap string, offset int64, size int, value uint32) (undo func() error, err error) {
	word := asm.Word
	if size == 1 {
		word = asm.Byte
	}
	return r.before(index, asm.Instructions{
		asm.LoadMapValue(asm.R1, r.maps[inMap].FD(), uint32(offset)),
		asm.StoreImm(asm.R1, 0, int64(int32(value)), word),
	})
}

// TagBefore puts a VLAN tag on every packet that leaves by a port.
func (r *Rig) TagBefore(index int, id uint16) (undo func() error, err error) {
	return r.before(index, asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(Wire16(0x8100))),
		asm.Mov.Imm(asm.R3, int32(id)),
		asm.FnSkbVlanPush.Call(),
	})
}

// before attaches instructions that are followed by "go on".
func (r *Rig) before(index int, body asm.Instructions) (undo func() error, err error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXEgress, License: "GPL",
		Instructions: append(body, asm.Mov.Imm(asm.R0, -1), asm.Return()),
	})
	if err != nil {
		return nil, fmt.Errorf("meddler: %w", err)
	}
	defer prog.Close()
	var l link.Link
	err = r.LAN.NS.Do(func() error {
		l, err = link.AttachTCX(link.TCXOptions{Program: prog, Interface: index, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("meddler at %d: %w", index, err)
	}
	return l.Close, nil
}
