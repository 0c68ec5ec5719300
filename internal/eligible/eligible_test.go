// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"strings"
	"testing"
	"time"

	"shunt/internal/kernel"
)

const (
	driverXDP = kernel.XDPBasic | kernel.XDPRedirect | kernel.XDPTransmit
	noXDP     = kernel.XDPFeatures(0)
)

// nic is a physical port with everything right, which has carried the program for a while, changed by
// each of the given hands.
func nic(change ...func(*Port)) Port {
	p := Port{Link: kernel.Link{
		Index: 2, Name: "eth0", Type: kernel.Ethernet, MTU: 1500, Up: true, Carrier: true,
		Qdisc: "mq", Driver: "ice", Features: driverXDP, XDP: kernel.XDPNative, XDPID: 7, TxQueues: 4,
	}, OwnXDP: 7, Proven: true, CPUs: 4}
	for _, c := range change {
		c(&p)
	}
	return p
}

func wire(p *Port)    { p.Peer = observed(Wire{Plain: 64, Gain: 64}, Wire{Plain: 64, Gain: 64}) }
func veth(p *Port)    { p.Link.Kind, p.Link.Driver = "veth", "veth" }
func partial(p *Port) { p.Peer = observed(Wire{Plain: 64, Partial: 1}) }
func tagged(p *Port)  { p.Peer = observed(Wire{Plain: 64, Tagged: 1}) }

// bare is a port that shunt has not attached to yet.
func bare(p *Port) { p.Link.XDP, p.Link.XDPID, p.OwnXDP, p.Proven = kernel.XDPNone, 0, 0, false }

// stock is a card as it comes, of a driver: it strips tags and merges segments.
func stock(driver string, features kernel.XDPFeatures) func(*Port) {
	return func(p *Port) {
		bare(p)
		p.Link.Driver, p.Link.Features = driver, features
		p.Link.Offloads = kernel.Offloads{RxVLAN: true, LRO: true, HWGRO: true, Switchable: []string{kernel.RxVLAN, kernel.RxLRO, kernel.RxGROHW}}
	}
}

func observed(periods ...Wire) (p Peer) {
	now := time.Now()
	for i, w := range periods {
		p.Observe(now.Add(time.Duration(i)*time.Second), w)
	}
	return p
}

