// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"shunt/internal/nl/nltest"
)

func links(t *testing.T) map[string]Link {
	t.Helper()
	all, err := Links()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]Link)
	for _, l := range all {
		byName[l.Name] = l
	}
	return byName
}

func TestLinks(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va address 02:00:00:00:00:0a mtu 1400 type veth peer name vb
		ip link add name br0 type bridge
		ip link set vb master br0
		ip link add name mv link va type macvlan
		ip tuntap add dev tp mode tap
		ip tuntap add dev tn mode tun
		ip link set va up
		ip link set vb up`)
	all := links(t)

	va := all["va"]
	if va.Kind != "veth" || va.Type != Ethernet || va.MTU != 1400 || va.MAC.String() != "02:00:00:00:00:0a" ||
		!va.Up || !va.Carrier || va.Parent != all["vb"].Index || va.ParentName != "" || va.Driver != "veth" ||
		!slices.Equal(va.Uppers, []string{"mv"}) || va.Master != 0 || va.XDP != XDPNone {
		t.Errorf("va: %+v", va)
	}
	if vb := all["vb"]; vb.Master != all["br0"].Index || vb.MasterName != "br0" || vb.MasterKind != "bridge" || vb.SlaveKind != "bridge" {
		t.Errorf("vb: %+v", vb)
	}
	if br := all["br0"]; br.Kind != "bridge" || br.Up {
		t.Errorf("br0: %+v", br)
	}
	if mv := all["mv"]; mv.Kind != "macvlan" || mv.ParentName != "va" {
		t.Errorf("mv: %+v", mv)
	}
	if tp, tn := all["tp"], all["tn"]; tp.Kind != "tun" || tp.Type != Ethernet || tn.Type == Ethernet {
		t.Errorf("tap %+v, tun %+v", tp, tn)
	}
	if lo := all["lo"]; lo.Kind != "" || lo.Type != Loopback || lo.Driver != "" {
		t.Errorf("lo: %+v", lo)
	}
}

// TestDriverOfALinkThatIsGone: by its name it is not asked for, since the kernel would look for a module of
// that name; and one that has another name by now is asked by that.
func TestDriverOfALinkThatIsGone(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, "ip link add name va type veth peer name vb")
	va := links(t)["va"]
	for want, l := range map[string]Link{"": {Index: va.Index + 1000, Name: "va"}, "veth": {Index: va.Index, Name: "before"}} {
		if got := driverNames([]Link{l})[l.Index]; got != want {
			t.Errorf("driver of %s, with index %d of %d: %q, want %q", l.Name, l.Index, va.Index, got, want)
		}
	}
}

func TestFeaturesFollowThePeer(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up`)
	if va := links(t)["va"]; !va.Features.Has(XDPBasic|XDPRedirect) || va.Features.Has(XDPTransmit) || va.Offloads.GRO || !va.Offloads.TxChecksum {
		t.Errorf("new veth: %+v", va)
	}
	nltest.Run(t, `
		ethtool -K vb gro on
		ethtool -K va tx off rxvlan off rx-vlan-stag-hw-parse off`)
	all := links(t)
	if va := all["va"]; !va.Features.Has(XDPTransmit) || va.Offloads.TxChecksum || va.Offloads.RxVLAN || va.Offloads.RxVLANFixed {
		t.Errorf("peer polls, tx and rxvlan off: %+v", va)
	}
	if vb := all["vb"]; !vb.Offloads.GRO || !vb.Offloads.RxVLAN {
		t.Errorf("gro on: %+v", vb)
	}
	nltest.Run(t, `ethtool -K vb gro off`)
	if va := links(t)["va"]; va.Features.Has(XDPTransmit) {
		t.Errorf("peer does not poll: %+v", va)
	}
}

