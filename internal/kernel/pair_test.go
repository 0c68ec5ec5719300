// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"shunt/internal/nl/nltest"
)

// TestPair makes the pair, finds it again, mends what is half made, and takes it away.
func TestPair(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	for _, path := range []string{"/proc/sys/net/ipv6/conf/all/forwarding", "/proc/sys/net/ipv6/conf/default/forwarding"} {
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	r, err := OpenResolver()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	made := func(what string) (outer, inner int) {
		t.Helper()
		outer, inner, err := r.MakePair()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		links, err := Links()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			switch l.Name {
			case PairOuter, PairInner:
				if !l.Up || !l.Carrier || l.MTU != pairMTU || l.Index != outer && l.Index != inner {
					t.Errorf("%s: %+v", what, l)
				}
				if l.Name == PairOuter && (l.Offloads.TSO || l.Offloads.TxChecksum) {
					t.Errorf("%s: %+v", what, l.Offloads)
				}
			}
		}
		return outer, inner
	}
	outer, inner := made("at first")
	if a, b := made("again"); a != outer || b != inner || a == b {
		t.Errorf("%d and %d, then %d and %d", outer, inner, a, b)
	}
	time.Sleep(1500 * time.Millisecond) // as long as addresses and groups take to be told of
	out, err := exec.Command("ip", "-s", "link", "show", PairInner).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "NOARP") || strings.Contains(string(out), "MULTICAST") {
		t.Errorf("%v: %s", err, out)
	}
	if n := strings.Count(strings.Join(strings.Fields(string(out)), " "), " 0 0 0 0 0 0"); n != 2 {
		t.Errorf("packets without traffic: %s", out)
	}
	if out, err := exec.Command("ip", "address", "show", "dev", PairOuter).CombinedOutput(); err != nil || strings.Contains(string(out), "inet") {
		t.Errorf("%v: %s", err, out)
	}
	nltest.Run(t, "ip link set "+PairInner+" down")
	if a, _ := made("after it was down"); a == outer {
		t.Error("one that is down is taken for whole")
	}
	for range 2 {
		if err := r.RemovePair(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Link(PairInner); err != ErrNoLink {
		t.Errorf("after it was removed: %v", err)
	}
	nltest.Run(t, "ip link add "+PairOuter+" type bridge")
	if _, _, err := r.MakePair(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("somebody else's: %v", err)
	}
	if err := r.RemovePair(); err != nil {
		t.Error(err)
	}
	nltest.Run(t, "ip link show "+PairOuter)
}
