// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"time"
	"unicode"
)

// Models of TTL and TC in a label switched path (RFC 3443, RFC 3270), as in MPLSNHLFE.TTL.
const (
	MPLSUniform   = "uniform"    // the path counts as so many hops
	MPLSPipe      = "pipe"       // the path counts as one hop
	MPLSShortPipe = "short-pipe" // the same, and the last label switch decides by what is below
)

// Kinds of MPLSMap.
const (
	MPLSToDSCP = "tc-to-dscp"
	MPLSToTC   = "dscp-to-tc"
)

// What an NHLFE's way out does, as in MPLSNHLFE.State, and a port, as in MPLSSpace.State.
const (
	MPLSUp   = "up"   // packets leave by it, or come in
	MPLSDown = "down" // they do not, for the Reason beside it
)

// MPLSChange is one transaction, of which all or nothing is done: the body of
// POST /v1/mpls/apply, 256 MiB at most.
type MPLSChange struct {
	Lines  []string `json:"lines"`  // each says what would stand behind "shunt mpls" in a command that writes
	Origin string   `json:"origin"` // who wants it, for monitors: at most 64 printable characters; empty: "api"
}

// MPLSDone is what came of a transaction.
type MPLSDone struct {
	Seq     uint64 `json:"seq"`     // the table's state since then: the number of its last event since the daemon began
	Changed int    `json:"changed"` // entries that were added, changed or deleted

	// What of it is not in force, as a port cannot yet: a line for each, with the remedy. It is
	// in force once the port can.
	Warnings []string `json:"warnings,omitempty"`
}

// MPLSILM says what is done with an incoming label: GET /v1/mpls/ilm, ordered by space, label and
// TC. Its query may be `space` and `label`.
type MPLSILM struct {
	Space int    `json:"space"`        // 0 to 254
	Label uint32 `json:"label"`        //
	TC    *int   `json:"tc,omitempty"` // only packets with this TC; without: all others
	NHLFE uint32 `json:"nhlfe"`        // id
	List  string `json:"list"`         // that NHLFE's instructions
}

// MPLSNHLFE is a list of instructions: GET /v1/mpls/nhlfe, ordered by id. Its query may be `id`.
type MPLSNHLFE struct {
	ID     uint32 `json:"id"`
	MTU    int    `json:"mtu,omitempty"`    // of IP and labels, in bytes; left out: the port's
	TTL    string `json:"ttl"`              // MPLSUniform, MPLSPipe or MPLSShortPipe
	List   string `json:"list"`             // instructions, as `shunt mpls nhlfe add` takes them
	State  string `json:"state,omitempty"`  // MPLSUp or MPLSDown, of lists that end in "send"
	Reason string `json:"reason,omitempty"` // why it is down
}

// MPLSFTN says which NHLFE packets to a prefix get: GET /v1/mpls/ftn, ordered by prefix. Its
// query may be `prefix`.
type MPLSFTN struct {
	Prefix netip.Prefix `json:"prefix"`
	NHLFE  uint32       `json:"nhlfe"` // id
	List   string       `json:"list"`  // that NHLFE's instructions
}

// MPLSMap is a map that NHLFEs name: GET /v1/mpls/map, ordered by name. Its query may be `name`.
type MPLSMap struct {
	Name string      `json:"name"`
	Kind string      `json:"kind"` // MPLSToDSCP or MPLSToTC
	To   map[int]int `json:"to"`   // what is not in it becomes 0
}

// MPLSSpace is the label space of a port, without which it takes no labels:
// GET /v1/mpls/space, ordered by name. Its query may be `port`.
type MPLSSpace struct {
	Port  string `json:"port"`
	Index int    `json:"index"` // ifindex; 0: no such port now
	Space int    `json:"space"` // 0 to 254
	// Where upstream-assigned labels are looked up, 0 to 254; left out: nowhere, frames to groups are not taken.
	Upstream *int `json:"upstream,omitempty"`

	State string `json:"state"` // MPLSUp: labels are looked up there; MPLSDown: the port cannot, for Reason

	Reason string `json:"reason,omitempty"` // why it is down; plain words
	Remedy string `json:"remedy,omitempty"` // what the operator can do about it
}

