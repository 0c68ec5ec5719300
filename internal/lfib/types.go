// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"net"
	"net/netip"
)

// Space is a label space (RFC 3031 §3.14): 0 to MaxSpace.
type Space uint8

// Label is an MPLS label: 0 to MaxLabel. The first 16 are special-purpose (RFC 7274).
type Label uint32

// Bounds of what the tables hold; NHLFE IDs are 1 to 2^32-1.
const (
	MaxLabel Label = 1<<20 - 1
	MaxSpace Space = 254

	MaxPush  = 16 // labels that one list pushes, the one of a swap included
	MaxDepth = 16 // labels that one list pops, and NHLFEs that one packet enters

	MaxForwards = 16   // NHLFEs that are forwarded to, one behind the other
	MaxForms    = 1024 // ways through a list that pushes before it chooses
	MaxMembers  = 64   // of a choice by hash, as many as it has buckets
	MaxWeight   = 65535
	MinMTU      = 68 // bytes of IP, RFC 791
	MaxMTU      = 65535

	// RouteID is added to a label for the ID of the NHLFE that "route" makes for it.
	RouteID uint32 = 1 << 31
)

// Special-purpose labels that have a meaning here.
const (
	ExplicitNull4 Label = 0
	RouterAlert   Label = 1
	ExplicitNull6 Label = 2
	ImplicitNull  Label = 3
	ELI           Label = 7 // entropy label indicator, RFC 6790
	GAL           Label = 13
	firstFree     Label = 16
)

// Model is how TTL and TC of a tunnel's label and of what is beneath it depend on each other
// (RFC 3443, RFC 3270 §2.6).
type Model uint8

// The models; uniform is what an NHLFE has that says nothing.
const (
	Uniform Model = iota
	Pipe
	ShortPipe
)

func (m Model) String() string { return word(modelWords, m) }

// Op says what an instruction does.
type Op uint8

// The instructions. Those from OpPeek on end a list.
const (
	OpPop     Op = iota + 1
	OpPush       // Label, TC or Map, TTL
	OpSwap       // Label
	OpSetTC      // N
	OpSetDSCP    // N
	OpTCMap      // Map, of kind DSCPToTC
	OpDSCPMap    // Map, of kind TCToDSCP
	OpEntropy    // with the push behind it
	OpPeek       // Space; nil: as before
	OpSend       // Port, and Via or MAC; Upstream
	OpForward    // ID
	OpByTC       // Choices, Default
	OpByDSCP     // Choices, Default
	OpByHash     // Choices
	OpDeliver
	OpDrop
)

func (o Op) String() string { return word(opWords, o) }

func (o Op) ends() bool { return o >= OpPeek }

// Instruction is one step of an NHLFE; the list of Ops says which fields it has.
type Instruction struct {
	Op      Op
	Label   Label
	ID      uint32
	N       int // a TC or DSCP
	TC, TTL *uint8
	Map     string
	Space   *Space
	Port    string
	Via     netip.Addr
	MAC     net.HardwareAddr
	// Upstream says of OpSend that the label on top is one of this router's own giving out.
	Upstream bool
	Choices  []Choice
	Default  *uint32 // NHLFE for the TCs or DSCPs that Choices does not name; nil: they are dropped
}

// Choice leads a TC or DSCP, or a share of the hash values, to an NHLFE.
type Choice struct {
	Key    int // TC or DSCP
	ID     uint32
	Weight int // by hash: 1 to MaxWeight
}

// NHLFE is a next hop label forwarding entry (RFC 3031 §3.10).
type NHLFE struct {
	ID    uint32
	MTU   int // bytes of IP and labels; 0: that of the port
	Model Model
	List  []Instruction
}

// ILM is an entry of the incoming label map (RFC 3031 §3.11). One for a TC goes before one
// for any.
type ILM struct {
	Space Space
	Label Label
	TC    int // -1: any
	NHLFE uint32
}

// FTN leads a forwarding equivalence class, a prefix, to an NHLFE (RFC 3031 §3.12).
type FTN struct {
	Prefix netip.Prefix
	NHLFE  uint32
}

// MapKind is the direction of a Map.
type MapKind uint8

// The kinds: from a TC to a DSCP, and from a DSCP to a TC.
const (
	TCToDSCP MapKind = iota
	DSCPToTC
)

func (k MapKind) String() string { return word(kindWords, k) }

// keys and values are how many of them there are, from 0 on.
func (k MapKind) keys() int   { return [...]int{8, 64}[k] }
func (k MapKind) values() int { return [...]int{64, 8}[k] }

// Map maps the TCs or DSCPs of any number of LSPs. What To does not name is mapped to 0.
type Map struct {
	Name string
	Kind MapKind
	To   map[int]int
}

// PortSpace is the label space of what comes in by a port.
type PortSpace struct {
	Port  string
	Space int // -1: off, labelled packets are not taken from it

	// Upstream is where labels are looked up that the sender has given out and not this router
	// (RFC 5331): those on top of frames to a group, with an EtherType of their own (RFC 5332).
	// -1: frames to groups are not taken.
	Upstream int
}

// Verb is what a Change does to an entry.
type Verb uint8

// The verbs. Add wants no such entry, Alter and Delete want one, Replace takes both; Set is
// for ports alone, and the only one that they have.
const (
	Add Verb = iota
	Alter
	Replace
	Delete
	Set
)

func (v Verb) String() string { return word(verbWords, v) }

// Change is one line of the grammar. Object is an ILM, NHLFE, FTN, Map or PortSpace; for
// Delete no more of it counts than what tells it from others. A Table keeps the lists and
// maps it is given, so they must not be changed afterwards.
type Change struct {
	Verb   Verb
	Object any
}

var (
	modelWords = []string{Uniform: "uniform", Pipe: "pipe", ShortPipe: "short-pipe"}
	kindWords  = []string{TCToDSCP: "tc-to-dscp", DSCPToTC: "dscp-to-tc"}
	verbWords  = []string{Add: "add", Alter: "change", Replace: "replace", Delete: "del", Set: "set"}
	opWords    = []string{
		OpPop: "pop", OpPush: "push", OpSwap: "swap", OpSetTC: "set-tc", OpSetDSCP: "set-dscp",
		OpTCMap: "tc-map", OpDSCPMap: "dscp-map", OpEntropy: "entropy", OpPeek: "peek",
		OpSend: "send", OpForward: "forward", OpByTC: "by-tc", OpByDSCP: "by-dscp",
		OpByHash: "by-hash", OpDeliver: "deliver", OpDrop: "drop",
	}
)

func word[T ~uint8](words []string, i T) string {
	if int(i) < len(words) {
		return words[i]
	}
	return "?"
}
