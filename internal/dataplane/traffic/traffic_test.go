// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// pair is a lab of two namespaces with one wire between them.
func pair(t *testing.T) (a, b lab.End) {
	t.Helper()
	l, err := lab.New("pair")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := l.Namespaces("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	end := func(i int) lab.End {
		return lab.End{
			NS: ns[i], Device: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)},
			V4: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(i + 1)}), 24),
			V6: netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("2001:2::%d", i+1)), 64),
		}
	}
	a, b = end(0), end(1)
	if err := l.Connect(a, b, lab.Wire, 0); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// between is the config for frames from one end to another.
func between(a, b lab.End, v6 bool, p Protocol, size, flows int) Config {
	source, dest := a.V4.Addr(), b.V4.Addr()
	if v6 {
		source, dest = a.V6.Addr(), b.V6.Addr()
	}
	return Config{NS: a.NS, Device: a.Device, CPU: 0, Frames: Frames{
		SourceMAC: a.MAC, DestMAC: b.MAC, Protocol: p, Size: size, Flows: flows,
		Source: netip.AddrPortFrom(source, 10000), Dest: netip.AddrPortFrom(dest, 5000),
	}}
}

func send(t *testing.T, c Config, n uint64) Result {
	t.Helper()
	g, err := NewGenerator(c)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	r, err := g.Run(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAllFramesArrive: everything that is sent is counted, in order and whole.
func TestAllFramesArrive(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 1)
	const n = 20000
	for _, v6 := range []bool{false, true} {
		for _, p := range []Protocol{UDP, TCP, ICMP} {
			for _, size := range []int{64, 65, 1400, 1514} {
				for _, flows := range []int{1, 2, 1000} {
					c := between(a, b, v6, p, size, flows)
					c.Scatter = size == 65
					c.Size = max(c.Size, c.MinSize())
					t.Run(fmt.Sprintf("%v-v6=%v-%d-%d", p, v6, c.Size, flows), func(t *testing.T) {
						if err := sink.Reset(); err != nil {
							t.Fatal(err)
						}
						r := send(t, c, n)
						got := wait(t, sink, n)
						want := Stats{Frames: n, Bytes: n * uint64(c.Size), Flows: uint64(flows), Verified: n}
						if r.Sent != n || got != want {
							t.Errorf("sent %d, got %+v, want %+v", r.Sent, got, want)
						}
					})
				}
			}
		}
	}
}

// attachSink is AttachSink for the length of a test.
func attachSink(t *testing.T, e lab.End, sample int) *Sink {
	t.Helper()
	s, err := AttachSink(e.NS, e.Device, sample)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// wait is what the sink has after n frames, without the count of other frames.
func wait(t *testing.T, s *Sink, n uint64) Stats {
	t.Helper()
	stats, err := s.Wait(n, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	stats.Foreign = 0
	return stats
}

// TestFaultsAreFound: each kind of damage is counted as what it is.
func TestFaultsAreFound(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 1)
	const n = 100
	whole := Stats{Frames: n, Flows: 1, Verified: n}
	for name, damage := range map[string]func(frame *[]byte, p *bpfFrameTemplate, want *Stats){
		"none":      func(*[]byte, *bpfFrameTemplate, *Stats) {},
		"ip header": func(_ *[]byte, p *bpfFrameTemplate, want *Stats) { p.IpSum++; want.BadIP = n },
		"l4":        func(_ *[]byte, p *bpfFrameTemplate, want *Stats) { p.L4Sum++; want.BadL4 = n },
		"last byte": func(f *[]byte, _ *bpfFrameTemplate, want *Stats) {
			(*f)[len(*f)-1] ^= 1
			want.BadL4, want.BadPayload = n, n
		},
		"words exchanged": func(f *[]byte, _ *bpfFrameTemplate, want *Stats) { // no checksum sees that
			copy((*f)[100:104], []byte{(*f)[102], (*f)[103], (*f)[100], (*f)[101]})
			want.BadPayload = n
		},
		"trailer": func(f *[]byte, _ *bpfFrameTemplate, want *Stats) {
			*f = append(*f, 0, 0)
			want.BadLength = n
		},
	} {
		for _, v6 := range []bool{false, true} {
			if v6 && name == "ip header" {
				continue
			}
			t.Run(fmt.Sprintf("%s v6=%v", name, v6), func(t *testing.T) {
				sink.Reset()
				c := between(a, b, v6, UDP, 151, 1)
				if err := c.check(); err != nil {
					t.Fatal(err)
				}
				frame, template := c.template()
				want := whole
				damage(&frame, &template, &want)
				want.Bytes = n * uint64(len(frame))
				g, err := load(c, frame, template)
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				if _, err := g.Run(context.Background(), n); err != nil {
					t.Fatal(err)
				}
				if got := wait(t, sink, n); got != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			})
		}
	}
}

// TestOrder: gaps, late frames and repetitions are told apart.
func TestOrder(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 1)
	part := func(start, n uint64) {
		c := between(a, b, false, UDP, 64, 2)
		c.Start = 2 * start // of two flows in turn
		send(t, c, 2*n)
	}
	part(0, 10)
	part(30, 10) // 10 to 29 are missing
	if got := wait(t, sink, 40); got.Lost != 40 || got.Reordered != 0 {
		t.Errorf("after a gap: %+v", got)
	}
	part(20, 10)
	if got := wait(t, sink, 60); got.Lost != 20 || got.Reordered != 20 || got.Latest != 19 || got.Duplicates != 0 {
		t.Errorf("after late frames: %+v", got)
	}
	part(25, 10)
	if got := wait(t, sink, 80); got.Lost != 20 || got.Reordered != 20 || got.Duplicates != 20 {
		t.Errorf("after repetitions: %+v", got)
	}
	flow, err := sink.Flow(1)
	if want := (FlowStats{Packets: 40, Lost: 10, Reordered: 10, Duplicates: 10, Last: 39}); err != nil || flow != want {
		t.Errorf("flow 1: %+v, %v, want %+v", flow, err, want)
	}
	sink.Reset()
	if got, err := sink.Stats(); err != nil || got != (Stats{}) {
		t.Errorf("after reset: %+v, %v", got, err)
	}
}

// TestKernelAccepts takes the kernel as the judge of the frames: it counts what
// it found good in /proc/net/snmp.
func TestKernelAccepts(t *testing.T) {
	a, b := pair(t)
	const n = 500
	for _, v6 := range []bool{false, true} {
		for p, good := range map[Protocol][2]string{
			UDP:  {"Udp: NoPorts", "Udp6NoPorts"},
			TCP:  {"Tcp: OutRsts", "Tcp: OutRsts"}, // nobody listens
			ICMP: {"Icmp: InEchos", "Icmp6InEchos"},
		} {
			for _, size := range []int{65, 200, 1501, MaxSize - 4} {
				c := between(a, b, v6, p, size, 7)
				c.Size = max(size, c.MinSize())
				c.TOS, c.TTL = 0xb9, 3
				family := 0
				if v6 {
					family = 1
				}
				before := counters(t, b.NS)
				send(t, c, n)
				var got uint64
				for range 100 {
					if got = counters(t, b.NS)[good[family]] - before[good[family]]; got >= n {
						break
					}
					time.Sleep(time.Millisecond)
				}
				if got != n {
					t.Errorf("%v v6=%v %d bytes: %s counts %d of %d", p, v6, c.Size, good[family], got, n)
				}
			}
		}
	}
}

// counters are those of /proc/net/snmp ("Udp: NoPorts") and snmp6 ("Udp6NoPorts").
func counters(t *testing.T, n *lab.NS) map[string]uint64 {
	t.Helper()
	var text, text6 []byte
	err := n.Do(func() (err error) {
		if text, err = os.ReadFile("/proc/thread-self/net/snmp"); err != nil {
			return err
		}
		text6, err = os.ReadFile("/proc/thread-self/net/snmp6")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	var names []string
	for line := range strings.Lines(string(text)) { // a line of names, a line of values
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		for i := 1; i < len(fields); i++ {
			all[fields[0]+" "+names[i]], _ = strconv.ParseUint(fields[i], 10, 64)
		}
		names = nil
	}
	for line := range strings.Lines(string(text6)) {
		fields := strings.Fields(line)
		all[fields[0]], _ = strconv.ParseUint(fields[1], 10, 64)
	}
	return all
}

// across is the config for frames from the client to the server of a firewall lab.
func across(f *lab.Topology, v6 bool, p Protocol, size, flows int) Config {
	c := between(f.Client, f.Server, v6, p, size, flows)
	c.DestMAC = f.LAN.MAC
	first := lab.Behind4
	if v6 {
		first = lab.Behind6
	}
	c.Source = netip.AddrPortFrom(first, c.Source.Port())
	return c
}

// TestThroughFirewall: the kernel forwards and masquerades; all arrives whole.
func TestThroughFirewall(t *testing.T) {
	f, err := lab.Firewall(lab.FirewallOptions{NAT: lab.NATMasquerade, Fillers: 3, Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sink := attachSink(t, f.Server, 1)
	const n = 40000
	for _, v6 := range []bool{false, true} {
		for _, p := range []Protocol{UDP, TCP, ICMP} {
			flows := 20000 // more than one group of ports
			if p == ICMP {
				flows = 10000 // NAT gives ids out twice within a batch of packets, and drops the second
			}
			sink.Reset()
			c := across(f, v6, p, 90, flows)
			send(t, c, n)
			want := Stats{Frames: n, Bytes: n * 90, Flows: uint64(flows), Verified: n}
			if got := wait(t, sink, n); got != want {
				t.Errorf("%v v6=%v: got %+v, want %+v", p, v6, got, want)
			}
			if p == ICMP {
				continue
			}
			source, dest := c.Flow(flows - 1)
			out, err := f.LAN.NS.Run("conntrack", "-L", "-f", map[bool]string{false: "ipv4", true: "ipv6"}[v6], "-p", p.String(),
				"-s", source.Addr().String(), "--sport", fmt.Sprint(source.Port()), "-d", dest.Addr().String(), "--dport", fmt.Sprint(dest.Port()))
			if err != nil || strings.Count(out, "src=") != 2 {
				t.Errorf("%v v6=%v: flow %d from %v to %v: conntrack has %q (%v)", p, v6, flows-1, source, dest, out, err)
			}
		}
	}
}

// TestReverse sends the other way: frames to flows that the client began.
func TestReverse(t *testing.T) {
	f, err := lab.Firewall(lab.FirewallOptions{Neighbours: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sink := attachSink(t, f.Client, 1)
	for _, p := range []Protocol{UDP, ICMP} {
		there := across(f, false, p, 64, 20000)
		there.Rate = 50000 // the kernel forwards these, and must not fall behind on a busy machine
		send(t, there, 20000)
		back := there
		back.NS, back.Device, back.SourceMAC, back.DestMAC = f.Server.NS, f.Server.Device, f.Server.MAC, f.WAN.MAC
		back.Source, back.Dest, back.Reverse = there.Dest, there.Source, true
		s1, d1 := there.Flow(17000)
		if s2, d2 := back.Flow(17000); s1 != d2 || d1 != s2 {
			t.Errorf("flow 17000 goes from %v to %v and back from %v to %v", s1, d1, s2, d2)
		}
		// The firewall drops what no flow of the client asked for.
		sink.Reset()
		send(t, back, 20000)
		want := Stats{Frames: 20000, Bytes: 20000 * 64, Flows: 20000, Verified: 20000}
		if got := wait(t, sink, 20000); got != want {
			t.Errorf("%v: got %+v, want %+v", p, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	a, b := pair(t)
	sink := attachSink(t, b, 64)
	c := between(a, b, false, UDP, 64, 10)
	c.Rate, c.CPU = 20000, -1
	g, err := NewGenerator(c)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	r, err := g.Run(context.Background(), 5000)
	// On a busy machine it takes longer, never less.
	if err != nil || r.Sent != 5000 || r.Duration < 245*time.Millisecond {
		t.Errorf("sent %+v (%v), want 5000 in 250ms", r, err)
	}
	if got := wait(t, sink, r.Sent); got.Frames != r.Sent || got.Lost != 0 {
		t.Errorf("sent %d, got %+v", r.Sent, got)
	}
	// The next run goes on where this one ended.
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r2, err := g.Loop(ctx)
	if err != nil || r2.Sent == 0 {
		t.Errorf("loop: %+v, %v", r2, err)
	}
	if got := wait(t, sink, r.Sent+r2.Sent); got.Frames != r.Sent+r2.Sent || got.Lost+got.Duplicates+got.Reordered != 0 {
		t.Errorf("sent %d and %d, got %+v", r.Sent, r2.Sent, got)
	}
}

func TestRedirect(t *testing.T) {
	f, err := lab.Firewall(lab.FirewallOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sink := attachSink(t, f.Server, 1)
	r, err := AttachRedirect(f.LAN.NS, "lan", "wan")
	if err != nil {
		t.Fatal(err)
	}
	c := across(f, false, UDP, 64, 100)
	c.TTL = 1 // the kernel would not forward it
	send(t, c, 20000)
	if got := wait(t, sink, 20000); got.Frames != 20000 || got.Bad() != 0 {
		t.Errorf("got %+v", got)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	sink.Reset()
	send(t, c, 100)
	if got, _ := sink.Wait(1, 50*time.Millisecond); got.Frames != 0 {
		t.Errorf("%d frames after the redirect was taken away", got.Frames)
	}
}

func TestImpossibleFrames(t *testing.T) {
	a, b := pair(t)
	for word, change := range map[string]func(*Config){
		"takes 64 to 1518 bytes": func(c *Config) { c.Protocol, c.Size = TCP, 60 },
		"takes 60 to 1518 bytes": func(c *Config) { c.Size = 1519 },
		"one family":             func(c *Config) { c.Dest = netip.MustParseAddrPort("[::1]:1") },
		"flows: at most":         func(c *Config) { c.Flows = MaxFlows + 1 },
		"too high for":           func(c *Config) { c.Source = netip.AddrPortFrom(c.Source.Addr(), 65000); c.Flows = 1000 },
		"past its range":         func(c *Config) { c.Dest = netip.AddrPortFrom(c.Dest.Addr(), 65535); c.Flows = 20000 },
		"MAC":                    func(c *Config) { c.SourceMAC = nil },
		"use udp":                func(c *Config) { c.Protocol = 50 },
		"nonesuch":               func(c *Config) { c.Device = "nonesuch" },
	} {
		c := between(a, b, false, UDP, 64, 1)
		change(&c)
		g, err := NewGenerator(c)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v, want one with %q", err, word)
		}
		if err == nil {
			g.Close()
		}
	}
}
