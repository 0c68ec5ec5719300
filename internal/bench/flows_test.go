// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"testing"
	"time"
)

// Flows that come one lot after the other are armed, and the daemon's memory is found.
func TestFlowsRound(t *testing.T) {
	binary, err := Executable()
	if err != nil {
		t.Fatal(err)
	}
	var c FlowsResult
	of := flowCase{flows: 3000, newcomers: 1000, window: 100 * time.Millisecond, slots: 1 << 20}
	if err := c.round(context.Background(), Options{Binary: binary, Say: t.Logf}, of); err != nil {
		t.Fatal(err)
	}
	c.sum()
	if armed := c.Armed.Median; armed < 2900 || armed > 3000 {
		t.Errorf("%.0f of %d flows are armed", armed, of.flows)
	}
	table := uint64(192 << 20)
	if c.Slots != 1<<20 || c.MapBytes < table || c.MapBytes > table+table/10 {
		t.Errorf("%d slots and %d bytes of maps, want %d and a little more", c.Slots, c.MapBytes, table)
	}
}