func TestDecide(t *testing.T) {
	type want struct {
		attach, receive, transmit bool
		reason, remedy            string // parts of them; "" stands for empty
	}
	for _, c := range []struct {
		name string
		port Port
		mode Mode
		want want
	}{
		{"physical", nic(), Auto, want{true, true, true, "", ""}},
		{"physical, on", nic(), On, want{true, true, true, "", ""}},
		{"physical, off", nic(bare), Off, want{true, false, false, `xdp = "off"`, ""}},
		{"physical, not attached", nic(bare), Auto, want{true, true, false, "does not carry shunt's XDP program", ""}},
		{"physical, not proven", nic(func(p *Port) { p.Proven = false }), Auto,
			want{true, true, false, "no packet has shown yet", ""}},
		{"fewer queues than CPUs", nic(func(p *Port) { p.Link.Driver, p.CPUs = "i40e", 6 }), Auto,
			want{true, true, false, "4 queues for 6 CPUs", "ethtool -L eth0 combined 6"}},
		{"fewer queues than CPUs, unknown driver", nic(func(p *Port) { p.Link.Driver, p.Link.TxQueues = "frob", 0 }), Auto,
			want{true, true, false, "0 queues for 4 CPUs", "ethtool -L eth0 combined 4"}},
		{"fewer queues than CPUs, shared", nic(func(p *Port) { p.Link.Driver, p.CPUs = "igb", 6 }), Auto, want{true, true, true, "", ""}},
		{"frees what it sends", nic(func(p *Port) { p.Link.Driver = "atlantic" }), Auto, want{true, true, false, "driver atlantic frees", ""}},
		{"no fragments", nic(func(p *Port) { p.Link.MTU, p.Link.Features = 9000, driverXDP|kernel.XDPFrags }), Auto,
			want{true, true, false, "in fragments, which MTU 9000 allows", "mtu 1518"}},
		{"fragments", nic(func(p *Port) { p.Link.MTU, p.Link.Features = 9000, driverXDP|kernel.XDPFrags|kernel.XDPTransmitFrags }), Auto,
			want{true, true, true, "", ""}},
		{"MTU over a page", nic(func(p *Port) { p.Link.MTU = 9000 }), Auto, want{true, false, false, "MTU 9000 is over what driver ice carries", "mtu 3500"}},
		{"one program for all ports", nic(func(p *Port) { p.Link.Driver = "mtk_soc_eth" }), Auto,
			want{true, false, true, "one program for all ports", ""}},
		{"half of the channels", nic(bare, func(p *Port) { p.Link.Driver, p.Link.Features = "ena", noXDP }), Auto,
			want{true, false, false, "half of its channels", "ethtool -L eth0 combined HALF"}},
		{"safe mode", nic(bare, func(p *Port) { p.Link.Features = noXDP }), Auto, want{true, false, false, "without its DDP package", "firmware"}},
		{"LRO", nic(func(p *Port) { p.Link.Offloads.LRO = true }), Auto, want{true, false, true, "rx-lro", "lro off"}},
		{"hardware GRO", nic(func(p *Port) { p.Link.Offloads.HWGRO = true }), Auto, want{true, false, true, "rx-gro-hw", "rx-gro-hw off"}},
		{"tags stripped behind XDP", nic(func(p *Port) { p.Link.Driver, p.Link.Offloads.RxVLAN = "fec", true }), Auto, want{true, true, true, "", ""}},
		{"kept offloads", nic(func(p *Port) { p.Link.Offloads.RxVLAN, p.Keep = true, true }), Auto,
			want{true, false, true, "strips VLAN tags", `rxvlan off rx-vlan-stag-hw-parse off, or offloads = "switch"`}},

		{"vlan", nic(func(p *Port) { p.Link.Name, p.Link.Kind, p.Link.ParentName = "eth0.10", "vlan", "eth0" }), Auto,
			want{false, false, false, "eth0.10 is a VLAN device", "name its physical port eth0"}},
		{"bridge", nic(func(p *Port) { p.Link.Name, p.Link.Kind = "br0", "bridge" }), Auto,
			want{false, false, false, "br0 is a bridge", "do not belong to br0"}},
		{"wireguard", nic(func(p *Port) { p.Link.Kind, p.Link.Type = "wireguard", 0xfffe }), Auto,
			want{false, false, false, "a WireGuard tunnel", "name only physical ports"}},
		{"unheard of", nic(func(p *Port) { p.Link.Kind = "frob" }), On,
			want{false, false, false, `a device of kind "frob"`, "name only physical ports"}},
		{"loopback", nic(func(p *Port) { p.Link.Type = kernel.Loopback }), Auto,
			want{false, false, false, "loopback", "leave it out"}},
		{"tun", nic(func(p *Port) { p.Link.Kind, p.Link.Type = "tun", 0xfffe }), Auto,
			want{false, false, false, "not an Ethernet port", "Ethernet"}},
		{"bridge port", nic(func(p *Port) { p.Link.Master, p.Link.MasterName, p.Link.MasterKind = 9, "br0", "bridge" }), Auto,
			want{false, false, false, "belongs to bridge br0", "nomaster"}},
		{"slave of a hidden master", nic(func(p *Port) { p.Link.Master, p.Link.SlaveKind = 9, "vrf" }), Auto,
			want{false, false, false, "belongs to vrf interface 9", "nomaster"}},
		{"foreign hooks", nic(func(p *Port) { p.Foreign = []string{"tc ingress filter bpf pref 1", "nftables chain netdev t c"} }), Auto,
			want{false, false, false, "tc ingress filter bpf pref 1, nftables chain netdev t c", "remove them"}},
		{"foreign XDP", nic(func(p *Port) { p.Link.XDP, p.Link.XDPID, p.OwnXDP = kernel.XDPNative, 7, 6 }), Auto,
			want{false, false, false, "another XDP program (id 7)", "xdp off"}},
		{"several XDP", nic(func(p *Port) { p.Link.XDP, p.Link.XDPID = kernel.XDPMulti, 0 }), Auto,
			want{false, false, false, "another XDP program", "xdp off"}},
		{"own XDP", nic(func(p *Port) { p.Link.XDP, p.Link.XDPID, p.OwnXDP = kernel.XDPNative, 7, 7 }), Auto,
			want{true, true, true, "", ""}},

		{"down", nic(func(p *Port) { p.Link.Up = false }), Auto, want{true, true, false, "down", "eth0 up"}},
		{"queueing", nic(func(p *Port) { p.Link.Queueing = "cake" }), Auto, want{true, true, false, "cake", ""}},
		{"a filter on the way out", nic(func(p *Port) { p.Queue.Filter = "filter u32 pref 7 at root" }), Auto,
			want{true, true, false, "filter u32 pref 7 at root, which XDP would bypass", ""}},
		{"a queue that looks deeper", nic(func(p *Port) { p.Link.Queueing, p.Queue.LooksDeeper = "cake", "qdisc cake 1: (nat)" }), Auto,
			want{true, true, false, "flows out by eth0 stay with the kernel (queue_looks_deeper): qdisc cake 1: (nat)", "docs/queues.md"}},
		{"and no XDP", nic(func(p *Port) { p.Link.Features, p.Queue.LooksDeeper = noXDP, "qdisc cake 1: (nat)" }), Auto,
			want{true, false, false, "queue_looks_deeper", "docs/queues.md"}},
		{"takes no frames", nic(func(p *Port) { p.Link.Features &^= kernel.XDPTransmit }), Auto,
			want{true, true, false, "driver ice takes no redirected", ""}},
		{"no XDP", nic(func(p *Port) { p.Link.Driver, p.Link.Features = "e1000e", noXDP }), On,
			want{true, false, false, "driver e1000e cannot redirect", ""}},
		{"XDP without redirect", nic(func(p *Port) { p.Link.Driver, p.Link.Features = "nfp", kernel.XDPBasic }), Auto,
			want{true, false, false, "cannot redirect", ""}},
		{"tags stripped", nic(func(p *Port) { p.Link.Offloads.RxVLAN = true }), Auto,
			want{true, false, true, "strips VLAN tags", "ethtool -K eth0 rxvlan off"}},
		{"tags stripped, on", nic(func(p *Port) { p.Link.Offloads.RxVLAN = true }), On,
			want{true, false, true, "strips VLAN tags", "ethtool -K eth0 rxvlan off"}},
		{"tags stripped for good", nic(func(p *Port) { p.Link.Offloads = kernel.Offloads{RxVLAN: true, RxVLANFixed: true} }), Auto,
			want{true, false, true, "strips VLAN tags", ""}},

		{"veth, unknown", nic(veth), Auto, want{true, false, true, "not yet known", ""}},
		{"veth, wire", nic(veth, wire), Auto, want{true, true, true, "", ""}},
		{"veth, partial", nic(veth, partial), Auto, want{true, false, true, "unfinished", "tx off"}},
		{"veth, tagged", nic(veth, tagged), Auto, want{true, false, true, "VLAN tags beside", "txvlan off"}},
		{"veth, on", nic(veth, partial), On, want{true, true, true, "", ""}},
		{"veth, other end here", nic(veth, wire, func(p *Port) { p.Link.Parent = 7 }), Auto,
			want{true, true, true, "flows with a mark to eth0 go by TC", ""}},
		{"veth keeps its rx-vlan", nic(veth, wire, func(p *Port) { p.Link.Offloads.RxVLAN = true }), Auto,
			want{true, true, true, "", ""}},
		{"veth, peer does not poll", nic(veth, wire, func(p *Port) { p.Link.Features &^= kernel.XDPTransmit }), Auto,
			want{true, true, false, "does not poll", "gro on"}},
		{"tap", nic(func(p *Port) { p.Link.Kind, p.Link.Driver = "tun", "tun" }), Auto,
			want{true, false, true, "not yet known", ""}},
		{"vmxnet3", nic(func(p *Port) { p.Link.Driver = "vmxnet3" }), Auto, want{true, true, true, "", ""}},
		{"virtio", nic(func(p *Port) { p.Link.Driver = "virtio_net" }), Auto, want{true, true, true, "", ""}},
		{"virtio, host merges", nic(func(p *Port) { p.Link.Driver, p.Link.Offloads.HWGRO = "virtio_net", true }), Auto,
			want{true, false, true, "not yet known", ""}},
		{"virtio, host could merge", nic(wire, func(p *Port) { p.Link.Driver, p.Link.Offloads.HWGRO = "virtio_net", true }), Auto,
			want{true, true, true, "", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.port, c.mode)
			if got.Attach != c.want.attach || got.XDPReceive != c.want.receive || got.XDPTransmit != c.want.transmit {
				t.Errorf("attach, receive, transmit = %v %v %v, want %v %v %v", got.Attach, got.XDPReceive, got.XDPTransmit,
					c.want.attach, c.want.receive, c.want.transmit)
			}
			part(t, "reason", got.Reason, c.want.reason)
			part(t, "remedy", got.Remedy, c.want.remedy)
		})
	}
}

