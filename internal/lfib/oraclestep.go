// SPDX-License-Identifier: Apache-2.0

package lfib

// instruction carries out the one at an index of a list, which is not the end.
func (w *walk) instruction(n *NHLFE, i int) string {
	in := &n.List[i]
	switch in.Op {
	case OpPop:
		return w.popNext(n.Model)
	case OpSwap:
		if reason := w.popNext(n.Model); reason != "" {
			return reason
		}
		w.push(n.Model, in, false)
		return ""
	case OpPush:
		w.push(n.Model, in, i > 0 && n.List[i-1].Op == OpEntropy)
		return ""
	}
	// All others see what a pop exposed.
	if reason := w.settle(); reason != "" {
		return reason
	}
	switch in.Op {
	case OpSetTC, OpTCMap:
		return w.setTC(in)
	case OpSetDSCP, OpDSCPMap:
		return w.setDSCP(in)
	}
	return "" // OpEntropy: the push behind it looks back
}

// popNext takes back a push, or puts a pop on hold: a push that follows makes it a swap.
func (w *walk) popNext(model Model) string {
	if n := len(w.pushed); n > 0 {
		w.pushed = w.pushed[:n-1]
		if !w.swapped || n > 1 {
			return ""
		}
		w.swapped = false
	}
	reason := w.settle()
	w.pending = &model
	return reason
}

// settle does a pop that was put on hold.
func (w *walk) settle() string {
	if w.pending == nil {
		return ""
	}
	model := *w.pending
	w.pending = nil
	return w.pop(model)
}

func (w *walk) push(model Model, in *Instruction, entropy bool) {
	if in.Label == ImplicitNull {
		return
	}
	p := Push{Label: in.Label, TC: in.TC, Map: in.Map, TTL: in.TTL, Entropy: entropy}
	switch {
	case w.pending != nil:
		w.swapped, w.pending = true, nil
	case p.TTL == nil && model != Uniform:
		most := uint8(255)
		p.TTL = &most
	}
	w.pushed = append(w.pushed, p)
}

// pop takes the top label off the wire.
func (w *walk) pop(model Model) string {
	if w.bare {
		return Malformed
	}
	top := lse(w.wire)
	if w.exposed {
		w.class = top.tc()
	}
	w.exposed = model == ShortPipe
	w.last = &popped{model, top.ttl()}
	w.popTC = top.tc()
	if !w.expose(top.bottom()) {
		return Malformed
	}
	if !w.bare && lse(w.wire).label() == ELI {
		if lse(w.wire).bottom() || !w.expose(false) || !w.expose(lse(w.wire).bottom()) {
			return Malformed
		}
	}
	if model == Uniform {
		w.carry(top.tc(), top.ttl())
	}
	return ""
}

// expose takes four bytes off; there must be a label behind them, unless they were the bottom.
func (w *walk) expose(bottom bool) bool {
	w.wire = w.wire[lseLen:]
	w.bare = bottom
	return bottom || len(w.wire) >= lseLen
}

// carry writes TC and TTL of a popped label to what it exposed. A DSCP of the same class is
// left as it is: nobody has re-marked the packet on its way. Of an IP TTL it is known only in the
// end what is to be written: see base and deliver.
func (w *walk) carry(tc, ttl uint8) {
	if !w.bare {
		lse(w.wire).setTC(tc)
		lse(w.wire).setTTL(ttl)
		return
	}
	w.ceiling = int(ttl)
	if version(w.wire) != 0 && dscp(w.wire)>>3 != tc {
		setDSCP(w.wire, tc<<3)
	}
}

// setTC writes to the label on top, wherever that is.
func (w *walk) setTC(in *Instruction) string {
	tc := uint8(in.N)
	if n := len(w.pushed); n > 0 {
		top := &w.pushed[n-1]
		top.TC, top.Map = &tc, ""
		if in.Op == OpTCMap {
			top.TC, top.Map = nil, in.Map
		}
		return ""
	}
	if w.bare {
		return Malformed
	}
	if in.Op == OpTCMap {
		var reason string
		if tc, reason = w.mapped(in.Map); reason != "" {
			return reason
		}
	}
	lse(w.wire).setTC(tc)
	return ""
}

// mapped is the TC that a map gives to the DSCP at the bottom.
func (w *walk) mapped(name string) (uint8, string) {
	from, reason := w.bottomDSCP()
	return uint8(w.t.maps[name].To[int(from)]), reason
}

// bottomDSCP looks beneath all labels.
func (w *walk) bottomDSCP() (uint8, string) {
	at := w.wire
	for depth, bare := 0, w.bare; !bare; depth++ {
		switch {
		case depth == MaxDepth:
			return 0, TooDeep
		case len(at) < lseLen:
			return 0, Malformed
		}
		bare = lse(at).bottom()
		at = at[lseLen:]
	}
	if version(at) == 0 {
		return 0, Payload
	}
	return dscp(at), ""
}

func (w *walk) setDSCP(in *Instruction) string {
	switch {
	case !w.bare:
		return Malformed
	case version(w.wire) == 0:
		return Payload
	case in.Op == OpSetDSCP:
		setDSCP(w.wire, uint8(in.N))
	default:
		setDSCP(w.wire, uint8(w.t.maps[in.Map].To[int(w.popTC)]))
	}
	return ""
}

// end carries out the end of a list.
func (w *walk) end(in *Instruction) string {
	if reason := w.settle(); reason != "" {
		return reason
	}
	switch in.Op {
	case OpByTC, OpByDSCP, OpByHash:
		return w.choose(in)
	case OpPeek:
		if w.bare {
			return w.deliver()
		}
		if in.Space != nil {
			w.space = *in.Space
		}
		return w.lookUp()
	case OpDeliver:
		return w.deliver()
	}
	return w.send()
}

// choose goes on in the NHLFE that a packet is for.
func (w *walk) choose(in *Instruction) string {
	id, reason := w.chosen(in)
	switch {
	case reason != "":
		return reason
	case id == 0:
		return Discarded
	case !w.enter():
		return TooDeep
	}
	w.last = nil
	return w.nhlfe(id)
}

func (w *walk) chosen(in *Instruction) (id uint32, reason string) {
	var key uint8
	switch in.Op {
	case OpByHash:
		return buckets(in.Choices)[Bucket(w.hash())], ""
	case OpByDSCP:
		key, reason = w.bottomDSCP()
	default:
		key, reason = w.classTC()
	}
	if reason != "" {
		return 0, reason
	}
	for _, c := range in.Choices {
		if c.Key == int(key) {
			return c.ID, ""
		}
	}
	if in.Default != nil {
		return *in.Default, ""
	}
	return 0, ""
}

// classTC is what by-tc goes by.
func (w *walk) classTC() (uint8, string) {
	switch {
	case !w.exposed:
		return w.class, ""
	case !w.bare:
		return lse(w.wire).tc(), ""
	case version(w.wire) == 0:
		return 0, Payload
	}
	return dscp(w.wire) >> 3, ""
}

func (w *walk) hash() uint32 {
	if w.env.Hash != nil {
		return w.env.Hash(w.packet, w.labelled)
	}
	return fnvHash(HashKey(w.packet, w.labelled))
}

// deliver gives the IP packet to the kernel. That is not forwarding, so no TTL is checked; a
// uniform LSP's is handed on.
func (w *walk) deliver() string {
	switch {
	case !w.bare:
		return Malformed
	case version(w.wire) == 0:
		return Payload
	case w.ceiling != none:
		setIPTTL(w.wire, min(uint8(w.ceiling), ipTTL(w.wire)))
	}
	return Delivered
}
