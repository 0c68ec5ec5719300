// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Whatever a client sends: an answer, in JSON with one line of error where the request was
// understood; nothing is begun but by POST, and a filter or a query that reaches the daemon
// is one that Check and ParseFlow let through.
func FuzzServe(f *testing.F) {
	for _, line := range []string{
		"GET /v1/status", "GET /v1/ports", "GET /v1/doctor", "POST /v1/pause", "POST /v1/resume", "POST /v1/stop",
		"GET /v1/stop", "PUT /v1/status", "GET /v1/flows?limit=3&sort=bytes&state=armed&port=lan",
		"GET /v1/flows?limit=-1", "GET /v1/flows?limit=99999999999999999999", "GET /v1/flows?sort=%0a", "GET /v1/flows?x",
		"GET /v1/explain?flow=192.0.2.7:4000+198.51.100.9:443/tcp", "GET /v1/explain?flow=[2001:db8::1]+::1/icmp",
		"GET /v1/explain?reason=ttl", "GET /v1/explain?top=-1", "GET /v1/explain?all=1&top=3", "GET /v1/explain?flow=%00", "GET /v1/explain?flow=a;b", "GET //v1/../v1/flows?%zz", "POST /v1/pause%2f", "OPTIONS *",
		"GET /v1/mpls/ilm?label=1048575&space=254&limit=3", "GET /v1/mpls/ilm?label=1048576", "GET /v1/mpls/nhlfe?id=-1", "GET /v1/mpls/ftn?prefix=192.0.2.0/24",
		"GET /v1/mpls/ftn?prefix=::/129", "GET /v1/mpls/map?name=%0a", "GET /v1/mpls/space?port=lan&label=3", "GET /v1/mpls/stats?limit=2", "GET /v1/mpls/monitor",
		"GET /v1/mpls/save", "GET /v1/mpls/apply", "POST /v1/mpls/monitor",
	} {
		f.Add([]byte(line + " HTTP/1.1\r\nHost: shunt\r\n\r\n"))
	}
	for _, body := range []string{`{"lines": ["ilm add 100 nhlfe 7"], "origin": "ldp"}`, `{"lines": ["a\nb"]}`, `{"lines": 3}`, `{"line": []}`,
		`{"lines": []}{}`, `{"lines": [], "origin": "\u001b"}`, `[`, ``} {
		f.Add(fmt.Appendf(nil, "POST /v1/mpls/apply HTTP/1.1\r\nHost: shunt\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	f.Add([]byte("POST /v1/stop HTTP/1.1\r\nHost: shunt\r\nContent-Length: 4\r\n\r\nbody"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(raw))))
		if err != nil {
			return // net/http answers
		}
		b := &fakeBackend{flows: []Flow{{Port: "lan"}}}
		w := httptest.NewRecorder()
		NewServer(b).http.Handler.ServeHTTP(w, r)
		if (len(b.paused) > 0 || b.stopped > 0 || b.mpls.applied != nil) && r.Method != http.MethodPost {
			t.Fatalf("%s %s: paused %v, stopped %d, applied %v", r.Method, r.URL, b.paused, b.stopped, b.mpls.applied)
		}
		if b.mpls.applied != nil && (b.mpls.applied.Check() != nil || b.mpls.applied.Origin == "") {
			t.Fatalf("%s: the daemon was to do %+v: %v", r.URL, b.mpls.applied, b.mpls.applied.Check())
		}
		if again, err := mplsFilterFrom(b.mpls.filter.Values(), anyParameter...); err != nil || !cmp.Equal(again, b.mpls.filter, cmpopts.EquateComparable(netip.Prefix{})) {
			t.Fatalf("%s: the daemon was asked for %+v: %v", r.URL, b.mpls.filter, err)
		}
		if err := b.filter.Check(); err != nil {
			t.Fatalf("%s: the daemon was asked for %+v: %v", r.URL, b.filter, err)
		}
		if err := b.query.Check(); err != nil {
			t.Fatalf("%s: the daemon was asked for %+v: %v", r.URL, b.query, err)
		}
		if q := b.query.Flow; q != nil {
			if again, err := ParseFlow(q.String()); err != nil || again != *q {
				t.Fatalf("%s: the daemon was asked for %+v", r.URL, q)
			}
		}
		checkAnswer(t, r, w)
	})
}

func checkAnswer(t *testing.T, r *http.Request, w *httptest.ResponseRecorder) {
	t.Helper()
	if !slices.Contains([]int{200, 301, 307, 308, 400, 404, 405}, w.Code) {
		t.Fatalf("%s %s: status %d", r.Method, r.URL, w.Code)
	}
	if w.Header().Get("Content-Type") != "application/json" {
		return // the router's own words: no such path or method
	}
	var body any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s %s: %v in %q", r.Method, r.URL, err, w.Body)
	}
	if w.Code == 200 {
		return
	}
	fault, _ := body.(map[string]any)["error"].(string)
	if fault == "" || strings.ContainsAny(fault, "\n\r") {
		t.Fatalf("%s %s: error %q is not one line", r.Method, r.URL, fault)
	}
}
