// SPDX-License-Identifier: Apache-2.0

package daemon

import systemd "github.com/coreos/go-systemd/v22/daemon"

// notify, which loop alone calls, tells the service manager, where there is one, what this daemon does (sd_notify(3)).
func (d *Daemon) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil && d.unheard != err.Error() {
		d.unheard = err.Error()
		d.log.Warn("the service manager cannot be told", "what", state, "err", err)
	}
}
