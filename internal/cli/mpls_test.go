// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"shunt/internal/api"
	"shunt/internal/config"
)

// fakeMPLS is a daemon's labels: it answers with what it holds.
type fakeMPLS struct {
	err     error
	applied []api.MPLSChange
	ilm     []api.MPLSILM
	nhlfe   []api.MPLSNHLFE
	ftn     []api.MPLSFTN
	maps    []api.MPLSMap
	spaces  []api.MPLSSpace
	stats   api.MPLSStats
	events  []api.MPLSEvent
	filter  api.MPLSFilter

	warnings []string
}

func (m *fakeMPLS) Apply(c api.MPLSChange) (api.MPLSDone, error) {
	m.applied = append(m.applied, c)
	return api.MPLSDone{Seq: 41, Changed: len(c.Lines), Warnings: m.warnings}, m.err
}
func (m *fakeMPLS) ILM(f api.MPLSFilter) ([]api.MPLSILM, error) { m.filter = f; return m.ilm, m.err }
func (m *fakeMPLS) NHLFE(f api.MPLSFilter) ([]api.MPLSNHLFE, error) {
	m.filter = f
	return m.nhlfe, m.err
}
func (m *fakeMPLS) FTN(f api.MPLSFilter) ([]api.MPLSFTN, error) { m.filter = f; return m.ftn, m.err }
func (m *fakeMPLS) Map(f api.MPLSFilter) ([]api.MPLSMap, error) { m.filter = f; return m.maps, m.err }
func (m *fakeMPLS) Space(f api.MPLSFilter) ([]api.MPLSSpace, error) {
	m.filter = f
	return m.spaces, m.err
}
func (m *fakeMPLS) Stats(f api.MPLSFilter) (api.MPLSStats, error) {
	m.filter = f
	return m.stats, m.err
}
func (m *fakeMPLS) Save() ([]string, error) {
	return []string{"nhlfe add 7 pop deliver", "ilm add 100 nhlfe 7"}, m.err
}
func (m *fakeMPLS) Monitor(_ context.Context, tell func([]api.MPLSEvent) error) error {
	if err := errors.Join(tell(nil), tell(m.events)); err != nil {
		return err
	}
	return errors.New("changes came too fast")
}

