// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"shunt/internal/api"
)

// later is the example two seconds on, at two million packets a second.
func later() (api.Status, []api.Flow) {
	f := example()
	f.status.Hits += 4_000_000
	f.status.Punts += 1_000
	f.flows[0].Packets += 3_000_000
	f.flows[0].Bytes += 3_000_000 * 46
	f.flows[2].Packets += 1_000_000
	f.flows[2].Bytes += 1_000_000 * 1400
	f.flows[3].Packets = 4 // armed anew: counts from zero
	young := f.flows[2]
	young.Port, young.Packets, young.Bytes, young.Age = "lan1", 500, 50000, 1
	strange := young
	strange.Port, strange.Age = "lan2", 500 // was not among the candidates before
	return f.status, append(f.flows, young, strange)
}

func TestTopFrames(t *testing.T) {
	var p topPoller
	f := example()
	first := p.advance(f.status, f.flows, noon)
	golden(t, "top-first", render(first, 0, 40))

	status, flows := later()
	second := p.advance(status, flows, noon.Add(2*time.Second))
	golden(t, "top", render(second, 0, 40))
	second.status.Paused = true
	golden(t, "top-small", render(second, 60, 8))
}

func TestTopFrameFits(t *testing.T) {
	var p topPoller
	f := example()
	state := p.advance(f.status, f.flows, noon)
	for _, s := range []size{{1, 1}, {20, 5}, {80, 24}, {300, 100}, {10, 0}} {
		frame := render(state, s.width, s.height)
		lines := strings.Split(strings.TrimSuffix(frame, "\n"), "\n")
		if s.height > 0 && len(lines) > s.height || s.height == 0 && frame != "" {
			t.Errorf("%v: %d lines", s, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > s.width {
				t.Errorf("%v: %q is too long", s, line)
			}
		}
	}
}

func TestTopOnce(t *testing.T) {
	state := serve(t, example())
	code, out, err := shunt("top", "--once", "--state", state)
	if code != 0 || !strings.Contains(out, "10.0.0.2:4000") || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d, %s\n%s", code, err, out)
	}
}

func TestWaitTop(t *testing.T) {
	typed, tick := make(chan byte, 2), make(chan time.Time, 1)
	tick <- noon
	if !waitTop(t.Context(), typed, tick) {
		t.Error("the tick ends it")
	}
	typed <- 'x'
	typed <- 'q'
	if waitTop(t.Context(), typed, tick) {
		t.Error("q does not end it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if waitTop(ctx, typed, tick) {
		t.Error("Ctrl-C does not end it")
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(999): "999", count(1000): "1,000", count(1<<64 - 1): "18,446,744,073,709,551,615",
		si(0): "0", si(999.4): "999", si(999.6): "1.00 k", si(12_345): "12.3 k", si(999_600): "1.00 M", si(2.81e6): "2.81 M",
		si(123e9): "123 G", octets(640): "640 B", octets(1.234e6): "1.23 MB",
		span(0): "0s", span(4.04): "4s", span(0.5): "0.5s", span(9.94): "9.9s", span(9.96): "10s", span(59.6): "1m0s", span(3661): "1h1m", span(90000): "1d1h",
		share(0, 0): "0 %", share(982, 1000): "98.2 %",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestColourOnlyWhereAsked(t *testing.T) {
	p := page{colour: true}
	tab := newTable("A", ">B")
	tab.add(cell{"x\x1b", green}, "12")
	p.table(tab)
	if want := "\x1b[1mA\x1b[0m    \x1b[1mB\x1b[0m\n\x1b[32mx?\x1b[0m  12\n"; p.String() != want {
		t.Errorf("got %q, want %q", p.String(), want)
	}
	if (&env{out: &strings.Builder{}}).colour() {
		t.Error("colour into a pipe")
	}
}
