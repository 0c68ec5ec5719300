// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"errors"
	"fmt"
	"slices"
)

// compiler makes the Form of one NHLFE.
type compiler struct {
	t     *Table
	root  uint32
	at    uint32 // the NHLFE whose list it is in
	forms int    // that were made for targets
}

// draft is a Form while it is being made.
type draft struct {
	Form
	open     bool // a label was just popped: a push would replace it
	entropy  bool // the next push is a tunnel's, with an entropy label beneath
	forwards int
}

// list goes on with the list of an NHLFE.
func (c *compiler) list(d *draft, id uint32) error {
	c.at = id
	if d.forwards > MaxForwards {
		return fmt.Errorf("more than %d forwards lie behind each other: shorten the chain", MaxForwards)
	}
	d.forwards++
	n := &c.t.nhlfes[id].NHLFE
	d.End = id
	if n.MTU > 0 && (d.MTU == 0 || n.MTU < d.MTU) {
		d.MTU = n.MTU
	}
	for i := range n.List {
		in := &n.List[i]
		if in.Op.ends() {
			return c.end(d, n, in)
		}
		if err := d.instruction(n.Model, in); err != nil {
			return err
		}
	}
	return errNoInstruction
}

// instruction adds one that is not the end.
func (d *draft) instruction(model Model, in *Instruction) error {
	switch in.Op {
	case OpPop:
		return d.pop(model)
	case OpPush:
		return d.push(model, in)
	case OpSwap:
		if err := d.pop(model); err != nil {
			return err
		}
		return d.push(model, in)
	case OpEntropy:
		d.open, d.entropy = false, true
		return nil
	case OpSetTC:
		n := uint8(in.N)
		return d.mark(in, &n, "")
	case OpTCMap:
		return d.mark(in, nil, in.Map)
	case OpSetDSCP:
		n := uint8(in.N)
		return d.write(in, &n, "")
	}
	return d.write(in, nil, in.Map) // OpDSCPMap
}

// pop takes back what was pushed last, with all that was said of it, else a label of the packet.
func (d *draft) pop(model Model) error {
	if n := len(d.Push); n > 0 {
		d.Push = d.Push[:n-1]
		if !d.Swap || n > 1 {
			return nil
		}
		d.Swap = false
	}
	switch {
	case d.marked():
		return errors.New("pop takes away the label that set-tc or tc-map wrote to: write behind the pop")
	case d.bare():
		return errors.New("pop stands behind set-dscp or dscp-map, where no label is left: leave one of them away")
	case d.Pops > 0 && d.Model != model:
		return fmt.Errorf("a pop in ttl model %s follows one in %s: give both NHLFEs one model", model, d.Model)
	case d.Pops == MaxDepth:
		return fmt.Errorf("the list pops more than %d labels: use peek, which looks up what a pop exposed", MaxDepth)
	}
	d.Pops++
	d.Model, d.open = model, true
	return nil
}

func (d *draft) push(model Model, in *Instruction) error {
	if in.Label == ImplicitNull {
		return nil
	}
	p := Push{Label: in.Label, TC: in.TC, Map: in.Map, TTL: in.TTL, Entropy: d.entropy}
	switch {
	case d.open:
		d.Swap = true
		d.Pops--
	case p.TTL == nil && model != Uniform:
		p.TTL = &fullTTL
	}
	d.open, d.entropy = false, false
	d.Push = append(d.Push, p)
	labels := len(d.Push)
	for i := range d.Push {
		if d.Push[i].Entropy {
			labels += 2
		}
	}
	if labels > MaxPush {
		return fmt.Errorf("%s makes %d labels: push no more than %d, entropy counted as two", in, labels, MaxPush)
	}
	return nil
}

// fullTTL is what the pipe models push where nothing is said (RFC 3443).
var fullTTL uint8 = 255

// marked tells whether the TC of a label of the packet was written; bare whether its IP
// header was, so no label is left.
func (d *draft) marked() bool { return d.TC != nil || d.TCMap != "" }
func (d *draft) bare() bool   { return d.DSCP != nil || d.DSCPMap != "" }

// mark writes the TC of the label on top.
func (d *draft) mark(in *Instruction, tc *uint8, byMap string) error {
	d.open = false
	toTC, toMap := &d.TC, &d.TCMap
	if n := len(d.Push); n > 0 {
		toTC, toMap = &d.Push[n-1].TC, &d.Push[n-1].Map
	} else if d.bare() {
		return fmt.Errorf("%s stands behind set-dscp or dscp-map, where no label is left: leave one of them away", in)
	}
	if *toTC != nil || *toMap != "" {
		return fmt.Errorf("%s writes the TC of a label that has been given one: leave one of them away", in)
	}
	*toTC, *toMap = tc, byMap
	return nil
}