// part wants a one-line text that holds the given part, or none at all.
func part(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) || want == "" && got != "" || strings.Contains(got, "\n") {
		t.Errorf("%s = %q, want something with %q", what, got, want)
	}
}

// TestKeepsMark: XDP loses the mark of what a device hands on as an skb.
func TestKeepsMark(t *testing.T) {
	for _, c := range []struct {
		kind string
		peer int
		want bool
	}{{"", 0, false}, {"tun", 0, false}, {"veth", 0, false}, {"veth", 7, true}, {"frob", 0, true}} {
		if got := keepsMark(kernel.Link{Kind: c.kind, Parent: c.peer}); got != c.want {
			t.Errorf("%q with peer %d: %v", c.kind, c.peer, got)
		}
	}
}

func TestPeer(t *testing.T) {
	start := time.Now()
	plain, quiet := Wire{Plain: enough}, Wire{Plain: enough - 1}
	type step struct {
		after time.Duration
		seen  Wire
		wire  bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"two full periods", []step{{0, plain, false}, {1, plain, true}}},
		{"quiet periods say nothing", []step{{0, plain, false}, {1, quiet, false}, {2, Wire{}, false}, {3, plain, true}, {4, Wire{}, true}}},
		{"one partial packet begins anew", []step{{0, plain, false}, {1, Wire{Plain: 1000, Partial: 1}, false}, {2, plain, false}, {3, plain, true}}},
		{"one tagged packet too", []step{{0, plain, false}, {1, Wire{Tagged: 1}, false}, {2, plain, false}, {3, plain, true}}},
		{"trust lost is held off", []step{
			{0, plain, false}, {1, plain, true}, {2, Wire{Partial: 1}, false},
			{3, plain, false}, {4, plain, false}, {61, plain, false}, {62, plain, false}, {63, plain, true}}},
		{"bad packets within the hold-off do not stretch it", []step{
			{0, plain, false}, {1, plain, true}, {2, Wire{Tagged: 1}, false},
			{30, Wire{Tagged: 1}, false}, {62, plain, false}, {63, plain, true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Peer
			for i, s := range c.steps {
				p.Observe(start.Add(s.after*time.Second), s.seen)
				if p.wire != s.wire {
					t.Fatalf("step %d: wire = %v, want %v", i, p.wire, s.wire)
				}
			}
		})
	}
}

