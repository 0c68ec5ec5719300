// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"sync"

	"shunt/internal/api"
)

// mostUntold is how many events may wait for one monitor: those of four transactions of a
// million entries each.
const mostUntold = 4 << 20

var errSlowMonitor = errors.New("changes came faster than they were read, and some are lost; read the tables again, then monitor again")

// monitors hands on what happens to all who want to know. Events wait for those who are slow,
// and nobody waits for them.
type monitors struct {
	mu  sync.Mutex
	all map[*monitor]bool
}

// monitor is one who wants to know.
type monitor struct {
	waiting [][]api.MPLSEvent // shared by all monitors, so never changed
	untold  int
	lost    bool
	wake    chan struct{}
}

// tell adds events for everybody.
func (m *monitors) tell(events []api.MPLSEvent) {
	if len(events) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for one := range m.all {
		one.untold += len(events)
		if one.untold > mostUntold {
			one.lost, one.waiting = true, nil
		} else {
			one.waiting = append(one.waiting, events)
		}
		select {
		case one.wake <- struct{}{}:
		default: // it is awake
		}
	}
}

// wanted tells whether anybody listens.
func (m *monitors) wanted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all) > 0
}

// follow is api.MPLS's Monitor.
func (m *monitors) follow(ctx context.Context, tell func([]api.MPLSEvent) error) error {
	one := &monitor{wake: make(chan struct{}, 1)}
	m.mu.Lock()
	if m.all == nil {
		m.all = map[*monitor]bool{}
	}
	m.all[one] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.all, one)
		m.mu.Unlock()
	}()
	if err := tell(nil); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-one.wake:
		}
		events, lost := m.take(one)
		if lost {
			return errSlowMonitor
		}
		for _, some := range events {
			if err := tell(some); err != nil {
				return err
			}
		}
	}
}

func (m *monitors) take(one *monitor) ([][]api.MPLSEvent, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := one.waiting
	one.waiting, one.untold = nil, 0
	return events, one.lost
}
