// SPDX-License-Identifier: Apache-2.0

// Package api is what the daemon says to everybody else: HTTP and JSON over a
// unix socket, with one file for the words (types.go; mpls.go for labels), one for each end.
//
// The daemon implements Backend and hands it to a Server; the command line, and
// any program that speaks HTTP, asks through a Client. The field names below are
// documented and stable: a field may be added, none is renamed or given another
// meaning. Times are RFC 3339, durations are seconds, sizes are bytes, and a reason
// is always a word that package reason explains.
//
// Limits: one answer is one JSON document, flows included, held in memory while it is
// written (about 600 bytes a flow); the one subscription there is, to changes of labels, is
// JSON lines.
package api

import (
	"net/netip"
	"time"
)

// Stages at which a packet can be counted, as in Status.Counters.
const (
	StageXDP       = "xdp"
	StageTCIngress = "tc-ingress"
	StageTCEgress  = "tc-egress"
	StageMPLS      = "mpls" // labelled frames; those that are delivered go on to StageXDP
)

// What a port is to the fast path, as in Port.State.
const (
	PortXDPAndTC = "xdp+tc"  // programs at XDP, TC ingress and TC egress
	PortTC       = "tc"      // programs at TC ingress and TC egress
	PortRefused  = "refused" // no programs, for Port.Reason; the kernel forwards as before
	PortAbsent   = "absent"  // configured by name, but no such interface is there now
)

// States of a flow, as in Flow.State.
const (
	FlowSeen    = "seen"    // counted, not learned
	FlowArmed   = "armed"   // repeated
	FlowExpired = "expired" // learned, lease ended: the kernel is proving it again
	FlowOld     = "old"     // learned before the last change the kernel announced
	FlowClosed  = "closed"  // FIN or RST went by
)

// Where a flow is repeated, as in Flow.Way.
const (
	WayXDP = "xdp"
	WayTC  = "tc"
)

// What the daemon and its data path are to the traffic, as in Status.State.
const (
	StateRunning    = "running"    // every port is fast
	StateDegraded   = "degraded"   // for Status.Problems, some flows cannot be fast
	StatePaused     = "paused"     // everything goes to the kernel
	StateUnattended = "unattended" // no daemon lives or answers; what it attached goes on by itself
)

// Levels of a Check.
const (
	LevelOK   = "ok"
	LevelWarn = "warn" // works, but slower or with less than it could
	LevelFail = "fail" // does not work until it is mended
)

// Status is the daemon at a glance: GET /v1/status.
type Status struct {
	Version          string                       `json:"version"`            // of the daemon's program
	ABI              int                          `json:"abi"`                // layout of the pinned maps
	State            string                       `json:"state"`              // StateRunning, StateDegraded, StatePaused or StateUnattended
	Problems         []Check                      `json:"problems"`           // what keeps flows from being fast, the worst first
	PID              int                          `json:"pid"`                // of the daemon; 0 if none lives
	Started          time.Time                    `json:"started,omitzero"`   // when this daemon began
	Paused           bool                         `json:"paused"`             // everything goes to the kernel
	Kernel           string                       `json:"kernel"`             // release, as uname -r
	Generation       uint32                       `json:"generation"`         // entries of another one are not used
	Flows            FlowCount                    `json:"flows"`              // how full the table is
	LeaseSeconds     float64                      `json:"lease_seconds"`      // with the daemon dead
	LeaseLiveSeconds float64                      `json:"lease_live_seconds"` // while it lives
	Threshold        uint32                       `json:"threshold"`          // packets before a flow is learned
	Hits             uint64                       `json:"hits"`               // packets repeated, at XDP or TC ingress
	Punts            uint64                       `json:"punts"`              // packets given to the kernel, counted at TC ingress
	Counters         map[string]map[string]uint64 `json:"counters"`           // stage, then reason; zero ones left out
	Events           map[string]uint64            `json:"events"`             // changes the kernel announced, by kind
	Differences      uint64                       `json:"differences"`        // found by renewals since this daemon began: the kernel does something else, and had announced nothing
	Policed          map[string]uint64            `json:"policed"`            // packets dropped for being over the rate of their reason, by reason
}

// FlowCount is the flow table's occupation, in slots.
type FlowCount struct {
	Slots  int `json:"slots"`  // there are
	Idle   int `json:"idle"`   // of flows without a packet for 5 s, and counted nowhere else; free for others
	Armed  int `json:"armed"`  // learned, including those whose lease has ended
	Seen   int `json:"seen"`   // counted, not learned
	Closed int `json:"closed"` // after FIN or RST
}

