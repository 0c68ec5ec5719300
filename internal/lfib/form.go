// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"fmt"
	"iter"
	"net"
	"net/netip"
)

// Form is the closed form of an NHLFE: what its list, and those that it forwards to, do to a
// packet. A data path carries it out in this order, and leaves by the first word that applies:
//
//  1. OpDrop: mpls_discard, whatever the packet looks like.
//  2. Pops: each takes the top label off (mpls_malformed if there is none, or no whole one
//     where S is clear), and an entropy label with its indicator that it exposes. In the
//     uniform model TTL and TC go to what is exposed.
//  3. A choice: by the TC that the label had when it was looked up (DSCP >> 3 of what an FTN
//     led here; behind a short pipe pop the TC of what that exposed), by DSCP, by hash; a hole
//     is mpls_discard. The target begins at 1: what step 2 exposed is a header like any other
//     to it, with the TTL and TC it got.
//  4. TC, TCMap write to the label on top, DSCP, DSCPMap to the bare IP header
//     (mpls_malformed if it is the other way round, mpls_payload if it is not IP).
//  5. OpPeek: the label on top is looked up; with none left it is OpDeliver, as it is in
//     MPLS-Linux and with the kernel's "dev lo".
//  6. OpDeliver: mpls_malformed with a label left, mpls_payload if it is not IP.
//  7. OpSend: a bare payload must be IP (mpls_payload), a swap have its label
//     (mpls_malformed); TTLs (mpls_ttl_zero of 0, mpls_ttl of 1); then the pushes, innermost
//     first, the first of them in place of the top label if Swap; then adjacency
//     (mpls_no_adjacency), then MTU, its own or the port's if that is less (mpls_over_mtu).
//
// What looks for the DSCP at the bottom looks through MaxDepth labels (mpls_depth) of what
// came in (mpls_malformed if they end too early, mpls_payload if it is not IP).
//
// A Form must only be read: parts of it are shared with the Table and with other Forms.
type Form struct {
	Does  Does
	Pops  int   // before the choice or the end; not the one of a swap
	Model Model // of the pops; Uniform if there are none

	Swap bool
	Push []Push // at most MaxPush labels

	TC      *uint8
	TCMap   string // by the DSCP of the IP packet at the bottom
	DSCP    *uint8
	DSCPMap string // by the TC of the label that was popped last, by whatever Form

	Space    *Space // of OpPeek; nil: as before
	MTU      int    // of OpSend, the least of those on the way; 0: that of the port
	Send     *Send
	Upstream bool        // of OpSend: what leaves with a label has an upstream-assigned one on top
	Choice   *[64]Target // by TC: 0 to 7; by DSCP; by Bucket of the hash
	End      uint32      // the NHLFE whose list it ends with: the out-segment
}

// Does is how a Form ends: OpSend, OpPeek, OpDeliver, OpDrop, OpByTC, OpByDSCP or OpByHash.
type Does = Op

// Push is a label that is pushed, or swapped in.
type Push struct {
	Label   Label
	TC      *uint8 // nil: by Map, or inherited from the header beneath; by a swap from the label that it replaces
	Map     string // by the DSCP of the IP packet at the bottom
	TTL     *uint8 // nil: the outgoing TTL
	Entropy bool   // beneath it ELI and the entropy label
}

// Send is the way out.
type Send struct {
	Port string
	Via  netip.Addr // is valid, or MAC is not nil
	MAC  net.HardwareAddr
}

// Target is what a choice leads to: the NHLFE with an ID, or, where labels were pushed or an
// MTU was set before the choice, a Form of it that contains that. Neither: mpls_discard.
type Target struct {
	ID   uint32
	Form *Form
}

// targets are the targets of a choice, without the holes; of those by hash each as often as
// it has buckets.
func (f *Form) targets() iter.Seq[Target] {
	return func(yield func(Target) bool) {
		if f.Choice == nil {
			return
		}
		for _, to := range f.Choice {
			if to != (Target{}) && !yield(to) {
				return
			}
		}
	}
}

// Form compiles an NHLFE. That of one that a Table took succeeds, whatever else was changed.
func (t *Table) Form(id uint32) (*Form, error) {
	if t.nhlfes[id] == nil {
		return nil, fmt.Errorf("there is no nhlfe %d: add it first", id)
	}
	c := compiler{t: t, root: id}
	var d draft
	switch err := c.list(&d, id); {
	case err != nil && c.at != id:
		return nil, fmt.Errorf("nhlfe %d leads to nhlfe %d, where %w", id, c.at, err)
	case err != nil:
		return nil, err
	}
	return &d.Form, nil
}
