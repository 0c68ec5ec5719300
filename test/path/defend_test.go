// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"shunt/internal/config"
	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// from is a packet with another source.
func from(p exercise.Packet, source string) exercise.Packet {
	p.Src = addr(source)
	return p
}

// idle makes a packet's slot one that nobody has used for two seconds.
func (b *bench) idle(t *testing.T, p exercise.Packet) {
	t.Helper()
	key, words := exercise.KeyOf(p, b.LANIndex)
	s, at, found := b.Find(key, words)
	if !found {
		t.Fatalf("no slot for %v", p.Src)
	}
	s.Seen -= 2 * b.HZ
	check(t, b.PutAt(at, s))
}

// TestSourceFull: a source has no more slots than it may, at either stage; what it has goes on,
// and others do not notice.
func TestSourceFull(t *testing.T) {
	for _, c := range []struct {
		name              string
		packet            func(*bench) (in, out exercise.Packet)
		same, other, next string // sources: formats that take a port
	}{
		{"IPv4 address", (*bench).udp4, "198.18.0.2:%d", "198.18.0.3:%d", "198.18.0.2:%d"},
		{"IPv6 /64", (*bench).udp6, "[2001:2:0:18::%x]:7", "[2001:2:0:17::%x]:7", "[2001:2:0:18:ffff::%x]:7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := open(t, exercise.Options{})
			b.Edit(func(ctl *exercise.Control) { ctl.SourceFlows = 4 })
			in, out := c.packet(b)
			for n := range 4 {
				b.meets(t, []string{"xdp", "tc-ingress"}[n%2], "learning", from(in, fmt.Sprintf(c.same, n+1)), out)
			}
			b.meetsBoth(t, "source_full", from(in, fmt.Sprintf(c.next, 5)), out)
			b.meetsBoth(t, "learning", from(in, fmt.Sprintf(c.same, 1)), out)
			b.meetsBoth(t, "learning", from(in, fmt.Sprintf(c.other, 1)), out)
			b.counts(t, "xdp learning", func() { // by another port it is another source
				_, err := b.XDP(b.WANIndex, from(in, fmt.Sprintf(c.next, 5)).Bytes())
				check(t, err)
			})
			b.idle(t, from(in, fmt.Sprintf(c.same, 2)))
			b.admitted(t, from(in, fmt.Sprintf(c.next, 5)))
			b.meetsBoth(t, "source_full", from(in, fmt.Sprintf(c.next, 6)), out)
			b.Edit(func(ctl *exercise.Control) { ctl.SourceFlows = 0 })
			b.meetsBoth(t, "learning", from(in, fmt.Sprintf(c.next, 6)), out)
			b.recounted(t)
		})
	}
}

// admitted sends the first packet of a flow until it has a slot. Each that is refused looks at
// eight of the table's 2,048 buckets, but a CPU does so a few times a jiffy only.
func (b *bench) admitted(t *testing.T, p exercise.Packet) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		_, err := b.XDP(b.LANIndex, p.Bytes())
		check(t, err)
		if key, words := exercise.KeyOf(p, b.LANIndex); hasSlot(b, key, words) {
			return
		}
	}
	t.Errorf("%v has no slot after the whole table was looked at, where one of its source is idle", p.Src)
}

// TestSweepsApart: a flood from one source over its share writes nothing that CPUs share: neither
// slots nor counts change. Each CPU sweeps on its own, from another place than the others, and
// a few times a jiffy at the most.
func TestSweepsApart(t *testing.T) {
	b := open(t, exercise.Options{})
	b.Edit(func(ctl *exercise.Control) { ctl.SourceFlows = 1 })
	in, out := b.udp4()
	b.meets(t, "xdp", "learning", from(in, "198.18.0.2:1"), out)
	next := from(in, "198.18.0.2:2").Bytes()
	shared, err := b.Shared()
	check(t, err)
	const packets = 5000
	for cpu := range runtime.NumCPU() {
		before, err := b.Hands()
		check(t, err)
		begin := time.Now()
		b.counts(t, fmt.Sprintf("xdp source_full %d", packets), func() {
			check(t, b.XDPOn(cpu, b.LANIndex, next, packets))
		})
		jiffies := int(time.Since(begin).Seconds()*float64(b.HZ)) + 2
		after, err := b.Hands()
		check(t, err)
		for other := range after {
			sweeps := int(after[other]-before[other]) / 8
			switch {
			case other != cpu && sweeps != 0:
				t.Errorf("CPU %d swept %d times while CPU %d had the packets", other, sweeps, cpu)
			case other == cpu && (sweeps == 0 || sweeps > 16*jiffies):
				t.Errorf("CPU %d swept %d times in %d jiffies, for %d packets", cpu, sweeps, jiffies, packets)
			}
		}
	}
	now, err := b.Shared()
	check(t, err)
	if !bytes.Equal(shared, now) {
		t.Error("packets that found no slot have changed the table or the counts")
	}
}

