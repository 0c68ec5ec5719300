// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// Phase is what one mode did in one stretch of time.
type Phase struct {
	Mode      Mode    `json:"mode"`
	PPS       float64 `json:"pps"` // frames sunk per second
	Seconds   float64 `json:"seconds"`
	Sent      uint64  `json:"sent"`
	Sunk      uint64  `json:"sunk"`
	Hits      uint64  `json:"hits"`      // by shunt's counters
	Forwarded uint64  `json:"forwarded"` // by the kernel's counter
	Reordered uint64  `json:"reordered"` // frames that came after a later one of their flow

	size  int // of each frame, in bytes
	stats traffic.Stats
}

// HitShare is the part of the frames that was repeated, 0 to 1.
func (p Phase) HitShare() float64 { return share(p.Hits, p.Sunk) }

// KernelShare is the part of the frames that the kernel forwarded, 0 to 1.
func (p Phase) KernelShare() float64 { return share(p.Forwarded, p.Sunk) }

func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// measure warms a mode up, sends for so long, and audits.
func (r *rig) measure(ctx context.Context, mode Mode, g *source, warm, long time.Duration) (Phase, error) {
	p, err := r.measureHere(ctx, mode, g, warm, long)
	if err != nil {
		return p, interrupted(ctx, err)
	}
	return p, p.audit()
}

func (r *rig) measureHere(ctx context.Context, mode Mode, g *source, warm, long time.Duration) (Phase, error) {
	if err := r.enter(ctx, mode); err != nil {
		return Phase{}, err
	}
	if err := r.warm(ctx, g, warm); err != nil {
		return Phase{}, err
	}
	return r.send(ctx, g, long)
}

// send sends for so long and counts, without judging.
func (r *rig) send(ctx context.Context, g *source, long time.Duration) (Phase, error) {
	p := Phase{Mode: r.mode, size: g.size}
	before, err := r.counters(ctx)
	if err != nil {
		return p, err
	}
	if err := r.sink.Reset(); err != nil {
		return p, err
	}
	window, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	sent, err := g.Loop(window)
	if err != nil {
		return p, err
	}
	if ctx.Err() != nil {
		return p, errInterrupted
	}
	if p.stats, err = r.sink.Wait(sent.Sent, 200*time.Millisecond); err != nil {
		return p, err
	}
	after, err := r.counters(ctx)
	if err != nil {
		return p, err
	}
	p.Sent, p.Sunk, p.Seconds = sent.Sent, p.stats.Frames, sent.Duration.Seconds()
	p.Reordered = p.stats.Reordered
	p.Hits, p.Forwarded = after.hits-before.hits, after.forwarded-before.forwarded
	if p.Seconds > 0 {
		p.PPS = float64(p.Sunk) / p.Seconds
	}
	return p, nil
}

// counters are those that must explain every frame.
type counters struct {
	hits      uint64 // by shunt, wherever; and frames with labels that it switched
	xdp       uint64 // of these, in XDP
	labels    uint64 // these
	forwarded uint64 // by the kernel's IPv4 and IPv6
}

// labelCounters also tell of packets that got their first label, which are hits or forwarded besides.
type labelCounters struct {
	counters
	imposed uint64
}

func (r *rig) counters(ctx context.Context) (counters, error) {
	c, err := countersOf(ctx, r.top.LAN.NS, r.client)
	return c.counters, err
}

// countersOf are those of a router, with a daemon or without (nil).
func countersOf(ctx context.Context, router *lab.NS, client *api.Client) (c labelCounters, err error) {
	if client != nil {
		var s api.Status
		if s, err = client.Status(ctx); err != nil {
			return c, err
		}
		c.labels, c.imposed = s.Counters[api.StageMPLS]["mpls_switched"], s.Counters[api.StageMPLS]["mpls_imposed"]
		c.hits, c.xdp = s.Hits+c.labels, s.Counters[api.StageXDP]["hit"]
	}
	err = router.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		if c.forwarded, err = ipForwarded(string(text)); err != nil {
			return err
		}
		if text, err = os.ReadFile("/proc/thread-self/net/snmp6"); err != nil {
			return err
		}
		six, err := ip6Forwarded(string(text))
		c.forwarded += six
		return err
	})
	return c, err
}

// ipForwarded finds Ip ForwDatagrams in /proc/net/snmp: IPv4 packets that came to
// ip_forward_finish. Repeated ones do not, so it judges shunt's counters from outside.
func ipForwarded(snmp string) (uint64, error) {
	var names []string
	for _, line := range splitLines(snmp) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "ForwDatagrams" && i < len(fields) {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("bench: /proc/net/snmp has no Ip ForwDatagrams")
}

// ip6Forwarded finds Ip6OutForwDatagrams in /proc/net/snmp6: the same for IPv6.
func ip6Forwarded(snmp6 string) (uint64, error) {
	for _, line := range splitLines(snmp6) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Ip6OutForwDatagrams" {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("bench: /proc/net/snmp6 has no Ip6OutForwDatagrams")
}

func splitLines(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// audit says what does not add up. All that was sent must have arrived, whole, and either
// by shunt or by the kernel. Whether it arrived in order is a target: see inOrder.
func (p Phase) audit() error {
	s := p.stats
	switch {
	case p.Sent == 0:
		return fmt.Errorf("bench: %s: nothing was sent", p.Mode)
	case p.Sunk != p.Sent:
		return fmt.Errorf("bench: %s: %d frames were sent and %d sunk; is another program at work on this machine?", p.Mode, p.Sent, p.Sunk)
	case p.wayOf(p.Hits, p.Forwarded) != p.Sunk:
		return fmt.Errorf("bench: %s: counters disagree: %d frames sunk, %d hits and %d forwarded by the kernel", p.Mode, p.Sunk, p.Hits, p.Forwarded)
	case s.Bytes != s.Frames*uint64(p.size):
		return fmt.Errorf("bench: %s: %d frames of %d bytes were sunk with %d bytes", p.Mode, s.Frames, p.size, s.Bytes)
	case s.Bad() > 0:
		return fmt.Errorf("bench: %s: %d of %d verified frames are bad: length %d, IP checksum %d, L4 checksum %d, payload %d",
			p.Mode, s.Bad(), s.Verified, s.BadLength, s.BadIP, s.BadL4, s.BadPayload)
	case s.Duplicates+s.Lost > 0:
		return fmt.Errorf("bench: %s: frames of a flow came %d times twice and were lost %d times", p.Mode, s.Duplicates, s.Lost)
	}
	return nil
}

// wayOf adds up how frames came through. The empty redirect counts nothing, so there all
// that the kernel did not forward is taken for redirected.
func (p Phase) wayOf(hits, forwarded uint64) uint64 {
	if p.Mode == Limit && forwarded == 0 {
		return p.Sunk
	}
	return hits + forwarded
}

// inOrder wants that no frame of a flow came after a later one.
func inOrder(phases ...Phase) Target {
	var late uint64
	for _, p := range phases {
		late += p.Reordered
	}
	return atMost("frames out of order", float64(late), 0)
}
