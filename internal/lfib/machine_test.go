// SPDX-License-Identifier: Apache-2.0

package lfib

import "encoding/binary"

// machine carries out closed forms as a data path would: it never changes the packet before it
// is sent, keeps a cursor and a few numbers, and one loop enters Forms. It shares no step with
// the oracle.
type machine struct {
	t        *Table
	env      Env
	forms    map[uint32]*Form
	in       []byte
	labelled bool
	stepped  bool

	at      int   // where in the packet the top is
	bare    bool  // which is the payload
	ip      int   // its version if it is bare, 0: none
	ttl, tc uint8 // of what is on top, or what a uniform pop handed down to it
	dscp    uint8 // if it is bare

	space   Space
	class   uint8
	exposed bool
	popTC   uint8
	entered int
}

// switchForms and imposeForms are Table.Switch and Table.Impose by closed forms; forms keeps
// those of a table between packets.
func switchForms(t *Table, forms map[uint32]*Form, space Space, packet []byte, env Env) Verdict {
	m := &machine{t: t, env: env, forms: forms, in: packet, labelled: true, space: space}
	if len(packet) >= 4 {
		m.top()
	}
	return m.run(nil)
}

func imposeForms(t *Table, forms map[uint32]*Form, packet []byte, env Env) Verdict {
	m := &machine{t: t, env: env, forms: forms, in: packet, stepped: true, bare: true, entered: 1}
	m.top()
	m.class = m.dscp >> 3
	return m.run(m.compiled(t.longest(packet)))
}

func (m *machine) compiled(id uint32) *Form {
	f := m.forms[id]
	if f == nil {
		var err error
		if f, err = m.t.Form(id); err != nil {
			panic(err)
		}
		m.forms[id] = f
	}
	return f
}

// top reads the header at the cursor.
func (m *machine) top() {
	if !m.bare {
		m.tc, m.ttl = m.in[m.at+2]>>1&7, m.in[m.at+3]
		return
	}
	h := m.in[m.at:]
	m.ip = 0
	if len(h) >= 20 && h[0]>>4 == 4 {
		m.ip, m.dscp, m.ttl = 4, h[1]>>2, h[8]
	} else if len(h) >= 40 && h[0]>>4 == 6 {
		m.ip, m.dscp, m.ttl = 6, uint8(binary.BigEndian.Uint16(h)>>6&0x3f), h[7]
	}
}

// run is the loop: look up or choose, then carry out a Form.
func (m *machine) run(f *Form) Verdict {
	for {
		if f == nil { // the label on top is to be looked up
			if m.entered++; m.entered > 16 {
				return Verdict{Reason: "mpls_depth"}
			}
			if len(m.in)-m.at < 4 {
				return Verdict{Reason: "mpls_malformed"}
			}
			m.class, m.exposed = m.tc, false
			var v Verdict
			if f, v = m.entry(); f == nil {
				if v.Reason != "" {
					return v
				}
				continue
			}
		}
		next, v := f.run(m)
		if v.Reason != "" {
			return v
		}
		f = next
	}
}

// entry is the Form of the label on top; nil and no reason behind an explicit null.
func (m *machine) entry() (*Form, Verdict) {
	word := binary.BigEndian.Uint32(m.in[m.at:])
	key := ILMKey{m.space, int8(m.tc), Label(word >> 12)}
	if id, ok := m.t.ILM(key); ok {
		return m.compiled(id), Verdict{}
	}
	key.TC = -1
	if id, ok := m.t.ILM(key); ok {
		return m.compiled(id), Verdict{}
	}
	bottom := word>>8&1 != 0
	switch word >> 12 {
	case 0, 2:
		if !m.pop(Uniform) {
			return nil, Verdict{Reason: "mpls_malformed"}
		}
		if !m.bare {
			return nil, Verdict{}
		}
		if word>>12 == 0 && m.ip != 4 || word>>12 == 2 && m.ip != 6 {
			return nil, Verdict{Reason: "mpls_payload"}
		}
		return nil, m.deliver()
	case 1:
		if bottom {
			return nil, Verdict{Reason: "mpls_malformed"}
		}
		return nil, Verdict{Reason: "mpls_alert"}
	case 13:
		return nil, Verdict{Reason: "mpls_oam"}
	case 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15:
		return nil, Verdict{Reason: "mpls_special"}
	}
	return nil, Verdict{Reason: "mpls_no_label"}
}

