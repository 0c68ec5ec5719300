// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"shunt/test/suite"
)

// paths: what is computed for the others, three kernels do too; of that a tenth is enough.
var paths = [][3]kind{
	{kernel, kernel, kernel},
	{kernel, shunt, kernel},
	{shunt, kernel, shunt},
}

// TestPaths: what goes into an LSP comes out of it as it should, whoever is its routers, and
// each has counted it.
func TestPaths(t *testing.T) {
	needMPLS(t)
	if err := suite.Build(program, ""); err != nil {
		t.Fatal(err)
	}
	for _, kinds := range paths {
		p := &path{kinds: kinds}
		t.Run(p.String(), func(t *testing.T) {
			p, err := newPath(kinds)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.close(); err != nil {
					t.Error(err)
				}
			}()
			for _, family := range []int{4, 6} {
				for labels := 1; labels <= 3; labels++ {
					count := *packets
					if kinds == [3]kind{kernel, kernel, kernel} {
						count /= 10
					}
					t.Run(fmt.Sprintf("IPv%d/%d", family, labels), func(t *testing.T) { p.run(t, family, labels, count) })
				}
			}
		})
	}
}

// run sends the packets of one combination.
func (p *path) run(t *testing.T, family, labels, count int) {
	began := time.Now()
	m, err := newPump(p)
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	before, err := p.look()
	if err != nil {
		t.Fatal(err)
	}
	want, err := p.pour(m, [2]lsp{{family, labels, false}, {family, labels, true}}, count)
	if err != nil {
		t.Fatal(err)
	}
	after, err := p.look()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range p.routers {
		if wrong := after.counters[i].differ(before.counters[i], want[i]); wrong != "" {
			t.Errorf("%s: %s", r, wrong)
		}
	}
	t.Logf("%d packets without a difference, in %v; flow tables repeated %d", count, time.Since(began).Round(time.Second), after.repeated-before.repeated)
}

// pour sends random packets by two LSPs in turn, and returns what the routers should have counted.
func (p *path) pour(m *pump, ways [2]lsp, count int) (want [3]counters, err error) {
	rng := rand.New(rand.NewPCG(uint64(ways[0].family), uint64(ways[0].labels)))
	noise := make([]byte, 1<<16)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	all := makeFlows(rng, ways)
	want = [3]counters{{}, {}, {}}
	for sent := 0; sent < count; {
		some := make([]packet, 0, burst)
		for ; len(some) < burst && sent < count; sent++ {
			x := draw(rng, all[rng.IntN(flows)], uint32(sent), noise)
			some = append(some, x)
			for i, r := range p.routers {
				r.expect(want[i], x.lsp, uint64(x.octets()))
			}
		}
		if err := m.send(some); err != nil {
			return want, fmt.Errorf("after %d packets: %w", sent-len(some), err)
		}
	}
	return want, nil
}
