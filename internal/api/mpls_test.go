// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var anyParameter = []string{"label", "space", "id", "prefix", "name", "port", "limit"}

// fakeMPLS answers with what it holds, and notes what it was asked.
type fakeMPLS struct {
	err     error
	applied *MPLSChange
	filter  MPLSFilter
	events  []MPLSEvent
	lines   []string
	wait    bool // monitors go on until they are hung up on
}

func (m *fakeMPLS) Apply(c MPLSChange) (MPLSDone, error) {
	m.applied = &c
	return MPLSDone{Seq: 7, Changed: len(c.Lines)}, m.err
}
func (m *fakeMPLS) ILM(f MPLSFilter) ([]MPLSILM, error) {
	m.filter = f
	tc := 0
	return []MPLSILM{{Space: 3, Label: 100, TC: &tc, NHLFE: 7, List: "pop deliver"}}, m.err
}
func (m *fakeMPLS) NHLFE(f MPLSFilter) ([]MPLSNHLFE, error) {
	m.filter = f
	return []MPLSNHLFE{{ID: 1<<32 - 1, TTL: MPLSPipe, List: "drop"}}, m.err
}
func (m *fakeMPLS) FTN(f MPLSFilter) ([]MPLSFTN, error) {
	m.filter = f
	return []MPLSFTN{{Prefix: netip.MustParsePrefix("2001:db8::/32"), NHLFE: 7}}, m.err
}
func (m *fakeMPLS) Map(f MPLSFilter) ([]MPLSMap, error) {
	m.filter = f
	return []MPLSMap{{Name: "gold", Kind: MPLSToTC, To: map[int]int{46: 5, 0: 1}}}, m.err
}
func (m *fakeMPLS) Space(f MPLSFilter) ([]MPLSSpace, error) {
	m.filter = f
	return []MPLSSpace{{Port: "lan", Index: 3, Space: 0}}, m.err
}
func (m *fakeMPLS) Stats(f MPLSFilter) (MPLSStats, error) {
	m.filter = f
	return MPLSStats{InSegments: []MPLSInSegment{{Label: 100, HCOctets: 1<<32 + 5, Octets: 5}}}, m.err
}
func (m *fakeMPLS) Monitor(ctx context.Context, tell func([]MPLSEvent) error) error {
	if err := errors.Join(tell(nil), tell(m.events)); err != nil {
		return err
	}
	if m.wait {
		<-ctx.Done()
	}
	return m.err
}
func (m *fakeMPLS) Save() ([]string, error) { return m.lines, m.err }

