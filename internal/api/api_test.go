// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

var compareAddrs = cmpopts.EquateComparable(netip.AddrPort{})

// fakeBackend answers with what it holds, and notes what it was asked.
type fakeBackend struct {
	status  Status
	flows   []Flow
	err     error
	filter  FlowFilter
	query   ExplainQuery
	paused  []bool
	stopped int
	reloads int
	mpls    fakeMPLS
}

func (b *fakeBackend) Status() (Status, error) { return b.status, b.err }
func (b *fakeBackend) Ports() ([]Port, error)  { return nil, b.err }
func (b *fakeBackend) Doctor() ([]Check, error) {
	return []Check{{Name: "kernel", Level: LevelOK}}, b.err
}
func (b *fakeBackend) Flows(f FlowFilter) ([]Flow, error) {
	b.filter = f
	return b.flows, b.err
}
func (b *fakeBackend) Explain(q ExplainQuery) ([]Explanation, error) {
	b.query = q
	return []Explanation{{Reason: "not_seen"}}, b.err
}
func (b *fakeBackend) Differences() ([]Difference, error) {
	return []Difference{{Before: Form{DSCP: 10}, After: Form{DSCP: 46}}}, b.err
}
func (b *fakeBackend) Config() ([]Setting, error) {
	return []Setting{{Key: "lease", Value: `"2s"`}}, b.err
}
func (b *fakeBackend) Reload() error       { b.reloads++; return b.err }
func (b *fakeBackend) Pause(on bool) error { b.paused = append(b.paused, on); return b.err }
func (b *fakeBackend) Stop() error         { b.stopped++; return b.err }
func (b *fakeBackend) MPLS() MPLS          { return &b.mpls }

// start serves b on a real socket for the length of the test.
func start(t *testing.T, b Backend) (client *Client, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "api.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- NewServer(b).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return NewClient(socket), socket
}

func TestExchange(t *testing.T) {
	b := &fakeBackend{
		status: Status{Version: "1", Started: time.Unix(1e9, 0).UTC(), Counters: map[string]map[string]uint64{StageXDP: {"hit": 1 << 63}}},
		flows: []Flow{
			{Proto: "tcp", State: FlowArmed, Packets: 1, Source: netip.MustParseAddrPort("192.0.2.7:4000")},
			{Proto: "udp", State: FlowArmed, Packets: 3, Source: netip.MustParseAddrPort("[2001:db8::1]:4")},
			{Proto: "udp", State: FlowSeen, Packets: 2},
		},
	}
	c, _ := start(t, b)
	ctx := t.Context()

	status, err := c.Status(ctx)
	if diff := cmp.Diff(b.status, status); err != nil || diff != "" {
		t.Errorf("status: %v\n%s", err, diff)
	}
	want := FlowFilter{Limit: 1, Sort: SortPackets, State: FlowArmed}
	flows, err := c.Flows(ctx, want)
	if diff := cmp.Diff(b.flows, flows, compareAddrs); err != nil || diff != "" || b.filter != want {
		t.Errorf("flows: %v, filter %+v\n%s", err, b.filter, diff)
	}
	if ports, err := c.Ports(ctx); err != nil || ports == nil {
		t.Errorf("ports: %v, %v; want an empty list", ports, err)
	}
	flow, _ := ParseFlow("192.0.2.7:4000 198.51.100.9:443/tcp")
	for _, query := range []ExplainQuery{{Flow: &flow}, {Reason: "ip_options"}, {Top: 20}, {}} {
		if ex, err := c.Explain(ctx, query); err != nil || len(ex) != 1 || !cmp.Equal(b.query, query, compareAddrs) {
			t.Errorf("explain: %v, %v, query %v, want %v", ex, err, b.query, query)
		}
	}
	if found, err := c.Differences(ctx); err != nil || len(found) != 1 || found[0].After.DSCP != 46 {
		t.Errorf("differences: %v, %v", found, err)
	}
	if checks, err := c.Doctor(ctx); err != nil || len(checks) != 1 {
		t.Errorf("doctor: %v, %v", checks, err)
	}
	if err := errors.Join(c.Pause(ctx), c.Resume(ctx), c.Stop(ctx)); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]bool{true, false}, b.paused); diff != "" || b.stopped != 1 {
		t.Errorf("stopped %d times, paused:\n%s", b.stopped, diff)
	}
}

func TestBackendErrorIsTold(t *testing.T) {
	c, _ := start(t, &fakeBackend{err: errors.New("the table is gone;\nrun again")})
	for name, err := range map[string]error{"pause": c.Pause(t.Context()), "stop": c.Stop(t.Context())} {
		if err == nil || err.Error() != "the table is gone; run again" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadRequests(t *testing.T) {
	c, _ := start(t, &fakeBackend{})
	for path, want := range map[string]int{
		"/v1/flows?limit=-1":   http.StatusBadRequest,
		"/v1/flows?limit=x":    http.StatusBadRequest,
		"/v1/flows?sort=name":  http.StatusBadRequest,
		"/v1/flows?state=dead": http.StatusBadRequest,
		"/v1/flows?order=age":  http.StatusBadRequest,
		"/v1/explain":          http.StatusBadRequest,
		"/v1/explain?flow=x":   http.StatusBadRequest,
		"/v1/explain?top=0":    http.StatusBadRequest,
		"/v1/explain?top=-1":   http.StatusBadRequest,
		"/v1/explain?all=no":   http.StatusBadRequest,
		"/v1/explain?reason=":  http.StatusBadRequest,
		"/v1/explain?reason=x": http.StatusBadRequest,
		"/v1/explain?a=1&b=2":  http.StatusBadRequest,
		"/v1/pause":            http.StatusMethodNotAllowed,
		"/v1/nothing":          http.StatusNotFound,
		"/v1/flows?limit=0":    http.StatusOK,
	} {
		response, err := c.http.Get("http://shunt" + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, response.Status, want)
		}
	}
	if _, err := c.Flows(t.Context(), FlowFilter{Sort: "name"}); err == nil || !strings.Contains(err.Error(), "allowed are packets, bytes, age") {
		t.Errorf("got %v, want what is allowed", err)
	}
}

func TestNoDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	want := `no daemon answers at ` + socket + `; start one with "shunt run --port IF"`
	if _, err := NewClient(socket).Status(t.Context()); !errors.Is(err, ErrNoDaemon) || err.Error() != want {
		t.Errorf("no socket: %v", err)
	}
	stale(t, socket)
	if _, err := NewClient(socket).Status(t.Context()); !errors.Is(err, ErrNoDaemon) || err.Error() != want {
		t.Errorf("stale socket: %v", err)
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatalf("a stale socket is not replaced: %v", err)
	}
	l.Close()
}

