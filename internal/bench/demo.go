// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"shunt/internal/lab"
)

// DemoReport is what `shunt lab firewall run` showed.
type DemoReport struct {
	Sizes []DemoSize `json:"sizes"`
	// Bits per second at packets of 1400 bytes.
	UDP  DemoPair `json:"udp_1400_bps"` // the generator's
	TCP  DemoPair `json:"tcp_1400_bps"` // iperf3's
	Ping struct {
		Off RoundTrip `json:"off"`
		On  RoundTrip `json:"on"`
	} `json:"ping"`
	Packets uint64  `json:"packets"`      // counted in all modes; every one arrived
	Late    uint64  `json:"late_packets"` // of these, after a later one of their flow
	Seconds float64 `json:"seconds"`      // that it all took
}

// DemoSize is one frame size, in bytes of Ethernet without FCS; rates are frames per second.
// Off is the mean of what was had before and after shunt was on.
type DemoSize struct {
	Bytes    int     `json:"bytes"`
	Off      float64 `json:"off_pps"`
	Before   float64 `json:"off_before_pps"`
	After    float64 `json:"off_after_pps"`
	On       float64 `json:"on_pps"`
	Limit    float64 `json:"limit_pps"`
	HitShare float64 `json:"hit_share"`
}

// noise is by how much a rate may differ from another that is the same on a quiet machine.
const noise = 0.25

// Quiet reports whether the figures of a size can be compared with each other: nothing is faster
// than the limit, and the kernel forwards as much before as after.
func (s *DemoSize) Quiet() bool {
	return s.On <= s.Limit && max(s.Before, s.After) <= (1+noise)*min(s.Before, s.After)
}

// DemoPair is a figure without and with shunt.
type DemoPair struct {
	Off float64 `json:"off"`
	On  float64 `json:"on"`
}

// RoundTrip is what ping says, in milliseconds.
type RoundTrip struct {
	Min float64 `json:"min_ms"`
	Avg float64 `json:"avg_ms"`
	Max float64 `json:"max_ms"`
}

// demoSizes are those of the tables that others have published, and the largest.
var demoSizes = []int{64, 128, 256, 512, 1024, 1500}

// demo is a demonstration under way.
type demo struct {
	*rig
	say    func(format string, args ...any)
	report DemoReport
}