func hasSlot(b *bench, k exercise.Key, w exercise.Words) bool {
	_, _, found := b.Find(k, w)
	return found
}

// recounted compares the counts of all sources with the keys in the table.
func (b *bench) recounted(t *testing.T) {
	t.Helper()
	held, err := b.Held()
	check(t, err)
	want, err := b.Recount()
	check(t, err)
	if !slices.Equal(held, want) {
		t.Errorf("held by sources (-counted one by one +by the programs):\n%s", cmp.Diff(numbers(want), numbers(held)))
	}
}

// numbers are the counts that are not zero.
func numbers(held []int32) map[int]int32 {
	m := map[int]int32{}
	for n, count := range held {
		if count != 0 {
			m[n] = count
		}
	}
	return m
}

// TestSourceCounts: through claims, refusals, slots taken over and slots swept, in a table that
// is too small, every source's count stays what the table says.
func TestSourceCounts(t *testing.T) {
	b := open(t, exercise.Options{Flows: 1024})
	b.Edit(func(c *exercise.Control) { c.SourceFlows = 16 })
	random := rand.New(rand.NewPCG(4, 2))
	in4, _ := b.udp4()
	in6, _ := b.udp6()
	for n := range 12000 {
		p := in4
		p.Src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 0, byte(random.IntN(60))}), uint16(1+random.IntN(500)))
		if random.IntN(2) == 0 {
			p = in6
			a := p.Src.Addr().As16()
			a[7], a[15] = byte(random.IntN(40)), byte(random.IntN(100))
			p.Src = netip.AddrPortFrom(netip.AddrFrom16(a), uint16(1+random.IntN(5)))
		}
		var err error
		if random.IntN(4) == 0 {
			_, err = b.Ingress(b.LANIndex, p.Bytes(), exercise.Buffer{})
		} else {
			_, err = b.XDP(b.LANIndex, p.Bytes())
		}
		check(t, err)
		if key, words := exercise.KeyOf(p, b.LANIndex); n%3 == 0 && hasSlot(b, key, words) {
			b.idle(t, p)
		}
	}
	b.recounted(t)
	held, err := b.Held()
	check(t, err)
	if most := slices.Max(held); most != 16 {
		t.Errorf("the largest source holds %d slots; this test is to reach the limit of 16, and not pass it", most)
	}
}

// dropped says that both stages drop a frame for being over its rate.
func (b *bench) dropped(t *testing.T, frame []byte, atTC bool) {
	t.Helper()
	b.counts(t, "xdp policed", func() {
		o, err := b.XDP(b.LANIndex, frame)
		check(t, err)
		if o.Verdict != exercise.XDPDrop {
			t.Errorf("XDP verdict %d, want a drop", o.Verdict)
		}
	})
	if !atTC {
		return
	}
	b.counts(t, "tc-ingress policed", func() {
		o, err := b.Ingress(b.LANIndex, frame, exercise.Buffer{})
		check(t, err)
		if o.Verdict != exercise.TCDrop {
			t.Errorf("TC verdict %#x, want a drop", o.Verdict)
		}
	})
}

// TestPoliced: whatever only the kernel can deal with is dropped once its rate is spent, and
// passes untouched before that.
func TestPoliced(t *testing.T) {
	b := open(t, exercise.Options{})
	reasons := map[string]bool{}
	for _, c := range slices.Concat(linkFrames(b), header6Frames(b), transportFrames(b)) {
		t.Run(c.name, func(t *testing.T) {
			cut := c.name == "IPv4 cut in its header" || c.name == "IPv6 cut in its header" // TestInspect
			check(t, b.Exhaust(true))
			b.dropped(t, c.frame, !cut)
			check(t, b.Exhaust(false))
			b.counts(t, "xdp "+c.reason, func() { b.punted(t, c.reason, c.frame) })
		})
		reasons[c.reason] = true
	}
	check(t, b.Exhaust(true))
	in, out := b.udp4()
	t.Run("over the MTU", func(t *testing.T) {
		s := b.Learned(in, out, b.lease(t))
		s.Mtu = 40
		_, err := b.Put(s)
		check(t, err)
		b.dropped(t, in.Bytes(), true)
	})
	t.Run("source full", func(t *testing.T) {
		check(t, b.Clear())
		b.meets(t, "xdp", "learning", in, out)
		b.Edit(func(c *exercise.Control) { c.SourceFlows = 1 })
		b.dropped(t, from(in, "198.18.0.2:9").Bytes(), true)
	})
	t.Run("table full", func(t *testing.T) {
		b.Edit(func(c *exercise.Control) { c.SourceFlows = 0 })
		b.crowd(t, in, out)
		b.dropped(t, in.Bytes(), true)
	})
	for _, reason := range config.Policeable {
		// an exemption of this kernel's, see main_test.go
		if tested := reasons[reason] || reason == "over_mtu" || reason == "table_full" || reason == "source_full"; !tested && reason != "ipsec" {
			t.Errorf("%s may be given a rate, and no case here polices it", reason)
		}
	}
}

