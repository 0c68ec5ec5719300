// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// Timers that tell by how much a connection has left which of them it was given, in seconds.
const (
	booksEstablished    = 1000
	booksUnacknowledged = 200
	booksMaxRetrans     = 200 // how often a segment was sent again while it was a hit, nobody knows
	booksLease          = time.Second
)

// book is what conntrack has of a connection.
type book struct {
	state          uint8
	status         uint32
	unacknowledged [2]bool // original, reply
	left           int     // seconds
}

// bookLook is conntrack at one moment of the script, by what the connection does.
type bookLook struct {
	when  string
	books map[string]book
}

// TestConntrackTimers has the same conversations with the kernel alone and with shunt. Once they are quiet, in a pause,
// after it and after `shunt stop` conntrack must have of each what it has without shunt, and may have a lease and a
// second less time left, but none more.
func TestConntrackTimers(t *testing.T) {
	looks := map[string][]bookLook{}
	var mu sync.Mutex
	t.Run("run", func(t *testing.T) {
		for _, way := range []string{"kernel", "xdp", "tc"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				got := bookScript(t, way)
				mu.Lock()
				defer mu.Unlock()
				looks[way] = got
			})
		}
	})
	if t.Failed() {
		return
	}
	const slack = 1 // of a second, for looks that are not at the very same moment
	const afterStop = 2
	for _, way := range []string{"xdp", "tc"} {
		for i, want := range looks["kernel"] {
			for who, want := range want.books {
				got := looks[way][i].books[who]
				if want.state != ctEstablished { // where the flags count for nothing
					got.unacknowledged = want.unacknowledged
				}
				if i >= afterStop && strings.HasSuffix(who, "no room") {
					continue // docs/limits.md
				}
				more := got.left - want.left
				got.left = want.left
				most, least := 1+slack, -int((booksLease+booksLease/8)/time.Second)-1-slack
				if strings.HasSuffix(who, "dead peer") || strings.HasSuffix(who, "no room") {
					most, least = 15, -15 // the client tries again and again, at long intervals
				}
				if got != want || more > most || more < least {
					t.Errorf("%s: %s: %s: %+v and %+d s, with the kernel alone %+v", way, looks[way][i].when, who, got, more, want)
				}
			}
		}
	}
}

// side is where a conversation goes.
type side struct {
	name           string
	client, server netip.Addr
	port           uint16 // of the server
}

