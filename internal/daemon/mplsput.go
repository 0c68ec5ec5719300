// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"shunt/internal/dataplane"
	"shunt/internal/lfib"
)

// put tells the data path of what was touched, as the table has it now. whole says that this
// is all there is. The caller holds mu.
func (l *labels) put(t *lfib.Touched, whole bool) error {
	p := putting{labels: l, look: l.newLook(false), idle: map[*way]bool{}, spaces: map[string]dataplane.LabelPort{}}
	p.update = dataplane.LabelUpdate{Whole: whole, Ended: l.ways.ended, AdjacencyOf: func(s *lfib.Send) uint32 {
		if to := l.ways.at[wayOutOf(s)]; to != nil {
			return to.now.ID
		}
		return 0
	}}
	err := p.nhlfes(t.NHLFEs)
	if err == nil {
		err = p.ports(t.Ports)
	}
	if err != nil {
		return err
	}
	p.rest(t)
	if err := p.impose(); err != nil {
		return err
	}
	if err := l.plane.UpdateLabels(&p.update); err != nil {
		return err
	}
	p.inForce()
	return l.imposed(p.update.Imposer)
}

// putAll puts everything in force, and takes away what is not in the table.
func (l *labels) putAll() error {
	var all lfib.Touched
	for _, n := range l.table.NHLFEs() {
		all.NHLFEs = append(all.NHLFEs, n.ID)
	}
	for _, o := range l.table.ILMs() {
		all.ILMs = append(all.ILMs, o.Key())
	}
	for _, o := range l.table.FTNs() {
		all.FTNs = append(all.FTNs, o.Prefix)
	}
	for _, o := range l.table.Maps() {
		all.Maps = append(all.Maps, o.Name)
	}
	for _, o := range l.table.Spaces() {
		all.Ports = append(all.Ports, o.Port)
	}
	err := l.put(&all, true)
	l.unsure = err != nil
	return err
}

// putting is an update that is being made.
type putting struct {
	*labels
	look   *look
	update dataplane.LabelUpdate
	idle   map[*way]bool
	spaces map[string]dataplane.LabelPort // to be remembered when it is in force
}

// nhlfes adds NHLFEs, and the adjacencies that are new with them.
func (p *putting) nhlfes(ids []uint32) error {
	p.update.NHLFEs = make([]dataplane.NHLFE, 0, len(ids))
	for _, id := range ids {
		n, there := p.table.NHLFE(id)
		var form *lfib.Form
		if there {
			var err error
			if form, err = p.table.Form(id); err != nil {
				return err
			}
		}
		fresh := p.ways.send(id, sendOf(&n), p.resolve, p.idle)
		if fresh != nil {
			p.update.Adjacencies = append(p.update.Adjacencies, fresh.now)
		}
		p.update.NHLFEs = append(p.update.NHLFEs, dataplane.NHLFE{ID: id, Form: form})
	}
	if p.update.Whole {
		p.update.Adjacencies = p.update.Adjacencies[:0]
		for _, w := range p.ways.at {
			p.update.Adjacencies = append(p.update.Adjacencies, w.now)
		}
	}
	return nil
}

// resolve is for a way that is new. One that cannot be found yet, or of which nothing is known,
// is looked at again.
func (p *putting) resolve(k wayOut) (dataplane.Adjacency, string) {
	a, why, err := p.look.resolve(k)
	if err != nil {
		why = err.Error()
	}
	if why != "" {
		p.news.ask()
	}
	return a, why
}

// ports adds the label spaces of ports.
func (p *putting) ports(names []string) error {
	for _, name := range names {
		want, err := p.look.space(p.table.PortSpace(name))
		if err != nil {
			return err
		}
		p.space(name, want)
	}
	return nil
}

// space adds what a port's label space is to become.
func (p *putting) space(name string, want dataplane.LabelPort) {
	if told := p.labels.spaces[name]; told.Index != 0 && told.Index != want.Index {
		p.update.Ports = append(p.update.Ports, dataplane.LabelPort{Index: told.Index, Space: -1, Upstream: -1})
	}
	if want.Index != 0 {
		p.update.Ports = append(p.update.Ports, want)
	}
	p.spaces[name] = want
}

// inForce remembers what the data path was told.
func (p *putting) inForce() {
	p.punts.forget(&p.update)
	p.ways.end(p.idle)
	for name, told := range p.spaces {
		p.labels.spaces[name] = told
		if told.Index == 0 || told.Space < 0 {
			delete(p.labels.spaces, name)
		}
	}
	if len(p.spaces) > 0 {
		p.punts.listen()
	}
}

// rest adds what the table says without asking anybody.
func (p *putting) rest(t *lfib.Touched) {
	for _, name := range t.Maps {
		update := dataplane.LabelMap{Name: name}
		if m, ok := p.table.Map(name); ok {
			update.To = new([64]uint8)
			for from, to := range m.To {
				update.To[from] = uint8(to)
			}
		}
		p.update.Maps = append(p.update.Maps, update)
	}
	p.update.ILM = make([]dataplane.ILM, 0, len(t.ILMs))
	for _, key := range t.ILMs {
		p.update.ILM = append(p.update.ILM, p.label(key))
	}
	for _, prefix := range t.FTNs {
		nhlfe, _ := p.table.FTN(prefix)
		p.update.FTN = append(p.update.FTN, dataplane.FTN{Prefix: prefix, NHLFE: nhlfe})
	}
}

// label is what becomes of a label with any TC. Few labels have entries for a TC of their own, and
// to ask for eight of a million that have not would take longer than all the rest.
func (p *putting) label(key lfib.ILMKey) dataplane.ILM {
	o := dataplane.ILM{Space: key.Space, Label: key.Label}
	one := key.TC
	key.TC = -1
	others, _ := p.table.ILM(key)
	for tc := range o.NHLFE {
		o.NHLFE[tc] = others
	}
	label := dataplane.LabelKey{Space: key.Space, Label: key.Label}
	if one < 0 && !p.byTC[label] {
		return o
	}
	delete(p.byTC, label)
	for tc := range o.NHLFE {
		key.TC = int8(tc)
		if own, ok := p.table.ILM(key); ok {
			o.NHLFE[tc], p.byTC[label] = own, true
		}
	}
	return o
}