// exampleMPLS is a label edge router: a swap, a path that is down, a choice, and a tunnel's end.
func exampleMPLS() *fakeMPLS {
	tc := 5
	since := time.Date(2026, 7, 1, 9, 30, 0, 0, time.UTC)
	return &fakeMPLS{
		ilm: []api.MPLSILM{
			{Space: 0, Label: 100, NHLFE: 7, List: "swap 200 send dev wan0 via inet 10.0.0.2"},
			{Space: 0, Label: 100, TC: &tc, NHLFE: 8, List: "swap 201 send dev wan1 via inet6 2001:db8::2"},
			{Space: 3, Label: 1048575, NHLFE: 10, List: "by-hash 7*3 8"},
		},
		nhlfe: []api.MPLSNHLFE{
			{ID: 7, TTL: api.MPLSUniform, List: "swap 200 send dev wan0 via inet 10.0.0.2", State: api.MPLSUp},
			{ID: 8, MTU: 1400, TTL: api.MPLSPipe, List: "swap 201 send dev wan1 via inet6 2001:db8::2", State: api.MPLSDown,
				Reason: "dev wan1 via inet6 2001:db8::2: the neighbour does not answer"},
			{ID: 10, TTL: api.MPLSShortPipe, List: "by-hash 7*3 8"},
			{ID: 2147483748, TTL: api.MPLSUniform, List: "pop deliver"},
		},
		ftn: []api.MPLSFTN{
			{Prefix: netip.MustParsePrefix("192.0.2.0/24"), NHLFE: 12, List: "push 100 send dev wan0 via inet 10.0.0.2"},
			{Prefix: netip.MustParsePrefix("2001:db8::/32"), NHLFE: 12, List: "push 100 send dev wan0 via inet 10.0.0.2"},
		},
		maps: []api.MPLSMap{
			{Name: "back", Kind: api.MPLSToDSCP, To: map[int]int{5: 46, 4: 34}},
			{Name: "gold", Kind: api.MPLSToTC, To: map[int]int{46: 5, 0: 0, 34: 4}},
		},
		spaces: []api.MPLSSpace{{Port: "lan0", Index: 3, Space: 0, State: api.MPLSUp},
			{Port: "lan9", Space: 254, State: api.MPLSDown, Reason: "there is no such interface now", Remedy: "what is said of its labels waits for it"}},
		stats: api.MPLSStats{
			Interfaces: []api.MPLSInterface{
				{Name: "platform", Space: 0, InLabelsInUse: 2, InLabelLookupFailures: 12, OutLabelsInUse: 3, Reasons: map[string]uint64{"mpls_no_label": 12}},
				{Name: "lan0", Index: 3, Space: 0, InLabelsInUse: 2, InLabelLookupFailures: 12, Reasons: map[string]uint64{"mpls_no_label": 12, "mpls_ttl": 1234}},
				{Name: "wan0", Index: 4, Space: -1, OutLabelsInUse: 3, OutFragmentedPkts: 7},
			},
			InSegments: []api.MPLSInSegment{
				{Space: 0, Label: 100, Packets: 5000000000, HCOctets: 640000000000, Octets: 52305920, Errors: 2, Discards: 1, DiscontinuityTime: since},
				{Space: 3, Label: 1048575},
			},
			OutSegments: []api.MPLSOutSegment{
				{NHLFE: 7, Port: "wan0", Packets: 4999999997, HCOctets: 639999999616, Octets: 52305536, DiscontinuityTime: since},
			},
		},
		events: []api.MPLSEvent{
			{Seq: 40, Time: noon, Origin: "ldp", Verb: "replace", Kind: "ilm", Line: "ilm replace 100 nhlfe 8"},
			{Seq: 40, Time: noon, Origin: "kernel", Verb: "down", Kind: "adjacency", Line: "dev wan0 via inet 10.0.0.2: <no answer>"},
		},
	}
}

func TestMPLSGolden(t *testing.T) {
	state := serve(t, &fake{mpls: exampleMPLS()})
	for name, words := range map[string]string{
		"mpls-ilm":          "mpls ilm show",
		"mpls-ilm.json":     "mpls ilm --json",
		"mpls-nhlfe":        "mpls nhlfe",
		"mpls-nhlfe.json":   "mpls nhlfe show --json",
		"mpls-ftn":          "mpls ftn show",
		"mpls-map":          "mpls map show",
		"mpls-map.json":     "mpls map show --json",
		"mpls-space":        "mpls space show",
		"mpls-stats":        "mpls stats",
		"mpls-stats.json":   "mpls stats --json",
		"mpls-limit":        "mpls ilm show --limit 3",
		"mpls-save":         "mpls save",
		"mpls-written.json": "mpls ilm add 100 nhlfe 7 --json",
	} {
		code, out, err := shunt(append(strings.Fields(words), "--state", state)...)
		if code != 0 || err != "" {
			t.Errorf("%s: exit %d, %s", words, code, err)
		}
		golden(t, name, out)
	}
	code, out, err := shunt("mpls", "monitor", "--state", state)
	golden(t, "mpls-monitor", out)
	if code != 1 || err != "shunt: changes came too fast\n" {
		t.Errorf("monitor: exit %d, %s", code, err)
	}
}

