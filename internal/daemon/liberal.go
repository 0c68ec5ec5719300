// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

const tcp = 6

// serveRequest does to a connection in conntrack what the data path cannot.
//
// Be-liberal switches the window check off for a connection that is about to be repeated:
// conntrack will not see its packets any more, and would call the next one it sees
// invalid. Windows of RST and FIN are checked in the data path from then on; for the same
// reason conntrack must be told that a reset was genuine.
func (d *Daemon) serveRequest(ct *kernel.Conntrack, q dataplane.Request) {
	t := kernel.Tuple{Proto: tcp, Source: q.Tuple.Source, Destination: q.Tuple.Destination, Zone: q.Zone}
	do, words := ct.SetLiberal, "be-liberal could not be set; the connection stays with the kernel"
	if q.Reset {
		do, words = ct.SetReset, "a reset connection could not be closed; it ends by conntrack's timeout"
	}
	err := do(t)
	gone := errors.Is(err, kernel.ErrNoConnection)
	if gone && (q.Reset || !d.missing.again(t, time.Now())) {
		return // it ended meanwhile
	}
	if err != nil {
		d.log.Warn(words, "from", t.Source, "to", t.Destination, "zone", t.Zone, "err", err)
	}
}
