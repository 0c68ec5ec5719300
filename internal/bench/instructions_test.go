// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"shunt/internal/dataplane/traffic"
)

// counted is a round in which the empty redirect takes 400 instructions, a hit 600,
// masquerade 6,000, and 900 more with programs attached, each plus extra. Where there is a daemon, generator and
// sink take 7 more.
func counted(extra float64) *Counted {
	c := &Counted{Kernel: "6.12.1", CPU: "emulated"}
	for name, gross := range map[string]float64{"limit": 1400, "shunt-xdp": 1607, "masquerade": 7000, "shunt-tax": 7907} {
		g, f := gross+extra, 1000.0
		if ours(name) {
			f += 7
		}
		c.Cases = append(c.Cases, CountedCase{Name: name, Flows: 1, Bytes: 64, Gross: []float64{g + 9, g, g - 9}, Floor: []float64{f, f - 2, f + 2}})
	}
	return c
}

// figures sums up rounds of the cases above.
func figures(t *testing.T, rounds ...*Counted) *InstructionsReport {
	t.Helper()
	cases, err := chosen([]string{"limit", "shunt-xdp", "shunt-tax"})
	if err != nil {
		t.Fatal(err)
	}
	f := &InstructionsReport{Head: Head{Rounds: len(rounds), Kernel: rounds[0].Kernel, Clang: "clang"}}
	if err := f.sum(cases, []int{1}, rounds); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestInstructionsSum(t *testing.T) {
	f := figures(t, counted(0), counted(6))
	want := map[string]struct{ gross, net, over float64 }{
		"limit": {1403, 403, 0}, "shunt-xdp": {1610, 603, 200}, "masquerade": {7003, 6003, 5600}, "shunt-tax": {7910, 900, 0},
	}
	for name, w := range want {
		c := f.Find(name, 1)
		if c == nil {
			t.Fatalf("no %s", name)
		}
		over := 0.0
		if c.OverLimit != nil {
			over = *c.OverLimit
		}
		if c.Gross.Median != w.gross || c.Net.Median != w.net || over != w.over || c.Bytes != 64 {
			t.Errorf("%s: %+v, over the limit %v; want %+v", name, c, over, w)
		}
	}
	if f.Find("limit", 1).OverLimit != nil || f.Find("shunt-tax", 1).OverLimit != nil {
		t.Error("the limit, or the tax, is compared with the limit")
	}
	if got := f.Find("shunt-tax", 1).Over; got != "masquerade" {
		t.Errorf("the tax is over %q", got)
	}
	if apart := f.Find("limit", 1).Apart; apart != 6.0/403 {
		t.Errorf("apart: %v", apart)
	}
}

func TestInstructionsTargets(t *testing.T) {
	missed := func(f *InstructionsReport) (names []string) {
		for _, target := range f.Targets {
			if !target.Pass {
				names = append(names, target.Name)
			}
		}
		return names
	}
	if got := missed(figures(t, counted(0), counted(1))); got != nil {
		t.Errorf("missed %v", got)
	}
	if got := missed(figures(t, counted(0), counted(6))); !slices.Equal(got, []string{"largest difference between rounds"}) {
		t.Errorf("rounds 1.5 %% apart: missed %v", got)
	}
	slow := counted(0)
	for i := range slow.Cases {
		if slow.Cases[i].Name == "shunt-xdp" {
			slow.Cases[i].Gross = []float64{1628}
		}
	}
	slow.Skipped = []Skipped{{"flowtable", "modprobe nft_flow_offload: not found"}}
	if got := missed(figures(t, slow)); !slices.Equal(got, []string{"shunt-xdp less limit, flows: 1", "cases skipped"}) {
		t.Errorf("slow and skipped: missed %v", got)
	}
}

// A swap is held against the empty redirect, the kernel's own, and one of a million labels.
func TestSwapTargets(t *testing.T) {
	cases, err := chosen([]string{"limit", "shunt-swap", "shunt-swap-million", "mpls-swap"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		swap, million, kernel float64
		want                  []string
	}{
		{1550, 1555, 2100, nil},
		{1551, 1551, 2100, []string{"shunt-swap less limit, flows: 1"}},
		{1550, 1550, 1999, []string{"shunt-swap over mpls-swap, both less limit, flows: 1"}},
		{1550, 1562, 2100, []string{"shunt-swap-million over shunt-swap, less 1, flows: 1"}},
	} {
		round := &Counted{}
		for name, gross := range map[string]float64{"limit": 1400, "shunt-swap": c.swap, "shunt-swap-million": c.million, "mpls-swap": c.kernel} {
			round.Cases = append(round.Cases, CountedCase{Name: name, Flows: 1, Gross: []float64{gross}, Floor: []float64{1000}})
		}
		f := &InstructionsReport{Head: Head{Rounds: 1}}
		if err := f.sum(cases, []int{1}, []*Counted{round}); err != nil {
			t.Fatal(err)
		}
		var missed []string
		for _, target := range f.Targets {
			if !target.Pass {
				missed = append(missed, target.Name)
			}
		}
		if !slices.Equal(missed, c.want) || len(f.Targets) != 4 {
			t.Errorf("%+v: missed %v of %+v", c, missed, f.Targets)
		}
	}
}

func TestInstructionsRoundsDiffer(t *testing.T) {
	other := counted(0)
	other.Cases = other.Cases[:1]
	cases, _ := chosen(nil)
	f := &InstructionsReport{}
	if err := f.sum(cases, []int{1}, []*Counted{counted(0), other}); err == nil || !strings.Contains(err.Error(), "did not count") {
		t.Errorf("got %v", err)
	}
}

func TestChosen(t *testing.T) {
	cases, err := chosen([]string{"shunt-tax", "limit"})
	if err != nil || len(cases) != 3 || cases[0].name != "limit" || cases[1].name != "masquerade" || cases[2].name != "shunt-tax" {
		t.Errorf("%v, %v: want the tax with what it is counted over, in the table's order", cases, err)
	}
	if all, err := chosen(nil); err != nil || len(all) != len(insnCases) {
		t.Errorf("%d cases, %v", len(all), err)
	}
	if err := CheckCases([]string{"limit", "fast"}); err == nil || !strings.Contains(err.Error(), "fast: no such case") {
		t.Errorf("got %v", err)
	}
	seen := map[string]bool{}
	for _, c := range insnCases {
		if seen[c.name] {
			t.Errorf("%s stands twice", c.name)
		}
		seen[c.name] = true
		if c.over != "" && !seen[c.over] {
			t.Errorf("%s is over %s, which comes later or never", c.name, c.over)
		}
	}
}

// A regression fails and is named, with both figures and what to do.
func TestBaseline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "baseline.json")
	if err := figures(t, counted(0)).WriteBaseline(path); err != nil {
		t.Fatal(err)
	}
	baseline, err := ReadBaseline(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range baseline.Cases {
		if !strings.HasPrefix(c.Name, "shunt-") {
			t.Errorf("%s is in the baseline", c.Name)
		}
	}
	if len(baseline.Cases) != 2 || baseline.Kernel != "6.12.1" {
		t.Errorf("baseline: %+v", baseline)
	}
	for extra, words := range map[float64][]string{
		0:   nil,
		-50: nil,
		12:  nil, // 2 % of 600
		13:  {"shunt-xdp, flows: 1: 613 instructions, the baseline has 600 (+2.2 %)", "make bench-baseline"},
	} {
		err := baseline.Check(figures(t, counted(extra)))
		if (err == nil) != (words == nil) {
			t.Errorf("%+v: %v", extra, err)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v: want %q", err, word)
			}
		}
		if err != nil && (strings.Contains(err.Error(), "shunt-tax") || strings.Contains(err.Error(), "kernel")) {
			t.Errorf("names what did not change: %v", err)
		}
	}
}