// TestMPLSWrites: each writing command sends its own words.
func TestMPLSWrites(t *testing.T) {
	m := &fakeMPLS{}
	state := serve(t, &fake{mpls: m})
	for _, line := range []string{
		"route add 100 as 200/300 via inet 10.0.0.2 dev eth1",
		"ilm add 100 space 3 tc 5 nhlfe 7",
		"ilm del 100",
		"nhlfe add 7 pop push 200 tc 3 send dev eth1 via inet 10.0.0.2",
		"nhlfe replace 7 mtu 1400 ttl short-pipe pop send dev eth1 lladdr 02:00:00:00:00:01",
		"ftn replace 192.0.2.0/24 nhlfe 7",
		"map add gold dscp-to-tc 46:5 34:4",
		"space set eth0 eth1 0",
		"space set eth0 off",
	} {
		m.applied = nil
		code, out, err := shunt(append([]string{"mpls", "--state", state}, strings.Fields(line)...)...)
		want := []api.MPLSChange{{Lines: []string{line}, Origin: "cli"}}
		if diff := gocmp.Diff(want, m.applied); code != 0 || out+err != "" || diff != "" {
			t.Errorf("%s: exit %d, %s%s\n%s", line, code, out, err, diff)
		}
	}
}

// TestMPLSWarns: what a change asks of a port that it cannot is told on stderr, and is no failure.
func TestMPLSWarns(t *testing.T) {
	m := &fakeMPLS{warnings: []string{"lan: no XDP; set it", "wan:\tno\nXDP; set it"}}
	state := serve(t, &fake{mpls: m})
	code, out, err := shunt("mpls", "--state", state, "space", "set", "lan", "wan", "0")
	if want := "shunt: lan: no XDP; set it\nshunt: wan: no; XDP; set it\n"; code != 0 || out != "" || err != want {
		t.Errorf("exit %d, %q, %q", code, out, err)
	}
	code, out, err = shunt("mpls", "--state", state, "space", "set", "lan", "wan", "0", "--json")
	if code != 0 || err != "" || !strings.Contains(out, `"lan: no XDP; set it",`) {
		t.Errorf("exit %d, %q, %q", code, out, err)
	}
}

// TestMPLSShow: what the words behind show choose.
func TestMPLSShow(t *testing.T) {
	m := &fakeMPLS{}
	state := serve(t, &fake{mpls: m})
	label, id, space, prefix := uint32(100), uint32(7), 3, netip.MustParsePrefix("192.0.2.0/24")
	for words, want := range map[string]api.MPLSFilter{
		"ilm":                   {Limit: 100},
		"ilm show 100":          {Limit: 100, Label: &label},
		"ilm show space 3":      {Limit: 100, Space: &space},
		"ilm show 100 space 3":  {Limit: 100, Label: &label, Space: &space},
		"ilm show --json":       {},
		"ilm show --limit 0":    {},
		"nhlfe show 7":          {Limit: 100, ID: &id},
		"ftn show 192.0.2.9/24": {Limit: 100, Prefix: &prefix},
		"map show gold":         {Limit: 100, Name: "gold"},
		"space show lan0":       {Limit: 100, Port: "lan0"},
		"stats --json":          {},
		"stats --limit 3":       {Limit: 3},
	} {
		code, _, err := shunt(append([]string{"mpls", "--state", state}, strings.Fields(words)...)...)
		if diff := gocmp.Diff(want, m.filter, gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); code != 0 || diff != "" {
			t.Errorf("%s: exit %d, %s\n%s", words, code, err, diff)
		}
	}
}

