// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/foreign"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// fast sends frames and asserts that all arrive, by the fast path or not.
func (r *rig) fast(what string, s *traffic.Sink, want bool) {
	r.t.Helper()
	r.ping()
	before := r.status().Hits
	r.must(s.Reset())
	g := r.generator(1, 5000)
	sent := r.send(g, 500)
	r.whole(what, s, sent.Sent)
	switch hits := r.status().Hits - before; {
	case want && hits < 400:
		r.t.Errorf("%s: %d hits of %d frames: not fast", what, hits, sent.Sent)
	case !want && hits > 0:
		r.t.Errorf("%s: %d hits: not the kernel's", what, hits)
	}
}

// TestRefusedPorts: where something sits on a port that would be skipped, the port is
// refused with a reason, all is forwarded as before, and it is fast again without it.
func TestRefusedPorts(t *testing.T) {
	type cause struct {
		name, mode, words string
		set               func(*rig) (remove func())
	}
	ip := func(set, remove []string) func(*rig) func() {
		return func(r *rig) func() { r.ip(set...); return func() { r.ip(remove...) } }
	}
	run := func(r *rig, command string) {
		r.t.Helper()
		_, err := r.LAN.NS.Run(strings.Fields(command)...)
		r.must(err)
	}
	for _, c := range []cause{
		{"bridge member", "on", "belongs to bridge br0",
			ip([]string{"link add br0 address 02:00:00:00:13:01 type bridge forward_delay 0", "link set wan master br0", "link set br0 up",
				"address del 198.19.0.1/24 dev wan", "address add 198.19.0.1/24 dev br0"},
				[]string{"link set wan nomaster", "link del br0", "address add 198.19.0.1/24 dev wan"})},
		{"tc filter", "on", "tc ingress filter bpf", func(r *rig) func() {
			run(r, "tc qdisc add dev wan clsact")
			_, err := r.LAN.NS.Run("tc", "filter", "add", "dev", "wan", "ingress", "prio", "7", "bpf", "bytecode", "1,6 0 0 0")
			r.must(err)
			return func() { run(r, "tc qdisc del dev wan clsact") }
		}},
		{"netdev chain", "on", "nftables chain netdev guard in", func(r *rig) func() {
			r.nft(`table netdev guard { chain in { type filter hook ingress device "wan" priority 0; }; }`)
			return func() { run(r, "nft delete table netdev guard") }
		}},
		{"tcx program", "on", "program ", func(r *rig) func() {
			p, err := foreign.TCX(r.WAN.NS, r.WAN.Device)
			r.must(err)
			return func() { r.must(p.Close()) }
		}},
		{"XDP program", "off", "another XDP program", func(r *rig) func() {
			p, err := foreign.XDP(r.WAN.NS, r.WAN.Device)
			r.must(err)
			return func() { r.must(p.Close()) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{})
			r.start(program, with("--xdp", c.mode)...)
			sink := r.sink(r.Server, 1)
			r.fast("before", sink, true)
			remove := c.set(r)
			r.eventually("the port is refused", patience, func() bool { return r.port("wan").State == api.PortRefused })
			if p := r.port("wan"); !strings.Contains(p.Reason, c.words) || p.Remedy == "" {
				t.Errorf("reason %q, remedy %q; want %q", p.Reason, p.Remedy, c.words)
			}
			if out, _, code := r.shunt("ports"); code != 0 || !strings.Contains(out, c.words) {
				t.Errorf("shunt ports: exit code %d, no %q in %s", code, c.words, out)
			}
			if names := r.attached(r.WAN); len(names) > 0 {
				t.Errorf("attached to a refused port: %v", names)
			}
			r.fast("refused", sink, false)
			remove()
			r.eventually("the port is taken again", patience, func() bool { return r.port("wan").State != api.PortRefused })
			r.fast("after", sink, true)
		})
	}
}

// TestRefusedKinds: kinds of devices that are not understood yet are refused by name.
func TestRefusedKinds(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	r.ip("link add br7 type bridge", "link add mv7 link wan type macvlan", "link add vx7 type vxlan id 7 dstport 4789 dev wan",
		"link set br7 up", "link set mv7 up", "link set vx7 up")
	r.start(program, with("--port", "br*", "--port", "mv*", "--port", "vx*", "--xdp", "on")...)
	for name, words := range map[string]string{"br7": "a bridge", "mv7": "a macvlan", "vx7": "a VXLAN"} {
		if p := r.port(name); p.State != api.PortRefused || !strings.Contains(p.Reason, words) {
			t.Errorf("%s: %s, %q; want refused for %q", name, p.State, p.Reason, words)
		}
	}
	r.fast("beside refused ports", r.sink(r.Server, 1), true)
}

// rebuild makes the wire between router and server anew.
func (r *rig) rebuild() {
	r.t.Helper()
	r.must(r.Connect(r.Server, r.WAN, lab.Wire, 0))
	r.must(r.Server.NS.IP(fmt.Sprintf("route add default via %s", r.WAN.V4.Addr())))
}