func TestBaselineMissing(t *testing.T) {
	baseline := &Baseline{Kernel: "6.12.0", Cases: []BaselineCase{{"shunt-tc", 10000, 3000}, {"shunt-xdp", 1, 100}}}
	err := baseline.Check(figures(t, counted(0)))
	for _, word := range []string{"shunt-tc, flows: 10000: was not counted", "shunt-xdp, flows: 1: 600", "of kernel 6.12.0, this is 6.12.1"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v: want %q", err, word)
		}
	}
	dir := t.TempDir()
	if _, err := ReadBaseline(filepath.Join(dir, "none.json")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "make bench-baseline") {
		t.Errorf("no file: %v", err)
	}
	bad := filepath.Join(dir, "bad.json")
	os.WriteFile(bad, []byte("{"), 0o644)
	if _, err := ReadBaseline(bad); err == nil {
		t.Error("half a file is a baseline")
	}
	if err := (&InstructionsReport{}).WriteBaseline(bad); err == nil {
		t.Error("a baseline of nothing was written")
	}
}

func TestInstructionsJSON(t *testing.T) {
	f := figures(t, counted(0), counted(1))
	f.Skipped = []Skipped{{"xdp-fib", "not found"}}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var fields struct {
		Kernel  *string
		Frames  *int
		Skipped []map[string]string
		Targets []map[string]any
		Cases   []map[string]any
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	if fields.Kernel == nil || fields.Frames == nil || len(fields.Targets) == 0 || fields.Skipped[0]["probe"] != "not found" {
		t.Errorf("%s", text)
	}
	for _, name := range []string{"name", "title", "flows", "bytes", "over", "gross", "net", "apart", "over_limit", "samples"} {
		if fields.Cases[1][name] == nil {
			t.Errorf("a case has no %s: %v", name, fields.Cases[1])
		}
	}
}

// Table and charts say the same, in three forms.
func TestInstructionsFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	f := figures(t, counted(0))
	f.Skipped = []Skipped{{"xdp-fib", "not found"}}
	if err := f.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	table := string(read("instructions.md"))
	for _, line := range []string{"| `shunt-xdp` | shunt, XDP, IPv4 NAT | 600 | 200 | 0.00 % |", "| `shunt-tax` | shunt, slow-path tax, over masquerade | 900 |  | 0.00 % |", "Skipped: xdp-fib: not found"} {
		if !strings.Contains(table, line) {
			t.Errorf("no %q in\n%s", line, table)
		}
	}
	drawing := string(read("instructions.svg"))
	for d := xml.NewDecoder(strings.NewReader(drawing)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, word := range []string{"shunt, XDP, IPv4 NAT", "600", "empty XDP redirect", "conntrack and masquerade", "6,000"} {
		if !strings.Contains(drawing, word) {
			t.Errorf("the drawing has no %q", word)
		}
	}
	if strings.Contains(drawing, "tax") {
		t.Error("a difference is drawn as a bar beside whole ways")
	}
	picture, err := png.Decode(bytes.NewReader(read("instructions.png")))
	if err != nil || picture.Bounds().Dx() != 960 {
		t.Errorf("picture: %v, %v", picture.Bounds(), err)
	}
	if err := (&InstructionsReport{}).WriteFiles(dir); err == nil {
		t.Error("a chart of nothing was written")
	}
}

// The cheapest is on top, which is drawn last.
func TestBars(t *testing.T) {
	var names []string
	for _, c := range figures(t, counted(0)).bars() {
		names = append(names, c.Name)
	}
	if want := []string{"masquerade", "shunt-xdp", "limit"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}

// Each way that is not the case's own is told.
func TestWent(t *testing.T) {
	whole := traffic.Stats{Frames: extra}
	hits := ways{counters{hits: extra, xdp: extra}, extra}
	for w, got := range map[way]ways{
		byKernel: {counters: counters{forwarded: extra}}, byXDP: hits, byTC: {counters: counters{hits: extra}},
		byRedirect: {redirected: extra}, byOther: {}, byLabels: {counters: counters{hits: extra, labels: extra}, redirected: extra},
	} {
		for other := range map[way]bool{byKernel: true, byXDP: true, byTC: true, byLabels: true, byRedirect: true, byOther: true} {
			if err := went(other, extra, whole, got); (err == nil) != (w == other) {
				t.Errorf("frames that went by %s are taken for %s: %v", w, other, err)
			}
		}
	}
	for word, spoil := range map[string]func(*traffic.Stats, *ways){
		"sunk":             func(s *traffic.Stats, _ *ways) { s.Frames-- },
		"others came":      func(s *traffic.Stats, _ *ways) { s.Frames, s.Foreign = 0, extra },
		"are bad":          func(s *traffic.Stats, _ *ways) { s.BadIP++ },
		"came twice":       func(s *traffic.Stats, _ *ways) { s.Duplicates++ },
		"came late":        func(s *traffic.Stats, _ *ways) { s.Reordered++ },
		"forwarded by the": func(_ *traffic.Stats, g *ways) { g.forwarded++ },
		"redirected":       func(_ *traffic.Stats, g *ways) { g.redirected-- },
	} {
		s, g := whole, hits
		spoil(&s, &g)
		if err := went(byXDP, extra, s, g); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("want %q, got %v", word, err)
		}
	}
}

func TestForeignCounters(t *testing.T) {
	const veth = "NIC statistics:\n     peer_ifindex: 2\n     rx_queue_0_xdp_packets: 9\n     rx_queue_0_xdp_redirect: 7\n     rx_queue_1_xdp_redirect: 3\n     rx_queue_0_drops: 1\n"
	if n, err := redirects(veth); err != nil || n != 10 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := redirects("     rx_queue_0_xdp_redirect: many"); err == nil {
		t.Error("took a word for a number")
	}
	if n, err := ip6Forwarded("Ip6InReceives   \t5\nIp6OutForwDatagrams             \t12345\n"); err != nil || n != 12345 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := ip6Forwarded("Ip6InReceives 5"); err == nil {
		t.Error("found what is not there")
	}
}
