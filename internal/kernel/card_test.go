// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net"
	"slices"
	"testing"

	"shunt/internal/nl/nltest"
)

// TestCardFeatures: features are read and switched by name, several in one request; what cannot be
// switched is not among them.
func TestCardFeatures(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, "ip link add name va type veth peer name vb")
	va := links(t)["va"]
	if want := []string{RxVLAN, RxVLANSTag}; !slices.Equal(va.Offloads.Switchable, want) || !va.Offloads.RxVLAN || va.Offloads.RxVLANFixed {
		t.Errorf("a veth can switch off %v, want %v; %+v", va.Offloads.Switchable, want, va.Offloads)
	}
	before, err := CardFeatures(va.Index)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := before[RxLRO]; there || before[RxVLAN] != (CardFeature{true, true}) || before["rx-gro"] != (CardFeature{}) {
		t.Errorf("of a new veth: %+v", before)
	}
	if err := SetCardFeatures(va.Index, map[string]bool{RxVLAN: false, RxVLANSTag: false, "rx-gro": true}); err != nil {
		t.Fatal(err)
	}
	after, err := CardFeatures(va.Index)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Differing(before, after), []string{"rx-gro", RxVLAN, RxVLANSTag}; !slices.Equal(got, want) {
		t.Errorf("switched %v, want %v", got, want)
	}
	if o := links(t)["va"].Offloads; o.RxVLAN || !o.GRO || len(o.Switchable) > 0 {
		t.Errorf("after the request: %+v", o)
	}
	nltest.Run(t, "ethtool -K va rx-vlan-stag-hw-parse on")
	if o := links(t)["va"].Offloads; !o.RxVLAN || !slices.Equal(o.Switchable, []string{RxVLANSTag}) {
		t.Errorf("802.1ad alone: %+v", o)
	}
	if _, err := CardFeatures(va.Index + 1000); err == nil {
		t.Error("features of no interface")
	}
	if err := SetCardFeatures(va.Index, map[string]bool{"nonesuch": true}); err == nil {
		t.Error("an unknown feature was switched")
	}
}

// TestReceived: the driver's counter, and its queues.
func TestReceived(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va numtxqueues 3 numrxqueues 3 type veth peer name vb
		ip link set va addrgenmode none up
		ip link set vb addrgenmode none up
		ip addr add 192.0.2.1/24 dev vb`)
	va := links(t)["va"]
	if va.TxQueues != 3 {
		t.Errorf("%d queues, want 3", va.TxQueues)
	}
	before, err := Received(va.Index)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", "192.0.2.2:9") // its ARP request comes to va
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if after, err := Received(va.Index); err != nil || after != before+1 {
		t.Errorf("%d packets before, %d after, %v", before, after, err)
	}
	if _, err := Received(va.Index + 1000); err == nil {
		t.Error("statistics of no interface")
	}
	if up, err := HasCarrier(va.Index); !up || err != nil {
		t.Errorf("carrier %t, %v", up, err)
	}
	if n, err := CPUs(); n < 1 || err != nil {
		t.Errorf("%d CPUs, %v", n, err)
	}
}
