// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/kernel"
)

var (
	schedModule = regexp.MustCompile(`net/sched/((?:sch|cls|act|em)_\w+)\.ko`)
	schedOption = regexp.MustCompile(`(?m)^CONFIG_NET_((?:SCH|CLS|ACT|EMATCH)_\w+)=[my]$`)
)

// schedParts are the prefixes of modules, and of options, by the part of QueueKind.
var schedParts = map[string]string{"sch": "qdisc", "cls": "filter", "act": "action", "em": "ematch", "ematch": "ematch"}

// schedOther are modules and options of other names than their kinds; those with an empty one have no kind.
var schedOther = map[string]string{
	"sch_fifo": "qdisc pfifo", "sch_ingress": "qdisc clsact", "sch_mqprio_lib": "", "sch_default": "",
	"cls_route4": "filter route", "cls_act": "", "act_simp": "action simple",
	"act_meta_mark": "", "act_meta_skbprio": "", "act_meta_skbtcindex": "", // what act_ife carries
}

// schedKinds are the kinds that the running kernel has, as QueueKind names part and kind: from its modules or its
// configuration, whichever it shows.
func schedKinds(t *testing.T) (kinds []string) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]))
	var names []string
	files, _ := filepath.Glob(filepath.Join(modules, "kernel/net/sched/*.ko*"))
	builtin, _ := os.ReadFile(filepath.Join(modules, "modules.builtin"))
	for _, m := range schedModule.FindAllStringSubmatch(strings.Join(files, "\n")+"\n"+string(builtin), -1) {
		names = append(names, m[1])
	}
	for _, m := range schedOption.FindAllStringSubmatch(configuration(t), -1) {
		names = append(names, strings.ToLower(m[1]))
	}
	for _, name := range names {
		kind, other := schedOther[name]
		if !other {
			prefix, word, _ := strings.Cut(name, "_")
			kind = schedParts[prefix] + " " + word
		}
		if kind != "" && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// configuration is the running kernel's, if it tells.
func configuration(t *testing.T) string {
	packed, err := os.ReadFile("/proc/config.gz")
	if err != nil {
		return ""
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestQueueKindsNamed: the table of kinds, which docs/queues.md shows, names all that this kernel has, and
// TestQueueKinds has a case for each row.
func TestQueueKindsNamed(t *testing.T) {
	rows := map[string]bool{}
	for _, k := range kernel.QueueKinds() {
		rows[k.Part+" "+k.Kind] = true
	}
	kinds := schedKinds(t)
	if len(kinds) < 5 {
		t.Fatalf("this kernel shows %q alone", kinds)
	}
	for _, kind := range kinds {
		if !rows[kind] {
			t.Errorf("this kernel has the %s, and the table lacks it", kind)
		}
	}
	t.Logf("%d kinds of this kernel: %q", len(kinds), kinds)
	for _, c := range queueCases {
		part, words, _ := strings.Cut(c.name, "/")
		kind, _, _ := strings.Cut(words, " ")
		delete(rows, part+" "+kind)
	}
	delete(rows, "ematch text") // tc has no words for it
	for row := range rows {
		t.Errorf("TestQueueKinds has no case of %s", row)
	}
}
