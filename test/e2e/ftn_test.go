// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// pushToServer puts what is for the server into LSPs with labels 200 and 201.
func (r *rig) pushToServer() []string {
	send := " send dev wan via inet " + r.Server.V4.Addr().String()
	return []string{
		"nhlfe add 7 push 200" + send, "ftn add " + r.Server.V4.Addr().String() + "/32 nhlfe 7",
		"nhlfe add 8 push 201" + send, "ftn add " + r.Server.V6.Masked().String() + " nhlfe 8",
	}
}

// egress makes the server the other end of those LSPs, by a daemon of its own.
func (r *rig) egress() {
	r.t.Helper()
	edge, err := lab.New("edge")
	r.must(err)
	r.t.Cleanup(func() { r.must(edge.Close()) })
	_, err = edge.StartDaemon(context.Background(), r.Server.NS, program, "--port", r.Server.Device, "--xdp", "on")
	r.must(err)
	_, err = api.NewClient(filepath.Join(edge.State(), "api.sock")).MPLSApply(context.Background(), api.MPLSChange{Origin: "e2e",
		Lines: []string{"nhlfe add 1 pop deliver", "ilm add 200 nhlfe 1", "ilm add 201 nhlfe 1", "space set " + r.Server.Device + " 0"}})
	r.must(err)
}

// imposed is how many packets got labels.
func (r *rig) imposed() uint64 { r.t.Helper(); return r.status().Counters["mpls"]["mpls_imposed"] }

// retransmitted are the TCP segments that a namespace has sent, and sent again.
func (r *rig) retransmitted(n *lab.NS) (sent, again uint64) {
	r.t.Helper()
	out, err := n.Run("nstat", "-asz", "TcpOutSegs", "TcpRetransSegs")
	r.must(err)
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0][0] == '#' {
			continue
		}
		count, err := strconv.ParseUint(fields[1], 10, 64)
		r.must(err)
		if fields[0] == "TcpOutSegs" {
			sent = count
		} else {
			again = count
		}
	}
	return sent, again
}

// transfer sends random bytes to the server by TCP, and compares what came.
func (r *rig) transfer(from *lab.NS, to netip.Addr, size int) {
	r.t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(data)
	var listener net.Listener
	var client net.Conn
	at := netip.AddrPortFrom(to, 5001).String()
	r.must(r.Server.NS.Do(func() (err error) { listener, err = net.Listen("tcp", at); return err }))
	defer listener.Close()
	came := make(chan []byte, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			came <- nil
			return
		}
		defer c.Close()
		sum := sha256.New()
		c.SetDeadline(time.Now().Add(6 * patience))
		n, err := io.Copy(sum, c)
		if err != nil {
			came <- fmt.Appendf(nil, "after %d bytes: %v", n, err)
			return
		}
		came <- sum.Sum(nil)
	}()
	r.must(from.Do(func() (err error) { client, err = net.DialTimeout("tcp", at, patience); return err }))
	client.SetDeadline(time.Now().Add(6 * patience))
	_, err := client.Write(data)
	r.must(err)
	r.must(client.Close())
	want := sha256.Sum256(data)
	if got := <-came; !bytes.Equal(got, want[:]) {
		r.t.Errorf("what came is not what was sent: %q", got)
	}
}

// TestOwnTrafficImposed: the router's own TCP, which is cut and summed after the labels are decided on,
// goes through an LSP whole, and hears how long its packets may be.
func TestOwnTrafficImposed(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true, Open: true})
	r.egress()
	r.start(program, with("--xdp", "on")...)
	r.labelsApply(r.pushToServer()...)
	const size = 8 << 20
	for _, to := range []netip.Addr{r.Server.V4.Addr(), r.Server.V6.Addr()} {
		before := r.imposed()
		sentBefore, againBefore := r.retransmitted(r.LAN.NS)
		r.transfer(r.LAN.NS, to, size)
		sent, again := r.retransmitted(r.LAN.NS)
		sent, again = sent-sentBefore, again-againBefore
		t.Logf("%s: %d segments, %d again, %d imposed", to, sent, again, r.imposed()-before)
		if again > sent/50 {
			t.Errorf("%s: %d of %d segments were sent again", to, again, sent)
		}
		if n := r.imposed() - before; n < sent {
			t.Errorf("%s: %d packets got labels of at least %d", to, n, sent)
		}
		route, err := r.LAN.NS.Run("ip", "route", "get", to.String())
		if err != nil || !strings.Contains(route, "mtu 1496") {
			t.Errorf("the router has not heard of its path MTU: %s, %v", route, err)
		}
	}
	r.must(r.daemon.Stop())
	r.noPair()
}

