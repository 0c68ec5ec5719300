// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net"

	"shunt/internal/kernel"
	"shunt/internal/verdict"
)

// asker is explain.Kernel: it asks at the moment of the question, and keeps nothing.
type asker struct{}

func (asker) Route(p kernel.Packet) (kernel.Route, error)  { return kernel.RouteOf(p) }
func (asker) Drop(p verdict.Packet) (*verdict.Drop, error) { return verdict.Drops(p) }

func (asker) Connection(t kernel.Tuple) (kernel.Connection, error) { return kernel.Lookup(t) }

func (asker) Interface(index int) string {
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return ""
	}
	return i.Name
}
