// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
)

// Difference is what a renewal found at a time, in the API's words.
func (l *Look) Difference(d *dataplane.Difference, at time.Time) api.Difference {
	a := api.Difference{
		At: at, Port: l.Ports[d.Port].Name, Proto: api.ProtoName(d.Proto), Packets: d.Packets,
		Before: l.form(d.Proto, &d.Before), After: l.form(d.Proto, &d.After),
	}
	a.Source, a.Destination = ends(d.Proto, d.In)
	return a
}

func (l *Look) form(proto uint8, f *dataplane.Form) api.Form {
	a := api.Form{
		Out: l.Ports[f.Out].Name, DestMAC: f.MAC[0].String(), SourceMAC: f.MAC[1].String(),
		DSCP: f.DSCP, MTU: f.MTU, Mark: f.Mark, Priority: f.Priority,
	}
	a.Source, a.Destination = ends(proto, f.NAT)
	return a
}