func TestQueueing(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va numtxqueues 2 type veth peer name vb
		ip link set va up
		ip link set vb up`)
	for _, c := range []struct{ command, qdisc, queueing string }{
		{"tc qdisc add dev va clsact", "noqueue", ""},
		{"tc qdisc add dev va root handle 1: htb", "htb", "htb"},
		{"tc qdisc del dev va root", "noqueue", ""},
		{"tc qdisc add dev va root handle 1: mq", "mq", ""},
		{"tc qdisc add dev va parent 1:1 tbf rate 1mbit burst 10k latency 1s", "mq", "tbf"},
		{"tc qdisc replace dev va root noqueue", "noqueue", ""},
		{"tc qdisc replace dev va root pfifo_fast", "pfifo_fast", "pfifo_fast"},
	} {
		nltest.Run(t, c.command)
		if va := links(t)["va"]; va.Qdisc != c.qdisc || va.Queueing != c.queueing {
			t.Errorf("%s: qdisc %q, queueing %q; want %q, %q", c.command, va.Qdisc, va.Queueing, c.qdisc, c.queueing)
		}
	}
}

func TestHooks(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		tc qdisc add dev va clsact`)
	nltest.NFT(t, `table inet x { chain forward { type filter hook forward priority 0; }; }`)
	hooks := func(name string) []string {
		h, err := Hooks(links(t)[name])
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := hooks("va"); len(h) > 0 {
		t.Errorf("an empty clsact and a forward chain count as hooks: %q", h)
	}
	for _, args := range []string{"ingress prio 3", "egress prio 7"} {
		words := append([]string{"filter", "add", "dev", "va"}, strings.Fields(args+" bpf da bytecode")...)
		if out, err := exec.Command("tc", append(words, "1,6 0 0 1")...).CombinedOutput(); err != nil {
			t.Fatalf("tc %s: %s", args, out)
		}
	}
	nltest.NFT(t, `
		table netdev t {
			chain both { type filter hook ingress devices = { va, vb } priority 0; }
			chain out { type filter hook egress device vb priority 0; }
		}
		table inet x { chain in { type filter hook ingress device va priority 0; }; }`)
	for name, want := range map[string][]string{
		"va": {"tc ingress filter bpf pref 3", "nftables chain inet x in", "nftables chain netdev t both"},
		"vb": {"nftables chain netdev t both"},
		"lo": nil,
	} {
		got := hooks(name)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: hooks %q, want %q", name, got, want)
		}
	}
}

// TestEgressChain: a chain at egress sees only what leaves.
func TestEgressChain(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, "ip link add name va type veth peer name vb")
	nltest.NFT(t, "table netdev t { chain out { type filter hook egress device vb priority 0; }; }")
	const words = "nftables chain netdev t out at egress"
	for name, want := range map[string]Queue{"va": {}, "vb": {words + " (reads what its rules ask for)", words}} {
		if q, err := ReadQueue(links(t)[name]); err != nil || q != want {
			t.Errorf("%s: %+v, %v; want %+v", name, q, err, want)
		}
	}
}

// TestHooksOnce: each filter is listed once and at the side that it is at, whichever qdisc holds it
// and however many handles its kind has.
func TestHooksOnce(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link add name vc type veth peer name vd
		tc qdisc add dev va ingress
		tc qdisc add dev vc clsact`)
	for _, words := range []string{"va parent ffff:", "vc ingress", "vc egress"} {
		args := append(strings.Fields("filter add dev "+words), strings.Fields("prio 3 u32 match u32 0 0")...)
		if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
			t.Fatalf("tc filter u32: %s", out)
		}
	}
	for name, want := range map[string][]string{
		"va": {"tc ingress filter u32 pref 3"},
		"vc": {"tc ingress filter u32 pref 3"}, // the one at egress is part of the Queue
	} {
		if got, err := Hooks(links(t)[name]); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: hooks %q (%v), want %q", name, got, err, want)
		}
	}
}

// A link that went since it was listed has no hooks; that is no error.
func TestHooksOfALinkThatIsGone(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	if h, err := Hooks(Link{Index: 4711, Name: "gone"}); err != nil || len(h) > 0 {
		t.Errorf("%q, %v", h, err)
	}
}

func TestRelease(t *testing.T) {
	for text, want := range map[string]Release{
		"6.18.44-fc":     {Major: 6, Minor: 18},
		"6.6":            {Major: 6, Minor: 6},
		"6.12-rc3":       {Major: 6, Minor: 12},
		"6.1.0-49-amd64": {Major: 6, Minor: 1},
	} {
		want.Text = text
		if got, err := parseRelease(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "6", "six.six", "6.x"} {
		if got, err := parseRelease(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
	r := Release{Major: 6, Minor: 6}
	if !r.AtLeast(6, 6) || !r.AtLeast(5, 19) || r.AtLeast(6, 7) || r.AtLeast(7, 0) {
		t.Error("AtLeast")
	}
	running, err := Version()
	out, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil || running.Text != strings.TrimSpace(string(out)) {
		t.Errorf("Version: %+v, %v", running, err)
	}
}

func TestHZ(t *testing.T) {
	hz, err := HZ()
	if err != nil || !slices.Contains([]uint32{100, 128, 250, 256, 300, 512, 1000, 1024}, hz) {
		t.Errorf("HZ = %d, %v: no kernel is built so", hz, err)
	}
}