// MPLSStats is what was counted, by the names of RFC 3813 but 64 bits wide: GET /v1/mpls/stats. Its
// query may be `limit`: so many of the busiest segments of each kind; 0 or nothing: all.
type MPLSStats struct {
	Interfaces  []MPLSInterface  `json:"interfaces"`   // ordered by name; the first one is the platform
	InSegments  []MPLSInSegment  `json:"in_segments"`  // the busiest first
	OutSegments []MPLSOutSegment `json:"out_segments"` // the busiest first
}

// MPLSInterface is a row of mplsInterfacePerfTable, of a port that has a label space or that
// labels leave by; of the platform, for all of them (index 0, space 0); or of shunt-ftn-in, if IP
// packets have got no labels there that should have.
type MPLSInterface struct {
	Name                  string            `json:"name"` // "platform" for index 0
	Index                 int               `json:"index"`
	Space                 int               `json:"space"`                                  // -1: none, labels are not taken
	InLabelsInUse         uint64            `json:"mplsInterfacePerfInLabelsInUse"`         // labels in its space
	InLabelLookupFailures uint64            `json:"mplsInterfacePerfInLabelLookupFailures"` // packets with a label that is not in its space
	OutLabelsInUse        uint64            `json:"mplsInterfacePerfOutLabelsInUse"`        // different labels that packets leave with on top
	OutFragmentedPkts     uint64            `json:"mplsInterfacePerfOutFragmentedPkts"`     // packets that were cut before they left
	Reasons               map[string]uint64 `json:"reasons"`                                // packets that came in with labels or for labels and did not go on so, by reason; queue_full: there was no room for them
}

// MPLSInSegment is a row of mplsInSegmentPerfTable: an incoming label of a space.
type MPLSInSegment struct {
	Space             int       `json:"space"`
	Label             uint32    `json:"label"`
	Octets            uint32    `json:"mplsInSegmentPerfOctets"`            // the low 32 bits of HCOctets
	Packets           uint64    `json:"mplsInSegmentPerfPackets"`           // that came with this label
	Errors            uint64    `json:"mplsInSegmentPerfErrors"`            // that could not be switched, by their own fault
	Discards          uint64    `json:"mplsInSegmentPerfDiscards"`          // that were dropped for another reason
	HCOctets          uint64    `json:"mplsInSegmentPerfHCOctets"`          // labels and payload, as they came in
	DiscontinuityTime time.Time `json:"mplsInSegmentPerfDiscontinuityTime"` // counted since
}

// MPLSOutSegment is a row of mplsOutSegmentPerfTable: an NHLFE whose packets leave.
type MPLSOutSegment struct {
	NHLFE             uint32    `json:"nhlfe"`
	Port              string    `json:"port"`                                // they leave by
	Octets            uint32    `json:"mplsOutSegmentPerfOctets"`            // the low 32 bits of HCOctets
	Packets           uint64    `json:"mplsOutSegmentPerfPackets"`           // that were sent
	Errors            uint64    `json:"mplsOutSegmentPerfErrors"`            // that could not be sent, by their own fault
	Discards          uint64    `json:"mplsOutSegmentPerfDiscards"`          // that were dropped for another reason
	HCOctets          uint64    `json:"mplsOutSegmentPerfHCOctets"`          // labels and payload, as they were sent
	DiscontinuityTime time.Time `json:"mplsOutSegmentPerfDiscontinuityTime"` // counted since
}

// MPLSEvent is a line of GET /v1/mpls/monitor: one change, after it was made. The answer goes on
// until either side hangs up. A line that has `error` instead is the last one.
type MPLSEvent struct {
	Seq    uint64    `json:"seq"`    // rises by one with each change of the tables; an adjacency has that of the last one
	Time   time.Time `json:"time"`   //
	Origin string    `json:"origin"` // of the transaction; "kernel" for an adjacency
	Verb   string    `json:"verb"`   // "add", "change", "replace", "del", "set"; "up" or "down" of an adjacency
	Kind   string    `json:"kind"`   // "ilm", "nhlfe", "ftn", "map", "space" or "adjacency"
	Line   string    `json:"line"`   // as `shunt mpls apply` takes it; of an adjacency: which, and why it is down
}