// TestPays: whether XDP pays is asked of periods in a row, and only of those that say something.
func TestPays(t *testing.T) {
	fast, slow, quiet := Wire{Plain: enough, Gain: enough / 2}, Wire{Plain: 1000 * enough, Gain: enough}, Wire{Plain: 1}
	veth, virtio := kernel.Link{Name: "lan", Kind: "veth"}, kernel.Link{Name: "lan", Driver: "virtio_net"}
	for _, c := range []struct {
		name         string
		seen         []Wire
		veth, virtio bool
		reason       string
	}{
		{"two fast periods", []Wire{fast, quiet, fast}, true, true, ""},
		{"slow ones between", []Wire{fast, slow, fast}, false, true, "the kernel's"},
		{"slow ones afterwards", []Wire{fast, fast, slow, slow}, true, true, ""},
		{"nothing but slow ones", []Wire{slow, slow, slow}, false, true, "the kernel's"},
		{"partial packets long ago", []Wire{{Plain: 64, Partial: 1}, slow, slow}, false, true, "the kernel's"},
		{"partial packets since", []Wire{fast, fast, {Partial: 1}}, false, false, "unfinished checksums"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := observed(c.seen...)
			if got := p.gains(veth); got != c.veth {
				t.Errorf("a veth gains: %v, want %v", got, c.veth)
			}
			if got := p.gains(virtio); got != c.virtio {
				t.Errorf("virtio gains: %v, want %v", got, c.virtio)
			}
			if reason, _ := p.explain(veth); !c.veth {
				part(t, "the reason", reason, c.reason)
			}
		})
	}
}
