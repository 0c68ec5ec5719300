// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxChange bounds the body of one transaction, in bytes: a million lines of 250 characters.
// While it is read and carried out it takes about three times as much memory.
const maxChange = 256 << 20

// announced bounds the room that is made for a body before any of it has come.
const announced = 1 << 20

// Wrong marks an error of a Backend as the client's own: it is answered with status 400.
func Wrong(err error) error { return badRequest{err} }

// routeMPLS adds what is asked about labels.
func routeMPLS(mux *http.ServeMux, m MPLS) {
	mux.HandleFunc("GET /v1/mpls/ilm", mplsList(m.ILM, "label", "space", "limit"))
	mux.HandleFunc("GET /v1/mpls/nhlfe", mplsList(m.NHLFE, "id", "limit"))
	mux.HandleFunc("GET /v1/mpls/ftn", mplsList(m.FTN, "prefix", "limit"))
	mux.HandleFunc("GET /v1/mpls/map", mplsList(m.Map, "name", "limit"))
	mux.HandleFunc("GET /v1/mpls/space", mplsList(m.Space, "port", "limit"))
	mux.HandleFunc("GET /v1/mpls/stats", answer(func(r *http.Request) (any, error) {
		filter, err := mplsFilterFrom(r.URL.Query(), "limit")
		if err != nil {
			return nil, badRequest{err}
		}
		return m.Stats(filter)
	}))
	mux.HandleFunc("GET /v1/mpls/save", func(w http.ResponseWriter, r *http.Request) { mplsSave(w, m) })
	mux.HandleFunc("GET /v1/mpls/monitor", func(w http.ResponseWriter, r *http.Request) { mplsMonitor(w, r, m) })
	mux.HandleFunc("POST /v1/mpls/apply", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxChange)
		answer(func(r *http.Request) (any, error) {
			change, err := mplsChangeFrom(r)
			if err != nil {
				return nil, badRequest{err}
			}
			return m.Apply(change)
		})(w, r)
	})
}

// mplsList answers with the entries that a filter chooses; takes are the parameters allowed.
func mplsList[T any](get func(MPLSFilter) ([]T, error), takes ...string) http.HandlerFunc {
	return answer(func(r *http.Request) (any, error) {
		filter, err := mplsFilterFrom(r.URL.Query(), takes...)
		if err != nil {
			return nil, badRequest{err}
		}
		return list(get(filter))
	})
}

// mplsChangeFrom reads the body of a transaction. The error is one line.
func mplsChangeFrom(r *http.Request) (change MPLSChange, err error) {
	var text strings.Builder
	text.Grow(int(min(max(r.ContentLength, 0), announced))) // what comes makes the rest of the room
	if _, err = io.Copy(&text, r.Body); err == nil {
		err = change.read(text.String())
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return change, fmt.Errorf("the transaction is larger than %d bytes; divide it", tooLarge.Limit)
	}
	if err != nil {
		return change, fmt.Errorf(`the body is not {"lines": [...], "origin": "..."}: %s`, strings.Join(strings.Fields(err.Error()), " "))
	}
	if change.Origin == "" {
		change.Origin = "api"
	}
	return change, change.Check()
}

// read reads a body.
func (c *MPLSChange) read(text string) error {
	if plain, ok := plainChange(text); ok {
		*c = plain
		return nil
	}
	in := json.NewDecoder(strings.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(c); err != nil {
		return err
	}
	if in.More() {
		return errors.New("something follows it")
	}
	return nil
}

// mplsSave writes the tables as lines of text.
func mplsSave(w http.ResponseWriter, m MPLS) {
	lines, err := m.Save()
	if err != nil {
		answer(func(*http.Request) (any, error) { return nil, err })(w, nil)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := bufio.NewWriter(w)
	for _, line := range lines {
		out.WriteString(line)
		out.WriteByte('\n')
	}
	out.Flush() // the only error left is that of a client gone away
}

// mplsMonitor writes events as they happen. The first flush, before any, tells the client that
// nothing will be missed from then on.
func mplsMonitor(w http.ResponseWriter, r *http.Request, m MPLS) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out, control := json.NewEncoder(w), http.NewResponseController(w)
	err := m.Monitor(r.Context(), func(events []MPLSEvent) error {
		for i := range events {
			if err := out.Encode(&events[i]); err != nil {
				return err
			}
		}
		return control.Flush()
	})
	if err != nil && r.Context().Err() == nil {
		_ = out.Encode(failure{err.Error()})
	}
}
