// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

const viaWAN = "send dev wan via inet 10.0.0.2"

// TestLabels: what lines become in the data path, whatever they do.
func TestLabels(t *testing.T) {
	r := newLabelRig(t)
	r.inForce("at the start")
	done, err := r.apply("space set lan wan 0", "map add gold dscp-to-tc 1:5 7:2",
		"nhlfe add 7 swap 200 "+viaWAN, "nhlfe add 8 push 300 tc-map gold "+viaWAN, "nhlfe add 9 pop deliver",
		"ilm add 100 nhlfe 7", "ilm add 100 tc 5 nhlfe 9", "ilm add 100 space 3 nhlfe 9", "ftn add 192.0.2.0/24 nhlfe 8")
	if err != nil || !cmp.Equal(done, api.MPLSDone{Seq: 10, Changed: 10}) {
		t.Fatalf("%+v, %v", done, err)
	}
	r.inForce("added",
		"port 3: space 0, 02:00:00:00:00:30", "port 4: space 0, 02:00:00:00:00:40", "map gold: [0 5 0 0 0 0 0 2]",
		"nhlfe 7: send to 02:00:00:00:00:02 by 4, mtu 1500", "nhlfe 8: send to 02:00:00:00:00:02 by 4, mtu 1500", "nhlfe 9: deliver",
		"ilm 0/100: [7 7 7 7 7 9 7 7]", "ilm 3/100: [9 9 9 9 9 9 9 9]", "ftn 192.0.2.0/24: 8")
	r.must("ilm del 100", "nhlfe replace 7 drop", "space set lan off", "space set wan 0 upstream 9", "ftn del 192.0.2.0/24", "nhlfe del 8", "map del gold",
		"nhlfe add 10 swap 201 send dev wan via inet6 2001:db8::2", "nhlfe add 11 swap 201 send dev lan lladdr 02:00:00:00:00:99",
		"route add 101 as 200/300 via inet 10.0.0.2 dev wan")
	r.inForce("changed",
		"port 4: space 0 upstream 9, 02:00:00:00:00:40", "nhlfe 7: drop", "nhlfe 9: deliver",
		"nhlfe 10: send to 02:00:00:00:00:06 by 4, mtu 1500", "nhlfe 11: send to 02:00:00:00:00:99 by 3, mtu 1500",
		"nhlfe 2147483749: send to 02:00:00:00:00:02 by 4, mtu 1500", "ilm 0/101: [2147483749 2147483749 2147483749 2147483749 2147483749 2147483749 2147483749 2147483749]",
		"ilm 0/100: [0 0 0 0 0 9 0 0]", "ilm 3/100: [9 9 9 9 9 9 9 9]")
	r.must("ilm del 100 tc 5")
	if len(r.byTC) > 0 {
		t.Errorf("taken for labels with entries for single TCs: %v", r.byTC)
	}
	updates := r.plane.updates
	if done, err := r.apply("nhlfe replace 7 drop"); err != nil || done.Changed != 0 || r.plane.updates != updates {
		t.Errorf("nothing new: %+v, %v, %d updates", done, err, r.plane.updates-updates)
	}
}

// TestLabelsWrong: what is refused changes nothing, and whose fault it is.
func TestLabelsWrong(t *testing.T) {
	r := newLabelRig(t)
	r.must("nhlfe add 7 drop")
	r.kernel.links["eth9"] = kernel.Link{Index: 9, Name: "eth9"}
	delete(r.kernel.links, "wan")
	for line, want := range map[string]string{
		"ilm add 3 nhlfe 7":    "ilm add 3 nhlfe 7: label 3",
		"ilm add 100 nhlfe 8":  "ilm add 100 nhlfe 8: there is no nhlfe 8",
		"nhlfe add 7 drop":     "nhlfe add 7 drop: there is nhlfe 7 already",
		"space set eth0 wan 0": "space set eth0 0: eth0 is no port: name it to \"shunt run\" with --port, or use one of eth9, lan, wan, wan9",
		"nhlfe add 8 swap 200 send dev eth0 via inet 10.0.0.2": "nhlfe add 8 swap 200 send dev eth0 via inet 10.0.0.2: eth0 is no port",
	} {
		before := r.plane.updates
		_, err := r.apply("space set lan 0", line)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") || r.plane.updates != before {
			t.Errorf("%s: %v, want %s; %d updates", line, err, want, r.plane.updates-before)
		}
	}
	r.must("space set eth0 off") // nobody has it, and it has nothing
	r.must("space set wan9 0")   // it may come
	r.inForce("then", "nhlfe 7: drop")
}