// noPair asserts that nothing is left of shunt, nor of the interfaces that it makes for imposition.
func (r *rig) noPair() {
	r.t.Helper()
	r.nothing()
	for _, name := range []string{kernel.PairOuter, kernel.PairInner} {
		if out, err := r.LAN.NS.Run("ip", "link", "show", name); err == nil {
			r.t.Errorf("left behind: %s", out)
		}
	}
}

// TestImposition: what is forwarded, behind masquerading, gets its label from its first packet on, is
// learned, and repeated.
func TestImposition(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true, NAT: lab.NATMasquerade})
	r.start(program, with("--xdp", "on")...)
	r.labelsApply(r.pushToServer()...)
	sink := r.labelSink()
	g := r.labelled(1, 0, 20000)
	const n = 20000
	r.send(g, n)
	r.whole("imposed", sink, n)
	if got := r.imposed(); got != n {
		t.Errorf("%d packets got labels, %d came", got, n)
	}
	if hits := r.status().Counters["xdp"]["hit"]; hits < n*9/10 {
		t.Errorf("%d of %d were repeated", hits, n)
	}
}

// TestImpositionPathMTU: hosts behind the router, and behind its NAT, hear how long their packets may
// be, so that what they send by TCP comes; what may be cut is.
func TestImpositionPathMTU(t *testing.T) {
	for name, nat := range map[string]lab.NAT{"routed": lab.NATNone, "masqueraded": lab.NATMasquerade} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{Neighbours: true, NAT: nat})
			r.egress()
			r.start(program, with("--xdp", "on")...)
			r.labelsApply(r.pushToServer()...)
			const size = 8 << 20
			server := r.Server.V4.Addr()
			r.transfer(r.Client.NS, server, size)
			route, err := r.Client.NS.Run("ip", "route", "get", server.String())
			if err != nil || !strings.Contains(route, "mtu 1496") {
				t.Errorf("the client has not heard of its path MTU: %s, %v", route, err)
			}
			if n := r.imposed(); n < size/1496 {
				t.Errorf("%d packets got labels", n)
			}

			// without DF, and too long by the label
			at := netip.AddrPortFrom(server, 7000)
			hears := r.listenUDP(r.Server.NS, at)
			speaks := r.dialUDP(r.Client.NS, netip.AddrPortFrom(r.Client.V4.Addr(), 4000), at)
			raw, err := speaks.SyscallConn()
			r.must(err)
			r.must(raw.Control(func(fd uintptr) {
				r.must(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_INTERFACE))
			}))
			data := bytes.Repeat([]byte("0123456789ab"), 100)
			data = append(data, data...)[:1500-28]
			buffer := make([]byte, 2000)
			for range 20 {
				_, err := speaks.Write(data)
				r.must(err)
				hears.SetReadDeadline(time.Now().Add(patience))
				n, err := hears.Read(buffer)
				if err != nil || !bytes.Equal(buffer[:n], data) {
					t.Fatalf("%d bytes came of %d: %v", n, len(data), err)
				}
			}
			// the kernel counts a packet when all of it has gone, and it may be there by then
			r.eventually("20 packets were cut", patience, func() bool {
				s, err := r.api.MPLSStats(context.Background(), api.MPLSFilter{})
				r.must(err)
				return s.Interfaces[0].OutFragmentedPkts == 20
			})
		})
	}
}

