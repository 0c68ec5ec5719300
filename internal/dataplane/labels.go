// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"time"

	"shunt/internal/lfib"
)

// LabelUpdate is what a transaction makes of the label tables. Whoever carries it out goes by the
// order of its fields for what is there, and in the opposite order for what goes, so that no entry
// names one that is missing; and puts each entry in place whole.
type LabelUpdate struct {
	Whole       bool     // it is all there is: what it does not name goes
	Ended       []uint32 // adjacencies that no NHLFE has led to since the update before; their IDs may be given again
	Adjacencies []Adjacency
	Maps        []LabelMap
	NHLFEs      []NHLFE
	ILM         []ILM
	FTN         []FTN
	Ports       []LabelPort
	Imposer     Imposer // where IP packets get labels; without one none do, whatever FTN says

	// AdjacencyOf returns the ID for a way out that a form of NHLFEs has. It may be called until
	// the update is done.
	AdjacencyOf func(*lfib.Send) uint32
}

// Adjacency is where frames go: a neighbour of a port. IDs are small, and given again once they
// are free.
type Adjacency struct {
	ID                  uint32
	Index               int // ifindex; 0: packets to it are dropped
	Source, Destination [6]byte
	MTU                 int // of the port: IP and labels, in bytes
}

// LabelMap is a map that forms name.
type LabelMap struct {
	Name string
	To   *[64]uint8 // TC (8 of them) to DSCP, or DSCP to TC; nil: it goes
}

// NHLFE is an instruction list in its closed form.
type NHLFE struct {
	ID   uint32
	Form *lfib.Form // nil: it goes
}

// ILM says what becomes of a label.
type ILM struct {
	Space lfib.Space
	Label lfib.Label
	NHLFE [8]uint32 // by TC; 0: nothing, the packet is dropped. All of them 0: it goes
}

// FTN says which NHLFE packets to a prefix get.
type FTN struct {
	Prefix netip.Prefix
	NHLFE  uint32 // 0: it goes
}

// LabelPort is a port's label space.
type LabelPort struct {
	Index int
	MAC   [6]byte // frames with labels come to it
	Space int     // -1: none, labels are not taken

	Upstream int // space of upstream-assigned labels; -1: none, frames to groups are not taken
}

// Segment is what was counted for a label or an NHLFE.
type Segment struct {
	Packets, Octets  uint64 // of labels and payload
	Errors, Discards uint64
	Since            time.Time
}

// Plus adds what was counted elsewhere.
func (s Segment) Plus(o Segment) Segment {
	s.Packets += o.Packets
	s.Octets += o.Octets
	s.Errors += o.Errors
	s.Discards += o.Discards
	return s
}

// LabelKey names an incoming label.
type LabelKey struct {
	Space lfib.Space
	Label lfib.Label
}

// LabelStats is what was counted.
type LabelStats struct {
	In    map[LabelKey]Segment
	Out   map[uint32]Segment     // by NHLFE
	Ports map[int]LabelPortStats // by ifindex
}

// LabelPortStats is what was counted of a port, in packets.
type LabelPortStats struct {
	LookupFailures uint64
	Fragmented     uint64            // cut before they left here
	Reasons        map[string]uint64 // came in here with labels and were not switched, or for labels and got none
}