func bookScript(t *testing.T, way string) (looks []bookLook) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Offloads: map[string]lab.Offloads{"tc": lab.Stack}[way]})
	r.bookTimers()
	r.nft(`table inet zones { chain p { type filter hook prerouting priority raw;
		tcp dport 5300 ct zone set 7
		tcp sport 5300 ct zone set 7
	}; }`)
	if way != "kernel" {
		r.start(program, with("--lease", booksLease.String(), "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	}
	sides := []side{
		{"IPv4", r.Client.V4.Addr(), r.Server.V4.Addr(), tcpPort},
		{"IPv6", r.Client.V6.Addr(), r.Server.V6.Addr(), tcpPort},
		{"zone", r.Client.V4.Addr(), r.Server.V4.Addr(), 5300},
	}
	type one struct {
		what string
		talk *talk
		run  func(*talk, uint16)
		end  bool // it goes on after the first look
	}
	all := map[uint16]*one{}
	port := uint16(30000)
	for _, s := range sides {
		l := r.listenTCP(netip.AddrPortFrom(s.server, s.port))
		for _, o := range []one{
			{what: "request and answer", run: func(k *talk, _ uint16) { k.warm() }, end: true},
			{what: "upload", run: func(k *talk, _ uint16) { k.warm(); k.pour(k.client, k.server, 1<<20) }, end: true},
			{what: "download", run: func(k *talk, _ uint16) { k.warm(); k.pour(k.server, k.client, 1<<20) }, end: true},
			{what: "again after a pause", run: func(k *talk, _ uint16) { k.warm(); time.Sleep(2500 * time.Millisecond); k.say(1) }, end: true},
			{what: "keepalives", run: func(k *talk, _ uint16) {
				k.warm()
				k.r.must(k.client.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: 2 * time.Second}))
			}, end: true},
			{what: "slow by a new rule", run: func(k *talk, port uint16) {
				k.warm()
				k.r.nft(fmt.Sprintf(`table inet slow%d { chain f { type filter hook forward priority 5;
					tcp sport %d limit rate over 100000/second drop
					tcp dport %d limit rate over 100000/second drop
				}; }`, port, port, port))
				time.Sleep(300 * time.Millisecond)
				k.say(20)
			}, end: true},
			{what: "dead peer", run: func(k *talk, port uint16) {
				k.warm()
				k.die(port, 100)
			}},
			{what: "no room", run: func(k *talk, _ uint16) { k.warm(); k.fill() }},
			{what: "reset", run: func(k *talk, _ uint16) {
				k.warm()
				k.r.must(k.client.SetLinger(0))
				k.r.must(k.client.Close())
			}},
			{what: "half closed", run: func(k *talk, _ uint16) { k.warm(); k.r.must(k.client.CloseWrite()) }},
		} {
			o.what = s.name + ", " + o.what
			o.talk = r.connectTo(netip.AddrPortFrom(s.client, port), l)
			all[port] = &o
			port++
		}
	}
	look := func(when string) {
		l := bookLook{when, map[string]book{}}
		for _, c := range append(r.connections(syscall.AF_INET), r.connections(syscall.AF_INET6)...) {
			if o := all[c.Original.Source.Port()]; o != nil {
				const flag = kernel.TCPUnacknowledged
				l.books[o.what] = book{c.TCPState, c.Status, [2]bool{c.FlagsOriginal&flag != 0, c.FlagsReply&flag != 0}, int(c.Timeout / time.Second)}
			}
		}
		looks = append(looks, l)
	}
	each := func(going bool, f func(*talk, uint16, *one)) {
		var g sync.WaitGroup
		for port, o := range all {
			if o.end || !going {
				g.Go(func() { f(o.talk, port, o) })
			}
		}
		g.Wait()
	}
	each(false, func(k *talk, port uint16, o *one) { o.run(k, port) })
	before := r.hits(way)
	time.Sleep(8 * time.Second)
	look("quiet")
	if way != "kernel" && before < 400 { // TC counts a packet of many segments once
		t.Errorf("%d hits: the test did not test", before)
	}
	do := func(args ...string) {
		if way == "kernel" {
			return
		}
		if _, errs, code := r.shunt(args...); code != 0 {
			t.Fatalf("%v: %d, %s", args, code, errs)
		}
	}
	say := func(n int) { each(true, func(k *talk, _ uint16, _ *one) { k.say(n) }) }
	do("pause")
	say(3)
	time.Sleep(2500 * time.Millisecond)
	look("in a pause")
	do("resume")
	say(40)
	do("stop")
	time.Sleep(300 * time.Millisecond) // delayed acknowledgements
	look("after stop")
	say(2)
	time.Sleep(time.Second)
	look("after stop, and more was said")
	return looks
}

