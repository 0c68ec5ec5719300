// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// rig is a firewall lab with a third port, by which the spare host is reached, and with a
// pump. The daemon comes and goes.
type rig struct {
	t *testing.T
	*lab.Topology
	third    lab.End // the router's port to the spare host
	spare    lab.End
	masked   bool      // the client's IPv4 leaves with the router's address
	saved    string    // ruleset
	admitted time.Time // until when (admitForNow)
	heard    *lab.Listener
	pump     *pump
	lease    time.Duration
	way      string // "": without shunt
	daemon   *lab.Daemon
	api      *api.Client
}

// newRig builds the router; begin starts the traffic.
func newRig(t *testing.T, o lab.FirewallOptions) *rig {
	t.Helper()
	o.Name, o.Neighbours = "change", true
	top, err := lab.Firewall(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, Topology: top, masked: o.NAT == lab.NATMasquerade, api: api.NewClient(filepath.Join(top.State(), "api.sock"))}
	t.Cleanup(func() { r.must(top.Close()) })
	r.addSpare()
	// The hosts' own stacks hear nothing, so they answer nothing but ARP.
	const deaf = "table inet deaf {\n\tchain in {\n\t\ttype filter hook prerouting priority -500; policy drop;\n\t}\n}\n"
	for _, e := range []lab.End{r.Client, r.Server, r.spare} {
		r.must(e.NS.NFT(deaf))
	}
	// Errors are compared, so none may be held back.
	r.do("sysctl net.ipv4.icmp_ratelimit=0", "sysctl net.ipv6.icmp.ratelimit=0")
	r.heard, err = r.LAN.NS.Listen()
	r.must(err)
	t.Cleanup(func() { r.must(r.heard.Close()) })
	return r
}

// addSpare adds the third host: 192.0.2.2 and 2001:2:0:20::2, behind the port "dmz".
func (r *rig) addSpare() {
	r.t.Helper()
	spaces, err := r.Namespaces("b")
	r.must(err)
	end := func(n *lab.NS, device string, host byte) lab.End {
		return lab.End{NS: n, Device: device, MAC: net.HardwareAddr{2, 0, 0, 0, 20, host},
			V4: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, host}), 24),
			V6: netip.MustParsePrefix(fmt.Sprintf("2001:2:0:20::%d/64", host))}
	}
	r.spare, r.third = end(spaces[0], "eth0", 2), end(r.LAN.NS, "dmz", 1)
	r.must(r.Connect(r.spare, r.third, lab.Wire, 0))
	r.must(r.third.Know(r.spare))
}

// begin starts the traffic: one packet of each flow in every `each`.
func (r *rig) begin(flows []flow, each time.Duration, shared *outcomes) {
	r.t.Helper()
	var taps [hosts]*tap
	for i, e := range []lab.End{r.Client, r.Server, r.spare} {
		var err error
		taps[i], err = openTap(e)
		r.must(err)
		r.t.Cleanup(func() { r.must(taps[i].close()) })
	}
	r.pump = newPump(taps, flows, each, shared)
	r.t.Cleanup(func() { r.must(r.pump.close()) })
	for i := range flows {
		if f := &flows[i]; f.proto == unix.IPPROTO_TCP {
			r.shakeHands(taps[f.from], f)
		}
	}
	r.pump.start()
}

// run starts shunt on all ports of the router: "xdp" or "tc" is the way of all flows.
func (r *rig) run(program, way string) {
	r.t.Helper()
	mode := "off"
	if way == api.WayXDP {
		mode = "on"
	}
	file := filepath.Join(r.Dir(), "shunt.toml")
	text := fmt.Sprintf("port = [\"lan\", \"wan\", \"dmz\"]\nxdp = %q\nlease = %q\nflows = 16384\n", mode, r.lease)
	r.must(os.WriteFile(file, []byte(text), 0o600))
	d, err := r.StartDaemon(context.Background(), r.LAN.NS, program, "--config", file)
	r.must(err)
	r.daemon, r.way = d, way
}

// end stops the daemon and takes all away.
func (r *rig) end() {
	r.t.Helper()
	if r.t.Failed() {
		r.t.Logf("daemon's log:\n%s", r.daemon.Log())
	}
	r.must(r.daemon.Stop())
	r.way = ""
}

// must is for steps that cannot fail on a sane machine.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// do changes things, each in a line: a command in the router, or with "server: " and the like
// before it in another namespace. "sysctl KEY=VALUE" is done by hand, and lines of ip that
// follow each other go in one batch, so that nothing much lies between them.
func (r *rig) do(lines ...string) {
	r.t.Helper()
	r.must(r.try(lines...))
}

