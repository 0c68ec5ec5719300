// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/foreign"
	"shunt/internal/lab"
)

// queueCase is something that stands between TC egress and the wire. A command that the kernel refuses
// ends the case: the kernel lacks the kind.
type queueCase struct {
	name     string
	deeper   string // what shunt ports says of it; empty: flows by it stay fast
	commands []string
}

// tree is a shaper whose filters choose between classes; what none chooses is in 1:99.
var tree = []string{"tc qdisc add dev wan root handle 1: htb default 99",
	"tc class add dev wan parent 1: classid 1:2 htb rate 900mbit", "tc class add dev wan parent 1: classid 1:3 htb rate 900mbit",
	"tc class add dev wan parent 1: classid 1:4 htb rate 900mbit", "tc class add dev wan parent 1: classid 1:5 htb rate 900mbit",
	"tc class add dev wan parent 1: classid 1:99 htb rate 900mbit"}

const filterAt = "tc filter add dev wan parent 1: protocol all pref 7 "

func qdisc(kind, deeper, args string, more ...string) queueCase {
	return queueCase{"qdisc/" + kind, deeper, append([]string{"tc qdisc add dev wan root handle 1: " + args}, more...)}
}

func filter(name, deeper, words string, before ...string) queueCase {
	return queueCase{"filter/" + name, deeper, slices.Concat(before, tree, []string{filterAt + words})}
}

func action(name, deeper, words string, before ...string) queueCase {
	return queueCase{"action/" + name, deeper, slices.Concat(before, tree, []string{filterAt + "u32 match u32 0 0 flowid 1:3 action " + words})}
}

func ematch(name, deeper, words string, before ...string) queueCase {
	return queueCase{"ematch/" + name, deeper, slices.Concat(before, tree, []string{filterAt + "basic match '" + words + "' classid 1:3"})}
}

