// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// brief says in a few words what a router did otherwise: which fields of what it sent are
// not as they should be, what it kept to itself, what it should have kept. The bytes are told
// elsewhere (missing).
func (r *rig) brief(want []frame, came [2][][]byte) string {
	lost, rest := r.unmatched(want, came)
	var said wrongs
	dropped := 0
	for _, f := range lost {
		i := slices.IndexFunc(rest[f.at], func(got []byte) bool { return alike(f.expected(r.place, got), got) })
		if i < 0 {
			dropped++
			continue
		}
		said.fields(rest[f.at][i], f.expected(r.place, rest[f.at][i]))
		rest[f.at] = slices.Delete(rest[f.at], i, i+1)
	}
	words := said.words()
	switch {
	case dropped > 0 && len(came[a])+len(came[b]) == 0:
		words = append(words, "dropped in silence")
	case dropped > 0:
		words = append(words, fmt.Sprintf("%d of %d did not come", dropped, len(want)))
	}
	for _, at := range []port{a, b} {
		if n := len(rest[at]); n > 0 {
			words = append(words, fmt.Sprintf("%s sent out, and not to be, such as %s", frameWords(n), describe(rest[at][0])))
		}
	}
	return strings.Join(words, "; ")
}

func frameWords(n int) string {
	if n == 1 {
		return "a frame"
	}
	return fmt.Sprintf("%d frames", n)
}

// headers are what brief looks at in a frame.
type headers struct {
	kind   uint16
	labels []entry
	bottom []bool
	ip     []byte
}

func readHeaders(b []byte) (h headers) {
	h.kind, h.ip = binary.BigEndian.Uint16(b[12:]), b[ethernetBytes:]
	for done := h.kind != kindMPLS; !done && len(h.ip) >= entryBytes; h.ip = h.ip[entryBytes:] {
		e, last := parseEntry(h.ip)
		h.labels, h.bottom, done = append(h.labels, e), append(h.bottom, last), last
	}
	return h
}

// version is that of the packet beneath the labels; 0: it is too short to be one.
func (h headers) version() byte {
	if len(h.ip) < 20 {
		return 0
	}
	return h.ip[0] >> 4
}

// alike says that one frame can be what another should have been: as many labels, the same
// kind of packet, of the same length.
func alike(want, got []byte) bool {
	if len(got) < ethernetBytes {
		return false
	}
	w, g := readHeaders(want), readHeaders(got)
	return w.kind == g.kind && len(w.labels) == len(g.labels) && w.version() == g.version() && len(want) == len(got)
}

// wrongs are fields with what was in them and what should have been, in the order of their
// first sight.
type wrongs []wrongField

type wrongField struct {
	name       string
	came, want []string
}

// add says whether they differ.
func (w *wrongs) add(name string, came, want any) bool {
	if came == want {
		return false
	}
	i := slices.IndexFunc(*w, func(f wrongField) bool { return f.name == name })
	if i < 0 {
		*w = append(*w, wrongField{name: name})
		i = len(*w) - 1
	}
	f := &(*w)[i]
	for list, value := range map[*[]string]any{&f.came: came, &f.want: want} {
		if text := fmt.Sprint(value); !slices.Contains(*list, text) {
			*list = append(*list, text)
		}
	}
	return true
}

// fields adds what differs between a frame that came and the one that should have.
func (w *wrongs) fields(came, want []byte) {
	c, h := readHeaders(came), readHeaders(want)
	found := false
	add := func(name string, came, want any) { found = w.add(name, came, want) || found }
	for i := range h.labels {
		add("label", c.labels[i].label, h.labels[i].label)
		add("TC", c.labels[i].tc, h.labels[i].tc)
		add("label TTL", c.labels[i].ttl, h.labels[i].ttl)
		add("S", c.bottom[i], h.bottom[i])
	}
	switch h.version() {
	case 4:
		add("IP TTL", c.ip[8], h.ip[8])
		add("DSCP", c.ip[1]>>2, h.ip[1]>>2)
		add("ECN", c.ip[1]&3, h.ip[1]&3)
	case 6:
		tos := func(ip []byte) byte { return byte(binary.BigEndian.Uint16(ip) >> 4) }
		add("IP TTL", c.ip[7], h.ip[7])
		add("DSCP", tos(c.ip)>>2, tos(h.ip)>>2)
		add("ECN", tos(c.ip)&3, tos(h.ip)&3)
	}
	if !found && !slices.Equal(came, want) {
		at := 0
		for came[at] == want[at] {
			at++
		}
		add(fmt.Sprintf("byte %d", at), came[at], want[at])
	}
}

func (w wrongs) words() (all []string) {
	for _, f := range w {
		all = append(all, fmt.Sprintf("%s %s instead of %s", f.name, strings.Join(f.came, "/"), strings.Join(f.want, "/")))
	}
	return all
}

// TestBrief: what the page says of a router that does otherwise.
func TestBrief(t *testing.T) {
	r := &rig{place: p0}
	sent := func(f frame) []byte { return f.expected(p0, nil) }
	for _, c := range []struct {
		want []frame
		came [2][][]byte
		said string
	}{
		{[]frame{on(b, l(200, 5, 63), v4(9)), on(b, l(200, 1, 62), v4(9))}, [2][][]byte{b: {sent(on(b, l(200, 0, 63), v4(9))), sent(on(b, l(200, 0, 61), v4(9)))}},
			"TC 0 instead of 5/1; label TTL 61 instead of 62"},
		{[]frame{on(b, v4(63)), on(b, v6(63).ds(8, 1))}, [2][][]byte{b: {sent(on(b, v6(62).ds(0, 2))), sent(on(b, v4(62)))}},
			"IP TTL 62 instead of 63; DSCP 0 instead of 8; ECN 2 instead of 1"},
		{[]frame{on(b, v4(63))}, [2][][]byte{}, "dropped in silence"},
		{[]frame{on(b, v4(63)), on(b, v6(63))}, [2][][]byte{b: {sent(on(b, v4(63)))}}, "1 of 2 did not come"},
		{[]frame{on(b, v4(63))}, [2][][]byte{a: {sent(on(a, v4(63)))}},
			"1 of 1 did not come; a frame sent out, and not to be, such as 0800 198.18.0.2 > 198.19.0.2 ttl 63 tos 0x00 len 60"},
		{[]frame{on(b, l(200, 0, 63), raw{1, 2, 3})}, [2][][]byte{b: {sent(on(b, l(200, 0, 63), raw{1, 2, 4}))}}, "byte 20 4 instead of 3"},
		{[]frame{on(b, l(200, 0, 63), v4(9)), on(b, l(300, 0, 63).open())}, [2][][]byte{b: {sent(on(b, l(201, 0, 63), v4(9))), sent(on(b, l(300, 0, 63)))}},
			"label 201 instead of 200; S true instead of false"},
	} {
		if got := r.brief(c.want, c.came); got != c.said {
			t.Errorf("%q, want %q", got, c.said)
		}
	}
}