func (r *rig) try(lines ...string) error {
	for len(lines) > 0 {
		n, line := r.place(lines[0])
		word, rest, _ := strings.Cut(line, " ")
		lines = lines[1:]
		var err error
		switch word {
		case "sysctl":
			key, value, _ := strings.Cut(rest, "=")
			err = n.Sysctl(key, value)
		case "nft":
			err = n.NFT(rest)
		case "ip":
			batch := []string{rest}
			for len(lines) > 0 && strings.HasPrefix(lines[0], "ip ") && n == r.LAN.NS {
				batch = append(batch, strings.TrimPrefix(lines[0], "ip "))
				lines = lines[1:]
			}
			err = n.IP(batch...)
		default:
			_, err = n.Run(words(line)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// words splits a command, with quotes.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

// place is the namespace that a line is for.
func (r *rig) place(line string) (*lab.NS, string) {
	for name, n := range map[string]*lab.NS{"client: ": r.Client.NS, "server: ": r.Server.NS, "spare: ": r.spare.NS} {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return n, rest
		}
	}
	return r.LAN.NS, line
}

// hits is how many packets of each stream were repeated so far, and the way of those that are
// armed.
func (r *rig) hits() (packets []uint64, ways []string) {
	r.t.Helper()
	flows, err := r.api.Flows(context.Background(), api.FlowFilter{})
	r.must(err)
	packets, ways = make([]uint64, len(r.pump.streams)), make([]string, len(r.pump.streams))
	for i, s := range r.pump.streams {
		for _, f := range flows {
			if f.Proto == api.ProtoName(s.proto) && f.Source == s.source && f.Destination == s.dest {
				packets[i], ways[i] = f.Packets, f.Way
				if f.State != api.FlowArmed {
					ways[i] = ""
				}
			}
		}
	}
	return packets, ways
}

// fast waits until all streams that should be repeated are, by a way if one is named.
func (r *rig) fast(when string, should []bool, way string) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * inTheEnd); ; {
		before, _ := r.hits()
		time.Sleep(25 * time.Millisecond)
		after, ways := r.hits()
		missing := -1
		for i, want := range should {
			if want && (after[i] <= before[i] || ways[i] == "" || way != "" && ways[i] != way) {
				missing = i
			}
		}
		if missing < 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s, %s: %s is not repeated: %s", r.way, when, r.pump.streams[missing].name, r.why(missing))
		}
	}
}

// still waits until nothing is repeated any more, and returns the hits.
func (r *rig) still() []uint64 {
	r.t.Helper()
	before, _ := r.hits()
	for deadline := time.Now().Add(inTheEnd); ; {
		time.Sleep(50 * time.Millisecond)
		after, _ := r.hits()
		if slices.Equal(before, after) {
			return after
		}
		if before = after; time.Now().After(deadline) {
			r.t.Fatalf("%s: packets are still repeated", r.way)
		}
	}
}

// why is what shunt says of a stream that is not fast.
func (r *rig) why(i int) string {
	s := r.pump.streams[i]
	flows, err := r.api.Flows(context.Background(), api.FlowFilter{})
	r.must(err)
	at := slices.IndexFunc(flows, func(f api.Flow) bool { return f.Source == s.source && f.Destination == s.dest })
	if at < 0 {
		return "no such flow"
	}
	f := flows[at]
	return fmt.Sprintf("%s, %s, by %q: %s, %d packets", f.Port, f.State, f.Way, f.Why, f.Packets)
}

// signal is for a daemon that is to hang or to go on.
func (r *rig) signal(s syscall.Signal) { r.t.Helper(); r.must(r.daemon.Signal(s)) }

// terminate ends the daemon as a service manager does: what is attached stays.
func (r *rig) terminate() {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	r.must(r.daemon.Wait())
}

// index is the number of a device in a namespace.
func (r *rig) index(e lab.End) (n int) {
	r.t.Helper()
	r.must(e.NS.Do(func() error {
		device, err := net.InterfaceByName(e.Device)
		if err == nil {
			n = device.Index
		}
		return err
	}))
	return n
}

// rewire makes the wire between server and router anew: the router's end keeps its number,
// and gets a MAC and all else that the lab gave it.
func (r *rig) rewire(mac net.HardwareAddr) {
	r.t.Helper()
	n := r.index(r.WAN)
	r.do("ip link del wan")
	router, host := r.WAN, r.Server
	r.do(fmt.Sprintf("ip link add %s index %d address %s type veth peer name %s netns %s address %s",
		router.Device, n, mac, host.Device, host.NS.Name(), host.MAC))
	// Both poll before either is up: a veth asks its peer as it is opened (veth_set_xdp_features).
	_, err := router.NS.Run("ethtool", "-K", router.Device, "gro", "on")
	r.must(err)
	_, err = host.NS.Run("ethtool", "-K", host.Device, "gro", "on", "tx", "off", "tso", "off", "gso", "off")
	r.must(err)
	for _, e := range []lab.End{host, router} {
		r.must(e.NS.IP("link set "+e.Device+" up", fmt.Sprintf("address add %s dev %s", e.V4, e.Device), fmt.Sprintf("address add %s dev %s", e.V6, e.Device)))
	}
	r.must(router.Know(host))
	r.must(r.pump.taps[server].refind())
}
