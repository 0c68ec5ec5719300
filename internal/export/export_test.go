// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"shunt/internal/api"
)

var update = flag.Bool("update", false, "write the golden file anew")

// example is a router with a fast port, a refused one and one that is awaited.
func example() Figures {
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	return Figures{
		Version: "0.1.0", Kernel: "6.12", Started: noon, Beaten: time.Now(), Threshold: 10, Lease: 4 * time.Second, LeaseLive: 9 * time.Second,
		Reloaded: noon.Add(time.Hour), Refused: true,
		Ports: []Port{
			{Port: api.Port{Name: "lan", State: api.PortXDPAndTC, Driver: "ixgbe", Qdisc: "mq", Punts: 300, Sent: 5, Drops: 1},
				Packets: map[string]map[string]uint64{
					api.StageXDP:       {"hit": 1000, "below_threshold": 0, "fragment": 3},
					api.StageTCIngress: {"hit": 20, "below_threshold": 300, "table_full": 0},
					api.StageTCEgress:  {"learned": 4}, api.StageMPLS: {},
				}},
			{Port: api.Port{Name: `a"b`, State: api.PortRefused, Driver: "bridge"}, Packets: map[string]map[string]uint64{api.StageXDP: {}}},
			{Port: api.Port{Name: "late", State: api.PortAbsent}},
		},
		Learned: 7, Renewed: 70, Changed: 2, Mismatches: 1, Changes: map[string]uint64{"route": 12}, Policed: map[string]uint64{"ttl": 9},
		Slots: 1024, Flows: map[string]int{api.FlowArmed: 12, api.FlowSeen: 3}, Counted: noon,
	}
}

func scrape(t *testing.T, read func() (Figures, error)) (code int, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(read).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Code, w.Body.String()
}

// volatile are what is of this process and this moment.
var volatile = regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?(go|process)_.*\n|(?m)^shunt_heartbeat_age_seconds .*\n|goversion="[^"]*",`)

// TestNames: names, units and help are as Prometheus wants them, and the text is what docs, rules and
// the dashboard are written for.
func TestNames(t *testing.T) {
	code, text := scrape(t, func() (Figures, error) { return example(), nil })
	if code != 200 {
		t.Fatalf("%d: %s", code, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	got := volatile.ReplaceAllString(text, "")
	file := filepath.Join("testdata", "metrics.golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := os.ReadFile(file)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("run \"go test ./internal/export -update\" and read the difference:\n%s", diff)
	}
	for _, f := range families {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(f.desc.String())[1]
		if !strings.Contains(text, "\n"+name) {
			t.Errorf("%s is described, and not given", name)
		}
	}
	for _, of := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(text, "\n"+of+" ") {
			t.Errorf("no %s", of)
		}
	}
}

// TestFlowsNotCounted: no figure is better than a wrong one.
func TestFlowsNotCounted(t *testing.T) {
	f := example()
	f.Counted = time.Time{}
	if _, text := scrape(t, func() (Figures, error) { return f, nil }); strings.Contains(text, "\nshunt_flows") {
		t.Error("flows are given before they were counted")
	}
}

func TestReadFails(t *testing.T) {
	code, text := scrape(t, func() (Figures, error) { return Figures{}, errors.New("counters: gone") })
	if code != http.StatusInternalServerError || !strings.Contains(text, "counters: gone") {
		t.Errorf("%d: %s", code, text)
	}
}

// TestServe: it listens where it is told, follows when that changes, and waits for a place that is taken.
func TestServe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "metrics.sock")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var place atomic.Value
	place.Store("")
	var words journal
	log := slog.New(slog.NewTextHandler(&words, nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Serve(ctx, log, func() string { return place.Load().(string) }, Handler(func() (Figures, error) { return example(), nil }))
	}()
	answers := func(network, address string) func() bool {
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial(network, address)
		}}}
		return func() bool {
			r, err := client.Get("http://shunt/metrics")
			if err != nil {
				return false
			}
			defer r.Body.Close()
			text, _ := io.ReadAll(r.Body)
			return strings.Contains(string(text), "\nshunt_build_info{")
		}
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 20 s: %s", what)
			}
		}
	}
	unix := answers("unix", socket)
	place.Store(socket)
	eventually("a unix socket", unix)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	tcp := answers("tcp", taken.Addr().String())
	place.Store(taken.Addr().String())
	eventually("the old place is left", func() bool { return !unix() })
	eventually("a place that is taken is told", func() bool { return strings.Contains(words.String(), "address already in use") })
	taken.Close()
	eventually("a place that has become free", tcp)
	place.Store(file)
	eventually("the second old place is left", func() bool { return !tcp() })
	eventually("a file that is no socket is refused", func() bool { return strings.Contains(words.String(), "something else than a socket") })
	place.Store(socket)
	eventually("a socket that was there before", unix)
	place.Store("")
	eventually("nothing is served any more", func() bool { return !unix() })
	cancel()
	<-ended
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a file that is no socket: %v", err)
	}
	for _, want := range []string{"address already in use", "something else than a socket is there"} {
		if n := strings.Count(words.String(), want); n != 1 {
			t.Errorf("the log has %q %d times:\n%s", want, n, words.String())
		}
	}
}

// journal is a log that is read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
