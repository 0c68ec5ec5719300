// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// arena is a lab while a fuzz script is played in it.
type arena struct {
	stage
	c      router
	fence  uint64 // frames sent to see that all before them are through
	began  time.Time
	opened time.Time // when the first conversations had all been answered
}

// record is what came of a script.
type record struct {
	seen       [][]capture // after each frame, by both sides
	conntrack  []string
	neighbours []string
	switches   []string
	took       time.Duration
	before     map[string]map[string]uint64 // counters, once the first flows are armed
	after      map[string]map[string]uint64
}

// steady makes the router's own words repeatable: no limit of ICMP errors, no answer that
// comes by a timer, no state that ends before the comparison.
var steady = map[string]string{
	"net.ipv4.icmp_ratemask": "0", "net.ipv4.icmp_ratelimit": "0", "net.ipv6.icmp.ratelimit": "0", "net.ipv6.icmp.ratemask": "200",
	"net.ipv4.neigh.lan.mcast_solicit": "0", "net.ipv4.neigh.wan.mcast_solicit": "0",
	"net.ipv6.neigh.lan.mcast_solicit": "0", "net.ipv6.neigh.wan.mcast_solicit": "0",
	"net.ipv4.neigh.lan.delay_first_probe_time": "600", "net.ipv4.neigh.wan.delay_first_probe_time": "600",
	"net.ipv6.neigh.lan.delay_first_probe_time": "600", "net.ipv6.neigh.wan.delay_first_probe_time": "600",
	"net.ipv4.conf.all.send_redirects": "0", "net.ipv4.conf.lan.send_redirects": "0", "net.ipv4.conf.wan.send_redirects": "0",
	"net.ipv6.auto_flowlabels": "0", "net.ipv4.ipfrag_time": "600", "net.ipv6.ip6frag_time": "600",
	"net.netfilter.nf_conntrack_frag6_timeout": "600", "net.netfilter.nf_conntrack_udp_timeout": "600",
	"net.netfilter.nf_conntrack_icmp_timeout": "600", "net.netfilter.nf_conntrack_icmpv6_timeout": "600",
	"net.netfilter.nf_conntrack_generic_timeout": "600", "net.netfilter.nf_conntrack_gre_timeout": "600",
	"net.netfilter.nf_conntrack_tcp_timeout_close": "600", "net.netfilter.nf_conntrack_tcp_timeout_last_ack": "600",
	"net.netfilter.nf_conntrack_sctp_timeout_closed": "600", "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait": "600",
	"net.netfilter.nf_conntrack_sctp_timeout_cookie_echoed": "600", "net.netfilter.nf_conntrack_sctp_timeout_shutdown_sent": "600",
	"net.netfilter.nf_conntrack_sctp_timeout_shutdown_recd": "600", "net.netfilter.nf_conntrack_sctp_timeout_shutdown_ack_sent": "600",
}

// assured is IPS_ASSURED.
const assured = 1 << 2

// newArena builds a router, with shunt unless the way is "".
func newArena(t *testing.T, c router, way string) *arena {
	t.Helper()
	a := &arena{stage: stage{T: t, way: way}, c: c}
	t.Cleanup(a.close)
	a.must(a.build())
	if way != "" {
		a.daemon()
	}
	return a
}

func (a *arena) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