// write writes the DSCP of the IP header.
func (d *draft) write(in *Instruction, dscp *uint8, byMap string) error {
	d.open = false
	switch {
	case len(d.Push) > 0:
		return fmt.Errorf("%s stands behind a push or swap, which covers the IP header: put it before that", in)
	case d.marked():
		return fmt.Errorf("%s stands behind set-tc or tc-map, where a label is left: leave one of them away", in)
	case d.bare():
		return fmt.Errorf("%s writes the DSCP a second time: leave one of them away", in)
	}
	d.DSCP, d.DSCPMap = dscp, byMap
	return nil
}

// end adds the last instruction of a list.
func (c *compiler) end(d *draft, n *NHLFE, in *Instruction) error {
	d.Does = in.Op
	switch in.Op {
	case OpForward:
		return c.list(d, in.ID)
	case OpByTC, OpByDSCP, OpByHash:
		return c.choose(d, in)
	case OpDrop:
		d.Form = Form{Does: OpDrop, End: n.ID}
		return nil
	case OpSend:
		d.Send, d.Upstream = &Send{in.Port, in.Via, in.MAC}, in.Upstream
	case OpPeek, OpDeliver:
		d.MTU, d.Space = 0, in.Space
		switch {
		case len(d.Push) > 0:
			return fmt.Errorf("%s stands behind a push or swap: it works on what a pop exposed; send instead", in.Op)
		case in.Op == OpPeek && d.bare():
			return errors.New("peek stands behind set-dscp or dscp-map, where no label is left: deliver instead")
		case in.Op == OpDeliver && d.marked():
			return errors.New("deliver stands behind set-tc or tc-map, where a label is left: pop it, or leave one of them away")
		}
	}
	if d.Pops == 0 {
		d.Model = Uniform
	}
	return nil
}

// choose adds a choice: its targets begin anew, with what the draft pushes.
func (c *compiler) choose(d *draft, in *Instruction) error {
	if d.marked() || d.bare() {
		return fmt.Errorf("%s stands behind a write of TC or DSCP: write in the NHLFEs that it chooses", in.Op)
	}
	rest := *d
	rest.Pops, rest.Model, rest.open = 0, Uniform, false
	made := map[uint32]Target{}
	target := func(id uint32) (Target, error) {
		to, ok := made[id]
		if ok {
			return to, nil
		}
		to, err := c.target(rest, id)
		made[id] = to
		return to, err
	}
	d.Form = Form{Does: in.Op, Pops: d.Pops, Model: d.Model, End: d.End, Choice: &[64]Target{}}
	if d.Pops == 0 {
		d.Model = Uniform
	}
	return in.fill(d.Choice, target)
}

// target is an NHLFE behind what a draft does before it: itself, if that is nothing.
func (c *compiler) target(rest draft, id uint32) (Target, error) {
	if len(rest.Push) == 0 && rest.MTU == 0 {
		return Target{ID: id}, nil
	}
	if c.forms++; c.forms > MaxForms {
		return Target{}, fmt.Errorf("there are more than %d ways through choices behind a push or mtu: put those behind the choices", MaxForms)
	}
	rest.Push = slices.Clone(rest.Push)
	rest.Does, rest.Choice, rest.Send = 0, nil, nil
	if err := c.list(&rest, id); err != nil {
		return Target{}, err
	}
	return Target{Form: &rest.Form}, nil
}

// fill gives each value of a choice its target.
func (in *Instruction) fill(choice *[64]Target, target func(id uint32) (Target, error)) (err error) {
	set := func(i int, id uint32) {
		if err == nil {
			choice[i], err = target(id)
		}
	}
	if in.Op == OpByHash {
		for i, id := range buckets(in.Choices) {
			set(i, id)
		}
		return err
	}
	if in.Default != nil {
		keys := 64
		if in.Op == OpByTC {
			keys = 8
		}
		for i := range keys {
			set(i, *in.Default)
		}
	}
	for _, c := range in.Choices {
		set(c.Key, c.ID)
	}
	return err
}

// buckets shares out the values of a hash by weight: everyone has one bucket, and each of the
// others goes to whom the share is owed most (Sainte-Laguë), so that weights that divide 64
// are met exactly.
func buckets(members []Choice) (ids [64]uint32) {
	has := make([]int, len(members))
	for i := range ids {
		to := i
		if i >= len(members) {
			to = 0
			for m := range members {
				if members[m].Weight*(2*has[to]+1) > members[to].Weight*(2*has[m]+1) {
					to = m
				}
			}
		}
		has[to]++
		ids[i] = members[to].ID
	}
	return ids
}
