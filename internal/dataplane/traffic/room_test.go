// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestRoom: frames with room can grow by as much more, and are otherwise the same.
func TestRoom(t *testing.T) {
	a, b := pair(t)
	grows := func(room, by int) bool {
		c := between(a, b, false, UDP, 64, 3)
		c.Room = room
		sink := attachGrower(t, b.NS.Do, b.Device, by)
		defer sink.close()
		send(t, c, 300) // pages that come back must have it, too: a batch is 64
		return sink.grown(300)
	}
	most := 0 // what XDP itself leaves: 256 bytes less what the kernel keeps of a frame, which changes with it
	for most < 512 && grows(0, most+8) {
		most += 8
	}
	if most < 128 || most > 256 {
		t.Fatalf("without room frames grow by %d bytes", most)
	}
	for _, room := range []int{8, 24} {
		if !grows(room, most+room) || grows(room, most+room+8) {
			t.Errorf("frames with %d bytes of room do not grow by exactly %d", room, most+room)
		}
	}
	c := between(a, b, false, UDP, 64, 3)
	c.Room = 8
	sink := attachSink(t, b, 1)
	send(t, c, 300)
	if got := wait(t, sink, 300); got.Frames != 300 || got.Bytes != 300*64 || got.Bad()+got.Lost+got.Duplicates != 0 {
		t.Errorf("got %+v", got)
	}
}

// grower takes frames in, and counts those that it could make longer at their front.
type grower struct {
	counts *ebpf.Map
	close  func()
}

func attachGrower(t *testing.T, do func(func() error) error, device string, by int) grower {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, -int32(by)),
		asm.FnXdpAdjustHead.Call(),
		// The row is 1 for what cannot grow. Frames come one after the other, on one CPU.
		asm.RSh.Imm(asm.R0, 63),
		asm.StoreMem(asm.RFP, -4, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"), // XDP_DROP
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	g := grower{counts: counts}
	if err := do(func() error {
		link, err := attachHere(device, program)
		g.close = func() { link.Close(); program.Close(); counts.Close() }
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return g
}

// grown waits until n frames have come, and says whether as many could grow. A few may be others: the kernel's
// own, of IPv6.
func (g grower) grown(n uint64) bool {
	var rows [2]uint64
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && rows[0]+rows[1] < n; time.Sleep(time.Millisecond) {
		for i := range rows {
			g.counts.Lookup(uint32(i), &rows[i])
		}
	}
	return rows[0] >= n
}
