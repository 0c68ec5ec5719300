// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"strings"

	"shunt/internal/api"
	"shunt/internal/lfib"
)

// Monitor implements api.MPLS.
func (l *labels) Monitor(ctx context.Context, tell func([]api.MPLSEvent) error) error {
	return l.monitors.follow(ctx, tell)
}

// Save implements api.MPLS.
func (l *labels) Save() ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.table.Save(), nil
}

// ILM implements api.MPLS.
func (l *labels) ILM(f api.MPLSFilter) ([]api.MPLSILM, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []api.MPLSILM
	for _, o := range l.entriesOf(f) {
		if f.Space != nil && *f.Space != int(o.Space) {
			continue
		}
		if f.Limit > 0 && len(list) == f.Limit {
			break
		}
		entry := api.MPLSILM{Space: int(o.Space), Label: uint32(o.Label), NHLFE: o.NHLFE, List: l.text(o.NHLFE)}
		if o.TC >= 0 {
			entry.TC = &o.TC
		}
		list = append(list, entry)
	}
	return list, nil
}

// entriesOf are the ILM entries that a filter can choose, in order. To ask for one label among
// millions does not look at them all.
func (l *labels) entriesOf(f api.MPLSFilter) (list []lfib.ILM) {
	if f.Label == nil {
		return l.table.ILMs()
	}
	for space := lfib.Space(0); space <= lfib.MaxSpace; space++ {
		for tc := int8(-1); tc < 8; tc++ {
			key := lfib.ILMKey{Space: space, TC: tc, Label: lfib.Label(*f.Label)}
			if id, ok := l.table.ILM(key); ok {
				list = append(list, lfib.ILM{Space: space, Label: key.Label, TC: int(tc), NHLFE: id})
			}
		}
	}
	return list
}

// text is an NHLFE's list as it is written.
func (l *labels) text(id uint32) string {
	n, _ := l.table.NHLFE(id)
	words := make([]string, len(n.List))
	for i := range n.List {
		words[i] = n.List[i].String()
	}
	return strings.Join(words, " ")
}

// NHLFE implements api.MPLS.
func (l *labels) NHLFE(f api.MPLSFilter) ([]api.MPLSNHLFE, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []lfib.NHLFE
	if f.ID == nil {
		chosen = l.table.NHLFEs()
	} else if n, ok := l.table.NHLFE(*f.ID); ok {
		chosen = []lfib.NHLFE{n}
	}
	var list []api.MPLSNHLFE
	for _, n := range first(chosen, f.Limit) {
		entry := api.MPLSNHLFE{ID: n.ID, MTU: n.MTU, TTL: n.Model.String(), List: l.text(n.ID)}
		if w := l.ways.of[n.ID]; w != nil {
			entry.State = api.MPLSUp
			if w.why != "" {
				entry.State, entry.Reason = api.MPLSDown, w.key.String()+": "+w.why
			}
		}
		list = append(list, entry)
	}
	return list, nil
}

// FTN implements api.MPLS.
func (l *labels) FTN(f api.MPLSFilter) ([]api.MPLSFTN, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []lfib.FTN
	if f.Prefix == nil {
		chosen = l.table.FTNs()
	} else if id, ok := l.table.FTN(*f.Prefix); ok {
		chosen = []lfib.FTN{{Prefix: *f.Prefix, NHLFE: id}}
	}
	var list []api.MPLSFTN
	for _, o := range first(chosen, f.Limit) {
		list = append(list, api.MPLSFTN{Prefix: o.Prefix, NHLFE: o.NHLFE, List: l.text(o.NHLFE)})
	}
	return list, nil
}

// Map implements api.MPLS.
func (l *labels) Map(f api.MPLSFilter) ([]api.MPLSMap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []lfib.Map
	if f.Name == "" {
		chosen = l.table.Maps()
	} else if m, ok := l.table.Map(f.Name); ok {
		chosen = []lfib.Map{m}
	}
	var list []api.MPLSMap
	for _, m := range first(chosen, f.Limit) {
		list = append(list, api.MPLSMap{Name: m.Name, Kind: m.Kind.String(), To: m.To})
	}
	return list, nil
}

// Space implements api.MPLS.
func (l *labels) Space(f api.MPLSFilter) ([]api.MPLSSpace, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var chosen []lfib.PortSpace
	for _, o := range l.table.Spaces() {
		if f.Port == "" || f.Port == o.Port {
			chosen = append(chosen, o)
		}
	}
	indexes, lacking := map[string]int{}, l.lacking()
	for _, p := range l.ports() {
		indexes[p.link.Name] = p.link.Index
	}
	var list []api.MPLSSpace
	for _, o := range first(chosen, f.Limit) {
		one := api.MPLSSpace{Port: o.Port, Index: indexes[o.Port], Space: o.Space, State: api.MPLSUp}
		if o.Upstream >= 0 {
			one.Upstream = &o.Upstream
		}
		if l.spaces[o.Port].Index == 0 {
			one.State, one.Reason, one.Remedy = api.MPLSDown, lacking[o.Port].reason, lacking[o.Port].remedy
		}
		list = append(list, one)
	}
	return list, nil
}

// first cuts a list to a limit, 0 for none.
func first[T any](list []T, limit int) []T {
	if limit > 0 && limit < len(list) {
		return list[:limit]
	}
	return list
}