// TestImpositionChanges: prefixes that come, go and lead elsewhere under traffic lose nothing: each
// packet goes with labels, or without.
func TestImpositionChanges(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	for _, n := range []*lab.NS{r.LAN.NS, r.Server.NS} { // they have nothing else to say
		r.must(n.Sysctl("net.ipv6.conf.all.disable_ipv6", "1"))
	}
	r.start(program, with("--xdp", "on")...)
	send, prefix := " send dev wan via inet "+r.Server.V4.Addr().String(), r.Server.V4.Addr().String()+"/32"
	r.labelsApply("nhlfe add 7 push 200"+send, "nhlfe add 8 push 200 ttl 9"+send, "nhlfe add 9 deliver")
	sink := r.labelSink()
	stop := r.background(r.labelled(1, 0, 20000))
	for range 10 {
		for _, line := range []string{
			"ftn add " + prefix + " nhlfe 7", "ftn replace " + prefix + " nhlfe 8", "nhlfe replace 8 push 200 tc 3" + send, "ftn replace " + prefix + " nhlfe 9",
			"ftn replace " + prefix + " nhlfe 7", "nhlfe replace 8 push 200 ttl 9" + send, "ftn del " + prefix,
		} {
			r.labelsApply(line)
			time.Sleep(50 * time.Millisecond)
		}
	}
	sent := stop()
	labelled := r.imposed()
	got, err := sink.Wait(labelled, 2*time.Second)
	r.must(err)
	if got.Frames != labelled || got.Foreign != sent.Sent-labelled || got.Bad() > 0 {
		t.Errorf("sent %d, %d of them with labels, arrived %+v: %v", sent.Sent, labelled, got, r.status().Counters)
	}
	if labelled < sent.Sent/4 || labelled > sent.Sent*9/10 {
		t.Errorf("%d of %d got labels", labelled, sent.Sent)
	}
}

// TestImpositionOutlivesTheDaemon: whatever happens to it, every packet gets its label; after stop, also
// of a dead one, nothing is left.
func TestImpositionOutlivesTheDaemon(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	args := with("--xdp", "on")
	r.start(program, args...)
	r.labelsApply(r.pushToServer()...)
	sink := r.labelSink()
	stop := r.background(r.labelled(1, 0, 20000))
	time.Sleep(200 * time.Millisecond)
	index := func() string {
		out, err := r.LAN.NS.Run("ip", "-o", "link", "show", kernel.PairOuter)
		r.must(err)
		return strings.Fields(out)[0]
	}
	pair := index()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"killed", func() { r.daemon.Kill9(); time.Sleep(300 * time.Millisecond); r.start(program, args...) }},
		{"terminated", func() { r.terminate(); r.start(program, args...) }},
		{"upgraded", func() { r.terminate(); r.start(upgrade, args...) }},
		{"killed again", func() { r.daemon.Kill9(); r.start(upgrade, args...) }},
	} {
		before, err := sink.Stats()
		r.must(err)
		step.do()
		time.Sleep(300 * time.Millisecond)
		after, err := sink.Stats()
		r.must(err)
		if after.Frames-before.Frames < 4000 || after.Lost > 0 || after.Foreign > 20 {
			t.Errorf("%s: from %+v to %+v", step.name, before, after)
		}
		if now := index(); now != pair {
			t.Errorf("%s: the pair is %s, and was %s", step.name, now, pair)
		}
	}
	sent := stop()
	got, err := sink.Wait(sent.Sent, 2*time.Second)
	r.must(err)
	// a new daemon makes every flow prove itself, in the middle of a poll: docs/limits.md, Order
	if got.Frames != sent.Sent || got.Lost+got.Duplicates+got.Bad() > 0 || got.Latest > 16 {
		t.Errorf("sent %d, arrived %+v", sent.Sent, got)
	}

	// somebody takes the pair away
	r.ip("link del " + kernel.PairOuter)
	r.must(sink.Reset())
	g := r.labelled(1, 0, 0)
	r.eventually("it is made again, and labels are pushed", patience, func() bool {
		r.send(g, 10)
		got, err := sink.Stats()
		return err == nil && got.Frames > 0
	})
	r.daemon.Kill9()
	if out, errs, code := r.shunt("stop"); code != 0 {
		t.Errorf("stop: %s%s", out, errs)
	}
	r.noPair()
}

