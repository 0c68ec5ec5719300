// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// The reference must name every key, and hold its default.
func TestReference(t *testing.T) {
	got, err := Parse("reference.toml", []byte(Reference))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Ports = []string{"eth0", "eth1", "lan*"}   // no default: an example
	want.PortXDP = map[string]Mode{"eth1": XDPAuto} // likewise
	want.Flows = autoFlows(8 << 30)                 // of the machine that the comment names
	want.Exclude = []Flows{{From: netip.MustParsePrefix("192.0.2.0/24"), To: netip.MustParsePrefix("198.51.100.0/24"),
		Proto: 17, Port: [2]uint16{5060, 5061}, In: "lan*", Out: "eth1"}} // likewise
	want.Include = []Flows{{In: "lan*"}} // likewise
	want.SourceFlows = want.SourceLimit()
	want.Police = map[string]Rate{"ttl": 1000} // an example
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("reference.toml differs from the defaults (-default +file):\n%s", diff)
	}
	f := file{name: "reference.toml", data: []byte(Reference)}
	if err := f.index(); err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, e := range f.entries {
		named[e.pattern()] = true
	}
	for key := range allowed {
		if same, ok := strings.CutPrefix(key, "include."); !named[key] && !(ok && named["exclude."+same]) {
			t.Errorf("reference.toml does not name %s", key)
		}
	}
}

