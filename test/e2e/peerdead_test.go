// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestPeerStopsUnattended: the same while the daemon is dead, or hangs. Nobody but the data path can see that
// redirected frames are lost, and it must not lose them for longer than a lease; nor again after that.
func TestPeerStopsUnattended(t *testing.T) {
	for _, daemon := range []string{"dead", "hanging"} {
		t.Run(daemon, func(t *testing.T) { t.Parallel(); peerStopsUnattended(t, daemon == "dead") })
	}
}

func peerStopsUnattended(t *testing.T, dead bool) {
	const lease = time.Second
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	args := with("--xdp", "on", "--lease", lease.String())
	r.start(program, args...)
	at := netip.AddrPortFrom(r.Server.V4.Addr(), 7000)
	server := r.listenUDP(r.Server.NS, at)
	r.must(timestamps(server))
	client := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), 6000), at)
	arrivals := make(chan []arrival, 1)
	go func() { arrivals <- receive(server) }()
	var n uint64
	send := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			client.Write(binary.BigEndian.AppendUint64(nil, n))
			n++
		}
	}
	r.eventually("the flow is armed in XDP", patience, func() bool {
		send(50 * time.Millisecond)
		armed := r.armed()
		return len(armed) == 1 && armed[0].Way == "xdp"
	})
	if dead {
		r.daemon.Kill9()
	} else {
		r.must(r.daemon.Signal(syscall.SIGSTOP))
	}
	send(4 * lease) // the heartbeat counts for 3 s
	changed, before := time.Now(), n
	if out, err := r.Server.NS.Run("ethtool", "-K", r.Server.Device, "gro", "off"); err != nil {
		t.Fatal(err, out)
	}
	done := time.Now()
	send(5 * lease)
	time.Sleep(50 * time.Millisecond)
	server.SetReadDeadline(time.Now())
	got := <-arrivals

	var late, lost uint64
	for _, a := range got {
		if a.at.After(done.Add(2 * lease)) {
			late++
		}
	}
	lost = n - uint64(len(got))
	gap := longestGap(got, changed.Add(-5*time.Millisecond), time.Now())
	t.Logf("sent %d, %d of them before; arrived %d, %d of them over a lease after; longest gap %v, the change took %v",
		n, before, len(got), late, gap, done.Sub(changed))
	if gap > done.Sub(changed)+2*lease {
		t.Errorf("nothing arrived for %v; a lease of %v is right", gap, lease)
	}
	if limit := (n - before) / 2; lost > limit {
		t.Errorf("%d of %d packets lost", lost, n-before)
	}

	if dead {
		r.start(program, args...)
	} else {
		r.must(r.daemon.Signal(syscall.SIGCONT))
	}
	r.eventually("the flow is fast again", patience, func() bool { send(50 * time.Millisecond); return len(r.armed()) == 1 })
	if err := r.daemon.Stop(); err != nil {
		t.Error(err)
	}
	r.nothing()
}
