// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestReport: the table and the page tell what happened, in few words where many lines have
// the same.
func TestReport(t *testing.T) {
	ours := report{"shunt", []result{
		{"P1", "RFC 1", "one", finding{passed, "", ""}}, {"P1", "RFC 2", "two|three", finding{failed, "came | went, to the byte", "came | went"}},
		{"T7", "RFC 3", "four", finding{leftOut, "icmp: later", ""}}, {"T7", "RFC 3", "five", finding{notOffered, "no words", ""}},
	}}
	kernel := report{"Linux 6.12", []result{
		{"P1", "RFC 1", "one", finding{otherwise, "pipe", "pipe"}}, {"P1", "RFC 2", "two|three", finding{passed, "", ""}},
	}}
	text := table("shunt", ours.Results)
	for _, want := range []string{
		"P1    RFC 1 one: pass\n", "two|three: FAIL (came | went, to the byte)\n", "four: left out (icmp: later)\n",
		"4 cases: 1 pass, 1 FAIL, 1 not offered, 1 left out\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text = markdown(ours, kernel)
	for _, want := range []string{
		"| cases | shunt: pass | shunt: FAIL | shunt: not offered | shunt: left out | Linux: pass | Linux: pass, otherwise |\n",
		"| TTL | 0 | 0 | 1 | 1 | 0 | 0 |\n", "| **all** | 1 | 1 | 1 | 1 | 1 | 1 |\n",
		"## TTL\n\n| rule | clause | what is checked | shunt | Linux 6.12 |\n",
		"| **P2** | RFC 3032 §2.1 | **S is set in exactly the last entry** | | |\n",
		"| P1 | RFC 1 | one | pass | pass, otherwise: pipe |\n", `| P1 | RFC 2 | two\|three | FAIL: came \| went | pass |` + "\n",
		"| T7 | RFC 3 | four | left out: icmp: later |  |\n", "| T7 | RFC 3 | five | not offered |  |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, r := range rules {
		if n := strings.Count(text, "\n| **"+r.id+"** | "); n != 1 {
			t.Errorf("%s is there %d times", r.id, n)
		}
	}
}

// TestUndone: what a case made is taken away, what refers before what it refers to.
func TestUndone(t *testing.T) {
	got := undone([]string{
		"space set @A 1", "map add m tc-to-dscp 0:1", "nhlfe add 1 pop dscp-map m " + toB, "nhlfe add 2 by-tc 1:1 default 1",
		"ilm add 100 space 1 tc 3 nhlfe 2", "ilm add 101 nhlfe 1", "ilm add 102 nhlfe 1", "ilm del 102", "ftn add 192.0.2.0/24 nhlfe 1", "route add 7 dev lo",
	})
	want := "route del 7; ftn del 192.0.2.0/24; ilm del 101; ilm del 100 space 1 tc 3; nhlfe del 2; nhlfe del 1; map del m; space set @A off"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	for line, want := range map[string]string{
		"-f mpls route add 100 as 200 via inet 1.2.3.4 dev x": "-f mpls route del 100", "route add 1.2.3.0/24 via 1.1.1.1": "route del 1.2.3.0/24",
		"link add link lan name lan.10 type vlan id 10": "link del lan.10", "link set lan.10 up": "", "sysctl a=1": "",
	} {
		if got := ipUndone(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestFlatten: the names that cases ask for, out of what `shunt mpls stats --json` says.
func TestFlatten(t *testing.T) {
	var stats map[string]any
	err := json.Unmarshal([]byte(`{"interfaces": [
		{"name": "platform", "index": 0, "space": 0, "mplsInterfacePerfInLabelLookupFailures": 3, "reasons": {"mpls_no_label": 3}},
		{"name": "wan", "index": 4, "space": -1, "mplsInterfacePerfOutLabelsInUse": 2, "reasons": {"mpls_no_label": 1}}],
		"in_segments": [{"space": 7, "label": 1048575, "mplsInSegmentPerfHCOctets": 4294967296, "mplsInSegmentPerfDiscontinuityTime": "2026-01-01T00:00:00Z"}],
		"out_segments": [{"nhlfe": 2147483748, "port": "wan", "mplsOutSegmentPerfPackets": 5}]}`), &stats)
	if err != nil {
		t.Fatal(err)
	}
	flat := flatten(stats)
	for name, want := range map[string]uint64{
		"interface/platform/InLabelLookupFailures": 3, dropped(whyUnknown): 3, ofPort(b, "OutLabelsInUse"): 2,
		inSegment(7, 1048575, "HCOctets"): 1 << 32, outSegment(2147483748, "Packets"): 5,
	} {
		if got, ok := flat[name]; !ok || got != want {
			t.Errorf("%s: %d, want %d; there are %v", name, got, want, flat)
		}
	}
}
