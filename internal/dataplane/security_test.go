// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"shunt/internal/lab"
)

// withSecurityPath is the kernel's type information in which the security path has the
// number of another skb extension, so that CO-RE makes the program look for that one.
func withSecurityPath(t *testing.T, extension string) *btf.Spec {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec := kernel.Copy()
	var ids *btf.Enum
	if err := spec.TypeByName("skb_ext_id", &ids); err != nil {
		t.Fatal(err)
	}
	path, other := -1, -1
	for i, v := range ids.Values {
		switch v.Name {
		case "SKB_EXT_SEC_PATH":
			path = i
		case extension:
			other = i
		}
	}
	if path < 0 || other < 0 {
		t.Fatalf("enum skb_ext_id has no SKB_EXT_SEC_PATH or no %s: %v; the kernel needs CONFIG_XFRM and CONFIG_BRIDGE_NETFILTER", extension, ids.Values)
	}
	ids.Values[path].Value = ids.Values[other].Value
	return spec
}

// TestSecurityPath: a packet that came out of an IPsec tunnel is the kernel's. Where the
// kernel has no IPsec, nothing can have a security path; so the same instructions are
// told to look for the extension that br_netfilter puts on packets, and not to.
func TestSecurityPath(t *testing.T) {
	l, err := lab.New("security")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ns, err := l.Namespaces("h", "r")
	if err != nil {
		t.Fatal(err)
	}
	host := lab.End{NS: ns[0], Device: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	port := lab.End{NS: ns[1], Device: "port", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	if err := l.Connect(host, port, lab.Wire, 0); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(port.NS.IP("link add br0 address 02:00:00:00:00:01 type bridge forward_delay 0", "link set port master br0",
		"link set br0 up", "address add 198.18.0.1/24 dev br0"))
	must(host.NS.IP("address add 198.18.0.2/24 dev eth0",
		"neighbour replace 198.18.0.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent"))
	must(port.NS.NFT("table ip any { chain in { type filter hook prerouting priority 0; }; }"))

	opts := ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: withSecurityPath(t, "SKB_EXT_BRIDGE_NF")}}
	c, err := loadObject(loadTc, Options{Flows: 1024}, opts)
	must(err)
	defer c.Close()
	p := &Plane{maps: c.Maps}
	p.count, err = c.Maps[countersMap].Memory()
	must(err)
	p.notes, err = c.Maps[notebooksMap].Memory()
	must(err)
	var bridge *net.Interface
	must(port.NS.Do(func() (err error) {
		if bridge, err = net.InterfaceByName("br0"); err != nil {
			return err
		}
		in, err := link.AttachTCX(link.TCXOptions{Program: c.Programs["shunt_ingress"], Interface: bridge.Index, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { in.Close() })
		}
		return err
	}))
	var conn net.Conn
	must(host.NS.Do(func() (err error) { conn, err = net.Dial("udp", "198.18.0.1:2000"); return err }))
	defer conn.Close()

	for _, marked := range []string{"1", "0"} {
		must(port.NS.Sysctl("net.bridge.bridge-nf-call-iptables", marked))
		before, err := p.Counters(StageTCIngress, bridge.Index)
		must(err)
		var ipsec, others uint64
		for deadline := time.Now().Add(2 * time.Second); ipsec+others == 0 && time.Now().Before(deadline); {
			conn.Write([]byte("something"))
			time.Sleep(time.Millisecond)
			now, err := p.Counters(StageTCIngress, bridge.Index)
			must(err)
			ipsec = now.Of("ipsec") - before.Of("ipsec")
			others = now.Of("learning") - before.Of("learning")
		}
		if marked == "1" && (ipsec == 0 || others != 0) || marked == "0" && (ipsec != 0 || others == 0) {
			t.Errorf("with the extension %s: %d counted as ipsec, %d as not", marked, ipsec, others)
		}
		if s, err := p.Samples(); err != nil || !slices.ContainsFunc(s, func(s Sample) bool {
			return s.Reason == "ipsec" && s.Port == bridge.Index && s.In.Destination.String() == "198.18.0.1:2000"
		}) {
			t.Errorf("for explain %+v, %v are remembered; want the packet", s, err)
		}
	}
}