// Port is an interface that was named on the command line or in the configuration:
// GET /v1/ports.
type Port struct {
	Name        string `json:"name"`
	Index       int    `json:"index"`            // ifindex; 0 while absent
	State       string `json:"state"`            // PortXDPAndTC, PortTC, PortRefused or PortAbsent
	Reason      string `json:"reason,omitempty"` // why it is refused, or has no XDP; plain words
	Remedy      string `json:"remedy,omitempty"` // what the operator can do about it
	Driver      string `json:"driver"`
	MTU         int    `json:"mtu"`
	Qdisc       string `json:"qdisc"`        // at the root
	XDPReceive  bool   `json:"xdp_receive"`  // the XDP program is attached
	XDPTransmit bool   `json:"xdp_transmit"` // takes redirected frames, no queueing policy
	Hits        uint64 `json:"hits"`         // packets that came in here and were repeated
	Punts       uint64 `json:"punts"`        // packets that came in here and went to the kernel
	Sent        uint64 `json:"sent"`         // redirected frames that left here
	Drops       uint64 `json:"drops"`        // redirected frames lost: the driver's queue was full
	Errors      uint64 `json:"errors"`       // redirected frames lost: the driver refused them

	Above  []string `json:"above,omitempty"`  // devices that stand on it: what they carry stays with the kernel
	Labels string   `json:"labels,omitempty"` // why it does not do what the label tables want of it, and what helps; plain words
}

// Flow is one direction of a conversation, as it looks on the wire where it comes in:
// GET /v1/flows.
//
// For ICMP and ICMPv6 echo both ports of Source and Destination hold the echo id. For
// protocols without ports both are 0.
type Flow struct {
	Port        string         `json:"port"`        // it comes in here
	Family      int            `json:"family"`      // 4 or 6
	Proto       string         `json:"proto"`       // as ProtoName writes it: "tcp", "udp", "icmp", "47"
	Source      netip.AddrPort `json:"source"`      // as it comes in
	Destination netip.AddrPort `json:"destination"` // as it comes in
	ICMPType    *uint8         `json:"icmp_type,omitempty"`
	Key         uint32         `json:"key,omitempty"` // GRE key or ESP SPI

	State      string   `json:"state"`                // FlowSeen, FlowArmed, FlowExpired, FlowOld or FlowClosed
	Way        string   `json:"way,omitempty"`        // WayXDP or WayTC, once learned
	Why        string   `json:"why"`                  // reason word of the last packet the kernel had
	Out        string   `json:"out,omitempty"`        // port it goes out by, once learned
	LSP        bool     `json:"lsp,omitempty"`        // its packets get labels instead (shunt mpls ftn), and go where those lead
	Rewrite    *Rewrite `json:"rewrite,omitempty"`    // only when addresses or ports change
	SourceMAC  string   `json:"source_mac,omitempty"` // as it goes out
	DestMAC    string   `json:"dest_mac,omitempty"`   // as it goes out
	DSCPIn     int      `json:"dscp_in"`              // 0 to 63
	DSCPOut    int      `json:"dscp_out"`             // 0 to 63
	MTU        int      `json:"mtu,omitempty"`        // largest IP packet repeated
	Generation uint32   `json:"generation"`           // it was learned in
	Conntrack  bool     `json:"conntrack"`            // conntrack knows it
	Renewals   uint32   `json:"renewals"`             // leases proved again by the kernel
	Age        float64  `json:"age_seconds"`          // since it was first armed; 0 if never
	Idle       float64  `json:"idle_seconds"`         // since its last packet through the kernel
	LeaseLeft  float64  `json:"lease_left_seconds"`   // 0 once ended
	Packets    uint64   `json:"packets"`              // repeated
	Bytes      uint64   `json:"bytes"`                // repeated, of IP
	Sighted    uint32   `json:"sighted"`              // packets seen through the kernel since the last idle second
}

// Rewrite is what NAT makes of a flow's addresses and ports.
type Rewrite struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// Explanation says why a flow is or is not repeated, in one direction: GET /v1/explain.
type Explanation struct {
	Flow    *Flow     `json:"flow,omitempty"`    // nothing: no slot remembers it, the answer is by samples and counters
	Near    bool      `json:"near,omitempty"`    // not the flow that was asked for, but between the same addresses
	Fast    bool      `json:"fast"`              // its next ordinary packet will be repeated
	Reason  string    `json:"reason"`            // word
	Words   string    `json:"words"`             // what the word means
	Rule    string    `json:"rule"`              // which rule of the design stands behind it
	Remedy  string    `json:"remedy"`            // what the operator can do; empty if nothing need be done
	Also    []Also    `json:"also,omitempty"`    // what its packets met besides, the latest first
	Counted []Counted `json:"counted,omitempty"` // where packets left by it; without a flow, by any reason that no flow remembers
	Detail  string    `json:"detail,omitempty"`  // which rule of the firewall or of the configuration it is
}

