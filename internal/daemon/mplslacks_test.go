// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/api"
	"shunt/internal/eligible"
)

// TestLabelLacks: who gives labels to a port without XDP is told at once, and so is everybody who
// looks; what he wrote stays, over a new daemon too, and is in force once the port has XDP.
func TestLabelLacks(t *testing.T) {
	r := newLabelRig(t)
	var log bytes.Buffer
	unknown := eligible.Decision{Attach: true, XDPTransmit: true, Reason: "not yet known whether the peer of lan behaves like a wire"}
	deaf := eligible.Decision{Attach: true, XDPReceive: true, Reason: "driver x takes no redirected frames on wan: flows to it go by TC"}
	decisions := map[string]eligible.Decision{"lan": unknown, "wan": deaf}
	r.change = func(name string, d *eligible.Decision) {
		if own, ok := decisions[name]; ok {
			*d = own
		}
	}
	r.labels.log = slog.New(slog.NewTextHandler(&log, nil))
	features := r.kernel.links["lan"]
	features.Features = 1<<32 - 1
	r.kernel.links["lan"] = features

	const in = `lan: labels that come in are not switched: not yet known whether the peer of lan behaves like a wire; set xdp = "on" for lan`
	const out = "wan: labels do not leave by it: driver x takes no redirected frames on wan: flows to it go by TC; let labels go by another port"
	const absent = "wan9: there is no such interface now; what is said of its labels waits for it"
	done, err := r.apply("space set lan wan wan9 0", "nhlfe add 7 swap 200 "+viaWAN, "ilm add 100 nhlfe 7")
	want := api.MPLSDone{Seq: 5, Changed: 5, Warnings: []string{in, strings.Replace(out, "driver x takes", "driver (unnamed) takes", 1), absent}}
	if diff := cmp.Diff(want, done); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if done, err := r.apply("nhlfe add 8 swap 200 send dev lan lladdr 02:00:00:00:00:99", "ilm add 101 nhlfe 8", "nhlfe del 8"); err == nil || len(done.Warnings) > 0 {
		t.Errorf("%+v, %v", done, err)
	}
	if done, err := r.apply("nhlfe add 8 swap 200 send dev lan lladdr 02:00:00:00:00:99"); err != nil || len(done.Warnings) > 0 {
		t.Errorf("what leaves by a port that takes frames: %+v, %v", done, err)
	}
	r.must("nhlfe del 8")
	for range 3 {
		r.look()
	}
	for _, warning := range done.Warnings {
		name, why, _ := strings.Cut(warning, ": ")
		if n := strings.Count(log.String(), "port="+name+" reason="); n != 1 {
			t.Errorf("%s: told %d times in\n%s", name, n, log.String())
		}
		checks := r.checks()
		found := false
		for _, c := range checks {
			found = found || c.Name == "labels "+name && c.Level == api.LevelWarn && c.Finding+"; "+c.Remedy == why
		}
		if !found || len(checks) != 3 {
			t.Errorf("%s: the doctor has %+v", name, checks)
		}
	}
	spaces, err := r.Space(api.MPLSFilter{Port: "lan"})
	if err != nil || spaces[0].State != api.MPLSDown || "lan: "+spaces[0].Reason+"; "+spaces[0].Remedy != in || spaces[0].Index != 3 {
		t.Errorf("%+v, %v", spaces, err)
	}
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.lacking()); n != 3 {
		t.Errorf("a new daemon has found %d", n)
	}
	r.labels.log = slog.New(slog.NewTextHandler(&log, nil))
	clear(decisions)
	r.look()
	r.inForce("with XDP", "nhlfe 7: send to 02:00:00:00:00:02 by 4, mtu 1500", "ilm 0/100: [7 7 7 7 7 7 7 7]",
		"port 3: space 0, 02:00:00:00:00:30", "port 4: space 0, 02:00:00:00:00:40")
	if n := len(r.checks()); n != 1 || !strings.Contains(log.String(), "does what the label tables say\" port=lan") {
		t.Errorf("with XDP: %+v, and\n%s", r.checks(), log.String())
	}
	if done, err = r.apply("space set lan off", "space set lan wan 1"); err != nil || len(done.Warnings) > 0 {
		t.Errorf("nothing is lacking: %+v, %v", done, err)
	}
	r.must("space set wan9 off")
	if n := len(r.checks()); n != 0 {
		t.Errorf("none wants anything of wan9: %+v", r.checks())
	}
}
