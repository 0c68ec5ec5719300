// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"shunt/internal/kernel"
	"shunt/internal/lab"
)

var timerSeed = flag.Uint64("timers", 1, "seed of TestTimerDifferential's conversations")

const (
	differentialTCP   = 150
	differentialUDP   = 50
	differentialLossy = 75               // so many lose packets
	differentialFor   = 16 * time.Second // to the look
)

// TestTimerDifferential has random conversations with the kernel alone and with shunt: exchanges, bulk one way, pauses,
// peers that die or end their direction, without loss and with some behind the router. When all are quiet conntrack must have of
// each the state, the status, the flags and the time that it has without shunt.
func TestTimerDifferential(t *testing.T) {
	t.Logf("-timers %d", *timerSeed)
	looks := map[string]map[int]book{}
	var mu sync.Mutex
	t.Run("run", func(t *testing.T) {
		for _, way := range []string{"kernel", "xdp", "tc"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				got := differentialScript(t, way)
				mu.Lock()
				defer mu.Unlock()
				looks[way] = got
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, way := range []string{"xdp", "tc"} {
		for i, want := range looks["kernel"] {
			got := looks[way][i]
			more := got.left - want.left
			got.left = want.left
			if want.state != ctEstablished { // where the flags count for nothing
				got.unacknowledged = want.unacknowledged
			}
			late := 3 // s: a lease, a second, and the last acknowledgement
			if want.unacknowledged[0] {
				late = 15 // a sender tries again and again, at long intervals
			}
			if got != want || more > late || more < -late {
				t.Errorf("%s: conversation %d, %v: %+v and %+d s, with the kernel alone %+v", way, i, conversationOf(i), got, more, want)
			}
		}
	}
}

// act is one step of a conversation.
type act struct {
	kind string
	n    int
}

// conversationOf is what conversation i does, the same in each run.
func conversationOf(i int) (acts []act) {
	rng := rand.New(rand.NewPCG(*timerSeed, uint64(i)))
	acts = append(acts, act{"exchange", 12 + rng.IntN(10)})
	for range 1 + rng.IntN(4) {
		switch rng.IntN(6) {
		case 0, 1:
			acts = append(acts, act{"exchange", 1 + rng.IntN(40)})
		case 2:
			acts = append(acts, act{"up", 1 + rng.IntN(200_000)})
		case 3:
			acts = append(acts, act{"down", 1 + rng.IntN(200_000)})
		case 4:
			acts = append(acts, act{"pause", 100 + rng.IntN(500)})
		case 5:
			acts = append(acts, act{"pause", 1500 + rng.IntN(800)})
		}
	}
	switch rng.IntN(10) {
	case 0, 1, 2:
		acts = append(acts, act{"dies", 1 + rng.IntN(1000)})
	case 3:
		if i >= differentialLossy { // a FIN that is lost comes again, and moves conntrack on
			acts = append(acts, act{"ends", 0})
		}
	}
	return acts
}

func (k *talk) act(a act, port uint16) {
	switch a.kind {
	case "exchange":
		k.say(a.n)
	case "up":
		k.pour(k.client, k.server, int64(a.n))
	case "down":
		k.pour(k.server, k.client, int64(a.n))
	case "pause":
		time.Sleep(time.Duration(a.n) * time.Millisecond)
	case "dies":
		k.die(port, a.n)
	case "ends":
		k.r.must(k.client.CloseWrite())
	}
}

func differentialScript(t *testing.T, way string) map[int]book {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Offloads: map[string]lab.Offloads{"tc": lab.Stack}[way]})
	r.bookTimers()
	if way != "kernel" {
		r.start(program, with("--lease", booksLease.String(), "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	}
	const first = 30000
	listeners := map[bool]net.Listener{
		false: r.listenTCP(netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort)), true: r.listenTCP(netip.AddrPortFrom(r.Server.V6.Addr(), tcpPort)),
	}
	talks := make([]*talk, differentialTCP)
	for i := range talks {
		from := r.Client.V4.Addr()
		if i%3 == 0 {
			from = r.Client.V6.Addr()
		}
		talks[i] = r.connectTo(netip.AddrPortFrom(from, first+uint16(i)), listeners[i%3 == 0])
	}
	// a packet in fifty is lost behind the router, either way
	for _, n := range []*lab.NS{r.Client.NS, r.Server.NS} {
		r.must(n.NFT(fmt.Sprintf(`table inet lossy { chain in { type filter hook input priority 0;
			tcp sport %d-%d numgen random mod 50 == 0 drop
			tcp dport %d-%d numgen random mod 50 == 0 drop
		}; }`, first, first+differentialLossy-1, first, first+differentialLossy-1)))
	}
	begun, ended := time.Now(), make([]time.Time, differentialTCP+differentialUDP)
	var g sync.WaitGroup
	some := make(turns, 24)
	for i, k := range talks {
		g.Go(func() {
			defer some.take()()
			for _, a := range conversationOf(i) {
				k.act(a, first+uint16(i))
			}
			ended[i] = time.Now()
		})
	}
	for i := range differentialUDP {
		g.Go(func() {
			r.datagrams(i, first+differentialTCP+uint16(i))
			ended[differentialTCP+i] = time.Now()
		})
	}
	g.Wait()
	before := r.hits(way)
	if wait := differentialFor - time.Since(begun); wait > 4*time.Second {
		time.Sleep(wait)
	} else {
		t.Errorf("the conversations took %v", time.Since(begun))
	}
	if way != "kernel" && before < 3000 {
		t.Errorf("%d hits: the test did not test", before)
	}
	books := map[int]book{}
	for _, c := range append(r.connections(syscall.AF_INET), r.connections(syscall.AF_INET6)...) {
		if port := c.Original.Source.Port(); port >= first && port < first+differentialTCP+differentialUDP {
			const flag = kernel.TCPUnacknowledged
			given := c.Timeout + time.Since(ended[port-first]) // when the conversation ended
			books[int(port)-first] = book{c.TCPState, c.Status, [2]bool{c.FlagsOriginal&flag != 0, c.FlagsReply&flag != 0}, int(given / time.Second)}
		}
	}
	return books
}

// datagrams is UDP conversation i: it lasts less than 2 s, after which conntrack takes an answered one for a stream, or more.
func (r *rig) datagrams(i int, port uint16) {
	rng := rand.New(rand.NewPCG(*timerSeed, uint64(1000+i)))
	long, answered := rng.IntN(2) == 1, rng.IntN(3) > 0
	last := time.Duration(500+rng.IntN(1000)) * time.Millisecond
	if long {
		last += 2 * time.Second
	}
	at := netip.AddrPortFrom(r.Server.V4.Addr(), port)
	r.serveUDP(at, answered)
	c := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), port), at)
	for end := time.Now().Add(last); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := c.Write([]byte("datagram")); err != nil {
			r.t.Error(err)
			return
		}
	}
}