var queueCases = []queueCase{
	qdisc("noqueue", "", "noqueue"), {"qdisc/clsact", "", []string{"tc qdisc add dev wan clsact"}},
	qdisc("pfifo", "", "pfifo"), qdisc("bfifo", "", "bfifo"), qdisc("pfifo_head_drop", "", "pfifo_head_drop"),
	qdisc("pfifo_fast", "", "pfifo_fast"), qdisc("tbf", "", "tbf rate 900mbit burst 100k latency 1s"),
	{"qdisc/htb", "", tree}, qdisc("mq", "", "mq"), qdisc("mqprio", "", "mqprio num_tc 1 map 0 queues 1@0 hw 0"),
	qdisc("hfsc", "", "hfsc default 2", "tc class add dev wan parent 1: classid 1:2 hfsc sc rate 900mbit"),
	qdisc("prio", "", "prio"), qdisc("ets", "", "ets bands 3 strict 3"),
	qdisc("drr", "", "drr", "tc class add dev wan parent 1: classid 1:2 drr", "tc filter add dev wan parent 1: protocol all u32 match u32 0 0 flowid 1:2"),
	qdisc("qfq", "", "qfq", "tc class add dev wan parent 1: classid 1:2 qfq weight 1", "tc filter add dev wan parent 1: protocol all u32 match u32 0 0 flowid 1:2"),
	qdisc("sfq", "", "sfq"), qdisc("fq_codel", "", "fq_codel"), qdisc("fq_pie", "", "fq_pie"), qdisc("fq", "", "fq"),
	qdisc("codel", "", "codel"), qdisc("pie", "", "pie"),
	qdisc("red", "", "red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 900mbit"),
	qdisc("red with qevent", "qevent", "red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 900mbit qevent early_drop block 10"),
	qdisc("choke", "", "choke limit 1000 bandwidth 900mbit"), qdisc("sfb", "", "sfb"), qdisc("hhf", "", "hhf"),
	qdisc("cake", "", "cake"), qdisc("cake nat", "(nat)", "cake nat dual-srchost"),
	qdisc("cake changed to nat", "(nat)", "cake", "tc qdisc change dev wan root handle 1: cake nat"),
	qdisc("cake changed from nat", "", "cake nat", "tc qdisc change dev wan root handle 1: cake nonat"),
	qdisc("cake in a class", "qdisc cake 20: (nat)", "prio", "tc qdisc add dev wan parent 1:1 handle 20: cake nat"),
	qdisc("netem", "", "netem delay 1ms"), qdisc("cbs", "", "cbs locredit -1470 hicredit 30 sendslope -980000 idleslope 900000 offload 0"),
	qdisc("plug", "", "plug limit 1000000", "tc qdisc change dev wan root handle 1: plug release_indefinite"),
	qdisc("skbprio", "", "skbprio"), qdisc("blackhole", "", "blackhole"),
	qdisc("gred", "qdisc gred", "gred setup DPs 2 default 1",
		"tc qdisc change dev wan root handle 1: gred limit 400000 min 30000 max 90000 avpkt 1000 burst 55 DP 1 probability 0.02 bandwidth 900mbit"),
	qdisc("multiq", "qdisc multiq", "multiq"), qdisc("etf", "qdisc etf", "etf clockid CLOCK_TAI delta 100000 skip_sock_check"),
	qdisc("taprio", "qdisc taprio", "taprio num_tc 1 map 0 queues 1@0 base-time 0 sched-entry S 01 1000000 clockid CLOCK_TAI"),
	{"qdisc/teql", "qdisc teql", []string{"modprobe -q sch_teql || :", "tc qdisc add dev wan root teql0"}},
	{"qdisc/added to a tree", "qdisc gred", append(slices.Clone(tree), "tc qdisc add dev wan parent 1:99 handle 20: gred setup DPs 2 default 1")},

	filter("u32", "", "u32 match u32 0 0 flowid 1:3"), filter("u32 by mark", "", "u32 match mark 5 0xff flowid 1:3"),
	filter("u32 by device", "", "u32 match u32 0 0 indev lan flowid 1:3"),
	filter("fw", "", "handle 5 fw flowid 1:3"), filter("matchall", "", "matchall classid 1:3"),
	filter("bpf", "filter bpf pref 7 at 1: (reads what its program reads)", "bpf bytecode '1,6 0 0 4294967295' flowid 1:3"),
	{"filter/flower", "", append(slices.Clone(tree), "tc filter add dev wan parent 1: protocol ip pref 7 flower ip_proto udp dst_port 6000 classid 1:3")},
	{"filter/flower ct", "ct_*", append(slices.Clone(tree), "tc filter add dev wan parent 1: protocol ip pref 7 flower ct_state +trk+est classid 1:3")},
	{"filter/flower enc", "enc_*", append(slices.Clone(tree), "tc filter add dev wan parent 1: protocol ip pref 7 flower enc_key_id 7 classid 1:3")},
	filter("flow map mark", "", "handle 1 flow map key mark baseclass 1:1 rshift 0 addend 0"),
	filter("flow hash", "", "handle 1 flow hash keys src,dst,proto,proto-src divisor 4 baseclass 1:2"),
	filter("flow map nfct-src", "nfct-src", "handle 1 flow map key nfct-src and 0xff divisor 256 baseclass 1:1"),
	filter("flow map nfct-proto-dst", "nfct-proto-dst", "handle 1 flow map key nfct-proto-dst and 0x3 baseclass 1:1"),
	filter("flow map rt-classid", "rt-classid", "handle 1 flow map key rt-classid baseclass 1:1", "ip route change 198.19.0.0/24 dev wan src 198.19.0.1 realm 3"),
	filter("flow hash proto-dst", "proto-dst", "handle 1 flow hash keys src,proto-dst divisor 4 baseclass 1:2"),
	filter("flow map sk-uid", "sk-uid", "handle 1 flow map key sk-uid baseclass 1:1"),
	{"filter/route", "filter route", slices.Concat([]string{"ip route change 198.19.0.0/24 dev wan src 198.19.0.1 realm 3"}, tree,
		[]string{"tc filter add dev wan parent 1: protocol ip pref 7 route to 3 classid 1:3"})},
	filter("cgroup", "filter cgroup", "handle 1: cgroup"),
	{"filter/basic", "", append(slices.Clone(tree), filterAt+"basic classid 1:3")},
	{"filter/clsact egress", "", []string{"tc qdisc add dev wan clsact", "tc filter add dev wan egress protocol all pref 7 u32 match u32 0 0 classid 1:3"}},
	{"filter/clsact egress bpf", "at egress", []string{"tc qdisc add dev wan clsact", "tc filter add dev wan egress protocol all pref 7 bpf da bytecode '1,6 0 0 4294967295'"}},
	{"filter/shared block", "", []string{"tc qdisc add dev wan egress_block 7 clsact", "tc filter add block 7 protocol all pref 7 u32 match u32 0 0 classid 1:3"}},
	{"filter/shared block bpf", "at egress", []string{"tc qdisc add dev wan egress_block 7 clsact", "tc filter add block 7 protocol all pref 7 bpf da bytecode '1,6 0 0 4294967295'"}},
	{"filter/shared block bpf before", "at egress", []string{"tc qdisc add dev lan egress_block 7 clsact", "tc filter add block 7 protocol all pref 7 bpf da bytecode '1,6 0 0 4294967295'",
		"tc qdisc add dev wan egress_block 7 clsact", "tc qdisc del dev lan clsact"}},

	action("gact", "", "ok"), action("police", "", "police rate 900mbit burst 1m conform-exceed drop"),
	action("skbedit", "", "skbedit priority 1:4"), action("connmark", "action connmark", "connmark"),
	action("ctinfo", "action ctinfo", "ctinfo dscp 63 64"),
	{"action/ct", "action ct", []string{"tc qdisc add dev wan clsact", "tc filter add dev wan egress protocol ip pref 7 u32 match u32 0 0 action ct"}},
	action("bpf", "action bpf", "bpf bytecode '1,6 0 0 4294967295'"),
	action("mirred", "action mirred", "mirred egress mirror dev wan2", "ip link add wan2 type ifb", "ip link set wan2 up"),
	action("ife", "action ife", "ife encode allow mark"), action("sample", "action sample", "sample rate 10 group 5"),
	action("pedit", "", "pedit munge offset -14 u8 set 2"), action("pedit by header", "", "pedit ex munge udp dport set 6000 pipe csum udp"),
	action("csum", "", "csum ip4h and udp"), action("simple", "", "simple sdata x"),
	action("nat", "", "nat egress 198.19.0.1/32 198.19.0.1"), action("skbmod", "", "skbmod set smac 02:00:00:00:13:01"),
	action("vlan", "", "vlan pop pipe"), action("vlan push", "", "vlan push id 5"),
	action("gate", "", "gate clockid CLOCK_TAI sched-entry open 200000000ns -1 -1"),
	action("tunnel_key", "", "tunnel_key unset"), action("mpls", "", "mpls dec_ttl pipe"), action("mpls push", "", "mpls push label 100"),
	{"action/behind another", "action connmark", slices.Concat(tree, []string{filterAt + "u32 match u32 0 0 flowid 1:3 action ok action connmark"})},

	ematch("cmp", "", "cmp(u8 at 0 layer network mask 0xf0 gt 1)"), ematch("cmp transport", "layer transport", "cmp(u16 at 2 layer transport eq 6000)"),
	ematch("nbyte", "", `nbyte("E" at 0 layer network)`), ematch("nbyte transport", "layer transport", `nbyte("a" at 0 layer transport)`),
	ematch("u32", "", "u32(u8 0x40 0x40 at 0)"), ematch("meta mark", "", "meta(nf_mark eq 5)"),
	ematch("meta rt_classid", "(rt_classid)", "meta(rt_classid eq 3)", "ip route change 198.19.0.0/24 dev wan src 198.19.0.1 realm 3"),
	ematch("meta tc_index", "(tc_index)", "meta(tc_index eq 0)"), ematch("meta socket", "ematch meta", "meta(sk_family eq 0)"),
	ematch("ipset", "ematch ipset", "ipset(hosts src)", "ipset create hosts hash:ip", "ipset add hosts 198.19.0.1"),
	ematch("canid", "ematch canid", "canid(sff 0x123)"), ematch("ipt", "ematch ipt", "ipt(-m policy --dir in --pol none)"),
	ematch("container", "", "(cmp(u8 at 0 layer network mask 0xf0 gt 1) or meta(nf_mark eq 1)) and not meta(nf_mark eq 9)"),
	ematch("and", "ematch meta", "cmp(u8 at 0 layer network mask 0xf0 gt 1) and not meta(tc_index eq 1)"),
}

