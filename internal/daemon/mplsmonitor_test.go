// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"shunt/internal/api"
)

func someEvents(from, n int) (events []api.MPLSEvent) {
	for i := range n {
		events = append(events, api.MPLSEvent{Seq: uint64(from + i)})
	}
	return events
}

// TestMonitors: each is told everything from its beginning on, in order.
func TestMonitors(t *testing.T) {
	var m monitors
	m.tell(someEvents(1, 3)) // to nobody
	ctx, cancel := context.WithCancel(t.Context())
	var got []uint64
	ready, done := make(chan bool), make(chan error)
	go func() {
		done <- m.follow(ctx, func(events []api.MPLSEvent) error {
			if events == nil {
				close(ready)
			}
			for _, e := range events {
				if got = append(got, e.Seq); e.Seq == 1000 {
					cancel()
				}
			}
			return nil
		})
	}()
	<-ready
	for seq := 4; seq <= 1000; seq++ {
		m.tell(someEvents(seq, 1))
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(got) != 997 {
		t.Fatalf("%d events", len(got))
	}
	for i, seq := range got {
		if seq != uint64(i+4) {
			t.Fatalf("event %d is %d", i, seq)
		}
	}
	if m.wanted() {
		t.Error("a monitor that ended is told")
	}
}

// TestSlowMonitor: one that does not read is told so, costs no more than it may, and holds
// nobody up.
func TestSlowMonitor(t *testing.T) {
	var m monitors
	begun, read := make(chan bool, 2), make(chan bool)
	done := make(chan error)
	go func() {
		done <- m.follow(t.Context(), func(events []api.MPLSEvent) error {
			if events != nil {
				begun <- true
				<-read
			}
			return nil
		})
	}()
	for !m.wanted() {
		time.Sleep(time.Millisecond)
	}
	m.tell(someEvents(1, 1))
	<-begun
	many := make([]api.MPLSEvent, mostUntold/4+1)
	for range 4 {
		m.tell(many)
	}
	for one := range m.all {
		if len(one.waiting) > 0 {
			t.Errorf("%d lots of events are kept for it", len(one.waiting))
		}
	}
	close(read)
	if err := <-done; !errors.Is(err, errSlowMonitor) {
		t.Errorf("%v", err)
	}
	gone := errors.New("gone")
	if err := m.follow(t.Context(), func([]api.MPLSEvent) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("one that hung up: %v", err)
	}
}
