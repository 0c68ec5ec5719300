package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"shunt/internal/lab"
)

// Every connection that is due is made and answered, through the router.
func TestChurn(t *testing.T) {
	r, err := newRig("", lab.FirewallOptions{Name: "churn", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	server := r.top.Server.V4.Addr()
	if _, err := churn(context.Background(), r.top.Client.NS, server, 100, 20*time.Millisecond); err == nil {
		t.Error("connected to a server that is not there")
	}
	stop, err := serve(r.top.Server.NS, server)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	before, err := r.counters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	took, err := churn(context.Background(), r.top.Client.NS, server, 500, 400*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(took) != 200 || took[0] <= 0 || !slices.IsSorted(took) {
		t.Errorf("%d connections, the quickest in %d ns; want 200, sorted", len(took), took[0])
	}
	after, err := r.counters(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// Handshake, question, answer and two FINs: no connection takes fewer packets.
	if n := after.forwarded - before.forwarded; n < 200*7 {
		t.Errorf("the router forwarded %d packets for 200 connections", n)
	}
}

// Bulk TCP through the kernel alone: iperf3 is understood.
func TestIperf(t *testing.T) {
	r, err := newRig("", lab.FirewallOptions{Name: "iperf", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, kind := range []transfer{{seconds: 1}, {udp: true, packet: largePacket, seconds: 1}} {
		bits, err := r.iperf(context.Background(), kind)
		if err != nil || bits < 1e6 {
			t.Errorf("%+v: %.0f bit/s, %v", kind, bits, err)
		}
	}
}
