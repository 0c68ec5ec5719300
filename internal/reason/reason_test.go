// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// abiReasons reads the names out of enum reason, as C has them.
func abiReasons(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../bpf/abi.h")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "enum reason {")
	body, _, closed := strings.Cut(rest, "};")
	if !found || !closed {
		t.Fatal("bpf/abi.h has no enum reason")
	}
	body = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(body, "")
	var names []string
	for _, m := range regexp.MustCompile(`\bREASON_(\w+)`).FindAllStringSubmatch(body, -1) {
		names = append(names, strings.ToLower(m[1]))
	}
	if len(names) < 40 {
		t.Fatalf("only %d reasons found in bpf/abi.h", len(names))
	}
	return names
}

func TestEveryReasonHasWords(t *testing.T) {
	names := abiReasons(t)
	for _, name := range names {
		words, rule, _ := Words(name)
		if words == "" || rule == "" {
			t.Errorf("%s is in bpf/abi.h, and has no words here", name)
		}
	}
	for _, name := range Names() {
		if !slices.Contains(names, name) {
			t.Errorf("%s has words here, and is not in bpf/abi.h", name)
		}
	}
}

func TestWordsAreShort(t *testing.T) {
	for _, name := range Names() {
		words, rule, remedy := Words(name)
		for _, s := range []string{words, rule, remedy} {
			if len(s) > 120 || strings.ContainsAny(s, "\n\t") || strings.HasSuffix(s, ".") {
				t.Errorf("%s: %q is not a short line without a full stop", name, s)
			}
		}
	}
}

func TestUnknown(t *testing.T) {
	if words, rule, remedy := Words("no such reason"); words+rule+remedy != "" {
		t.Error("words for what is no reason")
	}
}