// crowd takes the four slots that a packet's flow may have.
func (b *bench) crowd(t *testing.T, in, out exercise.Packet) {
	t.Helper()
	key, words := exercise.KeyOf(in, b.LANIndex)
	n := uint16(0)
	for _, bucket := range b.Hash().Places(key, words) {
		for way := range uint32(2) {
			n++
			s := b.Learned(in, out, b.lease(t))
			s.Key.Sport ^= n
			check(t, b.PutAt(exercise.Place{Bucket: bucket, Way: way}, s))
		}
	}
}

// TestNotPoliced: with all buckets empty, nothing of a flow that is counted, learned, repeated
// or proved is dropped, nor does a FIN that is dropped close anything.
func TestNotPoliced(t *testing.T) {
	b := open(t, exercise.Options{})
	check(t, b.Exhaust(true))
	in, out := b.udp4()
	b.Edit(func(c *exercise.Control) { c.Threshold = 2 })
	b.meets(t, "xdp", "below_threshold", in, out)
	b.meets(t, "xdp", "learning", in, out)
	b.meets(t, "tc-ingress", "learning", in, out)
	b.arm(t, in, out)
	b.meetsBoth(t, "", in, out)
	b.Edit(func(c *exercise.Control) { c.Gen++ })
	b.meetsBoth(t, "old_generation", in, out)

	tcp, routed := b.tcp4()
	at := b.arm(t, tcp, routed)
	fin := tcp
	fin.TCP.FIN = true
	b.dropped(t, fin.Bytes(), true)
	if s, err := b.At(at); err != nil || s.State != exercise.Armed {
		t.Errorf("after a FIN that was dropped the slot is in state %d; %v", s.State, err)
	}
}

// TestPolicedOnce: where XDP marks nothing, TC ingress finds the reasons again, and lets
// through what XDP let through.
func TestPolicedOnce(t *testing.T) {
	b := open(t, exercise.Options{})
	in, _ := b.udp4()
	in.TTL = 1
	check(t, b.Exhaust(true))
	b.Edit(func(c *exercise.Control) { c.NoMarks = 1 })
	b.counts(t, "tc-ingress ttl", func() {
		o, err := b.AfterXDP(b.LANIndex, in.Bytes(), exercise.Buffer{})
		check(t, err)
		if o.Verdict != exercise.TCNext {
			t.Errorf("TC verdict %#x", o.Verdict)
		}
	})
}

// TestBurst: a bucket holds what it is said to, on each CPU, and no more comes out until time
// has passed; then one packet for each interval.
func TestBurst(t *testing.T) {
	b := open(t, exercise.Options{})
	const burst = 3
	settings := dataplane.Settings{Threshold: 1, Lease: 30 * b.HZ, LeaseLive: 30 * b.HZ, HZ: b.HZ, TCP: true}
	settings.Police = map[string]dataplane.Rate{"ttl": {PerSecond: 1, Burst: burst}}
	b.Configure(settings)
	if got := b.Control().Rates[slices.Index(dataplane.Reasons, "ttl")]; got != (exercise.Rate{Every: 1e9, Ahead: 2e9}) {
		t.Errorf("1/s with a burst of 3 is written as %+v", got)
	}
	b.Edit(func(c *exercise.Control) {
		c.Rates[slices.Index(dataplane.Reasons, "ttl")] = exercise.Rate{Every: 1 << 50, Ahead: (burst - 1) << 50}
	})
	in, _ := b.udp4()
	in.TTL = 1
	passed := 0
	const sent = 100
	for range sent {
		o, err := b.XDP(b.LANIndex, in.Bytes())
		check(t, err)
		if o.Verdict == exercise.XDPPass {
			passed++
		}
	}
	if passed < burst || passed > burst*runtime.NumCPU() {
		t.Errorf("%d packets passed; want %d on each of at most %d CPUs", passed, burst, runtime.NumCPU())
	}
	dropped, err := b.Policed()
	check(t, err)
	if diff := cmp.Diff(map[string]uint64{"ttl": uint64(sent - passed)}, dropped); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
	b.Edit(func(c *exercise.Control) {
		c.Rates[slices.Index(dataplane.Reasons, "ttl")].Ahead = 1 << 60 // as if so much time had passed
	})
	b.counts(t, "xdp ttl", func() { b.punted(t, "ttl", in.Bytes()) })
	settings.Police = nil
	b.Configure(settings)
	if c := b.Control(); c.Policed != 0 {
		t.Errorf("without rates %#x is policed", c.Policed)
	}
}
