// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// ending is how a connection of the script ends.
type ending byte

const (
	clientFIN      ending = iota // client closes, then the server
	serverFIN                    // the other way round
	clientRST                    // client resets
	serverRST                    // server resets
	clientHalf                   // client ends its direction, the server sends on and then closes
	serverHalf                   // the other way round
	clientHalfOpen               // as clientHalf, but the server never closes
	serverHalfOpen               // as serverHalf, but the client never closes
	staysOpen
	endings
)

const (
	conns     = 200
	basePort  = 20000
	bulk      = 50000 // bytes in one piece
	tcpPort   = 5201
	patience  = 10 * time.Second
	ioTime    = 30 * time.Second // with the wait for a turn
	closeTime = 4                // seconds, the longest timeout of a connection that ends
)

// afterFIN is how much the other direction of connection i carries after the first FIN:
// many windows for some of each ending, so that the second FIN is far from all that was
// seen before the first.
func afterFIN(i int) int {
	if i < 4*int(endings) {
		return 1 << 20
	}
	return bulk
}

// turns limit how many connections send at a time, to what fits into veth's rings: what does not is
// lost, and who resets a connection then has not sent its last byte yet.
type turns chan struct{}

// take waits for a turn, and returns how to give it back.
func (t turns) take() (give func()) {
	t <- struct{}{}
	return func() { <-t }
}

var halfClosed = make(turns, 4)

// hearOut ends a direction and takes what still comes from the other one.
func hearOut(c *net.TCPConn, i int) error {
	defer halfClosed.take()()
	if err := c.CloseWrite(); err != nil {
		return err
	}
	return expect(c, pattern(i, afterFIN(i)))
}

// pattern is what connection i carries.
func pattern(i, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})
	r.Read(b)
	return b
}

// outcome is what conntrack has of one connection.
type outcome struct {
	state   uint8
	status  uint32
	reply   string
	seconds int // left
}

// TestTCPEnds opens connections through the armed path, uses them in both directions and
// ends them in every way. Conntrack must end where it ends without shunt.
func TestTCPEnds(t *testing.T) {
	type result struct{ atEnd, later map[int]outcome }
	results := map[string]result{}
	var mu sync.Mutex
	t.Run("run", func(t *testing.T) {
		for name, o := range map[string]lab.Offloads{"kernel": lab.Wire, "xdp": lab.Wire, "tc": lab.Stack} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				atEnd, later := tcpScript(t, name, o)
				mu.Lock()
				defer mu.Unlock()
				results[name] = result{atEnd, later}
			})
		}
	})
	if t.Failed() {
		return
	}
	kernel := results["kernel"]
	if len(kernel.atEnd) < conns {
		t.Fatalf("conntrack has %d of %d connections without shunt: the test is broken", len(kernel.atEnd), conns)
	}
	for _, way := range []string{"xdp", "tc"} {
		for i := range conns {
			want, got := kernel.atEnd[i], results[way].atEnd[i]
			late := got.seconds - want.seconds
			got.seconds = want.seconds
			if got != want || late > 2 { // the two runs look at slightly different moments
				t.Errorf("%s: connection %d (ending %d): conntrack has %+v, %d s longer; without shunt %+v", way, i, i%int(endings), got, late, want)
			}
		}
		for i := range results[way].later {
			if _, ok := kernel.later[i]; !ok {
				t.Errorf("%s: connection %d (ending %d) lingers: %+v", way, i, i%int(endings), results[way].later[i])
			}
		}
		if n, want := len(results[way].later), len(kernel.later); n != want {
			t.Errorf("%s: %d connections at the end, without shunt %d", way, n, want)
		}
	}
}

