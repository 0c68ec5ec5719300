// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"shunt/internal/bench"
)

// published are packets per second of a stateful firewall without and with a fast path
// in the kernel (N. Shah and J. Motwani, Linux Forwarding Stack Fastpath, Netdev 1.2,
// 2016: Xeon E5-2680 v3, one core, 10 Gbit/s ports, Linux 3.14), by frame size.
var published = map[int]struct {
	off, on float64
	gain    string
}{
	64: {1320960, 6377472, "4.8x"}, 128: {1182720, 6389760, "5.4x"},
	256: {1108480, 5985280, "5.3x"}, 512: {1067520, 5120000, "4.7x"},
}

// What a router chip's fast path gained at 1400 bytes (A. Mikanovich, Promwad, on
// Marvell's Network Fast Processing).
const publishedTCP, publishedUDP = 0.96, 0.63

func printDemo(p *page, r *bench.DemoReport) {
	p.line("")
	p.line("%s", p.paint("Packets per second through the stateful firewall, one core", bold))
	printSizes(p, r)
	p.line("  2016: a patched kernel's fast path, Netdev 1.2 (other hardware, one core too)")
	p.line("")
	p.line("%s", p.paint("Packets of 1400 bytes, Gbit/s", bold))
	printPairs(p, r)
	p.line("  chip: gain of a router chip's fast path, on other hardware")
	p.line("")
	p.line("%s", p.paint("Ping through the idle router, ms", bold))
	t := newTable("", ">MIN", ">AVG", ">MAX")
	for _, row := range []struct {
		name string
		rtt  bench.RoundTrip
	}{{"off", r.Ping.Off}, {"on", r.Ping.On}} {
		t.add("  "+row.name, fixed(row.rtt.Min, 3), fixed(row.rtt.Avg, 3), fixed(row.rtt.Max, 3))
	}
	p.table(t)
	printWords(p, r)
}

func printSizes(p *page, r *bench.DemoReport) {
	t := newTable(">BYTES", ">OFF", ">ON", ">GAIN", ">LIMIT", ">OF LIMIT", ">2016 OFF", ">ON", ">GAIN")
	for _, s := range r.Sizes {
		row := []any{plainInt(s.Bytes), bench.Thousands(s.Off), cell{bench.Thousands(s.On), green}, cell{times(s.On, s.Off), bold},
			si(s.Limit), ofLimit(&s), "-", "-", "-"}
		if old, ok := published[s.Bytes]; ok {
			row[6], row[7], row[8] = si(old.off), si(old.on), old.gain
		}
		t.add(row...)
	}
	p.table(t)
	if n := noisySizes(r); n > 0 {
		p.wrap(fmt.Sprintf("?: other programs took this machine's time while %d of %d sizes were measured. More than the limit cannot be, "+
			"and the kernel alone forwards as much before as after. Run it again when the machine is quiet.", n, len(r.Sizes)), 80)
	}
}

// ofLimit is the part of the limit that was reached, unless the machine was too noisy for it.
func ofLimit(s *bench.DemoSize) string {
	if !s.Quiet() {
		return "?"
	}
	return fixed(over(s.On, s.Limit), 2)
}

func noisySizes(r *bench.DemoReport) (n int) {
	for i := range r.Sizes {
		if !r.Sizes[i].Quiet() {
			n++
		}
	}
	return n
}

func printPairs(p *page, r *bench.DemoReport) {
	t := newTable("", ">OFF", ">ON", ">GAIN", ">CHIP")
	for _, row := range []struct {
		name string
		pair bench.DemoPair
		chip float64
	}{{"  UDP (generator)", r.UDP, publishedUDP}, {"  TCP (iperf3)", r.TCP, publishedTCP}} {
		t.add(row.name, fixed(row.pair.Off/1e9, 2), fixed(row.pair.On/1e9, 2),
			cell{gain(row.pair.On, row.pair.Off), bold}, fmt.Sprintf("%+.0f %%", 100*row.chip))
	}
	p.table(t)
}

// printWords is the end of the demo.
func printWords(p *page, r *bench.DemoReport) {
	small := r.Sizes[0]
	limit := "as near to a program that does not even look at them as this noisy machine lets measure"
	if small.Quiet() {
		limit = fmt.Sprintf("%.0f %% of what a program could do that does not even look at them", 100*over(small.On, small.Limit))
	}
	p.line("")
	p.line("%s", p.paint("In plain words", bold))
	p.wrap(fmt.Sprintf("The same router, with the same firewall and NAT, forwarded %s times as many small packets with shunt: "+
		"%s instead of %s a second on one core, %s. "+
		"%s of them passed the network stack by; every few seconds some go through it, to ask whether its answer still holds. "+
		"Every packet was counted: all %s arrived, %s, each by shunt or by the kernel. "+
		"With shunt stopped, it was %s a second again.",
		fixed(over(small.On, small.Off), 1), si(small.On), si(small.Off), limit,
		passedBy(small.HitShare), count(r.Packets), order(r), si(small.After)), 80)
	p.line("")
	p.line("%s", p.paint("Where to look next", bold))
	p.line("  shunt lab firewall up      the same lab, to play with: it says what to try")
	p.line("  shunt bench firewall       the same, measured with care")
	p.line("  README.md                  how to run it on a router")
	p.line("")
	p.line("%s", p.paint(fmt.Sprintf("Done in %.0f seconds; the lab is removed.", r.Seconds), dim))
}

func order(r *bench.DemoReport) string {
	if r.Late == 0 {
		return "in order"
	}
	return fmt.Sprintf("%s of them after a later one", count(r.Late))
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func times(a, b float64) string { return fixed(over(a, b), 1) + "x" }

func gain(a, b float64) string { return fmt.Sprintf("%+.0f %%", 100*(over(a, b)-1)) }

// passedBy writes the share of hits, without rounding it up to one.
func passedBy(share float64) string {
	switch {
	case share == 1:
		return "All"
	case share > 0.9999:
		return "More than 99.99 %"
	}
	return fixed(100*share, 2) + " %"
}
