// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/daemon"
)

var update = flag.Bool("update", false, "write the golden files anew")

// noon is when all tests happen.
var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// TestMain also plays the daemons of the labs that tests leave standing.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		RunDaemon = daemon.Run
		os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr))
	}
	now = func() time.Time { return noon }
	os.Exit(m.Run())
}

// fake is a daemon's backend that answers with what it holds.
type fake struct {
	status       api.Status
	ports        []api.Port
	flows        []api.Flow
	explanations []api.Explanation
	checks       []api.Check
	err          error
	paused       []bool
	reloads      int
	stop         func() error
	query        api.ExplainQuery
	differences  []api.Difference
	settings     []api.Setting
	filter       api.FlowFilter
	mpls         *fakeMPLS
}

func (f *fake) Status() (api.Status, error) { return f.status, f.err }
func (f *fake) Ports() ([]api.Port, error)  { return f.ports, f.err }
func (f *fake) Flows(filter api.FlowFilter) ([]api.Flow, error) {
	f.filter = filter
	flows := slices.DeleteFunc(slices.Clone(f.flows), func(a api.Flow) bool { return filter.State != "" && a.State != filter.State })
	slices.SortStableFunc(flows, func(a, b api.Flow) int {
		if filter.Sort == api.SortBytes {
			return cmp.Compare(b.Bytes, a.Bytes)
		}
		return cmp.Compare(b.Packets, a.Packets)
	})
	if filter.Limit > 0 {
		flows = flows[:min(filter.Limit, len(flows))]
	}
	return flows, f.err
}
func (f *fake) Differences() ([]api.Difference, error) { return f.differences, f.err }
func (f *fake) Explain(q api.ExplainQuery) ([]api.Explanation, error) {
	f.query = q
	return f.explanations, f.err
}
func (f *fake) Doctor() ([]api.Check, error)   { return f.checks, f.err }
func (f *fake) Config() ([]api.Setting, error) { return f.settings, f.err }
func (f *fake) Reload() error                  { f.reloads++; return f.err }
func (f *fake) Pause(on bool) error            { f.paused = append(f.paused, on); return f.err }
func (f *fake) Stop() error                    { return f.stop() }
func (f *fake) MPLS() api.MPLS                 { return f.mpls }

// serve runs a backend's server for the length of the test, and returns its state
// directory.
func serve(t *testing.T, b api.Backend) string {
	t.Helper()
	paths := config.Paths{State: t.TempDir()}
	l, err := api.Listen(paths.Socket())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.NewServer(b).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return paths.State
}

// shunt runs the command and returns what it says.
func shunt(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Run(args, &out, &err)
	return code, out.String(), err.String()
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it anew):\n%s", file, diff)
	}
}

func TestGolden(t *testing.T) {
	state := serve(t, example())
	for name, args := range map[string][]string{
		"status":       {"status"},
		"status.json":  {"status", "--json"},
		"ports":        {"ports"},
		"ports.json":   {"ports", "--json"},
		"flows":        {"flows"},
		"flows.json":   {"flows", "--json"},
		"flows-limit":  {"flows", "--sort", "bytes", "--limit", "1", "--only", "armed"},
		"explain":      {"explain", "10.0.0.2:4000", "198.51.100.9:443/tcp"},
		"explain.json": {"explain", "10.0.0.2:4000 198.51.100.9:443/tcp", "--json"},
		"explain-all":  {"explain", "--all"},
		"differences":  {"status", "--differences"},

		"differences.json": {"status", "--differences", "--json"},
	} {
		code, out, err := shunt(append(args, "--state", state)...)
		if code != 0 || err != "" {
			t.Errorf("%v: exit %d, %s", args, code, err)
		}
		golden(t, name, out)
	}
}

