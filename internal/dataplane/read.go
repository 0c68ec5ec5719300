// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// Stages are the words for enum stage, in its order.
var Stages = []string{"xdp", "tc-ingress", "tc-egress", "mpls"}

// Stage indices into Stages.
const (
	StageXDP       = int(tcStageSTAGE_XDP)
	StageTCIngress = int(tcStageSTAGE_TC_INGRESS)
	StageTCEgress  = int(tcStageSTAGE_TC_EGRESS)
	StageMPLS      = int(tcStageSTAGE_MPLS)
)

// Reasons are the words for enum reason, in its order: the enum's names, read from the
// object's type information, in lower case and without their prefix.
var Reasons = reasonNames()

func reasonNames() []string {
	spec, err := loadTc()
	if err != nil {
		panic("embedded object: " + err.Error())
	}
	var e *btf.Enum
	if err := spec.Types.TypeByName("reason", &e); err != nil {
		panic("embedded object: " + err.Error())
	}
	names := make([]string, tcReasonREASONS)
	for _, v := range e.Values {
		if v.Value < uint64(len(names)) {
			names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, "REASON_"))
		}
	}
	return names
}

// Counters are packets by reason, for one stage of one port, summed over CPUs.
type Counters struct {
	Packets [tcReasonREASONS]uint64
	Partial uint64 // TC ingress: packets with partial checksums
	Merged  uint64 // of these, those of several segments
}

// Of returns the count for a reason word; a word that is none is a programming error.
func (c *Counters) Of(reason string) uint64 {
	for i, name := range Reasons {
		if name == reason {
			return c.Packets[i]
		}
	}
	panic("no reason " + reason)
}

// Total returns all packets that left.
func (c *Counters) Total() (n uint64) {
	for _, v := range c.Packets {
		n += v
	}
	return n
}

// Punts returns the packets that left for the kernel, by the counters of TC ingress.
func (c *Counters) Punts() uint64 {
	return c.Total() - c.Of("hit") - c.Of("tcp_implausible") - c.Of("policed")
}

// Add sums.
func (c *Counters) Add(o *Counters) {
	for i := range c.Packets {
		c.Packets[i] += o.Packets[i]
	}
	c.Partial += o.Partial
	c.Merged += o.Merged
}

const (
	tallySize      = int(unsafe.Sizeof(tcTally{}))
	countersOfCPU  = int(tcStageSTAGES) * int(tcAbiMAX_PORTS) * tallySize
	sightingsOfCPU = int(tcAbiSIGHTINGS) * int(tcAbiSIGHTING_SIZE)
	transmitSize   = int(unsafe.Sizeof(tcTransmit{}))
	transmitsOfCPU = int(tcAbiMAX_PORTS) * transmitSize
	notebookSize   = int(unsafe.Sizeof(tcNotebook{}))
)

// Counters reads one row. Ports whose indices are equal modulo MAX_PORTS share rows.
func (p *Plane) Counters(stage, index int) (Counters, error) {
	row := stage*int(tcAbiMAX_PORTS) + index%int(tcAbiMAX_PORTS)
	var c Counters
	for cpu := range ebpf.MustPossibleCPU() { // there is room for more
		var t tcTally
		if _, err := p.count.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&t)), tallySize), int64(cpu*countersOfCPU+row*tallySize)); err != nil {
			return c, fmt.Errorf("counters: %w", err)
		}
		for r := range c.Packets {
			c.Packets[r] += t.Packets[r]
		}
		c.Partial += t.Partial
		c.Merged += t.Merged
	}
	return c, nil
}

// counts notes that programs which count run on an interface, before they do.
func (p *Plane) counts(index int) { p.inUse[index%int(tcAbiMAX_PORTS)].Store(true) }

// countedBefore says that any row can be other than zero: another process counted.
func (p *Plane) countedBefore() {
	for row := range p.inUse {
		p.inUse[row].Store(true)
	}
}

// Totals sums the counters of a stage over all rows that any port has used: on many CPUs the others
// are megabytes.
func (p *Plane) Totals(stage int) (Counters, error) {
	var sum Counters
	for row := range p.inUse {
		if !p.inUse[row].Load() {
			continue
		}
		c, err := p.Counters(stage, row)
		if err != nil {
			return sum, err
		}
		sum.Add(&c)
	}
	return sum, nil
}

// Transmit is what became of frames that were redirected to a port.
type Transmit struct{ Sent, Drops, Errors uint64 }

// Transmit reads the figures of an interface, summed over CPUs. They only grow, and
// interfaces share rows as in Counters.
func (p *Plane) Transmit(index int) (Transmit, error) {
	var t Transmit
	for at := index % int(tcAbiMAX_PORTS) * transmitSize; at < int(p.sent.Size()); at += transmitsOfCPU {
		var c tcTransmit
		if _, err := p.sent.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&c)), transmitSize), int64(at)); err != nil {
			return t, fmt.Errorf("transmit figures: %w", err)
		}
		t.Sent += c.Sent
		t.Drops += c.Drops
		t.Errors += c.Errors
	}
	return t, nil
}

// Objects gives out the loaded programs and maps under the names they have in bpf/, for
// the packages below this one that exercise them without a wire.
func (p *Plane) Objects() (map[string]*ebpf.Program, map[string]*ebpf.Map) {
	return map[string]*ebpf.Program{"shunt_xdp": p.xdp, "shunt_ingress": p.in, "shunt_after_xdp": p.after, "shunt_egress": p.out}, p.maps
}

// Types is the type information of the programs, of bpf/abi.h for one.
func Types() (*btf.Spec, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, err
	}
	return spec.Types, nil
}

// watchers is what stands in the place of an ifindex in the pins of the tracepoint programs: no interface is 0.
const watchers = 0

// Watch attaches the tracepoint programs that feed Transmit, in the place of an earlier process's. They are
// pinned: an egress may begin to lose frames while no daemon lives.
func (p *Plane) Watch() error {
	for name, prog := range p.watch {
		path := p.pin("links", linkName(watchers, name))
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("watch redirected frames: %w", err)
		}
		p.closers = append(p.closers, l.Close)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := l.Pin(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
