// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"unsafe"
)

// Sample is a packet that no slot remembers (bpf/sample.h): the reason why not, and how
// many alike were looked at since the first one. Ports of In are 0 where they could not
// be told (Portless). Seen is in jiffies.
type Sample struct {
	Port     int // ifindex
	Proto    uint8
	In       Tuple
	Portless bool
	VLAN     int // id, 0: no tag
	Reason   string
	Packets  uint32
	Seen     uint32
}

// Samples are all packets that are remembered, in no order. What is being written at the
// moment is left out.
func (p *Plane) Samples() ([]Sample, error) {
	var found []Sample
	var n tcNotebook
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&n)), notebookSize)
	for cpu := range cpus() {
		at := cpu * notebookSize
		if _, err := p.notes.ReadAt(raw, int64(at)); err != nil {
			return nil, fmt.Errorf("samples: %w", err)
		}
		first := n
		if _, err := p.notes.ReadAt(raw, int64(at)); err != nil {
			return nil, fmt.Errorf("samples: %w", err)
		}
		for i := range n.Samples {
			s := &n.Samples[i]
			if s.Packets == 0 || s.Seq&1 != 0 || s.Seq != first.Samples[i].Seq || s.Key != first.Samples[i].Key {
				continue
			}
			found = append(found, Sample{
				Port: int(s.Key.Kind >> uint32(tcKindKIND_PORT)), Proto: uint8(s.Key.Kind), In: s.Key.tuple(s.In6),
				Portless: s.Portless != 0, VLAN: int(s.Tag), Reason: reasonWord(s.Reason), Packets: s.Packets, Seen: s.Seen,
			})
		}
	}
	return found, nil
}