// MPLS is what the daemon does about labels: the part of Backend that GET and POST
// /v1/mpls/... reach. Its methods are called from many goroutines at once.
type MPLS interface {
	// Apply makes all changes or none. Wrong marks an error that the lines are to blame for.
	Apply(MPLSChange) (MPLSDone, error)
	ILM(MPLSFilter) ([]MPLSILM, error)
	NHLFE(MPLSFilter) ([]MPLSNHLFE, error)
	FTN(MPLSFilter) ([]MPLSFTN, error)
	Map(MPLSFilter) ([]MPLSMap, error)
	Space(MPLSFilter) ([]MPLSSpace, error)
	Stats(MPLSFilter) (MPLSStats, error)
	// Monitor calls tell with every change from now on, in order, and once before with none.
	// It returns when ctx ends, when tell fails, or with an error when changes were lost
	// because tell took too long.
	Monitor(ctx context.Context, tell func([]MPLSEvent) error) error
	// Save returns the lines that make these tables out of empty ones.
	Save() ([]string, error)
}

// MPLSFilter chooses entries. What is not set chooses all.
type MPLSFilter struct {
	Label  *uint32       // of an ILM entry
	Space  *int          // of an ILM entry
	ID     *uint32       // of an NHLFE
	Prefix *netip.Prefix // of an FTN entry
	Name   string        // of a map
	Port   string        // of a space
	Limit  int           // so many; 0: all
}

// Values is the filter as the parameters of GET /v1/mpls/....
func (f MPLSFilter) Values() url.Values {
	v := url.Values{}
	if f.Label != nil {
		v.Set("label", strconv.FormatUint(uint64(*f.Label), 10))
	}
	if f.Space != nil {
		v.Set("space", strconv.Itoa(*f.Space))
	}
	if f.ID != nil {
		v.Set("id", strconv.FormatUint(uint64(*f.ID), 10))
	}
	if f.Prefix != nil {
		v.Set("prefix", f.Prefix.String())
	}
	if f.Limit != 0 {
		v.Set("limit", strconv.Itoa(f.Limit))
	}
	for key, value := range map[string]string{"name": f.Name, "port": f.Port} {
		if value != "" {
			v.Set(key, value)
		}
	}
	return v
}

// mplsFilterFrom reads the parameters that a list takes.
func mplsFilterFrom(v url.Values, takes ...string) (f MPLSFilter, err error) {
	for key := range v {
		if err := oneOf("parameter", key, takes...); err != nil {
			return f, err
		}
	}
	number := func(key string, most uint64) *uint32 {
		if !v.Has(key) || err != nil {
			return nil
		}
		n, e := strconv.ParseUint(v.Get(key), 10, 32)
		if e != nil || n > most {
			err = fmt.Errorf("%s %q: use a number from 0 to %d", key, v.Get(key), most)
		}
		short := uint32(n)
		return &short
	}
	f.Label, f.ID = number("label", 1<<20-1), number("id", 1<<32-1)
	if space := number("space", 254); space != nil {
		n := int(*space)
		f.Space = &n
	}
	if limit := number("limit", 1<<31-1); limit != nil {
		f.Limit = int(*limit)
	}
	if text := v.Get("prefix"); text != "" && err == nil {
		prefix, e := netip.ParsePrefix(text)
		if e != nil {
			err = fmt.Errorf("prefix %q: use an IPv4 or IPv6 prefix, such as 192.0.2.0/24", text)
		}
		f.Prefix = &prefix
	}
	f.Name, f.Port = v.Get("name"), v.Get("port")
	return f, err
}

// maxOrigin is how long an origin may be, in bytes.
const maxOrigin = 64

// Check says in one line what is wrong with a transaction's form, if anything is.
func (c MPLSChange) Check() error {
	if len(c.Origin) > maxOrigin {
		return fmt.Errorf("origin: %d bytes are too many; use at most %d", len(c.Origin), maxOrigin)
	}
	for _, r := range c.Origin {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("origin %q: use printable characters", c.Origin)
		}
	}
	return nil
}
