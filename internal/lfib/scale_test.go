// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"fmt"
	"runtime"
	"testing"
)

const million = 1_000_000

// manyILMs are entries in 32 label spaces, which lead to a thousand NHLFEs.
func manyILMs(verb Verb, n int) []Change {
	changes := make([]Change, n)
	for i := range changes {
		changes[i] = Change{verb, ILM{Space: Space(i % 32), Label: Label(16 + i/32), TC: -1, NHLFE: uint32(1 + i%1000)}}
	}
	return changes
}

func thousandNHLFEs(t testing.TB) *Table {
	tab := New()
	for id := range 1000 {
		apply(t, tab, fmt.Sprintf("nhlfe add %d swap %d send dev wan via inet 10.0.0.2", id+1, 1000+id))
	}
	return tab
}

// A million of them is an ordinary table: each one is made and deleted at the cost of the first.
func TestMillionILMs(t *testing.T) {
	tab := thousandNHLFEs(t)
	c, err := tab.Apply("test", manyILMs(Add, million))
	if err != nil || c.Changed() != million || len(c.Touched.ILMs) != million {
		t.Fatal(err)
	}
	if lines := tab.Save(); len(lines) != million+1000 {
		t.Fatalf("saved %d lines", len(lines))
	}
	refused(t, tab, "nhlfe del 500", "refers to it")
	for _, change := range manyILMs(Delete, million) {
		if _, err := tab.Apply("test", []Change{change}); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, tab, "nhlfe del 500")
	consistent(t, tab)
}

func BenchmarkMillionILMsInOne(b *testing.B) {
	changes := manyILMs(Add, million)
	for b.Loop() {
		if _, err := thousandNHLFEs(b).Apply("bench", changes); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMillionILMsOneByOne(b *testing.B) {
	changes := manyILMs(Add, million)
	for b.Loop() {
		tab := thousandNHLFEs(b)
		for i := range changes {
			if _, err := tab.Apply("bench", changes[i:i+1]); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// From lines to tables and forms: what a load of routes costs before the data path sees it.
func BenchmarkMillionRoutesFromLines(b *testing.B) {
	for b.Loop() {
		tab := New()
		for i := range million {
			changes, err := Parse(fmt.Sprintf("route add %d as %d via inet 10.0.0.2 dev eth1", 16+i, 1+16+i))
			if err != nil {
				b.Fatal(err)
			}
			c, err := tab.Apply("bench", changes)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := tab.Form(c.Touched.NHLFEs[0]); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// One change of a next hop, in a table of a million entries.
func BenchmarkChange(b *testing.B) {
	tab := thousandNHLFEs(b)
	if _, err := tab.Apply("bench", manyILMs(Add, million)); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		changes, err := Parse(fmt.Sprintf("nhlfe replace %d swap %d send dev wan via inet 10.0.0.2", 1+i%1000, 16+i%1000000))
		if err == nil {
			_, err = tab.Apply("bench", changes)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// One change of a tunnel that ten thousand others forward to: all their forms are made again.
func BenchmarkChangeOfTunnel(b *testing.B) {
	tab := table(b, "nhlfe add 1 push 20 send dev wan via inet 10.0.0.2")
	for i := range 10_000 {
		apply(b, tab, fmt.Sprintf("nhlfe add %d swap %d forward 1", 2+i, 16+i))
	}
	for i := 0; b.Loop(); i++ {
		c := apply(b, tab, fmt.Sprintf("nhlfe replace 1 push %d send dev wan via inet 10.0.0.2", 16+i))
		for _, id := range c.Touched.NHLFEs {
			if _, err := tab.Form(id); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkMemory measures no time: what an entry of each kind holds.
func BenchmarkMemory(b *testing.B) {
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		tab := thousandNHLFEs(b)
		before := held()
		for _, c := range manyILMs(Add, million) {
			if _, err := tab.Apply("bench", []Change{c}); err != nil {
				b.Fatal(err)
			}
		}
		between := held()
		for i := range 100_000 {
			apply(b, tab, fmt.Sprintf("nhlfe add %d pop push %d send dev wan via inet 10.0.0.2", 2000+i, 16+i))
		}
		b.ReportMetric(float64(between-before)/million, "B/ilm")
		b.ReportMetric(float64(held()-between)/100_000, "B/nhlfe")
		runtime.KeepAlive(tab)
	}
}

func BenchmarkSwitch(b *testing.B) {
	tab := table(b, "nhlfe add 7 swap 200 send dev wan via inet 10.0.0.2", "ilm add 100 nhlfe 7")
	p := join(entryOf(100, 5, 1, 64), ip4(0, 9))
	for b.Loop() {
		tab.Switch(0, p, Env{})
	}
}
