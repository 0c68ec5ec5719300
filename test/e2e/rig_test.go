// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/foreign"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// rig is a firewall lab, and a daemon once it is started.
type rig struct {
	t *testing.T
	*lab.Topology
	daemon *lab.Daemon
	args   []string // of that daemon
	api    *api.Client
}

// newRig builds the lab for the length of the test.
func newRig(t *testing.T, o lab.FirewallOptions) *rig {
	t.Helper()
	if o.Name == "" {
		o.Name = "e2e"
	}
	top, err := lab.Firewall(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, Topology: top, api: api.NewClient(filepath.Join(top.State(), "api.sock"))}
	t.Cleanup(func() {
		if t.Failed() && r.daemon != nil {
			t.Logf("daemon's log:\n%s", r.daemon.Log())
		}
		if err := top.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// both are the arguments for the router's two ports.
var both = []string{"--port", "lan", "--port", "wan"}

// with adds arguments to those for the two ports.
func with(args ...string) []string { return append(append([]string{}, both...), args...) }

// start runs a daemon in the router; a build other than program is named by path.
func (r *rig) start(path string, args ...string) {
	r.t.Helper()
	d, err := r.StartDaemon(context.Background(), r.LAN.NS, path, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.daemon, r.args = d, args
}

// terminate ends the daemon by SIGTERM and waits.
func (r *rig) terminate() {
	r.t.Helper()
	if err := r.daemon.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	if err := r.daemon.Wait(); err != nil {
		r.t.Errorf("SIGTERM: the daemon ended with %v", err)
	}
}

func (r *rig) status() api.Status {
	r.t.Helper()
	s, err := r.api.Status(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// count is a reason's counter, summed over the stages.
func (r *rig) count(reason string) (n uint64) {
	r.t.Helper()
	for _, reasons := range r.status().Counters {
		n += reasons[reason]
	}
	return n
}

func (r *rig) flows() []api.Flow {
	r.t.Helper()
	flows, err := r.api.Flows(context.Background(), api.FlowFilter{})
	if err != nil {
		r.t.Fatal(err)
	}
	return flows
}

// armed are the flows that may be repeated now.
func (r *rig) armed() (flows []api.Flow) {
	r.t.Helper()
	for _, f := range r.flows() {
		if f.State == api.FlowArmed {
			flows = append(flows, f)
		}
	}
	return flows
}

// port is what the daemon says of a port; the zero Port if it does not know it.
func (r *rig) port(name string) api.Port {
	r.t.Helper()
	ports, err := r.api.Ports(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	return api.Port{}
}

// eventually waits for something to become true.
func (r *rig) eventually(what string, limit time.Duration, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// must is for steps that cannot fail on a sane machine.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// ip, nft and sysctl change the router.
func (r *rig) ip(lines ...string) { r.t.Helper(); r.must(r.LAN.NS.IP(lines...)) }
func (r *rig) nft(rules string)   { r.t.Helper(); r.must(r.LAN.NS.NFT(rules)) }
func (r *rig) sysctl(key, value string) {
	r.t.Helper()
	r.must(r.LAN.NS.Sysctl(key, value))
}

// shunt runs a client command in the router, with the lab's directories.
func (r *rig) shunt(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	return r.exec(append([]string{program, "--state", r.State(), "--bpffs", r.BPFFS()}, args...)...)
}

// exec runs a command in the router for at most 20 s.
func (r *rig) exec(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var out, errs strings.Builder
	cmd := r.LAN.NS.Command(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if _, ok := err.(*exec.ExitError); !ok {
			r.t.Fatal(err)
		}
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// nothing asserts that no program, pin, lock or socket of shunt is there.
func (r *rig) nothing() {
	r.t.Helper()
	for _, e := range []lab.End{r.LAN, r.WAN} {
		if names := r.attached(e); len(names) > 0 {
			r.t.Errorf("attached to %v: %v", e, names)
		}
	}
	for _, path := range []string{r.BPFFS(), r.State()} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			r.t.Errorf("%s is there (%v)", path, err)
		}
	}
}

// attached are shunt's programs on a device of the router.
func (r *rig) attached(e lab.End) (names []string) {
	r.t.Helper()
	all, err := foreign.Attached(e.NS, e.Device)
	r.must(err)
	for _, name := range all {
		if strings.HasPrefix(name, "shunt_") {
			names = append(names, name)
		}
	}
	out, err := e.NS.Run("bpftool", "-j", "net", "show", "dev", e.Device)
	r.must(err)
	var shown []struct {
		XDP []struct{ ID int } `json:"xdp"`
	}
	r.must(json.Unmarshal([]byte(out), &shown))
	for _, s := range shown {
		for _, x := range s.XDP {
			if out, err := e.NS.Run("bpftool", "prog", "show", "id", fmt.Sprint(x.ID)); err != nil || strings.Contains(out, "shunt_") {
				names = append(names, "xdp")
			}
		}
	}
	return names
}

// sink takes in the frames at one end and verifies one of every sample.
func (r *rig) sink(e lab.End, sample int) *traffic.Sink {
	r.t.Helper()
	s, err := traffic.AttachSink(e.NS, e.Device, sample)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

// clientPort is the source port of a generator's first flow, servicePort its destination.
const clientPort, servicePort = 10000, 9

// generator sends small UDP frames from client to server, on CPU 1.
func (r *rig) generator(flows int, rate float64) *traffic.Generator {
	r.t.Helper()
	g, err := traffic.NewGenerator(traffic.Config{
		NS: r.Client.NS, Device: r.Client.Device, CPU: 1, Rate: rate,
		Frames: traffic.Frames{
			SourceMAC: r.Client.MAC, DestMAC: r.LAN.MAC, Protocol: traffic.UDP, Size: 64, Flows: flows,
			Source: netip.AddrPortFrom(r.Client.V4.Addr(), clientPort),
			Dest:   netip.AddrPortFrom(r.Server.V4.Addr(), servicePort),
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { g.Close() })
	return g
}

// send sends n frames.
func (r *rig) send(g *traffic.Generator, n uint64) traffic.Result {
	r.t.Helper()
	sent, err := g.Run(context.Background(), n)
	if err != nil {
		r.t.Fatal(err)
	}
	return sent
}

// whole asserts that all sent frames have come, in order and unaltered.
func (r *rig) whole(what string, s *traffic.Sink, sent uint64) {
	r.t.Helper()
	got, err := s.Wait(sent, 2*time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	if got.Frames != sent || got.Lost+got.Reordered+got.Duplicates+got.Bad() != 0 || got.Verified == 0 {
		r.t.Errorf("%s: sent %d, arrived %+v", what, sent, got)
	}
}

// connections is the router's conntrack table for one family.
func (r *rig) connections(family uint8) (list []kernel.Connection) {
	r.t.Helper()
	r.must(r.LAN.NS.Do(func() error {
		ct, err := kernel.OpenConntrack()
		if err != nil {
			return err
		}
		defer ct.Close()
		list, err = ct.Dump(family)
		return err
	}))
	return list
}

// ping makes sure that the neighbours are known.
func (r *rig) ping() {
	r.t.Helper()
	out, err := r.Client.NS.Run("ping", "-n", "-c", "1", "-W", "2", "-i", "0.2", r.Server.V4.Addr().String())
	if err != nil {
		r.t.Fatalf("ping: %v: %s", err, out)
	}
}

// listenUDP and dialUDP make sockets inside a namespace.
func (r *rig) listenUDP(n *lab.NS, at netip.AddrPort) (c *net.UDPConn) {
	r.t.Helper()
	r.must(n.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) dialUDP(n *lab.NS, from, to netip.AddrPort) (c *net.UDPConn) {
	r.t.Helper()
	r.must(n.Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		return err
	}))
	r.t.Cleanup(func() { c.Close() })
	return c
}