// TestImpositionOfEverything: with a prefix for all there is, neighbours are found all the same, and what
// is beside a port is reached by a prefix that delivers.
func TestImpositionOfEverything(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Open: true})
	r.egress()
	r.start(program, with("--xdp", "on")...)
	send := " send dev wan via inet " + r.Server.V4.Addr().String()
	r.labelsApply("nhlfe add 7 push 200"+send, "nhlfe add 9 deliver", "ftn add 0.0.0.0/0 nhlfe 7", "ftn add ::/0 nhlfe 7",
		"ftn add "+r.LAN.V4.Masked().String()+" nhlfe 9", "ftn add "+r.LAN.V6.Masked().String()+" nhlfe 9")
	r.eventually("the way out is up", patience, func() bool { state, _ := r.wayOut(7); return state == api.MPLSUp })
	for _, to := range []netip.Addr{r.Client.V4.Addr(), r.Client.V6.Addr(), r.Server.V4.Addr(), r.Server.V6.Addr()} {
		if out, err := r.LAN.NS.Run("ping", "-n", "-c", "3", "-i", "0.2", "-W", "2", to.String()); err != nil || !strings.Contains(out, " 0% packet loss") {
			t.Errorf("%s: %v: %s", to, err, out)
		}
	}
	if n := r.imposed(); n != 6 {
		t.Errorf("%d packets got labels, of two pings of three", n)
	}
}

// TestImpositionCountersOnAllQueues: two CPUs send to two queues as fast as they can, and all counters
// are those of the frames that the kernel's own say came in, to the packet.
func TestImpositionCountersOnAllQueues(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.twoQueues()
	r.start(program, with("--xdp", "on")...)
	r.labelsApply(r.pushToServer()...)
	sink := r.labelSink()
	const n = 1_000_000
	r.both(n, func(cpu int) *traffic.Generator { return r.labelled(cpu, 0, 0) })
	came := r.settled(r.LAN, "rx", "xdp_packets")
	imposed := r.imposed()
	pair := lab.End{NS: r.LAN.NS, Device: kernel.PairOuter}
	full := r.settled(pair, "tx", "xdp_xmit_errors").sum
	left, lost := r.settled(r.WAN, "tx", "xdp_xmit"), r.settled(r.WAN, "tx", "xdp_xmit_errors")
	t.Logf("of %d frames %d came, %d had no room in the pair, %d got labels, %d left, %d had no room behind", 2*n, came.sum, full, imposed, left.sum, lost.sum)
	if came.sum < n/10 || len(came.queues) != 2 || slices.Min(came.queues) < n/100 {
		t.Fatalf("too few frames came: %+v", came)
	}
	if other := came.sum - full - imposed; other > 100 { // the stack's own
		t.Errorf("%d frames came and got no labels", other)
	}
	got, err := sink.Wait(left.sum, patience)
	r.must(err)
	if got.Frames != left.sum || left.sum+lost.sum != imposed || got.Bad() > 0 {
		t.Errorf("%d got labels, arrived %+v", imposed, got)
	}
	s, err := r.api.MPLSStats(context.Background(), api.MPLSFilter{})
	r.must(err)
	if out := s.OutSegments[0]; out.Packets != imposed || out.HCOctets != imposed*(64-14+4) || out.Errors+out.Discards > 0 {
		t.Errorf("out-segment: %+v", out)
	}
	for reason, n := range s.Interfaces[0].Reasons {
		if reason != "queue_full" || n != full {
			t.Errorf("lost: %d by %s", n, reason)
		}
	}
}
