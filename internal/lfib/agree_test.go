// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
)

// Step by step or in closed form: the same becomes of every packet, whatever lists there are.
// Each round is a table of its own. What is refused when it is made is refused in one line,
// and leaves what refers to what in order.
func TestFormsAgreeWithLists(t *testing.T) {
	const rounds, packets = 400, 150
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	seen := map[string]int{}
	for round := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		tab := randomTable(t, r, seen)
		consistent(t, tab)
		forms := map[uint32]*Form{}
		for range packets {
			space := Space(r.IntN(2))
			p := randomStack(r)
			want := tab.Switch(space, p, someEnv)
			agree(t, tab, p, want, switchForms(tab, forms, space, p, someEnv))
			seen[want.Reason]++

			p = randomIP(r)
			if want, ok := tab.Impose(p, someEnv); ok {
				agree(t, tab, p, want, imposeForms(tab, forms, p, someEnv))
				seen["imposed "+want.Reason]++
			}
		}
	}
	for _, word := range []string{Switched, Delivered, NoLabel, Malformed, Expired, TTLZero, Special, Alert, OAM, Payload, OverMTU, TooDeep,
		Discarded, NoAdjacency, "imposed " + Switched, "imposed " + Delivered, "imposed " + Discarded, "swap", "push", "entropy",
		"choice by id", "choice by form", "tc-map", "dscp-map", "uniform", "pipe", "short-pipe", "refused", "taken"} {
		if seen[word] < 20 {
			t.Errorf("%s: met %d times, too few to say anything", word, seen[word])
		}
	}
	t.Log(seen)
}

// someEnv has one port that is wide, one that is narrow, and none of another name.
var someEnv = Env{Adjacency: func(s *Send) (int, bool) {
	mtu, ok := map[string]int{"wide": 1500, "narrow": 60}[s.Port]
	return mtu, ok
}}

func agree(t *testing.T, tab *Table, packet []byte, want, got Verdict) {
	t.Helper()
	same := got.Reason == want.Reason && bytes.Equal(got.Packet, want.Packet) && got.EtherType == want.EtherType &&
		got.NHLFE == want.NHLFE && got.MTU == want.MTU && fmt.Sprint(got.Send) == fmt.Sprint(want.Send)
	if !same {
		t.Fatalf("packet %x\nlists %s %x %#x %v %d\nforms %s %x %#x %v %d\n%s", packet,
			want.Reason, want.Packet, want.EtherType, want.Send, want.NHLFE,
			got.Reason, got.Packet, got.EtherType, got.Send, got.NHLFE, strings.Join(tab.Save(), "\n"))
	}
}

func randomTable(t *testing.T, r *rand.Rand, seen map[string]int) *Table {
	tab := table(t, "map add m dscp-to-tc 0:1 8:2 46:5 63:7", "map add n dscp-to-tc 0:3 1:4",
		"map add x tc-to-dscp 0:46 1:8 5:1", "map add y tc-to-dscp 7:63")
	try := func(line string) {
		changes, err := Parse(line)
		if err == nil {
			_, err = tab.Apply("test", changes)
		}
		if err == nil {
			seen["taken"]++
			return
		}
		seen["refused"]++
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), ": ") {
			t.Fatalf("%s: %q", line, err)
		}
	}
	for i := range 40 {
		try(fmt.Sprintf("nhlfe replace %d%s%s", 1+r.IntN(16), randomOptions(r), randomList(r, i)))
	}
	for range 100 {
		try(fmt.Sprintf("ilm replace %d%s%s nhlfe %d", randomLabel(r), orNot(r, 3, " space 1"),
			orNot(r, 4, fmt.Sprintf(" tc %d", r.IntN(8))), 1+r.IntN(16)))
	}
	for _, prefix := range []string{"0.0.0.0/0", "198.51.100.0/24", "198.51.100.9/32", "::/0", "2001:db8:100::/40", "2001:db8::/32"} {
		for range 4 {
			try(fmt.Sprintf("ftn replace %s nhlfe %d", prefix, 1+r.IntN(16)))
		}
	}
	for id := range tab.nhlfes {
		f, err := tab.Form(id)
		if err != nil {
			t.Fatalf("what was taken has no form: %v", err)
		}
		note(f, seen)
	}
	return tab
}

// note counts what a form has.
func note(f *Form, seen map[string]int) {
	if f.Pops > 0 {
		seen[f.Model.String()]++
	}
	if f.Swap {
		seen["swap"]++
	}
	if f.TCMap != "" {
		seen["tc-map"]++
	}
	if f.DSCPMap != "" {
		seen["dscp-map"]++
	}
	for _, p := range f.Push {
		seen["push"]++
		if p.Entropy {
			seen["entropy"]++
		}
	}
	for to := range f.targets() {
		if to.Form == nil {
			seen["choice by id"]++
		} else {
			seen["choice by form"]++
			note(to.Form, seen)
		}
	}
}