func tcpScript(t *testing.T, way string, o lab.Offloads) (atEnd, later map[int]outcome) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Offloads: o})
	r.calm()
	if way != "kernel" {
		// leases that last to the end: what ends then was not in conntrack's sight for long
		r.start(program, with("--lease", "30s", "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])...)
	}
	release := make(chan struct{})
	defer close(release)
	some, few := make(turns, 16), make(turns, 4)
	s := &tcpServer{t: t, release: release}
	s.listen(r)

	all := r.dialAll()
	each := func(what string, limit turns, f func(*tcpClient) error) {
		var g sync.WaitGroup
		for _, c := range all {
			g.Go(func() {
				defer limit.take()()
				c.SetDeadline(time.Now().Add(ioTime))
				if err := f(c); err != nil {
					t.Errorf("connection %d (ending %d): %s: %v", c.i, c.end, what, err)
				}
			})
		}
		g.Wait()
	}
	each("greeting", some, func(c *tcpClient) error { _, err := c.Write([]byte{byte(c.i), byte(c.i >> 8)}); return err })
	chat := func() { each("chat", some, (*tcpClient).chat) }
	chat()
	if way == "kernel" {
		chat()
	} else {
		r.eventually("every connection is armed both ways", patience, func() bool { chat(); return r.armedTCP(way) == 2*conns })
	}
	before := r.hits(way)
	each("bulk", few, func(c *tcpClient) error { return c.echo(pattern(c.i, bulk)) })
	// TC counts a packet of many segments once
	if hits := r.hits(way) - before; way != "kernel" && hits < conns*2*2 {
		t.Errorf("%d hits while %d bytes went both ways: the test did not test", hits, conns*bulk)
	}
	each("end", make(turns, conns), func(c *tcpClient) error { return c.finish(some) })
	s.settled(r)
	atEnd = r.outcomes()
	time.Sleep((closeTime + 2) * time.Second)
	return atEnd, r.outcomes()
}

// calm makes conntrack forget ended connections soon. A retransmitted FIN would move its
// state on, so the hosts must not lose patience on a busy machine, and nothing be lost.
func (r *rig) calm() {
	r.t.Helper()
	for _, s := range []string{"time_wait", "close", "fin_wait", "close_wait", "last_ack"} {
		r.sysctl("net.netfilter.nf_conntrack_tcp_timeout_"+s, fmt.Sprint(closeTime))
	}
	for _, p := range [][2]lab.End{{r.Client, r.LAN}, {r.Server, r.WAN}} {
		r.must(p[0].NS.Sysctl("net.ipv4.tcp_early_retrans", "0"))
		r.must(p[0].NS.Sysctl("net.ipv4.tcp_rmem", "4096 65536 65536")) // windows that fit into veth's rings
		r.must(p[0].NS.IP(fmt.Sprintf("route change default via %v rto_min 3s", p[1].V4.Addr())))
	}
}

// dialAll opens all connections, one after the other.
func (r *rig) dialAll() []*tcpClient {
	r.t.Helper()
	all := make([]*tcpClient, conns)
	r.must(r.Client.NS.Do(func() error {
		for i := range all {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: r.Client.V4.Addr().AsSlice(), Port: basePort + i}, Timeout: patience}
			c, err := d.Dial("tcp4", fmt.Sprintf("%v:%d", r.Server.V4.Addr(), tcpPort))
			if err != nil {
				return err
			}
			all[i] = &tcpClient{c.(*net.TCPConn), i, ending(i % int(endings))}
			r.t.Cleanup(func() { c.Close() })
		}
		return nil
	}))
	return all
}

// hits is the count of repeated packets, 0 without shunt.
func (r *rig) hits(way string) uint64 {
	if way == "kernel" {
		return 0
	}
	return r.status().Hits
}

func (r *rig) armedTCP(way string) (n int) {
	for _, f := range r.armed() {
		if f.Proto == "tcp" && f.Way == map[string]string{"xdp": api.WayXDP, "tc": api.WayTC}[way] {
			n++
		}
	}
	return n
}

// outcomes are conntrack's TCP connections by number.
func (r *rig) outcomes() map[int]outcome {
	m := map[int]outcome{}
	for _, c := range r.connections(syscall.AF_INET) {
		if c.Original.Proto == syscall.IPPROTO_TCP {
			m[int(c.Original.Source.Port())-basePort] = outcome{
				c.TCPState, c.Status, fmt.Sprint(c.Reply.Source, c.Reply.Destination), int(c.Timeout / time.Second)}
		}
	}
	return m
}

type tcpClient struct {
	*net.TCPConn
	i   int
	end ending
}

// Commands from client to server.
const (
	echoCommand = 'e' // a block of two-byte length follows
	endCommand  = 'x'
)