func TestMPLSExitCodes(t *testing.T) {
	dead := t.TempDir()
	refusing := serve(t, &fake{mpls: &fakeMPLS{err: errors.New("ilm 100: there is one;\nuse replace")}})
	noDaemon := `no daemon answers at ` + config.Paths{State: dead}.Socket()
	for _, c := range []struct {
		args string
		code int
		err  string
	}{
		{"mpls ilm add", 2, "ilm add: the line ends where label is wanted"},
		{"mpls ilm add 1048576 nhlfe 7", 2, `ilm add 1048576 nhlfe 7: label "1048576": use a number from 0 to 1048575`},
		{"mpls ilm add 3 nhlfe 7", 2, "ilm add 3 nhlfe 7: "},
		{"mpls nhlfe add 7 pop", 2, "nhlfe add 7 pop: "},
		{"mpls nhlfe add 7 dorp", 2, `nhlfe add 7 dorp: "dorp" is no instruction`},
		{"mpls ilm shwo", 2, `ilm shwo: "shwo" is no verb of ilm`},
		{"mpls ilm show x", 2, `mpls ilm show: label "x": use a number from 0 to 1048575`},
		{"mpls ilm show space", 2, "mpls ilm show: space: use a number"},
		{"mpls ilm show space 255", 2, `mpls ilm show: space "255": use a number from 0 to 254`},
		{"mpls nhlfe show 1 2", 2, `mpls nhlfe show: "2" is one word too many`},
		{"mpls ftn show 1.2", 2, `mpls ftn show: prefix "1.2": use an IPv4 or IPv6 prefix`},
		{"mpls ilm show --limit -1", 2, "ilm: --limit -1: use a number"},
		{"mpls ilm --limt 3", 2, `ilm: unknown flag: --limt; see "shunt mpls ilm --help"`},
		{"mpls iml", 2, `iml: no such command; did you mean "ilm"? see "shunt mpls --help"`},
		{"mpls stats all", 2, `stats: takes no argument "all"`},
		{"mpls apply", 2, "apply: give one file"},
		{"mpls apply " + dead + "/none", 1, "apply: open " + dead + "/none: no such file"},
		{"mpls ilm add 100 nhlfe 7 --state " + dead, 1, noDaemon},
		{"mpls monitor --state " + dead, 1, noDaemon},
		{"mpls save --state " + dead, 1, noDaemon},
		{"mpls ilm add 100 nhlfe 7 --state " + refusing, 1, "ilm 100: there is one; use replace"},
		{"mpls nhlfe --state " + refusing, 1, "ilm 100: there is one; use replace"},
	} {
		code, _, err := shunt(strings.Fields(c.args)...)
		if code != c.code || !strings.HasPrefix(err, "shunt: "+c.err) || strings.Count(err, "\n") != 1 {
			t.Errorf("shunt %s: exit %d, want %d:\n got %s\nwant shunt: %s", c.args, code, c.code, err, c.err)
		}
	}
}

// TestMPLSApply: one transaction, without what is not for the daemon; nothing of a file with a
// line that is wrong.
func TestMPLSApply(t *testing.T) {
	m := &fakeMPLS{}
	state := serve(t, &fake{mpls: m})
	file := filepath.Join(t.TempDir(), "lsr.mpls")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# a router\n\nspace set eth0 0 # in\n  nhlfe add 7 pop deliver\nilm add 100 nhlfe 7")
	want := []api.MPLSChange{{Lines: []string{"space set eth0 0 # in", "  nhlfe add 7 pop deliver", "ilm add 100 nhlfe 7"}, Origin: "cli"}}
	code, out, err := shunt("mpls", "apply", file, "--state", state)
	if diff := gocmp.Diff(want, m.applied); code != 0 || out+err != "" || diff != "" {
		t.Errorf("exit %d, %s%s\n%s", code, out, err, diff)
	}
	stdin, e := os.Open(file)
	if e != nil {
		t.Fatal(e)
	}
	set(t, &os.Stdin, stdin)
	m.applied = nil
	if code, _, err := shunt("mpls", "apply", "-", "--state", state); code != 0 || !gocmp.Equal(want, m.applied) {
		t.Errorf("stdin: exit %d, %s: %+v", code, err, m.applied)
	}
	m.applied = nil
	write("ilm add 100 nhlfe 7\n\nilm add 3 nhlfe 7\n")
	if code, _, err := shunt("mpls", "apply", file, "--state", state); code != 2 || !strings.HasPrefix(err, "shunt: "+file+":3: ilm add 3 nhlfe 7: ") || m.applied != nil {
		t.Errorf("exit %d, %s: %+v", code, err, m.applied)
	}
}
