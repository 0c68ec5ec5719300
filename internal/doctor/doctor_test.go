// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"shunt/internal/api"
	"shunt/internal/config"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
	"shunt/internal/nl/nltest"
)

// machine is a system whose files have the given contents.
func machine(t *testing.T, files map[string]string) system {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return system{root}
}

// hold wants one check of a level whose texts hold the parts, each in one line, and a
// remedy exactly where something is wrong.
func hold(t *testing.T, c api.Check, level, finding, remedy string) {
	t.Helper()
	if c.Level != level || !strings.Contains(c.Finding, finding) || !strings.Contains(c.Remedy, remedy) {
		t.Errorf("%+v, want %s, %q, %q", c, level, finding, remedy)
	}
	if strings.Contains(c.Finding+c.Remedy, "\n") || c.Finding == "" || (c.Remedy == "") != (c.Level == api.LevelOK) {
		t.Errorf("%+v: one line, and a remedy where something is wrong", c)
	}
}

func TestKernelRelease(t *testing.T) {
	hold(t, floor(kernel.Release{Major: 6, Minor: 6, Text: "6.6.0"}), api.LevelOK, "6.6.0", "")
	hold(t, floor(kernel.Release{Major: 6, Minor: 1, Text: "6.1.0-49"}), api.LevelFail, "6.1.0-49", "6.6")
}

func TestSysctls(t *testing.T) {
	const jit, be, v4 = "proc/sys/net/core/bpf_jit_enable", "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "proc/sys/net/ipv4/ip_forward"
	none := machine(t, nil)
	hold(t, none.btf(), api.LevelFail, "btf/vmlinux", "CONFIG_DEBUG_INFO_BTF")
	hold(t, none.jit(), api.LevelOK, "cannot be read", "")
	hold(t, none.conntrack()[0], api.LevelOK, "not there", "")
	hold(t, none.forwarding()[1], api.LevelOK, "IPv6 is not there", "")

	bad := machine(t, map[string]string{jit: "0\n", be: "0\n", v4: "0\n",
		"proc/sys/net/netfilter/nf_conntrack_count": "95\n", "proc/sys/net/netfilter/nf_conntrack_max": "100\n"})
	hold(t, bad.jit(), api.LevelWarn, "interpreted", "bpf_jit_enable=1")
	hold(t, bad.conntrack()[0], api.LevelOK, "each TCP connection", "")
	hold(t, bad.conntrack()[1], api.LevelWarn, "95 of 100", "nf_conntrack_max")
	hold(t, bad.forwarding()[0], api.LevelWarn, "IPv4 is not forwarded", "net.ipv4.ip_forward=1")

	good := machine(t, map[string]string{jit: "1\n", be: "1\n", v4: "1\n", "sys/kernel/btf/vmlinux": "",
		"proc/sys/net/netfilter/nf_conntrack_count": "80\n", "proc/sys/net/netfilter/nf_conntrack_max": "100\n"})
	hold(t, good.btf(), api.LevelOK, "types", "")
	hold(t, good.jit(), api.LevelOK, "compiled", "")
	hold(t, good.conntrack()[0], api.LevelOK, "all connections", "")
	if n := len(good.conntrack()); n != 1 {
		t.Errorf("%d findings on a table with room", n)
	}
	hold(t, good.forwarding()[0], api.LevelOK, "IPv4 is forwarded", "")

	const lock = "sys/kernel/security/lockdown"
	hold(t, none.lockdown(), api.LevelOK, "none", "")
	hold(t, machine(t, map[string]string{lock: "[none] integrity confidentiality\n"}).lockdown(), api.LevelOK, "none", "")
	hold(t, machine(t, map[string]string{lock: "none [integrity] confidentiality\n"}).lockdown(), api.LevelOK, "Secure Boot", "")
	hold(t, machine(t, map[string]string{lock: "none integrity [confidentiality]\n"}).lockdown(), api.LevelWarn, "programs", "lockdown=integrity")
	counting := machine(t, map[string]string{be: "1\n", "proc/sys/net/netfilter/nf_conntrack_acct": "1\n"}).conntrack()
	hold(t, counting[len(counting)-1], api.LevelWarn, "nf_conntrack_acct", "shunt flows")

	hold(t, machine(t, map[string]string{jit: "2\n"}).jit(), api.LevelWarn, "debugging", "bpf_jit_enable=1")
}

func TestBPFFS(t *testing.T) {
	hold(t, machine(t, map[string]string{"there/x": ""}).bpffs("there/shunt/pins"), api.LevelFail, "no BPF file system", "mount -t bpf")
	if (system{"/"}).bpffs("/sys/fs/bpf").Level == api.LevelOK {
		hold(t, system{"/"}.bpffs("/sys/fs/bpf/not/there/yet"), api.LevelOK, "/sys/fs/bpf/not/there/yet", "")
	}
}

