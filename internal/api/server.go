// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Backend is what the daemon does for its clients. Its methods are called from many
// goroutines at once. An error reaches the client as it is, so it is one line that names
// the thing and the fix.
type Backend interface {
	Status() (Status, error)
	Ports() ([]Port, error)
	// Flows returns the flows that the filter chooses, in its order.
	Flows(FlowFilter) ([]Flow, error)
	// Explain returns, for a conversation, one explanation for each direction of it that has
	// a flow, and one without a flow if none has; then those of other flows between the same
	// addresses. For a reason it returns one, for the table one for each flow.
	Explain(ExplainQuery) ([]Explanation, error)
	// Differences returns those that are kept, the latest first.
	Differences() ([]Difference, error)
	Doctor() ([]Check, error)
	// Config returns the values in force.
	Config() ([]Setting, error)
	// Reload reads the configuration again and applies the whole of it, or nothing.
	Reload() error
	// Pause sends everything to the kernel (true), or ends that (false).
	Pause(bool) error
	// Stop begins the daemon's end, which takes its programs and maps away with it. It
	// returns before that is done.
	Stop() error
	// MPLS returns the part that is about labels.
	MPLS() MPLS
}

// failure is the body of every answer that is not 200.
type failure struct {
	Error string `json:"error"`
}

// Server answers for a Backend. It stops with its listener.
type Server struct {
	backend Backend
	http    http.Server
}

// NewServer makes a server that does not listen yet.
func NewServer(b Backend) *Server {
	s := &Server{backend: b}
	s.http = http.Server{
		Handler:           inJSON(s.routes()),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	return s
}

// Listen makes the socket, readable and writable by its owner alone, in a directory that
// is there. A socket that a dead daemon left is replaced: the caller must hold the
// daemon's lock.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: cannot replace what is there: %w", socket, err)
	}
	// The mode must be right from the first moment on, so it cannot be left to chmod:
	// fchmod before bind is what unix(7) makes the file's mode of.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := config.Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", socket, err)
	}
	return &guarded{UnixListener: l.(*net.UnixListener)}, nil
}

// Serve answers until ctx ends, then lets open requests finish for up to two seconds; those
// that go on until somebody hangs up end with ctx. It closes the listener, and returns nil
// if it was ctx that ended it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		end, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if s.http.Shutdown(end) != nil {
			s.http.Close()
		}
	})
	err := s.http.Serve(l)
	if stop() { // ctx goes on: it was the listener that failed
		return fmt.Errorf("socket: %w", err)
	}
	<-done
	return nil
}

// idleLimit is how long a connection may stay without a request.
const idleLimit = time.Minute

// inJSON answers what no route takes, a wrong path or method, as every other error is answered.
func inJSON(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refused := refusal{header: w.Header(), code: http.StatusNotFound}
		mux.ServeHTTP(&refused, r)
		f := failure{fmt.Sprintf("%s: no such path; docs/api.md lists them", r.URL.Path)}
		if refused.code == http.StatusMethodNotAllowed {
			f.Error = fmt.Sprintf("%s %s: use %s", r.Method, r.URL.Path, w.Header().Get("Allow"))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(refused.code)
		_ = json.NewEncoder(w).Encode(f)
	})
}

// refusal keeps the code of an answer, and its header, but not its text.
type refusal struct {
	header http.Header
	code   int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) WriteHeader(code int)        { r.code = code }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }

func (s *Server) routes() *http.ServeMux {
	b, mux := s.backend, http.NewServeMux()
	mux.HandleFunc("GET /v1/status", answer(func(*http.Request) (any, error) { return b.Status() }))
	mux.HandleFunc("GET /v1/ports", answer(func(*http.Request) (any, error) { return list(b.Ports()) }))
	mux.HandleFunc("GET /v1/doctor", answer(func(*http.Request) (any, error) { return list(b.Doctor()) }))
	mux.HandleFunc("GET /v1/config", answer(func(*http.Request) (any, error) { return list(b.Config()) }))
	mux.HandleFunc("GET /v1/differences", answer(func(*http.Request) (any, error) { return list(b.Differences()) }))
	mux.HandleFunc("GET /v1/flows", answer(func(r *http.Request) (any, error) {
		filter, err := flowFilterFrom(r.URL.Query())
		if err != nil {
			return nil, badRequest{err}
		}
		return list(b.Flows(filter))
	}))
	mux.HandleFunc("GET /v1/explain", answer(func(r *http.Request) (any, error) {
		query, err := explainQueryFrom(r.URL.Query())
		if err != nil {
			return nil, badRequest{err}
		}
		return list(b.Explain(query))
	}))
	for name, do := range map[string]func() error{
		"pause":  func() error { return b.Pause(true) },
		"resume": func() error { return b.Pause(false) },
		"stop":   b.Stop,
		"reload": b.Reload,
	} {
		mux.HandleFunc("POST /v1/"+name, answer(func(*http.Request) (any, error) { return struct{}{}, do() }))
	}
	routeMPLS(mux, b.MPLS())
	return mux
}

// list makes an empty list of a nil one: JSON's null is nobody's list.
func list[T any](items []T, err error) ([]T, error) {
	if items == nil {
		items = []T{}
	}
	return items, err
}

// badRequest marks an error as the client's.
type badRequest struct{ error }

func answer(get func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := get(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			code := http.StatusInternalServerError
			if errors.As(err, &badRequest{}) {
				code = http.StatusBadRequest
			}
			w.WriteHeader(code)
			body = failure{err.Error()}
		}
		// The only error left is that of a client gone away.
		_ = json.NewEncoder(w).Encode(body)
	}
}