func (c *tcpClient) echo(b []byte) error {
	head := []byte{echoCommand, byte(len(b)), byte(len(b) >> 8)}
	if _, err := c.Write(append(head, b...)); err != nil {
		return err
	}
	return expect(c, b)
}

// chat is a few short exchanges, enough of them in a row to reach the threshold.
func (c *tcpClient) chat() error {
	for range 15 {
		if err := c.echo(pattern(c.i, 99)); err != nil {
			return err
		}
	}
	return nil
}

func expect(c io.Reader, want []byte) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("other bytes came than were sent")
	}
	return nil
}

func expectError(c io.Reader, want error) error {
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, want) {
		return fmt.Errorf("%d bytes and error %v, want %v", n, err, want)
	}
	return nil
}

// finish ends the connection from the client's side.
func (c *tcpClient) finish(some turns) error {
	if err := c.lastWords(some); err != nil {
		return err
	}
	return play(c.TCPConn, c.i, c.end == clientFIN || c.end == clientHalf || c.end == clientHalfOpen,
		c.end == clientRST, c.end, nil)
}

func (c *tcpClient) lastWords(some turns) error {
	defer some.take()()
	if _, err := c.Write([]byte{endCommand}); err != nil {
		return err
	}
	return expect(c, []byte{endCommand})
}

// play is either side's part of an ending: `first` ends its direction first, `resets` does
// so with a reset.
func play(c *net.TCPConn, i int, first, resets bool, end ending, release chan struct{}) error {
	half := end >= clientHalf && end <= serverHalfOpen
	open := end == clientHalfOpen || end == serverHalfOpen
	switch {
	case end == staysOpen:
		wait(release)
		return nil
	case resets:
		c.SetLinger(0)
		return c.Close()
	case end == clientRST || end == serverRST:
		return expectError(c, syscall.ECONNRESET)
	case first && half:
		if err := hearOut(c, i); err != nil {
			return err
		}
		if open {
			wait(release)
			return nil
		}
		return expectError(c, io.EOF)
	case first:
		if err := c.CloseWrite(); err != nil {
			return err
		}
		return expectError(c, io.EOF)
	}
	if err := expectError(c, io.EOF); err != nil {
		return err
	}
	if half {
		if _, err := c.Write(pattern(i, afterFIN(i))); err != nil {
			return err
		}
	}
	if open {
		wait(release)
		return nil
	}
	return c.Close()
}

// wait keeps the server's side of a connection open; the client's is open anyway.
func wait(release chan struct{}) {
	if release != nil {
		<-release
	}
}

type tcpServer struct {
	t       *testing.T
	release chan struct{}
}

func (s *tcpServer) listen(r *rig) {
	stop, err := r.Server.NS.ServeTCP(netip.AddrPortFrom(r.Server.V4.Addr(), tcpPort), func(c *net.TCPConn) {
		if err := s.serve(c); err != nil {
			s.t.Errorf("server: %v", err)
		}
	})
	r.must(err)
	s.t.Cleanup(func() { stop() })
}

func (s *tcpServer) serve(c *net.TCPConn) error {
	c.SetDeadline(time.Now().Add(6 * patience))
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	i := int(head[0]) | int(head[1])<<8
	end := ending(i % int(endings))
	for {
		if _, err := io.ReadFull(c, head[:1]); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		if head[0] == endCommand {
			break
		}
		if _, err := io.ReadFull(c, head); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		b := make([]byte, int(head[0])|int(head[1])<<8)
		if _, err := io.ReadFull(c, b); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		if _, err := c.Write(b); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	if _, err := c.Write([]byte{endCommand}); err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	err := play(c, i, end == serverFIN || end == serverHalf || end == serverHalfOpen, end == serverRST, end, s.release)
	if err != nil {
		return fmt.Errorf("connection %d (ending %d): %w", i, end, err)
	}
	return nil
}

// settled waits until the last packets of all endings have gone by: conntrack stands still.
func (s *tcpServer) settled(r *rig) {
	last := map[int]uint8{}
	r.eventually("conntrack stands still", patience, func() bool {
		now := map[int]uint8{}
		for i, o := range r.outcomes() {
			now[i] = o.state
		}
		same := maps.Equal(now, last)
		last = now
		time.Sleep(150 * time.Millisecond)
		return same
	})
}
