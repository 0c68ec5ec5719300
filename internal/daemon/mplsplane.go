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
	// LabelHash is the number by which a packet with labels has its way chosen.
	LabelHash(packet []byte) uint32
}

// resolver is what the kernel knows of ways out: kernel.Resolver.
type resolver interface {
	Link(name string) (kernel.Link, error)
	Neighbour(index int, addr netip.Addr) (kernel.Neighbour, error)
	Use(index int, addr netip.Addr) error
}