func (m *machine) pop(model Model) bool {
	if m.bare {
		return false
	}
	ttl, tc := m.ttl, m.tc
	if m.exposed {
		m.class = tc
	}
	m.exposed, m.popTC = model == ShortPipe, tc
	m.bare = m.in[m.at+2]&1 != 0
	m.at += 4
	room := func() bool { return len(m.in)-m.at >= 4 }
	if !m.bare {
		if !room() {
			return false
		}
		if word := binary.BigEndian.Uint32(m.in[m.at:]); word>>12 == 7 {
			if m.at += 4; word>>8&1 != 0 || !room() {
				return false
			}
			m.bare = m.in[m.at+2]&1 != 0
			if m.at += 4; !m.bare && !room() {
				return false
			}
		}
	}
	m.top()
	if model == Uniform {
		m.ttl, m.tc = ttl, tc
		if m.bare && m.dscp>>3 != tc {
			m.dscp = tc << 3
		}
	}
	return true
}

// run carries out one Form; the next one is nil for a look-up.
func (f *Form) run(m *machine) (*Form, Verdict) {
	if f.Does == OpDrop {
		return nil, Verdict{Reason: "mpls_discard"}
	}
	var last uint8
	for range f.Pops {
		last = m.ttl
		if !m.pop(f.Model) {
			return nil, Verdict{Reason: "mpls_malformed"}
		}
	}
	if f.Choice != nil {
		return f.choose(m)
	}
	if reason := f.write(m); reason != "" {
		return nil, Verdict{Reason: reason}
	}
	switch {
	case f.Does == OpPeek && !m.bare:
		if f.Space != nil {
			m.space = *f.Space
		}
		return nil, Verdict{}
	case f.Does == OpPeek, f.Does == OpDeliver:
		return nil, m.deliver()
	}
	return nil, f.send(m, last)
}

func (f *Form) choose(m *machine) (*Form, Verdict) {
	var key uint8
	reason := ""
	switch f.Does {
	case OpByHash:
		key = uint8(Bucket(m.hash()))
	case OpByDSCP:
		key, reason = m.bottom()
	default:
		switch {
		case !m.exposed:
			key = m.class
		case !m.bare:
			key = m.tc
		case m.ip == 0:
			reason = "mpls_payload"
		default:
			key = m.dscp >> 3
		}
	}
	if reason != "" {
		return nil, Verdict{Reason: reason}
	}
	to := f.Choice[key]
	if to.Form == nil && to.ID == 0 {
		return nil, Verdict{Reason: "mpls_discard"}
	}
	if m.entered++; m.entered > 16 {
		return nil, Verdict{Reason: "mpls_depth"}
	}
	if to.Form == nil {
		to.Form = m.compiled(to.ID)
	}
	return to.Form, Verdict{}
}

// bottom is the DSCP beneath all labels.
func (m *machine) bottom() (uint8, string) {
	if m.bare {
		if m.ip == 0 {
			return 0, "mpls_payload"
		}
		return m.dscp, ""
	}
	below := *m
	for range 16 {
		if len(m.in)-below.at < 4 {
			return 0, "mpls_malformed"
		}
		below.at += 4
		if m.in[below.at-2]&1 != 0 {
			below.bare = true
			below.top()
			if below.ip == 0 {
				return 0, "mpls_payload"
			}
			return below.dscp, ""
		}
	}
	return 0, "mpls_depth"
}

func (m *machine) hash() uint32 {
	if m.env.Hash != nil {
		return m.env.Hash(m.in, m.labelled)
	}
	return fnvHash(HashKey(m.in, m.labelled))
}

func (f *Form) write(m *machine) (reason string) {
	toLabel, toIP := f.TC != nil || f.TCMap != "", f.DSCP != nil || f.DSCPMap != ""
	switch {
	case toLabel && m.bare, toIP && !m.bare:
		return "mpls_malformed"
	case toIP && m.ip == 0:
		return "mpls_payload"
	case f.TC != nil:
		m.tc = *f.TC
	case toLabel:
		key, reason := m.bottom()
		if reason != "" {
			return reason
		}
		m.tc = uint8(m.t.maps[f.TCMap].To[int(key)])
	case f.DSCP != nil:
		m.dscp = *f.DSCP
	case toIP:
		m.dscp = uint8(m.t.maps[f.DSCPMap].To[int(m.popTC)])
	}
	return ""
}

func (m *machine) deliver() Verdict {
	if !m.bare {
		return Verdict{Reason: "mpls_malformed"}
	}
	if m.ip == 0 {
		return Verdict{Reason: "mpls_payload"}
	}
	return m.out("mpls_delivered", nil, m.ttl)
}

