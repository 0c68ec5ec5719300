// SPDX-License-Identifier: Apache-2.0

package bench_test

import (
	"strings"
	"testing"
	"time"

	"shunt/internal/bench"
)

// Short and slow attacks: nothing comes through that the kernel alone would have dropped, what
// it forwards comes through, honest flows are learned beside them, and the table's bounds hold.
// How well honest users fare in a flood is not judged here.
func TestAttacks(t *testing.T) {
	binary, err := bench.Executable()
	if err != nil {
		t.Fatal(err)
	}
	report, err := bench.Attacks(t.Context(), bench.AttacksOptions{
		Options: bench.Options{Rounds: 1, Binary: binary, Say: t.Logf},
		Cases:   []string{"spray", "ttl", "spoofed-mac", "spoofed-port", "rst"}, Rate: 60000, Long: 400 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Attacks) != 5 {
		t.Fatalf("%d attacks; want those that were named", len(report.Attacks))
	}
	for _, target := range report.Targets {
		timed := strings.Contains(target.Name, "answered")
		if !timed && !target.Pass {
			t.Errorf("%s: %g, want %g", target.Name, target.Got, target.Limit)
		}
	}
	forwarded := map[string]bool{"spray": true, "spoofed-mac": true, "spoofed-port": true}
	for i := range report.Attacks {
		a := &report.Attacks[i]
		kernel, shunt, police := a.Typical(bench.KernelAlone), a.Typical(bench.ShuntThere), a.Typical(bench.ShuntPolice)
		for _, p := range []*bench.AttackPhase{kernel, shunt} {
			if got := p.Through > p.Tried/4; got != forwarded[a.Name] {
				t.Errorf("%s, %s: %d frames of %d came through", a.Name, p.Defence, p.Through, p.Tried)
			}
		}
		if shunt.ArmedLegit < 50 || shunt.Used > shunt.Slots/4+300 || shunt.Policed > 0 || kernel.Slots > 0 {
			t.Errorf("%s: %+v", a.Name, shunt)
		}
		if (police != nil) != (a.Name == "ttl") || police != nil && police.Policed == 0 {
			t.Errorf("%s, with rates: %+v", a.Name, police)
		}
	}
	if rst := report.Attacks[4].Typical(bench.ShuntThere); rst.Implausible == 0 || rst.Talking != 50 {
		t.Errorf("blind resets: %+v", rst)
	}
}
