// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// labelsApply makes changes to the label tables.
func (r *rig) labelsApply(lines ...string) {
	r.t.Helper()
	if _, err := r.api.MPLSApply(context.Background(), api.MPLSChange{Lines: lines, Origin: "e2e"}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) labelsSaved() []string {
	r.t.Helper()
	var text strings.Builder
	if err := r.api.MPLSSave(context.Background(), &text); err != nil {
		r.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(text.String()), "\n")
}

// wayOut is the state of an NHLFE's way out, and why it is down.
func (r *rig) wayOut(id uint32) (state, reason string) {
	r.t.Helper()
	list, err := r.api.MPLSNHLFE(context.Background(), api.MPLSFilter{ID: &id})
	if err != nil || len(list) != 1 {
		r.t.Fatalf("nhlfe %d: %+v, %v", id, list, err)
	}
	return list[0].State, list[0].Reason
}

// TestLabelsOutliveTheDaemon: killed, terminated or upgraded, it has the tables again; after stop
// nothing is left of them.
func TestLabelsOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, both...)
	want := []string{"nhlfe add 7 swap 200 send dev wan via inet " + r.Server.V4.Addr().String(), "ilm add 100 nhlfe 7", "space set lan 0"}
	r.labelsApply(want...)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"killed", func() { r.daemon.Kill9(); r.start(program, both...) }},
		{"terminated", func() { r.terminate(); r.start(program, both...) }},
		{"killed as it wrote", func() {
			r.daemon.Kill9()
			file, err := os.OpenFile(filepath.Join(r.State(), "mpls.journal"), os.O_APPEND|os.O_WRONLY, 0)
			r.must(err)
			_, err = file.WriteString(`{"time":"2026-07-01T12:0`)
			r.must(err)
			r.must(file.Close())
			r.start(program, both...)
			if !strings.Contains(r.daemon.Log(), "never answered and is left out") {
				t.Error("a torn journal is not told")
			}
		}},
	} {
		step.do()
		if got := r.labelsSaved(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", step.name, got, want)
		}
		if state, why := r.wayOut(7); state != api.MPLSUp {
			t.Errorf("%s: %s: %s", step.name, state, why)
		}
	}
	if out, err := r.LAN.NS.Run("ip", "neigh", "show", "dev", "wan"); err != nil || strings.Count(out, "PERMANENT") < 2 {
		t.Errorf("neighbours that were set by hand: %v\n%s", err, out)
	}
	r.must(r.daemon.Stop())
	if left, _ := filepath.Glob(filepath.Join(r.State(), "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLabelsOnAPortWithoutXDP: it is told to who asks for it and to who looks, and is over when the
// port has XDP, for a daemon that has the tables from the one before.
func TestLabelsOnAPortWithoutXDP(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, both...) // a veth has none before its peer is known
	done, err := r.api.MPLSApply(context.Background(), api.MPLSChange{Lines: []string{"space set lan 0"}, Origin: "e2e"})
	r.must(err)
	want := `lan: labels that come in are not switched: not yet known whether the peer of lan behaves like a wire; set xdp = "on" for lan`
	if len(done.Warnings) != 1 || done.Warnings[0] != want {
		t.Errorf("%+v", done)
	}
	said := func() (list []string) {
		ports, err := r.api.Ports(context.Background())
		r.must(err)
		for _, p := range ports {
			if p.Labels != "" {
				list = append(list, p.Name+": "+p.Labels)
			}
		}
		checks, err := r.api.Doctor(context.Background())
		r.must(err)
		for _, c := range checks {
			if strings.HasPrefix(c.Name, "labels ") {
				list = append(list, strings.TrimPrefix(c.Name, "labels ")+": "+c.Finding+"; "+c.Remedy)
			}
		}
		return list
	}
	if got := said(); !slices.Equal(got, []string{want, want}) {
		t.Errorf("ports and doctor say %q", got)
	}
	r.terminate()
	r.start(program, with("--xdp", "on")...)
	if got := said(); len(got) > 0 {
		t.Errorf("with XDP they say %q", got)
	}
	spaces, err := r.api.MPLSSpace(context.Background(), api.MPLSFilter{})
	r.must(err)
	if len(spaces) != 1 || spaces[0].State != api.MPLSUp || spaces[0].Index == 0 {
		t.Errorf("%+v", spaces)
	}
}

// TestWayOutFollowsTheNeighbour: one that nobody has asked for yet is asked for, kept, found
// silent, and found again; what becomes of it is told in order.
func TestWayOutFollowsTheNeighbour(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{})
	// what takes a minute by default: to find a neighbour stale, and to ask for it in vain
	for key, value := range map[string]string{"base_reachable_time_ms": "300", "delay_first_probe_time": "1", "retrans_time_ms": "100"} {
		r.must(r.LAN.NS.Sysctl("net.ipv4.neigh.wan."+key, value))
	}
	r.start(program, both...)
	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan api.MPLSEvent, 1000), make(chan error, 1)
	ready := make(chan bool, 1000)
	go func() {
		ended <- r.api.MPLSMonitor(ctx, func(e api.MPLSEvent) error {
			if e.Kind == "map" {
				ready <- true
			} else {
				events <- e
			}
			return nil
		})
	}()
	r.eventually("the monitor listens", patience, func() bool {
		r.labelsApply("map replace begin tc-to-dscp 0:0", "map del begin")
		return len(ready) > 0
	})
	server := r.Server.V4.Addr().String()
	r.labelsApply("nhlfe add 7 swap 200 send dev wan via inet " + server)
	is := func(want string) func() bool {
		return func() bool { state, _ := r.wayOut(7); return state == want }
	}
	r.eventually("the neighbour has answered", patience, is(api.MPLSUp))
	r.must(r.Server.NS.IP("link set eth0 arp off"))
	r.eventually("it is silent, and found to be", patience, is(api.MPLSDown))
	if _, why := r.wayOut(7); !strings.Contains(why, "the neighbour") {
		t.Errorf("down: %s", why)
	}
	r.must(r.Server.NS.IP("link set eth0 arp on"))
	r.eventually("it answers again", patience, is(api.MPLSUp))
	r.must(r.LAN.NS.IP("link set wan down"))
	r.eventually("the port is down", patience, is(api.MPLSDown))
	var verbs []string
	r.eventually("all of it is told", patience, func() bool {
		for len(events) > 0 {
			e := <-events
			if e.Kind == "adjacency" && (len(verbs) == 0 || verbs[len(verbs)-1] != e.Verb) {
				verbs = append(verbs, e.Verb)
			}
		}
		return strings.HasSuffix(strings.Join(verbs, " "), "up down up down")
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.must(r.daemon.Signal(syscall.SIGTERM))
}

// TestDiscontinuityTime: counters that begin anew say since when (RFC 3813: a re-initialization of
// the entry), and those that go on keep their time: over a replace, a change of the ways, a
// transaction about others.
func TestDiscontinuityTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	start := func() { r.start(program, with("--xdp", "on")...) }
	start()
	began := time.Now()
	r.labelsApply(r.swapToServer()...)
	g := r.labelled(1, 100, 0)
	const n = 1000
	var in api.MPLSInSegment
	var out api.MPLSOutSegment
	look := func() {
		t.Helper()
		s, err := r.api.MPLSStats(context.Background(), api.MPLSFilter{})
		r.must(err)
		if len(s.InSegments) == 0 || len(s.OutSegments) == 0 {
			t.Fatalf("%+v", s)
		}
		in, out = s.InSegments[0], s.OutSegments[0]
	}
	look()
	if in.DiscontinuityTime.Before(began) || out.DiscontinuityTime.Before(began) {
		t.Errorf("entries of %v count since %v and %v", began, in.DiscontinuityTime, out.DiscontinuityTime)
	}
	sent := uint64(0)
	toServer := "send dev wan via inet " + r.Server.V4.Addr().String()
	for _, step := range []struct {
		name            string
		do              func()
		inAnew, outAnew bool
	}{
		{"replaced", func() { r.labelsApply("nhlfe replace 7 swap 200 set-tc 3 "+toServer, "ilm replace 100 nhlfe 7") }, false, false},
		{"another way out", func() { r.labelsApply("nhlfe change 7 swap 200 send dev wan lladdr " + r.Server.MAC.String()) }, false, false},
		{"others come and go", func() { r.labelsApply("nhlfe add 8 drop", "ilm add 101 nhlfe 8", "ilm del 101", "nhlfe del 8") }, false, false},
		{"another NHLFE", func() { r.labelsApply("nhlfe add 9 swap 201 "+toServer, "ilm change 100 nhlfe 9", "nhlfe del 7") }, false, true},
		{"the label goes and comes", func() { r.labelsApply("ilm del 100"); r.labelsApply("ilm add 100 nhlfe 9") }, true, false},
		{"a new daemon", func() { r.terminate(); start() }, true, true},
		{"killed", func() { r.daemon.Kill9(); start() }, true, true},
	} {
		r.send(g, n)
		sent += n
		r.eventually("all are counted", patience, func() bool { look(); return in.Packets == sent })
		wasIn, wasOut := in, out
		step.do()
		look()
		judge := func(what string, anew bool, packets, octets, before uint64, since, was time.Time) {
			switch {
			case anew && (packets != 0 || octets != 0 || !since.After(was)):
				t.Errorf("%s: the %s counts %d packets since %v, and before since %v", step.name, what, packets, since, was)
			case !anew && (packets != before || !since.Equal(was)):
				t.Errorf("%s: the %s had %d packets since %v, and has %d since %v", step.name, what, before, was, packets, since)
			}
		}
		judge("in-segment", step.inAnew, in.Packets, in.HCOctets, wasIn.Packets, in.DiscontinuityTime, wasIn.DiscontinuityTime)
		judge("out-segment", step.outAnew, out.Packets, out.HCOctets, wasOut.Packets, out.DiscontinuityTime, wasOut.DiscontinuityTime)
		sent = in.Packets
	}
}