func (f *Form) send(m *machine, last uint8) Verdict {
	if f.Swap && m.bare {
		return Verdict{Reason: "mpls_malformed"}
	}
	if m.bare && m.ip == 0 {
		return Verdict{Reason: "mpls_payload"}
	}
	out := m.ttl
	checks := []uint8{out}
	down := uint8(1)
	if f.Pops > 0 && len(f.Push) == 0 {
		checks = []uint8{last, out}
		if f.Model == ShortPipe {
			checks, down = checks[:1], 0
		}
	} else if m.stepped {
		down = 0
		if out > 0 {
			checks = nil
		}
	}
	for _, ttl := range checks {
		switch ttl {
		case 0:
			return Verdict{Reason: "mpls_ttl_zero"}
		case 1:
			return Verdict{Reason: "mpls_ttl"}
		}
	}
	out -= down
	if m.bare && (f.Model != ShortPipe || f.Pops == 0 || len(f.Push) > 0) {
		if out = min(out, m.in[m.at+map[int]int{4: 8, 6: 7}[m.ip]]); out == 0 {
			return Verdict{Reason: "mpls_ttl_zero"}
		}
	}
	stack, reason := f.stack(m, out)
	if reason != "" {
		return Verdict{Reason: reason}
	}
	v := m.out("mpls_switched", stack, out)
	if f.Upstream && v.EtherType == 0x8847 {
		v.EtherType = 0x8848
	}
	if f.Swap {
		v.Packet = append(v.Packet[:len(stack)], v.Packet[len(stack)+4:]...)
	}
	mtu := f.MTU
	if m.env.Adjacency != nil {
		most, ok := m.env.Adjacency(f.Send)
		if !ok {
			return Verdict{Reason: "mpls_no_adjacency"}
		}
		if mtu == 0 || most < mtu {
			mtu = most
		}
	}
	v.Send, v.NHLFE = f.Send, f.End
	if mtu != 0 && len(v.Packet) > mtu {
		v.Reason, v.MTU = "mpls_over_mtu", mtu
	}
	return v
}

// stack is what is pushed, the outermost first.
func (f *Form) stack(m *machine, out uint8) (stack []byte, reason string) {
	tc := m.tc
	if m.bare {
		tc = m.dscp >> 3
	}
	front := func(label Label, tc, ttl uint8) {
		s := uint32(0)
		if len(stack) == 0 && (m.bare || f.Swap && m.in[m.at+2]&1 != 0) {
			s = 0x100
		}
		e := binary.BigEndian.AppendUint32(nil, uint32(label)<<12|uint32(tc)<<9|s|uint32(ttl))
		stack = append(e, stack...)
	}
	for _, p := range f.Push {
		ttl := out
		if p.TTL != nil {
			ttl = *p.TTL
		}
		if p.TC != nil {
			tc = *p.TC
		} else if p.Map != "" {
			key, reason := m.bottom()
			if reason != "" {
				return nil, reason
			}
			tc = uint8(m.t.maps[p.Map].To[int(key)])
		}
		if p.Entropy {
			front(EntropyLabel(m.hash()), 0, 0)
			front(7, tc, ttl)
		}
		front(p.Label, tc, ttl)
	}
	return stack, ""
}

// out writes the packet: a stack, and behind it what is left with the numbers written to it.
func (m *machine) out(reason string, stack []byte, ttl uint8) Verdict {
	rest := append([]byte(nil), m.in[m.at:]...)
	v := Verdict{Reason: reason, EtherType: 0x8847}
	switch {
	case !m.bare:
		rest[2] = rest[2]&^0xe | m.tc<<1
		rest[3] = ttl
	case m.ip == 4:
		v.EtherType = 0x0800
		rest[1] = m.dscp<<2 | rest[1]&3
		rest[8] = min(rest[8], ttl)
		rest[10], rest[11] = 0, 0
		binary.BigEndian.PutUint16(rest[10:], ip4Sum(rest[:20]))
	default:
		v.EtherType = 0x86dd
		word := binary.BigEndian.Uint16(rest)
		binary.BigEndian.PutUint16(rest, word&^0x0fc0|uint16(m.dscp)<<6)
		rest[7] = min(rest[7], ttl)
	}
	if len(stack) > 0 {
		v.EtherType = 0x8847
	}
	v.Packet = append(stack, rest...)
	return v
}

func ip4Sum(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