// TestPortsComeAndGo: an interface that is made anew under its name, and one that comes
// later and was meant by a wildcard.
func TestPortsComeAndGo(t *testing.T) {
	for _, args := range [][]string{both, {"--port", "lan", "--port", "w*"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
			wild := args[3] == "w*"
			if wild {
				r.ip("link del wan")
			}
			r.start(program, append(append([]string{}, args...), "--xdp", "on")...)
			if wild {
				r.rebuild()
			}
			r.eventually("wan is there", patience, func() bool { return r.port("wan").XDPReceive })
			sink := r.sink(r.Server, 1)
			r.fast("first", sink, true)
			first := r.port("wan").Index
			r.must(sink.Close())
			r.ip("link del wan")
			gone := map[bool]string{false: api.PortAbsent, true: ""}[wild]
			r.eventually("wan is gone", patience, func() bool { return r.port("wan").State == gone })
			r.rebuild()
			r.eventually("wan is back", patience, func() bool { return r.port("wan").XDPReceive && r.port("wan").XDPTransmit })
			if again := r.port("wan").Index; again == first {
				t.Errorf("the new interface has the old one's index %d: the test did not test", again)
			}
			r.fast("again", r.sink(r.Server, 1), true)
		})
	}
}

// TestPause: a pause sends everything to the kernel, at once and until it ends.
func TestPause(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	r.start(program, with("--xdp", "on")...)
	sink := r.sink(r.Server, 1)
	r.fast("before", sink, true)
	if _, errs, code := r.shunt("pause"); code != 0 {
		t.Fatalf("shunt pause: exit code %d, %s", code, errs)
	}
	if s := r.status(); !s.Paused {
		t.Errorf("status: %+v", s)
	}
	before := r.count("paused")
	r.fast("paused", sink, false)
	if n := r.count("paused") - before; n < 1000 {
		t.Errorf("%d packets counted as paused, want 500 at XDP and 500 at TC", n)
	}
	q := r.flows()[0].Query()
	e, err := r.api.Explain(context.Background(), api.ExplainQuery{Flow: &q})
	if err != nil || len(e) == 0 || e[0].Reason != "paused" {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if _, errs, code := r.shunt("resume"); code != 0 {
		t.Fatalf("shunt resume: exit code %d, %s", code, errs)
	}
	r.fast("resumed", sink, true)
}

// TestPerPortXDP: the configuration file takes XDP from one port.
func TestPerPortXDP(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	path := filepath.Join(r.Dir(), "shunt.toml")
	r.must(os.WriteFile(path, []byte("port = [\"lan\", \"wan\"]\nxdp = \"on\"\n[ports.\"wa*\"]\nxdp = \"off\"\n"), 0o600))
	r.start(program, "--config", path)
	if lan, wan := r.port("lan"), r.port("wan"); lan.State != api.PortXDPAndTC || wan.State != api.PortTC || !wan.XDPTransmit {
		t.Errorf("lan %+v, wan %+v", lan, wan)
	}
	at := r.udp(6000, 7000, "")
	there := r.dialUDP(r.Client.NS, at.source, at.dest)
	back := r.listenUDP(r.Server.NS, at.dest)
	b := make([]byte, 10)
	r.eventually("both directions are armed, each its way", patience, func() bool {
		there.Write([]byte("there"))
		back.SetReadDeadline(time.Now().Add(time.Second))
		_, from, err := back.ReadFromUDPAddrPort(b)
		r.must(err)
		back.WriteToUDPAddrPort([]byte("back"), from)
		there.SetReadDeadline(time.Now().Add(time.Second))
		_, err = there.Read(b)
		r.must(err)
		ways := map[string]string{}
		for _, f := range r.armed() {
			ways[f.Port] = f.Way
		}
		return ways["lan"] == api.WayXDP && ways["wan"] == api.WayTC
	})
}

// TestFullTable: more flows than slots, or than one source may have, are slow and whole.
func TestFullTable(t *testing.T) {
	const flows, slots, rounds = 5000, 1024, 24
	for _, c := range []struct {
		mode, config, full string
		least, most        int // slots in use
	}{
		{"on", "source_flows = 0", "table_full", slots / 2, slots},
		{"off", "source_flows = 0", "table_full", slots / 2, slots},
		{"on", "", "source_full", slots / 4, slots / 4},
		{"off", "source_flows = 100", "source_full", 100, 100},
	} {
		t.Run("xdp="+c.mode+" "+c.full, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			path := filepath.Join(r.Dir(), "shunt.toml")
			r.must(os.WriteFile(path, []byte(fmt.Sprintf("flows = %d\n%s\n", slots, c.config)), 0o600))
			r.start(program, with("--config", path, "--xdp", c.mode)...)
			sink := r.sink(r.Server, 1)
			sent := r.send(r.generator(flows, 60000), flows*rounds)
			r.whole("full table", sink, sent.Sent)
			s := r.status()
			if got, err := sink.Stats(); err != nil || got.Flows != flows {
				t.Errorf("%d flows arrived (%v), want %d", got.Flows, err, flows)
			}
			if n := r.count(c.full); n == 0 || s.Flows.Slots != slots || s.Flows.Armed < c.least || s.Flows.Armed+s.Flows.Seen > c.most || s.Hits == 0 {
				t.Errorf("%d packets counted as %s, flows %+v, %d hits", n, c.full, s.Flows, s.Hits)
			}
		})
	}
}

// TestForeignProgramsLoggedOnce: a port with two foreign tcx programs, one at each side, is
// refused with one log line, and the log stays quiet from then on.
func TestForeignProgramsLoggedOnce(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{})
	for _, attach := range []func(*lab.NS, string) (*foreign.Program, error){foreign.TCX, foreign.TCXEgress} {
		p, err := attach(r.WAN.NS, r.WAN.Device)
		r.must(err)
		defer p.Close()
	}
	r.start(program, both...)
	about := func() int { return strings.Count(r.daemon.Log(), "port=wan") }
	first := about()
	time.Sleep(15 * time.Second) // 15 reviews
	if n := about(); first != 1 || n != 1 {
		t.Errorf("%d lines about wan at the start, %d after fifteen reviews; want one", first, n)
	}
}
