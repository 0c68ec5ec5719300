// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestBody: what is written without encoding/json is what that reads.
func TestBody(t *testing.T) {
	for _, c := range []MPLSChange{
		{}, {Lines: []string{}}, {Lines: []string{""}, Origin: "cli"},
		{Lines: []string{"ilm add 100 nhlfe 7", "nhlfe add 7 drop", ""}, Origin: "ldp of R1"},
		{Lines: []string{`a "quote"`, "a \\", "a\ttab", "\u00e4\u2028", "\x00", "\xff"}, Origin: "\u00e4"},
	} {
		var want, got MPLSChange
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(c.body(), &got); err != nil {
			t.Errorf("%s: %v", c.body(), err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s\n%s", c.body(), diff)
		}
		read, ok := plainChange(string(c.body()))
		if isPlain := plain(strings.Join(c.Lines, "") + c.Origin); ok != isPlain || ok && !cmp.Equal(read, want, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %v, %+v", c.body(), ok, read)
		}
	}
}

// FuzzPlainChange: what is read without encoding/json is what that reads, and nothing that it would not.
func FuzzPlainChange(f *testing.F) {
	for _, text := range []string{
		`{"lines":["a","b"],"origin":"c"}`, `{"lines":[],"origin":""}`, `{"lines":["a",],"origin":"c"}`, `{"lines":["a""b"],"origin":"c"}`,
		`{"lines":["a"],"origin":"c"} `, `{"lines":["a","b"`, `{"lines":[,"a"],"origin":"c"}`, `{"lines":["a\\"],"origin":"c"}`, `{"lines":"a","origin":"c"}`,
		`{"lines":["a"],"origin":"c","origin":"d"}`, `{"lines":["a" ,"b"],"origin":"c"}`, `{"lines":["\u0061"],"origin":"c"}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := plainChange(text)
		if !ok {
			return
		}
		var want MPLSChange
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q\n%s", text, diff)
		}
	})
}
