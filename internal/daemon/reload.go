// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/dataplane"
)

// Reload implements api.Backend. loop does the work, since it owns the ports.
func (d *Daemon) Reload() error {
	answer := make(chan error, 1)
	select {
	case d.reloads <- answer:
		return <-answer
	case <-d.ended:
		return errors.New("the daemon is ending")
	}
}

// reload reads the configuration again and puts it in force: the whole of it, or nothing. Every
// check, and the one step that can fail, comes before the first change.
func (d *Daemon) reload() error {
	changed, err := d.adopt()
	d.mu.Lock()
	d.loading.refused = err != nil
	if err == nil {
		d.loading.at = time.Now()
	}
	d.mu.Unlock()
	switch {
	case err != nil:
		d.log.Error("configuration refused; nothing was changed", "err", err)
		return api.Wrong(err)
	case len(changed) == 0:
		d.log.Info("configuration read again; nothing is new")
	default:
		d.log.Info("configuration applied", "changed", strings.Join(changed, ", "))
	}
	return nil
}

func (d *Daemon) adopt() (changed []string, err error) {
	now := d.cfg.Load()
	next, err := now.Source.Load()
	if err != nil {
		return nil, err
	}
	if next.Read == "" {
		return nil, fmt.Errorf("%s does not exist, and the daemon was started without --config", config.DefaultFile)
	}
	if err := next.Live(now); err != nil {
		return nil, err
	}
	changed = config.Changed(now, &next)
	if err := d.rules.configure(next.Config); err != nil {
		return nil, err
	}
	d.cfg.Store(&next)
	if len(changed) == 0 {
		return nil, nil
	}
	d.mu.Lock()
	d.lease = leaseControl{base: next.Lease, limit: d.lease.limit, cpus: d.lease.cpus}
	d.mu.Unlock()
	d.configure(&next)
	// An entry that was learned under the old settings proves itself under the new ones.
	d.plane.Bump()
	for _, p := range d.ports {
		p.switched = 0
	}
	d.reviewAgain()
	d.returnCards()
	return changed, nil
}

// configure writes what packets read of a configuration.
func (d *Daemon) configure(cfg *config.Effective) {
	d.plane.SetLabelHold(d.jiffies(cfg.LabelHold))
	d.mu.Lock() // windClock sets the lease, too
	defer d.mu.Unlock()
	lease := d.jiffies(d.lease.least())
	d.plane.Configure(dataplane.Settings{
		Threshold: cfg.Threshold, HZ: d.hz, TCP: cfg.TCP,
		Lease: lease, LeaseLive: lease, Verify: cfg.Verify,
		SourceFlows: cfg.SourceLimit(), Police: rates(cfg.Police),
	})
}