// Demo shows a stateful firewall with shunt off, on, and off again, in less than two
// minutes.
func Demo(ctx context.Context, o Options) (*DemoReport, error) {
	begin := time.Now()
	o.Say("making the lab: client - router - server, each a network namespace\n")
	r, err := newRig(o.Binary, lab.FirewallOptions{Name: "demo", NAT: lab.NATMasquerade, Neighbours: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	d := &demo{rig: r, say: o.Say}
	for _, size := range demoSizes {
		d.report.Sizes = append(d.report.Sizes, DemoSize{Bytes: size})
	}
	for _, step := range []func(context.Context) error{d.off, d.on, d.limit, d.offAgain} {
		if err := step(ctx); err != nil {
			return nil, interrupted(ctx, err)
		}
	}
	d.report.Seconds = time.Since(begin).Seconds()
	return &d.report, r.Close()
}

func (d *demo) off(ctx context.Context) error {
	d.say("\n1. shunt off: the kernel forwards, with conntrack, masquerade and a drop policy\n")
	return d.side(ctx, Kernel, func(p *DemoPair, v float64) { p.Off = v },
		func(s *DemoSize, p Phase) { s.Before = p.PPS }, &d.report.Ping.Off)
}

func (d *demo) on(ctx context.Context) error {
	d.say("\n2. shunt on: the same firewall, with `shunt run --port lan --port wan`\n")
	return d.side(ctx, Shunt, func(p *DemoPair, v float64) { p.On = v },
		func(s *DemoSize, p Phase) { s.On, s.HitShare = p.PPS, p.HitShare() }, &d.report.Ping.On)
}

// limit measures the empty redirect.
func (d *demo) limit(ctx context.Context) error {
	d.say("\n3. for comparison: an XDP program that redirects unread, the most there is\n")
	return d.sizes(ctx, Limit, func(s *DemoSize, p Phase) { s.Limit = p.PPS })
}

func (d *demo) offAgain(ctx context.Context) error {
	d.say("\n4. shunt off again: nothing of it is left on the router\n")
	return d.sizes(ctx, Kernel, func(s *DemoSize, p Phase) { s.After, s.Off = p.PPS, (s.Before+p.PPS)/2 })
}

// side measures everything in one mode. The frames come first: by them the daemon learns
// that the client behaves like a wire.
func (d *demo) side(ctx context.Context, mode Mode, pair func(*DemoPair, float64), size func(*DemoSize, Phase), ping *RoundTrip) error {
	if err := d.sizes(ctx, mode, size); err != nil {
		return err
	}
	d.say("   %-28s", "UDP, 1400 bytes, generator")
	bits, err := largeUDP(ctx, d.rig)
	if err != nil {
		return err
	}
	pair(&d.report.UDP, bits)
	d.say(" %12.2f Gbit/s\n   %-28s", bits/1e9, "TCP, 1400 bytes, iperf3")
	if bits, err = d.iperf(ctx, transfer{packet: largePacket, omit: 1, seconds: 3}); err != nil {
		return err
	}
	pair(&d.report.TCP, bits)
	d.say(" %12.2f Gbit/s\n   %-28s", bits/1e9, "ping, 200 round trips")
	if *ping, err = d.ping(ctx); err != nil {
		return err
	}
	d.say(" %12.3f ms on average\n", ping.Avg)
	return nil
}

// sizes measures the rate at every frame size, with the sink in place meanwhile.
func (d *demo) sizes(ctx context.Context, mode Mode, put func(*DemoSize, Phase)) error {
	if err := d.attachSink(); err != nil {
		return err
	}
	for i := range d.report.Sizes {
		p, err := d.frames(ctx, mode, d.report.Sizes[i].Bytes)
		if err != nil {
			return err
		}
		put(&d.report.Sizes[i], p)
	}
	return d.detachSink()
}

// frames measures one size.
func (d *demo) frames(ctx context.Context, mode Mode, size int) (Phase, error) {
	d.say("   %-28s", fmt.Sprintf("UDP, %d bytes, generator", size))
	g, err := d.source(size, 1)
	if err != nil {
		return Phase{}, err
	}
	defer g.Close()
	p, err := d.measure(ctx, mode, g, warmBurst, short)
	if err != nil {
		return p, err
	}
	d.report.Packets += p.Sunk
	d.report.Late += p.Reordered
	d.say(" %12s packets/s\n", Thousands(p.PPS))
	return p, nil
}

var pingTimes = regexp.MustCompile(`= ([0-9.]+)/([0-9.]+)/([0-9.]+)/`)

// ping measures round trips from client to server.
func (r *rig) ping(ctx context.Context) (RoundTrip, error) {
	out, err := r.top.Client.NS.Command(ctx, "ping", "-n", "-q", "-c", "200", "-i", "0.01", r.top.Server.V4.Addr().String()).Output()
	if err != nil {
		return RoundTrip{}, fmt.Errorf("bench: ping: %w", err)
	}
	return pingResult(string(out))
}

// pingResult reads the last line: rtt min/avg/max/mdev = 0.021/0.034/0.102/0.011 ms.
func pingResult(out string) (RoundTrip, error) {
	m := pingTimes.FindStringSubmatch(out)
	if m == nil {
		return RoundTrip{}, fmt.Errorf("bench: ping wrote no round trip times: %q", tail(out))
	}
	var v [3]float64
	for i := range v {
		var err error
		if v[i], err = strconv.ParseFloat(m[i+1], 64); err != nil {
			return RoundTrip{}, fmt.Errorf("bench: ping: %w", err)
		}
	}
	return RoundTrip{v[0], v[1], v[2]}, nil
}

// Thousands writes a number without its fraction: 1,234,567.
func Thousands(n float64) string {
	digits := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