func TestJudge(t *testing.T) {
	good := kernel.Link{Index: 2, Name: "eth0", Type: kernel.Ethernet, MTU: 1500, Up: true, Carrier: true, Qdisc: "mq", Driver: "ice",
		Features: kernel.XDPBasic | kernel.XDPRedirect | kernel.XDPTransmit | kernel.XDPFrags}
	with := func(change func(*kernel.Link)) eligible.Port {
		l := good
		change(&l)
		return eligible.Port{Link: l}
	}
	for _, c := range []struct {
		name                   string
		port                   eligible.Port
		level, finding, remedy string
	}{
		{"good", eligible.Port{Link: good}, api.LevelOK, "can be fast: driver ice, MTU 1500, qdisc mq", ""},
		{"receives", eligible.Port{Link: good}, api.LevelOK, "receives in XDP", ""},
		{"takes frames", eligible.Port{Link: good}, api.LevelOK, "takes redirected frames", ""},
		{"refused", with(func(l *kernel.Link) { l.Kind = "bridge" }), api.LevelFail, "a bridge", "physical ports"},
		{"foreign", eligible.Port{Link: good, Foreign: []string{"tc ingress filter bpf pref 1"}}, api.LevelFail, "tc ingress filter bpf pref 1", "remove them"},
		{"attaching", eligible.Port{Link: good}, api.LevelOK, "shunt run takes the link down for some seconds", ""},
		{"stock card", with(func(l *kernel.Link) {
			l.Driver, l.Offloads = "vmxnet3", kernel.Offloads{RxVLAN: true, LRO: true, Switchable: []string{kernel.RxVLAN, kernel.RxLRO}}
		}), api.LevelOK, "shunt run switches off rx-vlan-hw-parse and rx-lro until it stops, restarts the queues of the card", ""},
		{"half of the channels", with(func(l *kernel.Link) { l.Driver, l.Features = "ena", 0 }), api.LevelWarn, "half of its channels", "ethtool -L eth0"},
		{"no XDP", with(func(l *kernel.Link) { l.Driver, l.Features = "e1000e", 0 }), api.LevelOK, "driver e1000e cannot redirect", ""},
		{"qdisc", with(func(l *kernel.Link) { l.Queueing = "cake" }), api.LevelOK, "queueing policy cake", ""},
		{"a queue that looks deeper", eligible.Port{Link: good, Queue: kernel.Queue{LooksDeeper: "qdisc cake 1: (nat)"}}, api.LevelWarn, "queue_looks_deeper): qdisc cake 1: (nat)", "docs/queues.md"},
		{"stripped tags", with(func(l *kernel.Link) { l.Offloads.RxVLAN = true }), api.LevelWarn, "strips VLAN tags", "rxvlan off"},
		{"peer does not poll", with(func(l *kernel.Link) {
			l.Kind, l.Driver, l.Features = "veth", "veth", kernel.XDPBasic|kernel.XDPRedirect
		}),
			api.LevelWarn, "does not poll", "gro on"},
		{"large MTU", with(func(l *kernel.Link) { l.MTU, l.Features = 9000, l.Features&^kernel.XDPFrags }), api.LevelWarn, "MTU 9000 is over", "mtu 3500"},
		{"no carrier", with(func(l *kernel.Link) { l.Carrier = false }), api.LevelWarn, "no carrier", "peer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, check := range judge(c.port, eligible.Auto, false) {
				if strings.Contains(check.Finding, c.finding) {
					hold(t, check, c.level, c.finding, c.remedy)
					return
				}
			}
			t.Errorf("no finding with %q in %+v", c.finding, judge(c.port, eligible.Auto, false))
		})
	}
	large := with(func(l *kernel.Link) { l.MTU, l.Features = 9000, l.Features|kernel.XDPTransmitFrags })
	if got := judge(large, eligible.Auto, false); len(got) != 4 {
		t.Errorf("a driver that takes large frames: %+v", got)
	}
	touched := with(func(l *kernel.Link) {
		l.Offloads = kernel.Offloads{RxVLAN: true, Switchable: []string{kernel.RxVLAN}}
	})
	if got := judge(touched, eligible.Auto, true); len(got) < 2 || got[1].Level != api.LevelWarn || !strings.Contains(got[1].Finding, "strips VLAN tags") {
		t.Errorf("a living daemon's port, on which somebody insists on an offload: %+v", got)
	}
	large.OwnXDP, large.Link.XDP, large.Link.XDPID = 7, kernel.XDPNative, 7
	if got := judge(large, eligible.Auto, false); len(got) != 3 {
		t.Errorf("attached already: %+v", got)
	}
}

// TestTooOld: below the floor one finding fails, the kernel's, and what follows from it is
// not examined.
func TestTooOld(t *testing.T) {
	defer func(before func() []api.Check) { Probe = before }(Probe)
	Probe = func() []api.Check {
		t.Error("programs were tried on a kernel that is known to refuse them")
		return nil
	}
	checks := examineAll(kernel.Release{Major: 6, Minor: 1, Text: "6.1.0-49"}, config.Paths{BPFFS: config.DefaultBPFFS}, []string{"lo"}, auto, false)
	hold(t, checks[0], api.LevelFail, "6.1.0-49", "boot Linux 6.6")
	for _, c := range checks[1:] {
		if c.Name == "programs" || strings.HasPrefix(c.Name, "port") {
			t.Errorf("examined: %+v", c)
		}
	}
}