func TestMPLSExchange(t *testing.T) {
	b := &fakeBackend{}
	c, _ := start(t, b)
	ctx := t.Context()
	change := MPLSChange{Lines: []string{"ilm add 100 nhlfe 7", "b"}, Origin: "cli"}
	if done, err := c.MPLSApply(ctx, change); err != nil || !cmp.Equal(done, MPLSDone{Seq: 7, Changed: 2}) || !cmp.Equal(*b.mpls.applied, change) {
		t.Errorf("apply: %+v, %v, of %+v", done, err, b.mpls.applied)
	}
	if _, err := c.MPLSApply(ctx, MPLSChange{}); err != nil || b.mpls.applied.Origin != "api" {
		t.Errorf("who does not say who: %+v, %v", b.mpls.applied, err)
	}
	label, id, space, prefix := uint32(0), uint32(1<<32-1), 254, netip.MustParsePrefix("192.0.2.0/24")
	asked := func(what string, want MPLSFilter, err error, right bool) {
		t.Helper()
		if diff := cmp.Diff(want, b.mpls.filter, cmpopts.EquateComparable(netip.Prefix{})); diff != "" || err != nil || !right {
			t.Errorf("%s: %v, answer is right: %v\n%s", what, err, right, diff)
		}
	}
	f := MPLSFilter{Label: &label, Space: &space, Limit: 3}
	ilm, err := c.MPLSILM(ctx, f)
	asked("ilm", f, err, len(ilm) == 1 && ilm[0].TC != nil && *ilm[0].TC == 0)
	f = MPLSFilter{ID: &id}
	nhlfe, err := c.MPLSNHLFE(ctx, f)
	asked("nhlfe", f, err, len(nhlfe) == 1 && nhlfe[0].ID == id)
	f = MPLSFilter{Prefix: &prefix}
	ftn, err := c.MPLSFTN(ctx, f)
	asked("ftn", f, err, len(ftn) == 1 && ftn[0].Prefix.Bits() == 32)
	f = MPLSFilter{Name: "gold"}
	m, err := c.MPLSMap(ctx, f)
	asked("map", f, err, len(m) == 1 && m[0].To[46] == 5)
	f = MPLSFilter{Port: "lan"}
	spaces, err := c.MPLSSpace(ctx, f)
	asked("space", f, err, len(spaces) == 1 && spaces[0].Index == 3)
	f = MPLSFilter{Limit: 9}
	stats, err := c.MPLSStats(ctx, f)
	asked("stats", f, err, len(stats.InSegments) == 1 && stats.InSegments[0].HCOctets == 1<<32+5)

	b.mpls.lines = []string{"nhlfe add 7 drop", "ilm add 100 nhlfe 7"}
	var text strings.Builder
	if err := c.MPLSSave(ctx, &text); err != nil || text.String() != "nhlfe add 7 drop\nilm add 100 nhlfe 7\n" {
		t.Errorf("save: %v\n%s", err, &text)
	}
}

