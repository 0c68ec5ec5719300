// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"slices"
	"strings"
)

// instruction reads one instruction of a list.
func (r *reader) instruction() (in Instruction) {
	in.Op = OpPop + Op(r.oneOf("instruction", opWords[OpPop:]))
	switch in.Op {
	case OpPush:
		r.push(&in)
	case OpSwap:
		in.Label = r.label()
	case OpSetTC:
		in.N = int(r.number("tc", 0, 7))
	case OpSetDSCP:
		in.N = int(r.number("dscp", 0, 63))
	case OpTCMap, OpDSCPMap:
		in.Map = r.name("the name of a map")
	case OpPeek:
		if r.accept("space") {
			space := r.space()
			in.Space = &space
		}
	case OpSend:
		r.expect("dev")
		s := r.send()
		in.Port, in.Via, in.MAC = s.Port, s.Via, s.MAC
		in.Upstream = r.accept("upstream")
	case OpForward:
		in.ID = r.id()
	case OpByTC:
		r.choices(&in, "T:ID", 8)
	case OpByDSCP:
		r.choices(&in, "D:ID", 64)
	case OpByHash:
		r.members(&in)
	}
	return in
}

func (r *reader) push(in *Instruction) {
	in.Label = r.label()
	switch {
	case r.accept("tc"):
		in.TC = r.small("tc", 0, 7)
	case r.accept("tc-map"):
		in.Map = r.name("the name of a map")
	}
	if r.accept("ttl") {
		in.TTL = r.small("ttl", 1, 255)
	}
}

func (r *reader) choices(in *Instruction, form string, keys int) {
	for strings.Contains(r.next(), ":") {
		key, id := r.pair(":", form, strings.TrimPrefix(in.Op.String(), "by-"), keys)
		in.Choices = append(in.Choices, Choice{Key: key, ID: r.parseID(id)})
	}
	if r.accept("default") {
		id := r.id()
		in.Default = &id
	}
}

// members reads ID[*WEIGHT]... of a choice by hash.
func (r *reader) members(in *Instruction) {
	for w := r.next(); w != "" && strings.IndexByte("0123456789", w[0]) >= 0; w = r.next() {
		id, weight, weighted := strings.Cut(r.word("ID[*WEIGHT]"), "*")
		c := Choice{ID: r.parseID(id), Weight: 1}
		if weighted {
			c.Weight = int(r.parse("weight", weight, 1, MaxWeight))
		}
		in.Choices = append(in.Choices, c)
	}
}

// route reads what `ip -f mpls route` takes of a label with one next hop, and makes of it an
// NHLFE and an ILM entry in the platform's label space.
func (r *reader) route(verb Verb) []Change {
	label := r.label()
	entry := ILM{Label: label, TC: -1}
	n := NHLFE{ID: RouteID + uint32(label)}
	if verb == Delete {
		return []Change{{verb, entry}, {verb, n}}
	}
	entry.NHLFE = n.ID
	var out Send
	var pushes []string
	seen := map[string]bool{}
	for w := r.next(); w != ""; w = r.next() {
		r.at++
		if seen[w] {
			r.fail("%q stands twice, and a route has one next hop: for several use an nhlfe with by-hash", w)
		}
		seen[w] = true
		switch {
		case w == "as":
			r.accept("to")
			pushes = strings.Split(r.word("labels"), "/")
		case w == "dev":
			out.Port = r.name("a port")
		case w == "via" && r.accept("link"):
			out.MAC = r.mac()
		case w == "via":
			out.Via = r.via()
		case w == "ttl-propagate":
			n.Model = Model(r.oneOf("ttl-propagate", []string{Uniform: "enabled", Pipe: "disabled"}))
		default:
			r.fail("%q is no part of a route: use as, via, dev, ttl-propagate", w)
		}
	}
	n.List = r.routeList(pushes, &out)
	return []Change{{verb, n}, {verb, entry}}
}

// routeList is the list that swaps a label for others, the outermost written first, and sends.
// The port lo stands for labels that end here, as it does for the kernel.
func (r *reader) routeList(pushes []string, out *Send) []Instruction {
	here := out.Port == "lo"
	switch {
	case out.Port == "":
		r.fail("the route names no port: write \"via inet ADDR dev PORT\", or \"dev lo\" for a label that ends here")
	case here && (len(pushes) > 0 || out.Via.IsValid() || out.MAC != nil):
		r.fail("dev lo ends the label here: leave \"as\" and \"via\" away")
	case !here && !out.Via.IsValid() && out.MAC == nil:
		r.fail("dev %s names no next hop: write \"via inet ADDR\" before it", out.Port)
	}
	list := make([]Instruction, 1, len(pushes)+2)
	list[0].Op = OpPop
	if here {
		return append(list, Instruction{Op: OpPeek})
	}
	for _, text := range slices.Backward(pushes) {
		label := Label(r.parse("label", text, 0, uint64(MaxLabel)))
		list = append(list, Instruction{Op: OpPush, Label: label})
	}
	return append(list, Instruction{Op: OpSend, Port: out.Port, Via: out.Via, MAC: out.MAC})
}
