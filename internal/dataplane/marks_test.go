// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestNoMarksStoredOnce: every packet reads the line of ctl that no_marks is on. Where a driver keeps no
// metadata, a store by each punted packet would take the line from all other CPUs: the program
// stores only where a load just before it found 0.
func TestNoMarksStoredOnce(t *testing.T) {
	spec, err := loadXdp()
	if err != nil {
		t.Fatal(err)
	}
	offset := int16(unsafe.Offsetof(tcControl{}.NoMarks))
	stores := 0
	for name, prog := range spec.Programs {
		s, unguarded := storesTo(prog, ".data.control", offset)
		if stores += s; unguarded > 0 {
			t.Errorf("%s: %d of %d stores to ctl.no_marks do not follow a load and a jump", name, unguarded, s)
		}
	}
	if stores == 0 {
		t.Error("no store to ctl.no_marks found: the test does not test")
	}
}

// storesTo counts stores to an offset of a map's value, and those that no load from there and no jump by
// what it found precedes.
func storesTo(prog *ebpf.ProgramSpec, inMap string, offset int16) (stores, unguarded int) {
	var at asm.Register // holds the map's address
	holds, loaded, jumped := false, false, false
	for _, i := range prog.Instructions {
		op := i.OpCode
		switch {
		case op.IsDWordLoad() && i.Reference() == inMap:
			at, holds, loaded, jumped = i.Dst, true, false, false
		case !holds:
		case op.Class() == asm.LdXClass && i.Src == at && i.Offset == offset:
			loaded = true
		case loaded && op.JumpOp() == asm.JNE:
			jumped = true
		case op.Class().IsStore() && i.Dst == at && i.Offset == offset:
			if stores++; !jumped {
				unguarded++
			}
		case op.JumpOp() == asm.Call || op.JumpOp() == asm.Exit || op.Class().IsLoad() && i.Dst == at || op.Class().IsALU() && i.Dst == at:
			holds = false
		}
	}
	return stores, unguarded
}