// TestMPLSErrors: what the client is to blame for, what the daemon is, in one line each.
func TestMPLSErrors(t *testing.T) {
	b := &fakeBackend{}
	c, _ := start(t, b)
	for path, want := range map[string]string{
		"ilm?label=1048576": `label "1048576": use a number from 0 to 1048575`,
		"ilm?space=255":     `space "255": use a number from 0 to 254`,
		"ilm?id=1":          `parameter "id": allowed are label, space, limit`,
		"nhlfe?id=x":        `id "x": use a number from 0 to 4294967295`,
		"ftn?prefix=1.2":    `prefix "1.2": use an IPv4 or IPv6 prefix, such as 192.0.2.0/24`,
		"stats?limit=-1":    `limit "-1": use a number from 0 to 2147483647`,
	} {
		response, err := c.http.Get("http://shunt/v1/mpls/" + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.failure(response); response.StatusCode != http.StatusBadRequest || err.Error() != want {
			t.Errorf("%s: %s, %v; want %s", path, response.Status, err, want)
		}
		response.Body.Close()
	}
	for body, want := range map[string]string{
		`{"lines": [], "orign": "x"}`: `the body is not {"lines": [...], "origin": "..."}: json: unknown field "orign"`,
		`{} {}`:                       `the body is not {"lines": [...], "origin": "..."}: something follows it`,
		`{"origin": "a\nb"}`:          `origin "a\nb": use printable characters`,
		`{"origin": "` + strings.Repeat("x", 65) + `"}`:             `origin: 65 bytes are too many; use at most 64`,
		`{"lines": ["` + strings.Repeat("x", maxChange>>10) + `"]}`: "",
	} {
		response, err := c.http.Post("http://shunt/v1/mpls/apply", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			if response.StatusCode != http.StatusOK {
				t.Errorf("%.30s: %s", body, response.Status)
			}
		} else if err := c.failure(response); response.StatusCode != http.StatusBadRequest || err.Error() != want {
			t.Errorf("%.30s: %s, %v; want %s", body, response.Status, err, want)
		}
		response.Body.Close()
	}
	for _, wrong := range []bool{true, false} {
		b.mpls.err = errors.New("no such nhlfe 7;\nadd it")
		want := http.StatusInternalServerError
		if wrong {
			b.mpls.err, want = Wrong(b.mpls.err), http.StatusBadRequest
		}
		_, err := c.MPLSApply(t.Context(), MPLSChange{})
		response, e := c.http.Post("http://shunt/v1/mpls/apply", "application/json", strings.NewReader("{}"))
		if e != nil {
			t.Fatal(e)
		}
		response.Body.Close()
		if err == nil || err.Error() != "no such nhlfe 7; add it" || response.StatusCode != want {
			t.Errorf("wrong %v: %v, %s", wrong, err, response.Status)
		}
	}
	if err := c.MPLSSave(t.Context(), &strings.Builder{}); err == nil || err.Error() != "no such nhlfe 7; add it" {
		t.Errorf("save: %v", err)
	}
}

// TestMPLSMillion: a transaction of a million lines goes through, and the bound is far above.
func TestMPLSMillion(t *testing.T) {
	b := &fakeBackend{}
	c, _ := start(t, b)
	lines := make([]string, 1e6)
	for i := range lines {
		lines[i] = fmt.Sprintf("ilm add %d space 3 nhlfe %d", i, i)
	}
	if done, err := c.MPLSApply(t.Context(), MPLSChange{Lines: lines}); err != nil || done.Changed != 1e6 {
		t.Errorf("%+v, %v", done, err)
	}
	body := `{"lines": ["` + strings.Repeat("x", 100) + `"]}`
	r := httptest.NewRequest("POST", "/v1/mpls/apply", strings.NewReader(body))
	r.Body = http.MaxBytesReader(httptest.NewRecorder(), r.Body, 100)
	if _, err := mplsChangeFrom(r); err == nil || err.Error() != "the transaction is larger than 100 bytes; divide it" {
		t.Errorf("%v", err)
	}
}

func TestMPLSMonitor(t *testing.T) {
	want := []MPLSEvent{
		{Seq: 1, Time: time.Unix(1e9, 0).UTC(), Origin: "cli", Verb: "add", Kind: "ilm", Line: "ilm add 100 nhlfe 7"},
		{Seq: 2, Time: time.Unix(1e9, 5).UTC(), Origin: "ldp", Verb: "del", Kind: "ilm", Line: "ilm del 100"},
	}
	c, _ := start(t, &fakeBackend{mpls: fakeMPLS{events: want, wait: true}})
	ctx, cancel := context.WithCancel(t.Context())
	var got []MPLSEvent
	err := c.MPLSMonitor(ctx, func(e MPLSEvent) error {
		if got = append(got, e); len(got) == len(want) {
			cancel()
		}
		return nil
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	c, _ = start(t, &fakeBackend{mpls: fakeMPLS{events: want, err: errors.New("too slow")}})
	ignore := func(MPLSEvent) error { return nil }
	if err := c.MPLSMonitor(t.Context(), ignore); err == nil || err.Error() != "too slow" {
		t.Errorf("an error behind events: %v", err)
	}
	c, _ = start(t, &fakeBackend{})
	if err := c.MPLSMonitor(t.Context(), ignore); err == nil || !strings.Contains(err.Error(), "the daemon has ended") {
		t.Errorf("a daemon that ends: %v", err)
	}
	full := errors.New("disk full")
	c, _ = start(t, &fakeBackend{mpls: fakeMPLS{events: want}})
	if err := c.MPLSMonitor(t.Context(), func(MPLSEvent) error { return full }); !errors.Is(err, full) {
		t.Errorf("nobody to tell: %v", err)
	}
}

// TestMPLSMonitorEndsWithTheServer: nobody waits for a client that listens.
func TestMPLSMonitorEndsWithTheServer(t *testing.T) {
	socket := t.TempDir() + "/api.sock"
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	events := []MPLSEvent{{Seq: 1}}
	go func() { served <- NewServer(&fakeBackend{mpls: fakeMPLS{events: events, wait: true}}).Serve(ctx, l) }()
	err = NewClient(socket).MPLSMonitor(t.Context(), func(MPLSEvent) error { cancel(); return nil })
	if err == nil {
		t.Error("the end is not told")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
