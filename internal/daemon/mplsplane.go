// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// labelPlane is what the data path does for label switching.
type labelPlane interface {
	// UpdateLabels puts a transaction in force. After an error the same entries are written
	// again, as they were before.
	UpdateLabels(*dataplane.LabelUpdate) error
	// LabelStats reads all counters.
	LabelStats() (dataplane.LabelStats, error)
	// LabelHash is the number by which a packet has its way chosen, as it came in: with labels or
	// without.
	LabelHash(packet []byte, labelled bool) uint32
}

// resolver is what the kernel knows of ways out: kernel.Resolver.
type resolver interface {
	Link(name string) (kernel.Link, error)
	Neighbour(index int, addr netip.Addr) (kernel.Neighbour, error)
	Use(index int, addr netip.Addr) error
	// MakePair makes the veth pair in which IP packets get labels, or finds it.
	MakePair() (outer, inner int, err error)
	RemovePair() error
}