// TestStopAfterDeath: while the daemon is dead a connection has what its last renewal gave it, never more than without
// shunt; `shunt stop` settles it in its place.
func TestStopAfterDeath(t *testing.T) {
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Offloads: map[string]lab.Offloads{"tc": lab.Stack}[way]})
			r.bookTimers()
			r.start(program, with("--lease", booksLease.String(), "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
			four, six := r.listenTCP(netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort)), r.listenTCP(netip.AddrPortFrom(r.Server.V6.Addr(), tcpPort))
			talks := []*talk{
				r.connectTo(netip.AddrPortFrom(r.Client.V4.Addr(), 30000), four), r.connectTo(netip.AddrPortFrom(r.Client.V6.Addr(), 30001), six),
			}
			left := func() (seconds []int) {
				for _, c := range append(r.connections(syscall.AF_INET), r.connections(syscall.AF_INET6)...) {
					if p := c.Original.Source.Port(); p == 30000 || p == 30001 {
						seconds = append(seconds, int(c.Timeout/time.Second))
					}
				}
				return seconds
			}
			for _, k := range talks {
				k.warm()
			}
			if hits := r.hits(way); hits < 20 {
				t.Errorf("%d hits: the test did not test", hits)
			}
			r.daemon.Kill9()
			for _, k := range talks {
				k.say(40)
			}
			time.Sleep(2 * time.Second)
			for _, seconds := range left() {
				if seconds > booksEstablished-1 || seconds < booksUnacknowledged-4 {
					t.Errorf("the daemon is dead: %d s left", seconds)
				}
			}
			if _, errs, code := r.shunt("stop"); code != 0 {
				t.Fatalf("stop: %d, %s", code, errs)
			}
			if got := left(); len(got) != 2 || min(got[0], got[1]) < booksEstablished-6 || max(got[0], got[1]) > booksEstablished-1 {
				t.Errorf("after stop: %v s left, want %d less the time since", got, booksEstablished)
			}
		})
	}
}

// bookTimers gives conntrack the timers, and makes the set of client's ports that the server does not hear.
func (r *rig) bookTimers() {
	r.t.Helper()
	for name, seconds := range map[string]int{
		"established": booksEstablished, "unacknowledged": booksUnacknowledged, "max_retrans": booksMaxRetrans, "close": 100,
	} {
		r.sysctl("net.netfilter.nf_conntrack_tcp_timeout_"+name, fmt.Sprint(seconds))
	}
	r.must(r.Server.NS.NFT(`table inet deaf { set ports { type inet_service; }; chain in { type filter hook input priority 0; tcp sport @ports drop; }; }`))
}

// listenTCP listens at the server.
func (r *rig) listenTCP(at netip.AddrPort) (l net.Listener) {
	r.t.Helper()
	r.must(r.Server.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	}))
	r.t.Cleanup(func() { l.Close() })
	return l
}

// connectTo opens a connection to a listener, whose kernels send no keepalives yet.
func (r *rig) connectTo(client netip.AddrPort, l net.Listener) *talk {
	r.t.Helper()
	k := &talk{r: r}
	r.must(r.Client.NS.Do(func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(client), Timeout: patience, KeepAlive: -1}
		c, err := d.Dial("tcp", l.Addr().String())
		if err == nil {
			k.client = c.(*net.TCPConn)
		}
		return err
	}))
	c, err := l.Accept()
	r.must(err)
	k.server = c.(*net.TCPConn)
	r.must(k.server.SetKeepAlive(false))
	r.t.Cleanup(func() { k.client.Close(); k.server.Close() })
	return k
}

// pour sends n bytes one way.
func (k *talk) pour(from, to *net.TCPConn, n int64) {
	from.SetDeadline(time.Now().Add(patience))
	to.SetDeadline(time.Now().Add(patience))
	done := make(chan error)
	go func() {
		_, err := io.CopyN(io.Discard, to, n)
		done <- err
	}()
	_, err := from.Write(make([]byte, n))
	if err := errors.Join(err, <-done); err != nil {
		k.r.t.Error(err)
	}
}

// warm talks until the connection is repeated: be-liberal is set in the pause.
func (k *talk) warm() {
	k.say(15)
	time.Sleep(100 * time.Millisecond)
	k.say(40)
}

// die has the client send n bytes to a server that does not hear it any more.
func (k *talk) die(port uint16, n int) {
	time.Sleep(100 * time.Millisecond) // the client's last acknowledgement: the server has nothing to send again
	k.r.must(k.r.Server.NS.NFT(fmt.Sprintf("add element inet deaf ports { %d }", port)))
	_, err := k.client.Write(make([]byte, n))
	k.r.must(err)
}

// fill sends what the server, which does not read, has room for.
func (k *talk) fill() {
	k.client.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := k.client.Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		k.r.t.Errorf("16 MiB for a server that does not read: %v", err)
	}
}
