// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"maps"
	"slices"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// platform is what RFC 3813 gives index 0: all interfaces together.
const platform = "platform"

// inUse counts labels for RFC 3813, as of a state of the tables.
type inUse struct {
	known bool
	seq   uint64
	in    map[lfib.Space]uint64              // labels
	out   map[string]map[lfib.Label]struct{} // by port: what is on top of what leaves
	keys  []dataplane.LabelKey               // all incoming labels, in order
}

// count brings the numbers up to date. To count a million labels takes a second, so that is
// done only if they have changed. The caller holds mu.
func (l *labels) countInUse() *inUse {
	u := &l.inUse
	if u.known && u.seq == l.seq {
		return u
	}
	*u = inUse{known: true, seq: l.seq, in: map[lfib.Space]uint64{}, out: map[string]map[lfib.Label]struct{}{}}
	for _, o := range l.table.ILMs() {
		key := dataplane.LabelKey{Space: o.Space, Label: o.Label}
		if n := len(u.keys); n > 0 && u.keys[n-1] == key { // for another TC
			continue
		}
		u.keys = append(u.keys, key)
		u.in[o.Space]++
	}
	for _, n := range l.table.NHLFEs() {
		if form, err := l.table.Form(n.ID); err == nil {
			u.leaves(form)
		}
	}
	return u
}

// leaves notes the label on top of what a form sends, if it put it there.
func (u *inUse) leaves(f *lfib.Form) {
	if f.Choice != nil {
		for _, to := range f.Choice {
			if to.Form != nil {
				u.leaves(to.Form)
			}
		}
	}
	if f.Send == nil || len(f.Push) == 0 {
		return
	}
	port := u.out[f.Send.Port]
	if port == nil {
		port = map[lfib.Label]struct{}{}
		u.out[f.Send.Port] = port
	}
	port[f.Push[len(f.Push)-1].Label] = struct{}{}
}

// Stats implements api.MPLS.
func (l *labels) Stats(f api.MPLSFilter) (api.MPLSStats, error) {
	counted, err := l.plane.LabelStats()
	if err != nil {
		return api.MPLSStats{}, err
	}
	ports := l.ports()
	l.mu.Lock()
	defer l.mu.Unlock()
	return api.MPLSStats{
		Interfaces:  l.interfaces(counted.Ports, ports),
		InSegments:  first(l.inSegments(counted.In), f.Limit),
		OutSegments: first(l.outSegments(counted.Out), f.Limit),
	}, nil
}

func (l *labels) interfaces(counted map[int]dataplane.LabelPortStats, ports []shown) []api.MPLSInterface {
	u := l.countInUse()
	all := api.MPLSInterface{Name: platform, InLabelsInUse: u.in[0], Reasons: map[string]uint64{}}
	var list []api.MPLSInterface
	different := map[lfib.Label]struct{}{}
	for _, p := range ports {
		name, space := p.link.Name, l.table.Space(p.link.Name)
		out, sends := u.out[name]
		c := counted[p.link.Index]
		c.Fragmented += l.punts.counted().cut[name]
		maps.Copy(different, out)
		all.InLabelLookupFailures += c.LookupFailures
		all.OutFragmentedPkts += c.Fragmented
		for reason, n := range c.Reasons {
			all.Reasons[reason] += n
		}
		if space < 0 && !sends && len(c.Reasons) == 0 {
			continue
		}
		row := api.MPLSInterface{Name: name, Index: p.link.Index, Space: space, InLabelLookupFailures: c.LookupFailures,
			OutLabelsInUse: uint64(len(out)), OutFragmentedPkts: c.Fragmented, Reasons: c.Reasons}
		if space >= 0 {
			row.InLabelsInUse = u.in[lfib.Space(space)]
		}
		if row.Reasons == nil {
			row.Reasons = map[string]uint64{}
		}
		list = append(list, row)
	}
	if c := counted[l.imposer.Inner]; len(c.Reasons) > 0 { // IP packets that got no labels: no label was looked up
		for reason, n := range c.Reasons {
			all.Reasons[reason] += n
		}
		list = append(list, api.MPLSInterface{Name: kernel.PairInner, Index: l.imposer.Inner, Space: -1, Reasons: c.Reasons})
	}
	all.OutLabelsInUse = uint64(len(different))
	slices.SortFunc(list, func(a, b api.MPLSInterface) int { return cmp.Compare(a.Name, b.Name) })
	return append([]api.MPLSInterface{all}, list...)
}

func (l *labels) inSegments(counted map[dataplane.LabelKey]dataplane.Segment) []api.MPLSInSegment {
	list := make([]api.MPLSInSegment, 0, len(counted))
	for _, key := range l.countInUse().keys {
		c, more := counted[key], l.punts.counted().in[key]
		c.Packets, c.Octets, c.Errors = c.Packets+more.Packets, c.Octets+more.Octets, c.Errors-min(c.Errors, more.Errors)
		list = append(list, api.MPLSInSegment{Space: int(key.Space), Label: uint32(key.Label), Octets: uint32(c.Octets), Packets: c.Packets,
			Errors: c.Errors, Discards: c.Discards, HCOctets: c.Octets, DiscontinuityTime: c.Since})
	}
	slices.SortStableFunc(list, func(a, b api.MPLSInSegment) int { return cmp.Compare(b.Packets, a.Packets) })
	return list
}

func (l *labels) outSegments(counted map[uint32]dataplane.Segment) []api.MPLSOutSegment {
	list := make([]api.MPLSOutSegment, 0, len(l.ways.of))
	for id, w := range l.ways.of {
		c := counted[id].Plus(l.punts.counted().out[id])
		list = append(list, api.MPLSOutSegment{NHLFE: id, Port: w.key.port, Octets: uint32(c.Octets), Packets: c.Packets,
			Errors: c.Errors, Discards: c.Discards, HCOctets: c.Octets, DiscontinuityTime: c.Since})
	}
	slices.SortFunc(list, func(a, b api.MPLSOutSegment) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.NHLFE, b.NHLFE))
	})
	return list
}