// TestLabelsRefusedByDataPath: everybody has what was before, and goes on from there.
func TestLabelsRefusedByDataPath(t *testing.T) {
	r := newLabelRig(t)
	r.must("space set lan 0", "nhlfe add 7 swap 200 "+viaWAN, "nhlfe add 6 swap 200 send dev lan lladdr 02:00:00:00:00:99", "ilm add 100 nhlfe 7")
	before, lines := r.plane.words(), r.table.Save()
	stop := r.monitor()
	times := 1
	r.plane.refuse = func(*dataplane.LabelUpdate) error {
		if times--; times >= 0 {
			return errPlane
		}
		return nil
	}
	change := []string{"nhlfe replace 7 swap 201 send dev wan via inet6 2001:db8::2", "nhlfe add 8 drop", "ilm add 101 nhlfe 8", "space set wan 1", "space set lan off"}
	if _, err := r.apply(change...); err == nil || err.Error() != "no room" {
		t.Errorf("%v", err)
	}
	r.inForce("refused", before...)
	if diff := cmp.Diff(lines, r.table.Save()); diff != "" {
		t.Error(diff)
	}
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lines, r.table.Save()); diff != "" {
		t.Errorf("a new daemon:\n%s", diff)
	}
	if got := stop(); len(got) > 0 {
		t.Errorf("told: %v", got)
	}
	times = 2 // and what was before cannot be written either
	if _, err := r.apply(change...); err == nil || !strings.Contains(err.Error(), "what is in force is not certain") {
		t.Errorf("%v", err)
	}
	r.look()
	r.inForce("once it can be written", before...)
	r.must(change...)
}

// TestLabelsRestart: a new daemon has the tables, and takes away what is none of theirs.
func TestLabelsRestart(t *testing.T) {
	r := newLabelRig(t)
	for i := range 5 {
		r.must(fmt.Sprintf("nhlfe add %d swap 200 send dev lan lladdr 02:00:00:00:01:%02d", i+1, i+1))
	}
	r.must("nhlfe del 2", "nhlfe replace 4 drop", "nhlfe add 7 swap 200 "+viaWAN, "ilm add 100 nhlfe 7", "space set lan 0")
	before := r.plane.words()
	for range 3 {
		r.plane.ilm[dataplane.LabelKey{Label: 999}] = [8]uint32{1}
		if err := r.start(); err != nil {
			t.Fatal(err)
		}
		r.inForce("a new daemon", before...)
	}
	// the journal of a daemon that died as it wrote
	file, err := os.OpenFile(r.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	file.WriteString(`{"lines":["ilm add 101`)
	file.Close()
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	r.inForce("after a torn line", before...)
	r.must("ilm add 101 nhlfe 7")
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	if got := r.table.Save(); !slices.Contains(got, "ilm add 101 nhlfe 7") {
		t.Errorf("behind a torn line: %v", got)
	}
	r.plane.refuse = func(*dataplane.LabelUpdate) error { return errPlane }
	if err := r.start(); err == nil || err.Error() != "labels: no room; remove "+r.path+" to begin with empty tables" {
		t.Errorf("%v", err)
	}
}

// TestLabelsJournalIsCompacted: it does not grow with the number of changes.
func TestLabelsJournalIsCompacted(t *testing.T) {
	r := newLabelRig(t)
	comment := " # " + strings.Repeat("x", 1<<20)
	for i := range 40 {
		r.must(fmt.Sprintf("nhlfe replace 7 swap %d "+viaWAN+comment, 100+i))
		if size := r.labels.journal.size; size > journalSlack+2<<20 {
			t.Fatalf("%d bytes after %d changes", size, i)
		}
	}
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"nhlfe add 7 swap 139 " + viaWAN}, r.table.Save()); diff != "" {
		t.Error(diff)
	}
}

