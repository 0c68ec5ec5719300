// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// TestWithdraw takes a port out of the redirect map and puts it back, again and again, under
// traffic that is repeated to it: no frame is lost, though one whose redirect fails would be.
// In the end it takes the data path away: from then on nothing is repeated. And what was
// redirected was counted as given to the port, of this network namespace alone.
func TestWithdraw(t *testing.T) {
	top, err := lab.Firewall(lab.FirewallOptions{Name: "withdraw", NAT: lab.NATMasquerade, Neighbours: true})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	defer top.Close()
	sink, err := traffic.AttachSink(top.Server.NS, top.Server.Device, 64)
	must(err)
	defer sink.Close()
	g, err := traffic.NewGenerator(traffic.Config{
		NS: top.Client.NS, Device: top.Client.Device, CPU: 1, Rate: 100000,
		Frames: traffic.Frames{
			SourceMAC: top.Client.MAC, DestMAC: top.LAN.MAC, Protocol: traffic.UDP, Size: 64, Flows: 10,
			Source: netip.AddrPortFrom(top.Client.V4.Addr(), 10000), Dest: netip.AddrPortFrom(top.Server.V4.Addr(), 2000),
		},
	})
	must(err)
	defer g.Close()

	var p *Plane
	var ports []Attach
	must(top.LAN.NS.Do(func() (err error) {
		for _, device := range []string{top.LAN.Device, top.WAN.Device} {
			i, err := net.InterfaceByName(device)
			if err != nil {
				return err
			}
			ports = append(ports, Attach{Index: i.Index, XDPReceive: true, XDPTransmit: true})
		}
		var ns unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
			return err
		}
		if p, err = Open(Options{Dir: top.BPFFS(), Flows: 1024, Netns: uint32(ns.Ino)}); err != nil {
			return err
		}
		return p.Watch()
	}))
	defer func() { p.Remove(); p.Close() }()
	p.Configure(Settings{Threshold: 1, Lease: 10000, LeaseLive: 10000, HZ: 250, TCP: true})
	apply := func(want ...Attach) {
		t.Helper()
		must(top.LAN.NS.Do(func() error {
			for _, err := range p.Apply(want) {
				return err
			}
			return nil
		}))
	}
	apply(ports...)

	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan traffic.Result, 1)
	go func() {
		r, err := g.Loop(ctx)
		if err != nil {
			t.Error(err)
		}
		sent <- r
	}()
	mute := ports[1]
	mute.XDPTransmit = false
	for range 20 {
		time.Sleep(20 * time.Millisecond)
		apply(ports[0], mute) // its flows go by TC
		time.Sleep(20 * time.Millisecond)
		apply(ports...)
		time.Sleep(20 * time.Millisecond)
		apply(ports[0]) // its flows are the kernel's
		time.Sleep(20 * time.Millisecond)
		apply(ports...)
	}
	time.Sleep(50 * time.Millisecond)
	p.retire()
	before, err := p.Totals(StageXDP)
	must(err)
	time.Sleep(50 * time.Millisecond)
	after, err := p.Totals(StageXDP)
	must(err)
	if after.Of("hit") != before.Of("hit") || after.Of("paused") == before.Of("paused") {
		t.Errorf("after the data path retired: %d hits, %d paused", after.Of("hit")-before.Of("hit"), after.Of("paused")-before.Of("paused"))
	}
	cancel()
	r := <-sent
	got, err := sink.Wait(r.Sent, 2*time.Second)
	must(err)
	xdp, err := p.Totals(StageXDP)
	must(err)
	if got.Frames != r.Sent || got.Lost+got.Duplicates+got.Bad() != 0 || xdp.Of("egress_gone") != 0 {
		t.Errorf("sent %d, arrived %+v, %d found their egress gone", r.Sent, got, xdp.Of("egress_gone"))
	}
	var all Counters
	for row := range int(tcAbiMAX_PORTS) {
		c, err := p.Counters(StageXDP, row)
		must(err)
		all.Add(&c)
	}
	if all != xdp {
		t.Errorf("the rows in use hold %+v, all of them %+v", xdp, all)
	}
	hits := xdp.Of("hit")
	if hits < r.Sent/8 {
		t.Errorf("%d hits in XDP of %d frames: the test did not test", hits, r.Sent)
	}
	for i, want := range []uint64{0, hits} { // the generator's port has the index of the first, elsewhere
		tx, err := p.Transmit(ports[i].Index)
		must(err)
		if tx != (Transmit{Sent: want}) {
			t.Errorf("port %d: transmitted %+v, redirected %d", i, tx, want)
		}
	}
}