// On this machine: every finding is well formed, and ports are matched.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to read nftables; run the tests with sudo")
	}
	checks, err := Run(config.Paths{BPFFS: config.DefaultBPFFS}, []string{"l?", "nosuchport"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]api.Check{}
	for _, c := range checks {
		hold(t, c, c.Level, "", "")
		found[c.Name] = c
	}
	hold(t, found["port lo"], api.LevelFail, "loopback", "leave it out")
	hold(t, found["port nosuchport"], api.LevelWarn, "no such interface", "ip link")
	hold(t, found["rights"], api.LevelOK, "enough", "")
}

// TestVerdict: how much could be fast, by the bytes that come in, and the largest cause why not more.
func TestVerdict(t *testing.T) {
	good := eligible.Decision{Attach: true}
	port := func(name string, d eligible.Decision, rx uint64) candidate {
		return candidate{link: kernel.Link{Name: name, Type: kernel.Ethernet}, decision: d, rx: rx}
	}
	no := func(name string) eligible.Decision {
		return eligible.Decision{Reason: name + " belongs to bridge br0", Remedy: "take " + name + " out of br0"}
	}
	stick := port("wan", good, 1000)
	stick.link.Uppers, stick.uppers, stick.tagged = []string{"wan.7"}, []string{"wan.7"}, 900
	bridge := port("br0", no("br0"), 5000)
	bridge.link.Kind = "bridge"
	for _, c := range []struct {
		name                   string
		ports                  []candidate
		level, finding, remedy string
	}{
		{"two", []candidate{port("lan", good, 700), port("wan", good, 300)}, api.LevelOK, "100 % of the bytes that come in could be fast; 2 of 2 Ethernet ports", ""},
		{"one in a bridge", []candidate{port("lan", no("lan"), 250), port("wan", good, 750), bridge}, api.LevelWarn, "75 % of the bytes that come in could be fast; 1 of 2 Ethernet ports can; the largest cause why not more: lan belongs to bridge br0", "take lan out"},
		{"the largest cause", []candidate{port("a", no("a"), 10), port("b", no("b"), 20), port("c", good, 70)}, api.LevelWarn, "b belongs to", "take b out"},
		{"all in a bridge", []candidate{port("lan", no("lan"), 250), port("wan", no("wan"), 750)}, api.LevelFail, "0 % of the bytes", "take wan out"},
		{"a router on a stick", []candidate{port("lan", good, 1000), stick}, api.LevelWarn, "55 % of the bytes that come in could be fast; 2 of 2 Ethernet ports can; the largest cause why not more: wan.7 stands on wan", "untagged"},
		{"on a stick, before traffic", []candidate{{link: stick.link, decision: good, uppers: stick.uppers}}, api.LevelWarn, "nothing came in just now", "untagged"},
		{"one port", []candidate{port("lan", good, 7)}, api.LevelWarn, "only if it comes in and leaves by such a port", "other side"},
		{"none", nil, api.LevelWarn, "no Ethernet port", "ip link"},
		{"idle", []candidate{port("lan", good, 0), port("wan", good, 0)}, api.LevelOK, "2 of 2 Ethernet ports can be fast; nothing came in", ""},
	} {
		got := verdict(c.ports)
		if got.Name != "verdict" {
			t.Errorf("%s: %+v", c.name, got)
		}
		hold(t, got, c.level, c.finding, c.remedy)
	}
}

// TestRunAlone: without names every Ethernet port is looked at, and the verdict stands first.
func TestRunAlone(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link set lo up
		ip link add lan type veth peer name lan-peer
		ip link add wan type veth peer name wan-peer
		ip link add br0 type bridge
		ip link set lan-peer master br0`)
	checks, err := Run(config.Paths{BPFFS: config.DefaultBPFFS}, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]api.Check{}
	for _, c := range checks {
		if found[c.Name].Name == "" {
			found[c.Name] = c
		}
	}
	hold(t, checks[0], api.LevelWarn, "3 of 4 Ethernet ports can be fast", "nomaster")
	hold(t, found["port lan"], api.LevelOK, "can be fast", "")
	hold(t, found["port lan-peer"], api.LevelFail, "belongs to bridge br0", "nomaster")
	hold(t, found["port br0"], api.LevelFail, "a bridge", "")
	if c, there := found["port lo"]; there {
		t.Errorf("%+v", c)
	}
}

// TestMode: where the configuration says no XDP, nothing is found that only XDP would need.
func TestMode(t *testing.T) {
	p := eligible.Port{Link: kernel.Link{Name: "lan", Kind: "veth", Driver: "veth", Type: kernel.Ethernet, Up: true, Carrier: true, MTU: 9000,
		Features: kernel.XDPBasic | kernel.XDPRedirect}}
	if checks := judge(p, eligible.Auto, false); len(checks) < 3 {
		t.Errorf("auto: %+v", checks)
	}
	for _, c := range judge(p, eligible.Off, false) {
		if c.Level != api.LevelOK {
			t.Errorf("off: %+v", c)
		}
	}
}