// stale leaves a socket at which nobody listens, as a killed daemon does.
func stale(t *testing.T, socket string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestSocketMode(t *testing.T) {
	_, socket := start(t, &fakeBackend{})
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
}

// Credentials count, even where the socket's mode was opened to all.
func TestForeignUserIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	_, socket := start(t, &fakeBackend{})
	dir := filepath.Dir(socket)
	if err := errors.Join(os.Chmod(socket, 0o666), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	conn, err := dialAs(socket, 65534)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	conn.Write([]byte("GET /v1/status HTTP/1.0\r\n\r\n"))
	if n, _ := conn.Read(make([]byte, 1)); n != 0 {
		t.Error("another user was answered")
	}
}

// dialAs connects with another effective user. The raw system call changes one thread
// only, and the thread ends with its goroutine.
func dialAs(socket string, uid int) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		keep := ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
			err = errno
			return
		}
		conn, err = net.Dial("unix", socket)
	}()
	<-done
	return conn, err
}

func TestManyFlows(t *testing.T) {
	c, _ := start(t, &fakeBackend{flows: make([]Flow, 20000)})
	if flows, err := c.Flows(t.Context(), FlowFilter{}); err != nil || len(flows) != 20000 {
		t.Errorf("%d flows, %v", len(flows), err)
	}
}

func TestServeToldOfBrokenListener(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "api.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := NewServer(&fakeBackend{}).Serve(t.Context(), l); err == nil {
		t.Error("a broken listener is not told")
	}
}

// TestHung: a daemon that listens and says nothing is given up within seconds where it has the answer
// at hand, and a verb as well.
func TestHung(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(socket)
	var wait sync.WaitGroup
	for name, ask := range map[string]func(context.Context) error{
		"status": func(ctx context.Context) error { _, err := c.Status(ctx); return err },
		"ports":  func(ctx context.Context) error { _, err := c.Ports(ctx); return err },
		"pause":  c.Pause, "resume": c.Resume, "stop": c.Stop,
	} {
		wait.Go(func() {
			began := time.Now()
			if err := ask(t.Context()); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "--replace") {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: took %v", name, took)
			}
		})
	}
	wait.Wait()
}

// TestErrorsAreJSON: a path or a method that is none is answered like every other error.
func TestErrorsAreJSON(t *testing.T) {
	c, _ := start(t, &fakeBackend{})
	for _, q := range []struct {
		method, path string
		code         int
		words        string
	}{
		{"GET", "/metrics", 404, "/metrics: no such path"},
		{"GET", "/", 404, "/: no such path"},
		{"GET", "/v1/nonesuch", 404, "/v1/nonesuch"},
		{"POST", "/v1/flows/1", 404, "/v1/flows/1"},
		{"GET", "/v1/pause", 405, "use POST"},
		{"POST", "/v1/status", 405, "use GET"},
		{"DELETE", "/v1/mpls/ilm", 405, "use GET"},
		{"PUT", "/v1/mpls/apply", 405, "use POST"},
		{"GET", "/v1/flows?sort=name", 400, "allowed are"},
	} {
		request, err := http.NewRequest(q.method, "http://shunt"+q.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := c.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var f failure
		err = json.NewDecoder(response.Body).Decode(&f)
		response.Body.Close()
		if err != nil || response.StatusCode != q.code || !strings.Contains(f.Error, q.words) || strings.Contains(f.Error, "\n") ||
			response.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %s, %q, %v; want %d, %q", q.method, q.path, response.Status, f.Error, err, q.code, q.words)
		}
	}
}

// TestAnnouncedBody: no memory is taken for a body that is only announced.
func TestAnnouncedBody(t *testing.T) {
	r, err := http.NewRequest("POST", "http://shunt/v1/mpls/apply", strings.NewReader(`{"lines": []}`))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = maxChange
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mplsChangeFrom(r)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("%d bytes were taken for a body of 13 that announced %d", took, maxChange)
	}
}

// TestIdleConnectionsEnd: a client that says nothing does not keep its connection for ever.
func TestIdleConnectionsEnd(t *testing.T) {
	s := NewServer(&fakeBackend{})
	if s.http.IdleTimeout <= 0 || s.http.IdleTimeout > 5*time.Minute || s.http.ReadHeaderTimeout <= 0 {
		t.Errorf("idle for %v, header in %v", s.http.IdleTimeout, s.http.ReadHeaderTimeout)
	}
}