func orNot(r *rand.Rand, one int, text string) string {
	if r.IntN(one) > 0 {
		return ""
	}
	return text
}

func randomOptions(r *rand.Rand) string {
	return orNot(r, 6, fmt.Sprintf(" mtu %d", 68+r.IntN(30))) + []string{"", " ttl uniform", " ttl pipe", " ttl short-pipe"}[r.IntN(4)]
}

func randomLabel(r *rand.Rand) int {
	if r.IntN(10) == 0 {
		return []int{0, 2, 3}[r.IntN(3)]
	}
	return 16 + r.IntN(12)
}

// randomList is a list of which every second one or so is taken. The first ones end.
func randomList(r *rand.Rand, i int) string {
	var b strings.Builder
	pops := r.IntN(4)
	for range pops {
		b.WriteString(" pop")
	}
	for range r.IntN(5 - pops) {
		b.WriteString([]string{
			" pop", fmt.Sprintf(" swap %d", randomLabel(r)),
			fmt.Sprintf(" set-tc %d", r.IntN(8)), fmt.Sprintf(" set-dscp %d", r.IntN(64)), " tc-map m", " dscp-map x", " dscp-map y",
			fmt.Sprintf(" entropy push %d", randomLabel(r)),
			fmt.Sprintf(" push %d tc-map n", randomLabel(r)),
			fmt.Sprintf(" push %d", randomLabel(r)),
			fmt.Sprintf(" push %d%s%s", randomLabel(r), orNot(r, 2, fmt.Sprintf(" tc %d", r.IntN(8))), orNot(r, 2, fmt.Sprintf(" ttl %d", 1+r.IntN(255)))),
		}[r.IntN(11)])
	}
	id := func() int { return 1 + r.IntN(16) }
	ends := []string{
		" send dev wide via inet 192.0.2.1", " send dev wide lladdr 02:00:00:00:00:01", " send dev wide lladdr 01:00:5e:80:00:01", " send dev wide lladdr 01:00:5e:8f:00:01 upstream",
		" send dev narrow via inet6 fe80::1",
		orNot(r, 4, " send dev gone via inet 192.0.2.1"), " peek", orNot(r, 2, " peek space 1"), " deliver", orNot(r, 4, " drop"),
	}
	if i > 8 {
		ends = append(ends, fmt.Sprintf(" forward %d", id()), fmt.Sprintf(" forward %d", id()),
			fmt.Sprintf(" by-tc 0:%d 3:%d 5:%d%s", id(), id(), id(), orNot(r, 2, fmt.Sprintf(" default %d", id()))),
			fmt.Sprintf(" by-dscp 0:%d 46:%d default %d", id(), id(), id()), fmt.Sprintf(" by-hash %d %d*3", id(), id()))
	}
	b.WriteString(ends[r.IntN(len(ends))])
	return b.String()
}

// consistent recomputes what a table keeps of who refers to whom.
func consistent(t *testing.T, tab *Table) {
	t.Helper()
	wantUsers := map[uint32]users{}
	wantMaps := map[string]users{}
	for id, n := range tab.nhlfes {
		n.targets(func(to uint32) {
			u := wantUsers[to]
			u.add(id)
			wantUsers[to] = u
		})
		for i := range n.List {
			if name := n.List[i].Map; name != "" {
				u := wantMaps[name]
				u.add(id)
				wantMaps[name] = u
			}
		}
	}
	for id, n := range tab.nhlfes {
		if !maps.Equal(n.users, wantUsers[id]) {
			t.Fatalf("nhlfe %d: users %v, not %v", id, n.users, wantUsers[id])
		}
		delete(wantUsers, id)
	}
	for name, m := range tab.maps {
		if !maps.Equal(m.users, wantMaps[name]) {
			t.Fatalf("map %s: users %v, not %v", name, m.users, wantMaps[name])
		}
		delete(wantMaps, name)
	}
	if len(wantUsers)+len(wantMaps) > 0 {
		t.Fatalf("references to nothing: %v %v", wantUsers, wantMaps)
	}
	ringsOf(t, tab, &tab.ilm)
	ringsOf(t, tab, &tab.ftn)
}

func ringsOf[K comparable](t *testing.T, tab *Table, s *entries[K]) {
	t.Helper()
	met := 0
	for id, first := range s.to {
		if tab.nhlfes[id] == nil {
			t.Fatalf("entries lead to nhlfe %d, which is not there", id)
		}
		for e := first; ; e = e.next {
			if met++; e.nhlfe != id || s.at[e.key] != e || e.next.prev != e {
				t.Fatalf("the ring of nhlfe %d is torn at %v", id, e.key)
			}
			if e.next == first {
				break
			}
		}
	}
	if met != len(s.at) {
		t.Fatalf("%d entries are in rings, of %d", met, len(s.at))
	}
}
