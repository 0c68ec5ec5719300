// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// line is a line of the grammar that is being written.
type line []byte

func (l *line) words(words ...string) {
	for _, w := range words {
		if len(*l) > 0 {
			*l = append(*l, ' ')
		}
		*l = append(*l, w...)
	}
}

func (l *line) number(word string, n int64) {
	l.words(word)
	*l = strconv.AppendInt(append(*l, ' '), n, 10)
}

// pair writes the two numbers of a choice or of a map.
func (l *line) pair(a int64, between byte, b int64) {
	*l = strconv.AppendInt(append(*l, ' '), a, 10)
	*l = strconv.AppendInt(append(*l, between), b, 10)
}

// String is the change's line, which Parse reads.
func (c Change) String() string {
	l := make(line, 0, 80)
	l.words(kindOf(c.Object), c.Verb.String())
	full := c.Verb != Delete
	switch o := c.Object.(type) {
	case ILM:
		l.ilm(o, full)
	case NHLFE:
		l.nhlfe(&o, full)
	case FTN:
		l.words(o.Prefix.String())
		if full {
			l.number("nhlfe", int64(o.NHLFE))
		}
	case Map:
		l.words(o.Name)
		if full {
			l.words(o.Kind.String())
			for _, key := range slices.Sorted(maps.Keys(o.To)) {
				l.pair(int64(key), ':', int64(o.To[key]))
			}
		}
	case PortSpace:
		if o.Space < 0 {
			l.words(o.Port, "off")
		} else {
			l.number(o.Port, int64(o.Space))
		}
		if o.Upstream >= 0 {
			l.number("upstream", int64(o.Upstream))
		}
	}
	return string(l)
}

func (l *line) ilm(o ILM, full bool) {
	l.words(strconv.Itoa(int(o.Label)))
	if o.Space != 0 {
		l.number("space", int64(o.Space))
	}
	if o.TC >= 0 {
		l.number("tc", int64(o.TC))
	}
	if full {
		l.number("nhlfe", int64(o.NHLFE))
	}
}

func (l *line) nhlfe(o *NHLFE, full bool) {
	l.words(strconv.FormatUint(uint64(o.ID), 10))
	if !full {
		return
	}
	if o.MTU != 0 {
		l.number("mtu", int64(o.MTU))
	}
	if o.Model != Uniform {
		l.words("ttl", o.Model.String())
	}
	for i := range o.List {
		l.instruction(&o.List[i])
	}
}

// String is the instruction as it stands in a line.
func (in Instruction) String() string {
	var l line
	l.instruction(&in)
	return string(l)
}

func (l *line) instruction(in *Instruction) {
	l.words(in.Op.String())
	switch in.Op {
	case OpPush:
		l.push(in)
	case OpSwap:
		l.words(strconv.Itoa(int(in.Label)))
	case OpSetTC, OpSetDSCP:
		l.words(strconv.Itoa(in.N))
	case OpTCMap, OpDSCPMap:
		l.words(in.Map)
	case OpPeek:
		if in.Space != nil {
			l.number("space", int64(*in.Space))
		}
	case OpSend:
		l.words((&Send{in.Port, in.Via, in.MAC}).String())
		if in.Upstream {
			l.words("upstream")
		}
	case OpForward:
		l.words(strconv.FormatUint(uint64(in.ID), 10))
	case OpByTC, OpByDSCP, OpByHash:
		l.choices(in)
	}
}

func (l *line) push(in *Instruction) {
	l.words(strconv.Itoa(int(in.Label)))
	if in.TC != nil {
		l.number("tc", int64(*in.TC))
	}
	if in.Map != "" {
		l.words("tc-map", in.Map)
	}
	if in.TTL != nil {
		l.number("ttl", int64(*in.TTL))
	}
}

func (l *line) choices(in *Instruction) {
	for _, c := range in.Choices {
		switch {
		case in.Op != OpByHash:
			l.pair(int64(c.Key), ':', int64(c.ID))
		case c.Weight == 1:
			l.words(strconv.FormatUint(uint64(c.ID), 10))
		default:
			l.pair(int64(c.ID), '*', int64(c.Weight))
		}
	}
	if in.Default != nil {
		l.number("default", int64(*in.Default))
	}
}

// String is the way out as it stands behind "send".
func (s *Send) String() string {
	switch {
	case s.MAC != nil:
		return "dev " + s.Port + " lladdr " + s.MAC.String()
	case s.Via.Is4():
		return "dev " + s.Port + " via inet " + s.Via.String()
	}
	return "dev " + s.Port + " via inet6 " + s.Via.String()
}

// kindOf is the word that a line about an object begins with, "" of what is none.
func kindOf(object any) string {
	switch object.(type) {
	case ILM:
		return "ilm"
	case NHLFE:
		return "nhlfe"
	case FTN:
		return "ftn"
	case Map:
		return "map"
	case PortSpace:
		return "space"
	}
	return ""
}

// name is how an error calls an object: the words that tell it from others.
func name(object any) string {
	switch o := object.(type) {
	case PortSpace:
		return "port " + o.Port
	case nil:
		return "nothing"
	default:
		return strings.Replace(Change{Delete, o}.String(), " del ", " ", 1)
	}
}
