package daemon

import (
	"errors"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

const tcp = 6

// liberate switches conntrack's window check off for a connection that is about to be
// repeated: conntrack will not see its packets any more, and would call the next one it
// sees invalid. Windows of RST and FIN are checked in the data path from then on.
func (d *Daemon) liberate(ct *kernel.Conntrack, c dataplane.Connection) {
	err := ct.SetLiberal(kernel.Tuple{
		Proto: tcp, Source: c.Original.Source, Destination: c.Original.Destination, Zone: c.Zone,
	})
	if err != nil && !errors.Is(err, kernel.ErrNoConnection) {
		d.log.Warn("be-liberal could not be set; the connection stays with the kernel",
			"from", c.Original.Source, "to", c.Original.Destination, "err", err)
	}
}
