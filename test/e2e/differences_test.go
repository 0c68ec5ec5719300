// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// members makes the router mark, by legacy iptables, what comes from the members of an ipset:
// of neither does the kernel send any event.
func (r *rig) members() {
	r.t.Helper()
	for _, command := range []string{
		"ipset create fast hash:ip",
		"iptables-legacy -t mangle -A POSTROUTING -m set --match-set fast src -j DSCP --set-dscp 46",
	} {
		out, err := r.LAN.NS.Run(strings.Fields(command)...)
		if err != nil {
			r.t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}

// TestDifferences: a member is added to a set, of which no event tells. The renewals find out,
// and the operator is told, with both forms; of a change that was announced he is not.
func TestDifferences(t *testing.T) {
	const flows = 3
	r := newRig(t, lab.FirewallOptions{Open: true, Neighbours: true})
	r.members()
	r.start(program, with("--xdp", "on", "--lease", "300ms")...)
	stop := r.background(r.generator(flows, 300))
	r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == flows })
	if out, _, code := r.shunt("status", "--differences"); code != 0 || !strings.HasPrefix(out, "none: ") {
		t.Fatalf("before anything has changed: exit %d, %s", code, out)
	}

	r.nft(`table ip marks { chain out { type filter hook postrouting priority 300; ip daddr ` + r.Server.V4.Addr().String() + ` ip dscp set cs1; }; }`)
	r.eventually("what was announced is obeyed", patience, func() bool {
		for _, f := range r.armed() {
			if f.DSCPOut != 8 {
				return false
			}
		}
		return len(r.armed()) == flows
	})
	r.nft("delete table ip marks")
	time.Sleep(time.Second) // leases, and the time that an event may take
	if n := r.status().Differences; n != 0 {
		t.Errorf("%d differences in what was announced", n)
	}

	source := r.Client.V4.Addr().String()
	_, err := r.LAN.NS.Run("ipset", "add", "fast", source)
	r.must(err)
	r.eventually("all differences are told", patience, func() bool { return r.status().Differences >= flows })
	r.eventually("with both forms", patience, func() bool { return len(r.differences()) >= flows })
	seen := map[uint16]bool{}
	for _, d := range r.differences() {
		want := d.Before
		want.DSCP = 46
		if d.Before.DSCP != 0 || d.After != want || d.Before.Out != "wan" || d.Before.MTU != 1500 || d.Port != "lan" ||
			d.Proto != "udp" || d.Packets == 0 || time.Since(d.At) > patience {
			t.Errorf("told %+v", d)
		}
		seen[d.Source.Port()] = true
	}
	if len(seen) != flows {
		t.Errorf("told of flows from ports %v, want %d", seen, flows)
	}
	stop()

	out, _, code := r.shunt("status", "--differences")
	line := fmt.Sprintf("%s:%d", source, clientPort)
	if code != 0 || !strings.Contains(out, line) || !strings.Contains(out, "DSCP 46") || strings.Contains(out, "MAC") {
		t.Errorf("exit %d, want a line about %s and the DSCP:\n%s", code, line, out)
	}
	if n := strings.Count(r.daemon.Log(), "had not announced it"); n != 1 {
		t.Errorf("%d lines in the log, want one for all that came together", n)
	}
}

func (r *rig) differences() (list []api.Difference) {
	r.t.Helper()
	out, errs, code := r.shunt("status", "--differences", "--json")
	if code != 0 {
		r.t.Fatalf("status --differences --json: exit %d, %s", code, errs)
	}
	r.must(json.Unmarshal([]byte(out), &list))
	return list
}

// TestVerify: with verify = 1 every flow is proved about four times a second, and hits all the
// while; without, a lease of a minute has no end here.
func TestVerify(t *testing.T) {
	for _, c := range []struct {
		verify    string
		low, high uint32 // renewals in two seconds
	}{{"0", 0, 0}, {"1", 4, 10}} {
		t.Run(c.verify, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{Open: true, Neighbours: true})
			file := filepath.Join(t.TempDir(), "shunt.toml")
			r.must(os.WriteFile(file, []byte("lease = \"60s\"\nverify = "+c.verify+"\n"), 0o600))
			r.start(program, with("--xdp", "on", "--config", file)...)
			stop := r.background(r.generator(1, 500))
			defer stop()
			r.eventually("the flow is armed", patience, func() bool { return len(r.armed()) == 1 })
			before := r.flows()[0]
			time.Sleep(2 * time.Second)
			after := r.flows()[0]
			if n := after.Renewals - before.Renewals; n < c.low || n > c.high || after.Packets == before.Packets {
				t.Errorf("%d proofs in 2 s, want %d to %d; %d packets repeated", n, c.low, c.high, after.Packets-before.Packets)
			}
		})
	}
}