// queueRig is a router with a masquerade, and two flows through it, one of each family.
type queueRig struct {
	*rig
	from, to [2]*net.UDPConn
}

func newQueueRig(t *testing.T, mode string) *queueRig {
	r := &queueRig{rig: newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})}
	r.nft(`table inet m { chain f { type filter hook forward priority 10; oifname "wan" meta mark set 5; }; }`)
	r.start(program, with("--xdp", mode)...)
	for i, end := range []struct{ client, server netip.Addr }{
		{r.Client.V4.Addr(), r.Server.V4.Addr()}, {r.Client.V6.Addr(), r.Server.V6.Addr()},
	} {
		at := netip.AddrPortFrom(end.server, 6000)
		r.must(r.Server.NS.Do(func() (err error) { r.to[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }))
		r.must(r.Client.NS.Do(func() (err error) {
			r.from[i], err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(end.client, 40000)), net.UDPAddrFromAddrPort(at))
			return err
		}))
		t.Cleanup(func() { r.to[i].Close(); r.from[i].Close() })
	}
	return r
}

// send sends n packets of each flow.
func (r *queueRig) send(n int) {
	for range n {
		for _, c := range r.from {
			c.Write([]byte("something"))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// receive takes what arrived of each flow, until nothing comes for a time.
func (r *queueRig) receive(patience time.Duration) (got [2]int) {
	b := make([]byte, 100)
	for i, c := range r.to {
		for ; ; got[i]++ {
			c.SetReadDeadline(time.Now().Add(patience))
			if _, err := c.Read(b); err != nil {
				break
			}
		}
	}
	return got
}

// repeats reports how many of 2n packets were repeated.
func (r *queueRig) repeats(n int) uint64 {
	r.t.Helper()
	before := r.status().Hits
	r.send(n)
	return r.status().Hits - before
}

// observed is what the far side and the classes saw of packets of both flows.
type observed struct {
	arrived [2]int
	classes map[string]int
}

var classLine = regexp.MustCompile(`(?m)^class \S+ (\S+) .*\n Sent \d+ bytes (\d+) pkt`)

func (r *queueRig) classes() map[string]int {
	r.t.Helper()
	out, _, _ := r.exec("tc", "-s", "class", "show", "dev", "wan")
	n := map[string]int{}
	for _, m := range classLine.FindAllStringSubmatch(out, -1) {
		n[m[1]], _ = strconv.Atoi(m[2])
	}
	return n
}

func (r *queueRig) observe(n int) observed {
	r.t.Helper()
	r.receive(10 * time.Millisecond) // what came before
	before := r.classes()
	r.send(n)
	o := observed{arrived: r.receive(100 * time.Millisecond)}
	o.classes = r.classes()
	for name := range o.classes {
		o.classes[name] -= before[name]
	}
	maps.DeleteFunc(o.classes, func(_ string, n int) bool { return n == 0 })
	return o
}

// like compares with what the kernel did alone, but for single packets of the hosts themselves.
func (o observed) like(kernel observed) bool {
	near := func(a, b int) bool { return a-b <= 5 && b-a <= 5 }
	for name := range kernel.classes {
		if !near(o.classes[name], kernel.classes[name]) {
			return false
		}
	}
	for name := range o.classes {
		if !near(o.classes[name], kernel.classes[name]) {
			return false
		}
	}
	return near(o.arrived[0], kernel.arrived[0]) && near(o.arrived[1], kernel.arrived[1])
}

// accepts reports whether this kernel takes what a case has.
func (r *queueRig) accepts(c queueCase) bool {
	r.t.Helper()
	defer r.remove()
	_, errs, code := r.add(c)
	if code != 0 {
		r.t.Logf("%s: %s", c.name, strings.Join(strings.Fields(errs), " "))
	}
	return code == 0
}

// add runs a case's commands until one fails.
func (r *queueRig) add(c queueCase) (out, errs string, code int) {
	r.t.Helper()
	return r.exec("sh", "-ec", strings.Join(c.commands, "\n"))
}

// remove takes away what cases add.
func (r *queueRig) remove() {
	r.t.Helper()
	r.exec("sh", "-c", "tc qdisc del dev wan root; tc qdisc del dev wan clsact; ip link del wan2; ipset destroy; ip route change 198.19.0.0/24 dev wan src 198.19.0.1")
}

// play adds what a case has under traffic.
func (r *queueRig) play(c queueCase) {
	r.t.Helper()
	defer r.remove()
	const n = 60
	fast := func(what string) {
		r.t.Helper()
		r.eventually(what, 20*time.Second, func() bool { return r.repeats(20) >= 36 })
	}
	fast(c.name + ": fast before")
	stop := r.keepTalking()
	if _, errs, code := r.add(c); code != 0 {
		r.t.Errorf("%s: %s", c.name, errs)
	}
	stop()
	if c.deeper == "" {
		fast(c.name + ": fast")
	} else {
		r.eventually(c.name+": the port says so", patience, func() bool { return strings.Contains(r.port("wan").Reason, "queue_looks_deeper") })
		if p := r.port("wan"); !strings.Contains(p.Reason, c.deeper) || p.State == api.PortRefused {
			r.t.Errorf("%s: port wan is %s, %q; want %q", c.name, p.State, p.Reason, c.deeper)
		}
		r.send(3)
	}
	before, slow := r.status().Hits, r.count("queue_looks_deeper")
	got := r.observe(n)
	hits := r.status().Hits - before
	if c.deeper != "" && (hits != 0 || r.count("queue_looks_deeper")-slow < n) {
		r.t.Errorf("%s: %d hits, %d packets kept slow of %d", c.name, hits, r.count("queue_looks_deeper")-slow, 2*n)
	}
	if c.deeper == "" && (hits < 2*n*9/10 || strings.Contains(r.port("wan").Reason, "queue_looks_deeper")) {
		r.t.Errorf("%s: %d hits of %d packets; port wan: %s", c.name, hits, 2*n, r.port("wan").Reason)
	}
	r.must(r.api.Pause(context.Background()))
	kernel := r.observe(n)
	r.must(r.api.Resume(context.Background()))
	if r.port("wan").XDPTransmit { // what only fans out, XDP may bypass
		got.classes, kernel.classes = nil, nil
	}
	if !got.like(kernel) {
		r.t.Errorf("%s: arrived %v, classes %v; with the kernel alone %v, %v", c.name, got.arrived, got.classes, kernel.arrived, kernel.classes)
	}
}

// keepTalking sends packets of both flows until stop is called.
func (r *queueRig) keepTalking() (stop func()) {
	quit, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(2 * time.Millisecond):
				for _, c := range r.from {
					c.Write([]byte("between"))
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

// TestQueueKinds: whatever this kernel can put between TC egress and the wire is put there under traffic.
// Either the far side and the classes see what they see with the kernel alone, at the same speed, or
// the flows out by that port are slow for that reason.
func TestQueueKinds(t *testing.T) {
	for _, part := range []string{"qdisc", "filter", "action", "ematch"} {
		for i, mode := range []string{"off", "on", "auto"} {
			t.Run(part+" "+mode, func(t *testing.T) {
				r := newQueueRig(t, mode)
				var tried, lacking []string
				at := 0
				for _, c := range queueCases {
					if !strings.HasPrefix(c.name, part) {
						continue
					}
					if at++; at%3 != i {
						continue
					}
					if !r.accepts(c) {
						lacking = append(lacking, c.name)
						continue
					}
					tried = append(tried, c.name)
					r.play(c)
				}
				t.Logf("tried %q; this kernel lacks %q", tried, lacking)
				if (part == "qdisc" || part == "filter") && len(tried) == 0 {
					t.Error("nothing tried")
				}
			})
		}
	}
}

// TestQueueLooksDeeper: what looks deeper is noticed when it comes, changes and goes; whatever comes in
// by that port stays fast; ports, explain and doctor name it.
func TestQueueLooksDeeper(t *testing.T) {
	for _, mode := range []string{"off", "on", "auto"} {
		t.Run(mode, func(t *testing.T) {
			r := newQueueRig(t, mode)
			run := func(command string) {
				t.Helper()
				if _, errs, code := r.exec("sh", "-c", command); code != 0 {
					t.Fatalf("%s: %s", command, errs)
				}
			}
			fast := func(what string) {
				t.Helper()
				r.eventually(what, patience, func() bool { return r.repeats(20) >= 36 })
			}
			slow := func(what string) {
				t.Helper()
				r.eventually(what, patience, func() bool { return r.repeats(20) == 0 })
			}
			run("ip link add lan2 type ifb && ip link set lan2 up")
			fast("nothing there")
			for _, command := range tree {
				run(command)
			}
			fast("a shaper")
			run(filterAt + "bpf bytecode '1,6 0 0 4294967295' flowid 1:3")
			slow("a program added")
			const words = "filter bpf pref 7 at 1: (reads what its program reads)"
			if out, _, code := r.shunt("ports"); code != 0 || !strings.Contains(out, words) {
				t.Errorf("shunt ports: %d, %s", code, out)
			}
			if out, _, code := r.shunt("explain", "198.18.0.2:40000", "198.19.0.2:6000/udp"); code != 0 ||
				!strings.Contains(out, "queue_looks_deeper") || !strings.Contains(out, "wan: "+words) {
				t.Errorf("shunt explain: %d, %s", code, out)
			}
			checks, err := r.api.Doctor(context.Background())
			r.must(err)
			if !slices.ContainsFunc(checks, func(c api.Check) bool {
				return c.Name == "port wan" && c.Level == api.LevelWarn && strings.Contains(c.Finding, words)
			}) {
				t.Errorf("doctor: %+v", checks)
			}
			if n := r.answers(40); n < 36 {
				t.Errorf("%d of 40 packets that come in by the port were repeated", n)
			}
			run("tc filter del dev wan parent 1: pref 7")
			fast("taken away")
			run("tc filter add dev wan parent 1: protocol all pref 9 u32 match u32 0 0 flowid 1:3")
			fast("a filter that reads bytes")
			run("tc filter replace dev wan parent 1: protocol all pref 9 handle 800::800 u32 match u32 0 0 flowid 1:3 action mirred egress mirror dev lan2")
			slow("its action changed")
			run("tc qdisc del dev wan root")
			fast("all gone")
			p, err := foreign.TCXEgress(r.WAN.NS, r.WAN.Device)
			r.must(err)
			slow("a tcx program")
			if p := r.port("wan"); p.State == api.PortRefused || !strings.Contains(p.Reason, "at tcx egress") {
				t.Errorf("port wan with a tcx program at egress: %+v", p)
			}
			r.must(p.Close())
			fast("without it")
		})
	}
}

// answers sends packets from the server and returns how many were repeated.
func (r *queueRig) answers(n int) uint64 {
	r.t.Helper()
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.Client.V6.Addr(), 40000))
	answer := func(n int) {
		for range n {
			if _, err := r.to[1].WriteToUDP([]byte("back"), to); err != nil {
				r.t.Fatal(err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	answer(20)
	before := r.status().Hits
	answer(n)
	return r.status().Hits - before
}

// TestQueueWithoutDaemon: a qdisc that is set while the daemon is dead is looked at by nobody, so flows
// through it are the kernel's from the end of their lease until a daemon has looked.
func TestQueueWithoutDaemon(t *testing.T) {
	for _, mode := range []string{"off", "on"} {
		t.Run(mode, func(t *testing.T) {
			r := newQueueRig(t, mode)
			r.terminate()
			r.start(program, with("--xdp", mode, "--lease", "1s")...)
			r.eventually("fast", patience, func() bool { return r.repeats(20) >= 36 })
			before := fmt.Sprint(r.classes())
			r.must(r.daemon.Signal(syscall.SIGKILL))
			r.daemon.Wait()
			for _, command := range tree {
				r.exec("sh", "-c", command)
			}
			r.exec("sh", "-c", filterAt+"u32 match u32 0 0 flowid 1:3")
			time.Sleep(6 * time.Second) // until it is taken for dead, and a stretched lease's end
			r.send(20)
			o := r.observe(50)
			if o.classes["1:3"] < 95 {
				t.Errorf("classes %v, before the shaper %s: packets bypass it", o.classes, before)
			}
			r.start(program, with("--xdp", mode, "--lease", "1s")...)
			r.eventually("fast by the shaper", patience, func() bool { return r.repeats(20) >= 36 })
		})
	}
}
