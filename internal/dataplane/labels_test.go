// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"shunt/internal/lfib"
)

// TestMostLabels: the largest tables that can be configured are taken by the kernel.
func TestMostLabels(t *testing.T) {
	r := newRouter(t)
	r.do(t, func() error {
		p, err := Open(Options{Dir: r.BPFFS(), Flows: 1024})
		if err != nil {
			return err
		}
		defer p.Close()
		defer p.Remove()
		l := p.Labels(LabelSizes{Labels: 1 << 20, NHLFEs: 1 << 20})
		defer l.Close()
		return l.UpdateLabels(&LabelUpdate{Whole: true})
	})
}

// TestSpacesGo: the table of a label space, 8 MB, is there as long as it has a label or, once it
// had one, a port. That of space 0 is always there.
func TestSpacesGo(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	defer p.Close()
	defer p.Remove()
	l := p.Labels(LabelSizes{Labels: 64, NHLFEs: 64})
	defer l.Close()
	label := func(nhlfe uint32) []ILM {
		return []ILM{{Space: 5, Label: 100, NHLFE: [8]uint32{nhlfe, nhlfe, nhlfe, nhlfe, nhlfe, nhlfe, nhlfe, nhlfe}}}
	}
	drop := []NHLFE{{ID: 1, Form: &lfib.Form{Does: lfib.OpDrop}}}
	for _, c := range []struct {
		what string
		u    LabelUpdate
		want int
	}{
		{"a port alone", LabelUpdate{Whole: true, NHLFEs: drop, Ports: []LabelPort{{Index: r.ports[0], Space: 5, Upstream: -1}}}, 0},
		{"a label", LabelUpdate{ILM: label(1)}, 1},
		{"without it", LabelUpdate{ILM: label(0)}, 1},
		{"twice", LabelUpdate{ILM: label(0)}, 1},
		{"off", LabelUpdate{Ports: []LabelPort{{Index: r.ports[0], Space: -1}}}, 0},
		{"a label again", LabelUpdate{ILM: label(1)}, 1},
		{"and gone", LabelUpdate{ILM: label(0)}, 0},
	} {
		if err := l.UpdateLabels(&c.u); err != nil || len(l.tables.spaces) != c.want+1 {
			t.Errorf("%s: %v, %d spaces, want %d", c.what, err, len(l.tables.spaces), c.want+1)
		}
	}
}