// TestExplainAReason: what the API is asked for, and what it answers about a word.
func TestExplainAReason(t *testing.T) {
	f := example()
	f.explanations = exampleReason()
	state := serve(t, f)
	_, out, _ := shunt("explain", "ip_options", "--state", state)
	golden(t, "explain-reason", out)
	if f.query != (api.ExplainQuery{Reason: "ip_options"}) {
		t.Errorf("asked for %+v", f.query)
	}
	for _, c := range []struct {
		flag string
		want api.ExplainQuery
	}{{"--all", api.ExplainQuery{}}, {"--top=20", api.ExplainQuery{Top: 20}}} {
		if _, _, err := shunt("explain", c.flag, "--state", state); err != "" || f.query != c.want {
			t.Errorf("%s: asked for %+v, %s", c.flag, f.query, err)
		}
	}
}

func TestNoDifferences(t *testing.T) {
	_, out, _ := shunt("status", "--differences", "--state", serve(t, &fake{}))
	if want := "none: no renewal has found anything that was not announced\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

func TestGoldenPausedAndDoctor(t *testing.T) {
	f := example()
	f.status.Paused, f.status.State = true, api.StatePaused
	f.status.Counters = nil
	state := serve(t, f)
	_, out, _ := shunt("status", "--state", state)
	golden(t, "status-paused", out)

	code, out, err := shunt("doctor", "--state", state)
	golden(t, "doctor", out)
	if code != 1 || err != "shunt: doctor: one check failed; its remedy stands beside it\n" {
		t.Errorf("a failed check: exit %d, %q", code, err)
	}
}

// JSON is the API's type, whole.
func TestJSONIsTheAPIType(t *testing.T) {
	f := example()
	_, out, _ := shunt("flows", "--json", "--state", serve(t, f))
	var got []api.Flow
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	asked := f.filter
	want, _ := f.Flows(api.FlowFilter{Sort: api.SortPackets})
	if diff := gocmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Error(diff)
	}
	if asked != (api.FlowFilter{Sort: api.SortPackets, Live: true}) {
		t.Errorf("asked for %+v with --json", asked)
	}
	for _, c := range []struct {
		args string
		want api.FlowFilter
	}{
		{"flows", api.FlowFilter{Limit: 100, Sort: api.SortRate, Live: true}},
		{"flows --all --sort age", api.FlowFilter{Limit: 100, Sort: api.SortAge}},
		{"flows --all --json", api.FlowFilter{Sort: api.SortPackets}},
	} {
		if _, _, err := shunt(append(strings.Fields(c.args), "--state", serve(t, f))...); err != "" || f.filter != c.want {
			t.Errorf("%s: asked for %+v, %s; want %+v", c.args, f.filter, err, c.want)
		}
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Name() == "help" {
			return
		}
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, "  "+cmd.CommandPath()) {
			t.Errorf("%s: needs a short and a long help and an example that begins with it", cmd.CommandPath())
		}
		code, out, err := shunt(append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		if code != 0 || err != "" || !strings.Contains(out, cmd.Example) {
			t.Errorf("%s --help: exit %d, %s\n%s", cmd.CommandPath(), code, err, out)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	e := &env{}
	walk(e.root())
	if code, out, _ := shunt(); code != 0 || !strings.Contains(out, "Available Commands") {
		t.Errorf("shunt alone: exit %d\n%s", code, out)
	}
}

// TestVersion: the flag says what the command says.
func TestVersion(t *testing.T) {
	var said [2]bytes.Buffer
	for i, arg := range []string{"version", "--version"} {
		if code := Run([]string{arg}, &said[i], &said[i]); code != 0 {
			t.Errorf("%s: exit code %d", arg, code)
		}
	}
	if want := "shunt " + api.Version() + ", built with "; said[0].String() != said[1].String() || !strings.HasPrefix(said[0].String(), want) {
		t.Errorf("said %q and %q, want %q and the version of Go", said[0].String(), said[1].String(), want)
	}
}

func TestExitCodes(t *testing.T) {
	dead := t.TempDir()
	broken := serve(t, &fake{err: errors.New("flows: the table is gone;\nrun again")})
	bad := filepath.Join(dead, "bad.toml")
	if err := os.WriteFile(bad, []byte("\nxdp = \"fast\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noDaemon := `no daemon answers at ` + dead + `/api.sock; start one with "shunt run --port IF"`
	for _, c := range []struct {
		args string
		code int
		err  string // begins with, after "shunt: "
	}{
		{"version", 0, ""},
		{"--version", 0, ""},
		{"help", 0, ""},
		{"stat", 2, `stat: no such command; did you mean "status"? see "shunt --help"`},
		{"sta", 2, `sta: no such command; did you mean "status"? see "shunt --help"`},
		{"stp", 2, `stp: no such command; did you mean "stop"? see "shunt --help"`},
		{"xyzzy", 2, `xyzzy: no such command; see "shunt --help"`},
		{"mpls iml", 2, `iml: no such command; did you mean "ilm"? see "shunt mpls --help"`},
		{"help nope", 2, `nope: no such command; see "shunt --help"`},
		{"help stat", 2, `stat: no such command; did you mean "status"? see "shunt --help"`},
		{"help mpls nope", 2, `nope: no such command; see "shunt mpls --help"`},
		{"help status", 0, ""},
		{"help mpls ilm", 0, ""},
		{"explain below_treshold", 2, `explain: below_treshold: no such reason; did you mean "below_threshold"? "shunt status" counts them`},
		{"explain not_a_word_at_all", 2, `explain: not_a_word_at_all: no such reason; "shunt status" counts them`},
		{"statsu", 2, `statsu: no such command; did you mean "status"? see "shunt --help"`},
		{"status x", 2, `status: takes no argument "x"; see "shunt status --help"`},
		{"status --jsn", 2, `status: unknown flag: --jsn; see "shunt status --help"`},
		{"flows --limit x", 2, `flows: invalid argument "x" for "--limit"`},
		{"flows --limit -1", 2, "flows: limit -1: use a number"},
		{"flows --sort name", 2, `flows: sort "name": allowed are packets, bytes, age`},
		{"flows --only dead", 2, `flows: state "dead": allowed are seen, armed`},
		{"explain", 2, "explain: write ADDR:PORT"},
		{"explain ip_option", 2, `explain: ip_option: no such reason; did you mean "ip_options"?`},
		{"explain ip_options --top 3", 2, "explain: give one of FLOW, REASON, --top and --all"},
		{"explain --all --top 3", 2, "explain: give one of FLOW, REASON, --top and --all"},
		{"explain --top 0", 2, "explain: --top 0: use a number of flows"},
		{"explain 1.2.3.4 5.6.7.8/tcp", 2, "explain: tcp needs a port at both ends"},
		{"top", 2, `top: needs a terminal; use "shunt top --once"`},
		{"run --config /dev/null", 2, "/dev/null: no port: name one with --port eth0"},
		{"run --config /dev/null --port a/b", 2, `--port "a/b": allowed is a list of interface names`},
		{"run --config /dev/null --port eth0 --xdp fast", 2, `--xdp "fast": allowed are "auto", "on", "off"`},
		{"run --config /dev/null --port eth0 --threshold 0", 2, `--threshold "0": allowed is a number of packets`},
		{"run --config /dev/null --port eth0 --lease 1h", 2, `--lease "1h": allowed is a duration`},
		{"run --config " + bad, 2, bad + `:2: xdp = "fast": allowed are "auto", "on", "off"`},
		{"run --config " + dead + "/none", 1, "--config: open " + dead + "/none: no such file"},
		{"config", 0, ""},
		{"config chek", 2, `chek: no such command; did you mean "check"? see "shunt config --help"`},
		{"config check " + bad, 2, bad + `:2: xdp = "fast": allowed are "auto", "on", "off"`},
		{"config check " + dead + "/none", 1, "open " + dead + "/none: no such file"},
		{"config check /dev/null", 2, "/dev/null: no port: name one"},
		{"config show --state " + broken, 1, "flows: the table is gone; run again"},
		{"status --state " + dead, 1, noDaemon},
		{"pause --state " + dead, 1, noDaemon},
		{"top --once --state " + dead, 1, noDaemon},
		{"status --state " + broken, 1, "flows: the table is gone; run again"},
		{"reload --state " + dead, 1, noDaemon},
		{"reload --state " + broken, 1, "flows: the table is gone; run again"},
		{"resume --state " + broken, 1, "flows: the table is gone; run again"},
	} {
		code, _, err := shunt(strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("shunt %s: exit %d, want %d (%s)", c.args, code, c.code, err)
		}
		if c.err == "" {
			if err != "" {
				t.Errorf("shunt %s: %s", c.args, err)
			}
			continue
		}
		if !strings.HasPrefix(err, "shunt: "+c.err) || strings.Count(err, "\n") != 1 {
			t.Errorf("shunt %s:\n got %s\nwant shunt: %s", c.args, err, c.err)
		}
	}
}

// set gives a function value of main's to one test.
func set[F any](t *testing.T, where *F, what F) {
	before := *where
	*where = what
	t.Cleanup(func() { *where = before })
}

func TestRunMergesFileAndFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shunt.toml")
	text := "port = [\"eth0\"]\nxdp = \"on\"\nthreshold = 7\nlease = \"2s\"\nflows = 1024"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var got config.Config
	var at config.Paths
	set(t, &RunDaemon, func(_ context.Context, cfg config.Effective, paths config.Paths) error {
		got, at = cfg.Config, paths
		return nil
	})
	code, _, err := shunt("run", "--config", file, "--port", "lan*", "--port", "eth1",
		"--lease", "1s", "--state", "/s", "--bpffs", "/b")
	if code != 0 {
		t.Fatal(err)
	}
	want := config.Default()
	want.Ports = []string{"eth0", "lan*", "eth1"}
	want.XDP, want.Threshold, want.Lease, want.Flows = config.XDPOn, 7, time.Second, 1024
	if diff := gocmp.Diff(want, got); diff != "" || at != (config.Paths{State: "/s", BPFFS: "/b"}) {
		t.Errorf("%v\n%s", at, diff)
	}

	set(t, &RunDaemon, func(context.Context, config.Effective, config.Paths) error { return errors.New("port eth0: none") })
	if code, _, err := shunt("run", "--config", "/dev/null", "--port", "eth0"); code != 1 || err != "shunt: port eth0: none\n" {
		t.Errorf("exit %d, %s", code, err)
	}
}

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shunt.toml")
	if err := os.WriteFile(file, []byte(`port = ["eth0"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, err := shunt("config", "check", file); code != 0 || out != file+": valid\n" || err != "" {
		t.Errorf("check: exit %d, %q%s", code, out, err)
	}
	f := &fake{settings: []api.Setting{
		{Key: "port", Value: `["eth0", "lan*"]`, Default: "[]", From: "/etc/shunt/shunt.toml:5 and --port"},
		{Key: "lease", Value: `"4s"`, Default: `"4s"`, From: "default"},
		{Key: "police.ttl", Value: `"1000/s"`, From: "/etc/shunt/shunt.toml:80"},
	}}
	state := serve(t, f)
	_, out, _ := shunt("config", "show", "--state", state)
	golden(t, "config", out)
	_, out, _ = shunt("config", "show", "--json", "--state", state)
	var got []api.Setting
	if err := json.Unmarshal([]byte(out), &got); err != nil || gocmp.Diff(f.settings, got) != "" {
		t.Errorf("--json: %v\n%s", err, out)
	}
	code, out, err := shunt("config", "show", "--state", t.TempDir())
	if code != 0 || !strings.Contains(out, "threshold") || !strings.Contains(err, "no daemon runs") {
		t.Errorf("without a daemon: exit %d\n%s%s", code, out, err)
	}
}

func TestPauseAndResume(t *testing.T) {
	f := &fake{}
	state := serve(t, f)
	for _, verb := range []string{"pause", "resume"} {
		if code, out, err := shunt(verb, "--state", state); code != 0 || out+err != "" {
			t.Errorf("%s: exit %d, %s%s", verb, code, out, err)
		}
	}
	if diff := gocmp.Diff([]bool{true, false}, f.paused); diff != "" {
		t.Error(diff)
	}
	if code, out, err := shunt("reload", "--state", state); code != 0 || out+err != "" || f.reloads != 1 {
		t.Errorf("reload: exit %d, %s%s; %d reached the daemon", code, out, err, f.reloads)
	}
}

// stop returns only when the daemon's process has ended.
func TestStopWaits(t *testing.T) {
	daemon := exec.Command("sleep", "60")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	f := &fake{status: api.Status{PID: daemon.Process.Pid}}
	var ended atomic.Bool
	f.stop = func() error {
		time.AfterFunc(200*time.Millisecond, func() {
			ended.Store(true)
			daemon.Process.Kill()
			daemon.Wait()
		})
		return nil
	}
	code, _, err := shunt("stop", "--state", serve(t, f))
	if code != 0 || !ended.Load() {
		t.Errorf("exit %d, %s; the daemon ended: %v", code, err, ended.Load())
	}
}

func TestStopWithoutDaemonCleansUp(t *testing.T) {
	var cleaned config.Paths
	set(t, &CleanUp, func(paths config.Paths) error { cleaned = paths; return nil })
	state := t.TempDir()
	if code, _, err := shunt("stop", "--state", state, "--bpffs", "/b"); code != 0 || cleaned != (config.Paths{State: state, BPFFS: "/b"}) {
		t.Errorf("exit %d, %s; cleaned %v", code, err, cleaned)
	}
	set(t, &CleanUp, func(config.Paths) error {
		return errors.Join(errors.New("stop: /b: busy"), errors.New("/c: gone;\nlook there"))
	})
	if code, _, err := shunt("stop", "--state", state); code != 1 || err != "shunt: stop: /b: busy; /c: gone; look there\n" {
		t.Errorf("exit %d, %s", code, err)
	}
}

func TestDoctorWithoutDaemon(t *testing.T) {
	var asked []string
	set(t, &Doctor, func(_ config.Paths, ports []string) ([]api.Check, error) {
		asked = ports
		return []api.Check{{Name: "kernel", Level: api.LevelOK, Finding: "Linux 6.18"}}, nil
	})
	code, out, err := shunt("doctor", "eth0", "eth1", "--state", t.TempDir())
	if code != 0 || !strings.Contains(out, "Linux 6.18") || len(asked) != 2 {
		t.Errorf("exit %d, asked %v\n%s%s", code, asked, out, err)
	}
	// Named ports are examined here even while a daemon lives.
	if _, out, _ = shunt("doctor", "eth0", "--state", serve(t, example())); !strings.Contains(out, "Linux 6.18") {
		t.Errorf("named ports went to the daemon:\n%s", out)
	}
	// What the daemon knows of one of its own ports goes before.
	set(t, &Doctor, func(config.Paths, []string) ([]api.Check, error) {
		return []api.Check{{Name: "port lan0", Level: api.LevelWarn, Finding: "as if nothing were configured"}, {Name: "port eth9", Level: api.LevelOK, Finding: "can be fast"}}, nil
	})
	if _, out, _ = shunt("doctor", "lan0", "eth9", "--state", serve(t, example())); strings.Contains(out, "as if nothing") ||
		!strings.Contains(out, "its peer segments in software") || !strings.Contains(out, "eth9") {
		t.Errorf("the daemon's finding about its port:\n%s", out)
	}
}
