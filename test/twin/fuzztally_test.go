// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"shunt/internal/api"
)

// tally is what was counted.
type tally struct {
	mu    sync.Mutex
	count map[string]int
	took  [2]time.Duration
}

// Lines of the tally.
const (
	allFrames = "frames"
	mutants   = "frames are mutants of armed flows"
	metArmed  = "frames met an armed entry"
)

func (n *tally) item(x item) {
	n.count[allFrames]++
	if x.armed {
		n.count[mutants]++
	}
	for _, name := range x.kind {
		n.count["done "+name]++
	}
	if x.kind == nil {
		n.count["as they should be"]++
	}
	if x.control {
		n.count["with SYN, FIN or RST"]++
	}
}

// met are the reasons of packets whose key was that of an armed entry.
var met = []string{"hit", "lease_ended", "old_generation", "mac_differs", "dscp_differs", "label_differs",
	"over_mtu", "tcp_close", "tcp_implausible", "draining"}

// counters adds what the stage that repeats has counted since the first flows were armed.
func (n *tally) counters(way string, want, got *record) {
	n.took = [2]time.Duration{want.took, got.took}
	stage := map[string]string{api.WayXDP: api.StageXDP, api.WayTC: api.StageTCIngress}[way]
	for reason, count := range got.after[stage] {
		since := int(count - got.before[stage][reason])
		n.count["reason "+reason] += since
		if slices.Contains(met, reason) {
			n.count[metArmed] += since
		}
	}
}

func (n *tally) add(o *tally) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, v := range o.count {
		n.count[k] += v
	}
	for i := range n.took {
		n.took[i] += o.took[i]
	}
}

func (n *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent in %v without shunt, %v with it", n.took[0].Round(time.Millisecond), n.took[1].Round(time.Millisecond))
	for _, k := range slices.Sorted(maps.Keys(n.count)) {
		if strings.HasPrefix(k, "done ") {
			continue
		}
		fmt.Fprintf(&b, "\n\t%7d %s", n.count[k], k)
	}
	return b.String()
}

// judge wants that the run has shown something: that half of the frames were mutants of
// armed flows, that half met an armed entry, that little was excepted (a wrong checksum is one
// mutation in twenty), and that every mutation was used.
func (n *tally) judge(t *testing.T) {
	frames := n.count[allFrames]
	for _, what := range []string{mutants, metArmed} {
		if 2*n.count[what] < frames {
			t.Errorf("%d of %d %s; half must be", n.count[what], frames, what)
		}
	}
	if 16*n.count[byChecksum] > frames {
		t.Errorf("%d of %d frames were excepted for their checksum; one in 16 may be", n.count[byChecksum], frames)
	}
	excepted := 0
	for _, why := range []string{byWindow, byImplausible, byAfter, byReset, byIgnored, byUnread, byNearly} {
		excepted += n.count[why]
	}
	if 100*excepted > frames {
		t.Errorf("%d of %d frames were excepted, beside those for their checksum; at most 1 %% may be", excepted, frames)
	}
	for _, x := range mutations {
		if n.count["done "+x.name] == 0 && frames >= 50_000 {
			t.Errorf("mutation %s was never used", x.name)
		}
	}
}