func TestParse(t *testing.T) {
	got, err := Parse("x", []byte(`
port = ["eth0",
  "lan*"]
xdp = "on" # a comment
offloads = "keep"
tcp = "off"
threshold = 4294967295
lease = "100ms"
flows = 1024
verify = 100
ports = {"lan*" = {xdp = "off"}, eth0.xdp = "auto"}
source_flows = 0
police = {ttl = "1/s", not_ip = "10000000/s"}
labels = 64
label_hold = "0s"
metrics.listen = "[::1]:9797"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Ports: []string{"eth0", "lan*"}, XDP: XDPOn, Offloads: OffloadsKeep, Threshold: 4294967295,
		PortXDP: map[string]Mode{"lan*": XDPOff, "eth0": XDPAuto},
		Lease:   100 * time.Millisecond, Flows: 1024, Verify: 100,
		Policy: PolicyEstablished, Mark: Mark{Value: 1, Mask: 1},
		Police: map[string]Rate{"ttl": 1, "not_ip": 10000000},
		Labels: 64, MetricsListen: "[::1]:9797",
	}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	const modes = `allowed are "auto", "on", "off"`
	const keys = "port, xdp, tcp, threshold, lease, flows, verify, policy, mark, exclude, include, ports"
	for _, c := range []struct{ text, want string }{
		{"\n\nxdp = \"fast\"", `f:3: xdp = "fast": ` + modes},
		{"xdp = 3", `f:1: xdp = 3: ` + modes},
		{"xdp = [\n1]", `f:1: xdp = [: ` + modes},
		{"xdp = true # or not", `f:1: xdp = true: ` + modes},
		{`offloads = "off"`, `f:1: offloads = "off": allowed are "switch", "keep"`},
		{`tcp = true`, `f:1: tcp = true: allowed are "on", "off"`},
		{`tcp = "yes"`, `f:1: tcp = "yes": allowed are "on", "off"`},
		{"threshold = 0", "f:1: threshold = 0: allowed is a number of packets from 1 to 4294967295"},
		{"threshold = -1", "f:1: threshold = -1: allowed is a number of packets"},
		{"threshold = 4294967296", "f:1: threshold = 4294967296: allowed is a number of packets"},
		{"threshold = 99999999999999999999", "f:1: threshold = 99999999999999999999: allowed is"},
		{`threshold = "10"`, `f:1: threshold = "10": allowed is`},
		{`lease = "4"`, `f:1: lease = "4": allowed is a duration from "100ms" to "60s"`},
		{`lease = "61s"`, `f:1: lease = "61s": allowed is a duration`},
		{`lease = "99ms"`, `f:1: lease = "99ms": allowed is a duration`},
		{`lease = 4`, `f:1: lease = 4: allowed is a duration`},
		{"flows = 1000", "f:1: flows = 1000: allowed is a power of two from 1024 to 2097152"},
		{"flows = 512", "f:1: flows = 512: allowed is a power of two"},
		{"flows = 33554432", "f:1: flows = 33554432: allowed is a power of two"},
		{"verify = -1", "f:1: verify = -1: allowed is a number from 0 to 4294967295: every Nth flow, 0 for none"},
		{`verify = "all"`, `f:1: verify = "all": allowed is a number`},
		{`port = "eth0"`, `f:1: port = "eth0": allowed is a list of interface names or wildcards`},
		{"port = [\"eth0\",\n3]", "f:2: 3]: allowed is a list of interface names"},
		{`port = [""]`, `f:1: port = [""]: allowed is a list of`},
		{`port = ["a/b"]`, `f:1: port = ["a/b"]: allowed is a list of`},
		{`port = ["lan["]`, `f:1: port = ["lan["]: allowed is a list of`},
		{`port = ["sixteen-letters-"]`, `f:1: port = ["sixteen-letters-"]: allowed is a list of`},
		{"tcp = \"no\"\nxdp = \"no\"", `f:1: tcp = "no"`},
		{"xdp = \"no\"\ntcp = \"no\"", `f:1: xdp = "no"`},
		{"[ports.\"eth1\"]\nxdp = \"no\"", `f:2: xdp = "no": ` + modes},
		{"[ports.eth1]\nxdp = 1", `f:2: xdp = 1: ` + modes},
		{"ports.eth1.xdp = 1", `f:1: ports.eth1.xdp = 1: ` + modes},
		{"[metrics]\nlisten = 9797", "f:2: listen = 9797: allowed is an address and port"},
		{"[metrics]\nlisten = \"9797\"", `f:2: listen = "9797": allowed is an address and port`},
		{"[metrics]\nlisten = \"router:9797\"", `f:2: listen = "router:9797": allowed is an address and port`},
		{"[metrics]\nlisten = \"127.0.0.1:0\"", `f:2: listen = "127.0.0.1:0": allowed is an address and port`},
		{"[metrics]\nlisten = \"127.0.0.1\"", `f:2: listen = "127.0.0.1": allowed is an address and port`},
		{"[metrics]\nlisten = \"/run/../x\"", `f:2: listen = "/run/../x": allowed is an address and port`},
		{"metrics.listen = \"x\"", `f:1: metrics.listen = "x": allowed is an address and port`},
		{"[metrics]\nport = 3", `f:2: unknown key "metrics.port": allowed are listen`},
		{"metrics = 3", `f:1: metrics = 3: allowed is a table, [metrics]`},
		{"[ports]\neth1 = 3", `f:2: eth1 = 3: allowed is a table, such as [ports."eth0"]`},
		{"ports = 3", `f:1: ports = 3: allowed is a table for each port`},
		{"ports = [\"lan0\", \"wan0\"]", `f:1: ports = ["lan0", "wan0"]: allowed is a table for each port, such as [ports."eth0"]; the list of interfaces is port = ["eth0"]`},
		{"[[ports]]", `f:1: [[ports]]: allowed is a table for each port`},
		{"[ports.\"a b\"]", `f:1: ports."a b": allowed is the name of an interface`},
		{"\ntreshold = 3", `f:2: unknown key "treshold": allowed are threshold, `},
		{"XDP = \"on\"", `f:1: unknown key "XDP": allowed are `},
		{"[ports.eth1]\ntcp = \"on\"", `f:2: unknown key "ports.eth1.tcp": allowed are xdp`},
		{"[ports.eth1.xdp]\nx = 1", `f:1: [ports.eth1.xdp]: ` + modes},
		{"labels = 63", "f:1: labels = 63: allowed is a number of entries from 64 to 1048576"},
		{"labels = 1048577", "f:1: labels = 1048577: allowed is a number of entries"},
		{`label_hold = "25h"`, `f:1: label_hold = "25h": allowed is a duration from "0s" to "24h"`},
		{`label_hold = "-1s"`, `f:1: label_hold = "-1s": allowed is a duration`},
		{"source_flows = -1", "f:1: source_flows = -1: allowed is a number of slots from 0 to 2097152"},
		{`source_flows = "1"`, `f:1: source_flows = "1": allowed is a number of slots`},
		{"police = 3", "f:1: police = 3: allowed is a table of rates by reason, such as [police]"},
		{"[police]\nttl = 1000", `f:2: ttl = 1000: allowed is a rate from "1/s" to "10000000/s"`},
		{"[police]\nttl = \"1000\"", `f:2: ttl = "1000": allowed is a rate`},
		{"[police]\nttl = \"0/s\"", `f:2: ttl = "0/s": allowed is a rate`},
		{"[police]\nttl = \"10000001/s\"", `f:2: ttl = "10000001/s": allowed is a rate`},
		{"[police]\nttl = \"+1/s/s\"", `f:2: ttl = "+1/s/s": allowed is a rate`},
		{"[police]\nhit = \"1/s\"", `f:2: police."hit": allowed are not_ip, mpls_off, vlan_tag, `},
		{"[police]\nbelow_threshold = \"1/s\"", `f:2: police."below_threshold": allowed are`},
		{"[police]\nTTL = \"1/s\"", `f:2: police."TTL": allowed are`},
		{"[police.ttl]\nrate = \"1/s\"", `f:1: [police.ttl]: allowed is a rate`},
		{"[mpls]\nx = 1", `f:1: unknown key "mpls": allowed are `},
		{"xdp = \"on\"\nxdp = \"on\"", `f:2: xdp = "on": key xdp is already defined`},
		{"xdp = on", "f:1: xdp = on: unexpected character"},
		{"xdp =", "f:1: xdp =: expected value"},
		{"[ports", "f:1: [ports: expected ']'"},
	} {
		_, err := Parse("f", []byte(c.text))
		var bad *Error
		if !errors.As(err, &bad) {
			t.Errorf("%q: got %v, want an *Error", c.text, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q:\n got %s\nwant %s", c.text, err, c.want)
		}
	}
	_, err := Parse("f", []byte("zzz = 1"))
	for _, key := range strings.Split(keys, ", ") {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%v: does not name %s", err, key)
		}
	}
}

func TestLoad(t *testing.T) {
	name := filepath.Join(t.TempDir(), "shunt.toml")
	if _, err := (Source{File: name}).Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	if err := os.WriteFile(name, []byte("flows = 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Source{File: name}).Load(); err == nil || !strings.HasPrefix(err.Error(), name+":1: ") {
		t.Errorf("got %v, want the file and line", err)
	}
}

func TestXDPFor(t *testing.T) {
	c := Default()
	c.Ports = []string{"eth*", "lan?"}
	c.PortXDP = map[string]Mode{"eth1": XDPOff, "eth*": XDPOn, "eth1*": XDPAuto}
	for name, want := range map[string]Mode{"eth1": XDPOff, "eth10": XDPAuto, "eth2": XDPOn, "lan0": XDPAuto} {
		if got := c.XDPFor(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]bool{"eth0": true, "lan1": true, "lan10": false, "lo": false} {
		if got := c.Wants(name); got != want {
			t.Errorf("Wants(%s) = %v", name, got)
		}
	}
}

func TestCheck(t *testing.T) {
	c := Default()
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "--port") {
		t.Errorf("without a port: %v", err)
	}
	if err := c.Set("port", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := c.Set("port", "eth0"); err != nil || len(c.Ports) != 1 {
		t.Errorf("a port named twice: %v, %v", c.Ports, err)
	}
	c.Ports = append(c.Ports, "lan*")
	if diff := cmp.Diff([]string{"eth0"}, c.Exact()); diff != "" {
		t.Errorf("Exact (-want +got):\n%s", diff)
	}
	c.PortXDP["lan*"] = XDPOff // may match later
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	c.PortXDP["eth1"] = XDPOff
	if err := c.Check(); err == nil {
		t.Error("a table about no port passes")
	}
}

func TestSourceLimit(t *testing.T) {
	c := Config{Ports: []string{"eth0"}, Flows: 8192}
	for flows, want := range map[int]int{AutoSourceFlows: 2048, 0: 0, 8: 8, 8192: 8192, 7: -1, 8193: -1} {
		c.SourceFlows = flows
		if err := c.Check(); (err == nil) != (want >= 0) {
			t.Errorf("source_flows %d of %d: %v", flows, c.Flows, err)
		} else if err == nil && c.SourceLimit() != want {
			t.Errorf("source_flows %d of %d: limit %d, want %d", flows, c.Flows, c.SourceLimit(), want)
		}
	}
}

func TestBurst(t *testing.T) {
	for rate, want := range map[Rate]int{1: 16, 160: 16, 1000: 100, maxRate: maxRate / 10} {
		if got := rate.Burst(); got != want {
			t.Errorf("%d/s: burst of %d, want %d", rate, got, want)
		}
	}
}

func TestAutoFlows(t *testing.T) {
	for memory, want := range map[uint64]int{0: 16384, 1 << 28: 16384, 2 << 30: 65536, 8 << 30: 262144, 1 << 40: 1048576} {
		if got := autoFlows(memory); got != want {
			t.Errorf("%d bytes: %d flows, want %d", memory, got, want)
		}
	}
}

// Whatever the text: a good Config or one line with the file's name.
func FuzzParse(f *testing.F) {
	f.Add(Reference)
	f.Add("ports = {a = {xdp = \"on\"}}")
	f.Add("[ports.\"lan[\"]\n[[x]]\ny.z = 1979-05-27")
	f.Add("port = [\"eth0\", 3]\nthreshold = 0x10")
	f.Add("ports.a.xdp.b = 1")
	f.Add("[[exclude]]\nfrom = \"::/0\"\n[[include]]\nport = \"1-2\"\nproto = \"tcp\"")
	f.Add("exclude = [{from = \"1.2.3.4\"}]\n[exclude]\n[mark]\nmask = 0xff")
	f.Add("source_flows = 70000\npolice = {ttl = \"9/s\"}")
	f.Add("police.ttl.x = \"\"\n[police.\"\\n\"]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f", []byte(text))
		if err != nil {
			if s := err.Error(); !strings.HasPrefix(s, "f:") || strings.ContainsAny(s, "\n\r") {
				t.Fatalf("%q is not one line about f", s)
			}
			return
		}
		if c.Threshold == 0 || c.Lease < minLease || c.Lease > maxLease ||
			c.Flows < minFlows || c.Flows > maxFlows || c.Flows&(c.Flows-1) != 0 {
			t.Fatalf("out of bounds: %+v", c)
		}
		if c.Mark.Value&^c.Mark.Mask != 0 || len(c.Exclude)+len(c.Include) > MaxFlowRules {
			t.Fatalf("out of bounds: %+v", c)
		}
		for _, r := range append(c.Exclude, c.Include...) {
			if _, what := r.lacks(); what != "" {
				t.Fatalf("%+v: %s", r, what)
			}
		}
		if c.SourceFlows < AutoSourceFlows || c.SourceFlows > maxFlows {
			t.Fatalf("out of bounds: %+v", c)
		}
		for reason, rate := range c.Police {
			if !slices.Contains(Policeable, reason) || rate < 1 || rate > maxRate || rate.Burst() < 1 {
				t.Fatalf("police %q: %d", reason, rate)
			}
		}
		for name, mode := range c.PortXDP {
			if !validName(name) || !setMode(&mode, string(mode)) {
				t.Fatalf("port %q: %q", name, mode)
			}
		}
	})
}