// monitor listens from now on. stop returns what was heard.
func (r *labelRig) monitor() (stop func() []api.MPLSEvent) {
	heard, ready, done := make(chan api.MPLSEvent), make(chan bool), make(chan bool)
	ctx, cancel := context.WithCancel(context.Background())
	labels := r.labels
	go func() {
		defer close(done)
		labels.Monitor(ctx, func(some []api.MPLSEvent) error {
			if some == nil {
				close(ready)
			}
			for _, e := range some {
				heard <- e
			}
			return nil
		})
	}()
	<-ready
	return func() (events []api.MPLSEvent) {
		labels.monitors.tell([]api.MPLSEvent{{Kind: "last"}})
		for e := range heard {
			if e.Kind == "last" {
				break
			}
			events = append(events, e)
		}
		cancel()
		<-done
		return events
	}
}

// TestLabelsMonitor: every change, in order, with who made it.
func TestLabelsMonitor(t *testing.T) {
	r := newLabelRig(t)
	r.must("nhlfe add 6 drop")
	stop := r.monitor()
	r.must("nhlfe add 7 swap 200 "+viaWAN, "ilm add 100 nhlfe 7")
	r.apply("ilm add 101 nhlfe 99")
	r.kernel.change(func() { r.kernel.neighbours[nextHop] = kernel.Neighbour{Failed: true} })
	r.look()
	r.must("ilm replace 100 nhlfe 6", "ilm replace 100 nhlfe 6")
	var got []string
	for _, e := range stop() {
		got = append(got, fmt.Sprintf("%d %s %s %s: %s", e.Seq, e.Origin, e.Verb, e.Kind, e.Line))
		if e.Time.IsZero() {
			t.Errorf("%s: no time", e.Line)
		}
	}
	want := []string{
		"2 test add nhlfe: nhlfe add 7 swap 200 send dev wan via inet 10.0.0.2",
		"3 test add ilm: ilm add 100 nhlfe 7",
		"3 kernel down adjacency: dev wan via inet 10.0.0.2: the neighbour does not answer",
		"4 test replace ilm: ilm replace 100 nhlfe 6",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestLabelsAtOnce: changes, looks and questions from all sides (for the race detector).
func TestLabelsAtOnce(t *testing.T) {
	r := newLabelRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { r.labels.run(ctx) })
	r.must("nhlfe add 7 swap 200 " + viaWAN)
	for i := range 4 {
		all.Go(func() {
			for n := range 100 {
				r.must(fmt.Sprintf("ilm replace %d nhlfe 7", 100+i), fmt.Sprintf("nhlfe replace %d swap 200 send dev lan lladdr 02:00:00:00:00:%02x", 10+i, n))
				r.labels.news.hear(kernel.Event{Kind: kernel.EventNeigh, Prefix: netip.PrefixFrom(nextHop, 32)})
				if _, err := r.labels.Stats(api.MPLSFilter{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for n := range 100 {
			r.kernel.change(func() { r.kernel.neighbours[nextHop] = kernel.Neighbour{MAC: station(byte(n))} })
			r.labels.news.hear(kernel.Event{Kind: kernel.EventLink, Link: kernel.LinkMTU})
		}
		cancel()
	})
	all.Wait()
	r.look()
	r.inForce("in the end",
		"nhlfe 7: send to 02:00:00:00:00:63 by 4, mtu 1500", "nhlfe 10: send to 02:00:00:00:00:63 by 3, mtu 1500",
		"nhlfe 11: send to 02:00:00:00:00:63 by 3, mtu 1500", "nhlfe 12: send to 02:00:00:00:00:63 by 3, mtu 1500", "nhlfe 13: send to 02:00:00:00:00:63 by 3, mtu 1500",
		"ilm 0/100: [7 7 7 7 7 7 7 7]", "ilm 0/101: [7 7 7 7 7 7 7 7]", "ilm 0/102: [7 7 7 7 7 7 7 7]", "ilm 0/103: [7 7 7 7 7 7 7 7]")
	if n := len(r.ways.at); n != 2 {
		t.Errorf("%d ways out are kept", n)
	}
}