func (a *arena) build() (err error) {
	o := a.c.options("fuzz", false)
	if a.lab, err = lab.Firewall(o); err != nil {
		return err
	}
	a.undo = append(a.undo, a.lab.Close)
	r := a.lab.LAN.NS
	for _, all := range []map[string]string{steady, a.c.sysctls} {
		for key, value := range all {
			if err := r.Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	const deaf = "table inet deaf {\n\tchain in {\n\t\ttype filter hook prerouting priority -500; policy drop;\n\t}\n}\n"
	for _, n := range []*lab.NS{a.lab.Client.NS, a.lab.Server.NS} {
		// A switch on the far side learns who sends to it.
		err := n.IP("link add sw type bridge mcast_snooping 0", "link set sw addrgenmode none up", "link set eth0 master sw")
		if err := errors.Join(err, n.NFT(deaf)); err != nil {
			return err
		}
	}
	err = errors.Join(r.NFT(a.c.addition(a.lab)), r.NFT(strings.Join(a.c.rules, "")),
		r.IP(fmt.Sprintf("link set wan mtu %d", a.c.mtu),
			"route add blackhole default", // or ip_error() would answer, no more than so often
			fmt.Sprintf("neighbour replace %s lladdr %s dev lan nud permanent", lab.Second4, a.lab.Client.MAC),
			fmt.Sprintf("neighbour replace %s lladdr %s dev lan nud permanent", lab.Second6, a.lab.Client.MAC)))
	if err != nil {
		return err
	}
	for i, e := range []lab.End{a.lab.Client, a.lab.Server} {
		if a.taps[i], err = openTap(e); err != nil {
			return err
		}
		a.undo = append(a.undo, a.taps[i].close)
	}
	return nil
}

func (a *arena) daemon() {
	a.Helper()
	mode := map[string]string{api.WayXDP: "on", api.WayTC: "off"}[a.way]
	file := filepath.Join(a.lab.Dir(), "shunt.toml")
	text := fmt.Sprintf("port = [\"lan\", \"wan\"]\nxdp = %q\nthreshold = %d\nlease = %q\nflows = 65536\n", mode, a.c.threshold, a.c.lease)
	a.must(os.WriteFile(file, []byte(text), 0o600))
	d, err := a.lab.StartDaemon(a.Context(), a.lab.LAN.NS, program, "--config", file)
	a.must(err)
	a.api = api.NewClient(d.Socket())
	a.undo = append(a.undo, func() error {
		if a.Failed() {
			a.Log(d.Log())
		}
		return d.Stop()
	})
}

// run plays a script. Sending a frame takes it through router and wires in the same breath:
// one processor does it all, in softirqs of the system call. The frame of a fence, which no
// router repeats, is sent behind each to be sure.
func (a *arena) run(s *fuzzScript) *record {
	a.Helper()
	a.script = &script{conversations: s.conversations}
	p := &record{seen: make([][]capture, len(s.items))}
	a.began = time.Now()
	stay := a.pin()
	a.openFence(s)
	for i, x := range s.items {
		if a.await(x); x.waitFor == waitArmed && a.opened.IsZero() {
			if a.opened = time.Now(); a.api != nil {
				p.before = a.counters()
			}
		}
		if err := a.taps[x.from].send(x.frame, offload{}); err != nil &&
			!errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.ENOBUFS) { // over the MTU of one end or the other
			a.Fatal(err)
		}
		p.seen[i] = a.collect(s, x.from)
	}
	stay()
	p.took = time.Since(a.began)
	if a.api != nil {
		p.after = a.counters()
	}
	a.states(p)
	return p
}

// turn says whose the next processor is.
var turn atomic.Int32

// pin keeps this goroutine on one processor until it is undone.
func (a *arena) pin() (undo func()) {
	a.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	a.must(unix.SchedGetaffinity(0, &before))
	cpu := int(turn.Add(1)) % before.Count()
	for i := range 1024 {
		if before.IsSet(i) && cpu >= 0 {
			if cpu == 0 {
				one.Set(i)
			}
			cpu--
		}
	}
	a.must(unix.SchedSetaffinity(0, &one))
	return func() {
		a.must(unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	}
}

// openFence lets conntrack know the fence's flow, both ways.
func (a *arena) openFence(s *fuzzScript) {
	for range 2 {
		for way := range 2 {
			a.collect(s, s.fence.ends[way].at)
		}
	}
}

// collect sends a fence behind what was sent, and returns all that came out until then.
func (a *arena) collect(s *fuzzScript, from int) (all []capture) {
	a.Helper()
	way := slices.IndexFunc(s.fence.ends[:], func(l leg) bool { return l.at == from })
	a.fence++
	mark := binary.BigEndian.AppendUint64([]byte("shunt's fence"), a.fence)
	c := s.fence
	if a.fence == 2 || a.fence == 4 { // both ends are at one host in a hairpin
		way = 1
	}
	f := c.ends[way].withOptions(header{ttl: 64, id: uint16(a.fence)}, protoUDP, c.sealed(way, 0, mark))
	a.must(a.taps[from].send(f, offload{}))
	to := c.ends[1-way].at
	for {
		frame, o, err := a.taps[to].receive(0)
		a.must(err)
		if frame == nil {
			a.Fatalf("the fence behind a frame does not come out within %v", patience)
		}
		if bytes.HasSuffix(frame, mark) {
			break
		}
		all = append(all, capture{frame, o})
	}
	for {
		frame, o, err := a.taps[1-to].receive(unix.MSG_DONTWAIT)
		a.must(err)
		if frame == nil {
			return all
		}
		all = append(all, capture{frame, o})
	}
}

// await waits, with shunt, for what a frame needs.
func (a *arena) await(x item) {
	a.Helper()
	if x.waitFor == waitOld {
		time.Sleep(time.Until(a.opened.Add(streamAge)))
	}
	if a.api == nil {
		return
	}
	switch x.waitFor {
	case waitOld:
		a.must(a.api.Pause(a.Context()))
	case waitSettled:
		time.Sleep(15 * time.Millisecond)
	case waitLiberal:
		a.until("be-liberal", func() (bool, string) { return a.liberal(x.learning) })
	case waitArmed:
		a.until("armed flows", func() (bool, string) {
			flows, err := a.api.Flows(context.Background(), api.FlowFilter{})
			if err != nil {
				return false, err.Error()
			}
			for _, i := range x.learning {
				c := a.script.conversations[i]
				for d := range c.ends {
					f := c.find(flows, d)
					if !c.slow && (f == nil || f.State == api.FlowSeen) {
						return false, fmt.Sprintf("%s (direction %d): %+v", c.name, d, f)
					}
				}
			}
			return true, ""
		})
	}
}

// liberal asks whether the daemon has told conntrack to let these connections be.
func (a *arena) liberal(conversations []int) (bool, string) {
	entries, err := dumpConntrack(a.lab.LAN.NS)
	if err != nil {
		return false, err.Error()
	}
	for _, i := range conversations {
		l := a.script.conversations[i].ends[0]
		for _, c := range entries {
			if c.Original.Proto == protoTCP && c.Original.Source == l.source && c.Original.Destination == l.dest &&
				c.FlagsOriginal&c.FlagsReply&kernel.TCPLiberal == 0 && a.script.conversations[i].proto == protoTCP {
				return false, fmt.Sprintf("%v", c.Original)
			}
		}
	}
	return true, ""
}

// connections are what conntrack knows. When a UDP connection that began among the mutants becomes ASSURED depends
// on the time between two of its packets, and when a GRE one that has one address at both ends does on how many
// of them went before shunt repeats them: the second is the reply to the first. So that bit is left out.
func (a *arena) connections() (all []string) {
	a.Helper()
	entries, err := dumpConntrack(a.lab.LAN.NS)
	a.must(err)
	for _, c := range entries {
		self := c.Original.Proto == protoGRE && c.Original.Source == c.Original.Destination
		if (c.Original.Proto == protoUDP || self) && !slices.ContainsFunc(a.script.conversations, func(v *conversation) bool {
			return v.ends[0].source == c.Original.Source && v.ends[0].dest == c.Original.Destination
		}) {
			c.Status &^= assured
		}
		all = append(all, trackedLine(c))
	}
	slices.Sort(all)
	return all
}

// states asks for all that must be the same in the end.
func (a *arena) states(p *record) {
	a.Helper()
	p.conntrack = a.connections()
	for _, args := range [][]string{{"ip", "-j", "neigh", "show"}, {"ip", "-6", "-j", "neigh", "show"}} {
		text, err := a.lab.LAN.NS.Run(args...)
		a.must(err)
		var all []struct {
			Dst, Dev, Lladdr string
			State            []string
		}
		a.must(json.Unmarshal([]byte(text), &all))
		for _, n := range all {
			known := "used" // which of REACHABLE, STALE, DELAY and PROBE is a matter of time
			switch x := strings.Join(n.State, " "); x {
			case "FAILED", "INCOMPLETE": // and so is when what nobody answered for is forgotten
				continue
			case "PERMANENT", "NOARP":
				known = x
			}
			p.neighbours = append(p.neighbours, fmt.Sprintf("%s dev %s %s %s", n.Dst, n.Dev, n.Lladdr, known))
		}
	}
	for _, e := range []lab.End{a.lab.Client, a.lab.Server} {
		text, err := e.NS.Run("bridge", "fdb", "show", "br", "sw", "dynamic")
		a.must(err)
		p.switches = append(p.switches, strings.Split(strings.TrimSpace(text), "\n")...)
	}
	if a.c.nat == lab.NATHairpin { // nothing goes out there but what the router says by itself, now and then
		p.switches = slices.DeleteFunc(p.switches, func(line string) bool { return line == "" || strings.HasPrefix(line, a.lab.WAN.MAC.String()) })
	}
	slices.Sort(p.neighbours)
	slices.Sort(p.switches)
}
