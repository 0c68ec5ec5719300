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
	var pushes []string
	if r.accept("as") {
		r.accept("to")
		pushes = strings.Split(r.word("labels"), "/")
	}
	n.List = make([]Instruction, 1, len(pushes)+2)
	n.List[0].Op = OpPop
	for _, text := range slices.Backward(pushes) { // the outermost is written first
		label := Label(r.parse("label", text, 0, uint64(MaxLabel)))
		n.List = append(n.List, Instruction{Op: OpPush, Label: label})
	}
	var out *Send
	if w := r.next(); w == "via" || w == "dev" {
		out = r.hop()
	}
	if r.accept("ttl-propagate") {
		n.Model = Model(r.oneOf("ttl-propagate", []string{Uniform: "enabled", Pipe: "disabled"}))
	}
	switch {
	case out == nil:
		r.fail("the route has no next hop: write \"via inet ADDR dev PORT\", or \"dev lo\" for labels that end here")
	case out.Port != "lo":
		n.List = append(n.List, Instruction{Op: OpSend, Port: out.Port, Via: out.Via, MAC: out.MAC})
	case len(n.List) > 1 || out.Via.IsValid() || out.MAC != nil:
		r.fail("dev lo ends the label here: leave \"as\" and \"via\" away")
	default:
		n.List = append(n.List, Instruction{Op: OpPeek})
	}
	return []Change{{verb, n}, {verb, entry}}
}

// hop reads via [inet|inet6|link] ADDR dev PORT, in either order.
func (r *reader) hop() *Send {
	var s Send
	for w := r.next(); w == "via" || w == "dev"; w = r.next() {
		r.at++
		switch {
		case w == "dev" && s.Port == "":
			s.Port = r.name("a port")
		case w == "via" && r.accept("link") && s.MAC == nil:
			s.MAC = r.mac()
		case w == "via" && !s.Via.IsValid() && s.MAC == nil:
			s.Via = r.via()
		default:
			r.fail("%q stands twice: a route has one next hop; use an nhlfe with by-hash for several", w)
		}
	}
	switch {
	case s.Port == "":
		r.fail("the next hop names no port: write \"dev PORT\"")
	case s.Port != "lo" && !s.Via.IsValid() && s.MAC == nil:
		r.fail("dev %s names no next hop: write \"via inet ADDR\"", s.Port)
	}
	return &s
}