// Also is a reason that packets of a flow met lately and that is not the one by which the next
// will leave; or that packets met of which no flow is kept.
type Also struct {
	Reason      string         `json:"reason"`                // word
	Words       string         `json:"words"`                 // what the word means
	Remedy      string         `json:"remedy,omitempty"`      // what the operator can do
	Port        string         `json:"port,omitempty"`        // by which such packets came in; with the next four, of a packet that no flow remembers
	Proto       string         `json:"proto,omitempty"`       // as in Flow
	Source      netip.AddrPort `json:"source,omitzero"`       // as it came in; port 0 where none could be read
	Destination netip.AddrPort `json:"destination,omitzero"`  // as it came in; port 0 where none could be read
	VLAN        int            `json:"vlan,omitempty"`        // id of its tag
	Packets     uint32         `json:"packets,omitempty"`     // such packets; at least so many, since under a flood not all are looked at
	Ago         float64        `json:"seconds_ago,omitempty"` // since the last one
}

// Counted is a reason's counter.
type Counted struct {
	Port    string `json:"port"`
	Stage   string `json:"stage"`  // StageXDP, StageTCIngress or StageTCEgress
	Reason  string `json:"reason"` // word
	Packets uint64 `json:"packets"`
}

// Difference is what a renewal found: the kernel does something else to a flow than was
// repeated until then, and had announced nothing. The last 256 are kept: GET /v1/differences,
// the latest first.
type Difference struct {
	At          time.Time      `json:"at"`
	Port        string         `json:"port"`        // the flow comes in here
	Proto       string         `json:"proto"`       // as in Flow
	Source      netip.AddrPort `json:"source"`      // as it comes in
	Destination netip.AddrPort `json:"destination"` // as it comes in
	Packets     uint64         `json:"packets"`     // repeated since the flow was first armed
	Before      Form           `json:"before"`      // what was repeated
	After       Form           `json:"after"`       // what the kernel does
}

// Form is what a flow's packets become.
type Form struct {
	Out         string         `json:"out"`         // port they go out by
	Source      netip.AddrPort `json:"source"`      // as they go out
	Destination netip.AddrPort `json:"destination"` // as they go out
	SourceMAC   string         `json:"source_mac"`  // as they go out
	DestMAC     string         `json:"dest_mac"`    // as they go out
	DSCP        int            `json:"dscp"`        // 0 to 63
	MTU         int            `json:"mtu"`         // largest IP packet
	Mark        uint32         `json:"mark"`        // of the kernel, for qdiscs
	Priority    uint32         `json:"priority"`    // of the kernel, for qdiscs
}

// Setting is one value of the configuration in force, written as in the file: GET /v1/config.
// Each [[exclude]] and [[include]] is a Setting of its own.
type Setting struct {
	Key     string `json:"key"`     // such as "lease" or "police.ttl"
	Value   string `json:"value"`   // in force
	Default string `json:"default"` // without file and flags; empty for a key that has none
	From    string `json:"from"`    // "FILE:LINE", a flag of "shunt run", or "default"
}

// Check is one finding of the doctor: GET /v1/doctor.
type Check struct {
	Name    string `json:"name"`             // what was looked at, e.g. "kernel" or "port eth0"
	Level   string `json:"level"`            // LevelOK, LevelWarn or LevelFail
	Finding string `json:"finding"`          // one line
	Remedy  string `json:"remedy,omitempty"` // one line; empty when ok
}

// Orders of flows, as in FlowFilter.Sort. All of them put the largest first.
const (
	SortRate    = "rate" // packets a second, now; the answer takes a quarter of a second longer
	SortPackets = "packets"
	SortBytes   = "bytes"
	SortAge     = "age"
)

// ExplainQuery chooses what is explained: the query of GET /v1/explain. Without a flow and
// without a reason it is the table.
type ExplainQuery struct {
	Flow   *FlowQuery // a conversation
	Reason string     // a word
	Top    int        // of the table, so many flows, the busiest first; 0: all, and packets without a flow
}

// FlowFilter chooses flows: the query of GET /v1/flows.
type FlowFilter struct {
	Limit int    // 0: all
	Sort  string // SortRate, SortPackets, SortBytes, SortAge; "": no particular order
	State string // one of the flow states; "": all
	Port  string // name of the port it comes in by; "": all
	Live  bool   // only flows of which a packet came within 5 s, or may have: whose lease runs
}
