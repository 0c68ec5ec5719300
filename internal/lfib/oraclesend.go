// SPDX-License-Identifier: Apache-2.0

package lfib

// send makes what goes out of what is left and what was pushed.
func (w *walk) send() string {
	switch {
	case w.swapped && w.bare:
		return Malformed
	case w.bare && version(w.wire) == 0:
		return Payload
	}
	out, reason := w.base()
	if reason != "" {
		return reason
	}
	if reason := w.impose(out); reason != "" {
		return reason
	}
	w.alertAgain()
	return w.fits()
}

// base takes the TTL step of what is beneath the pushes, and gives the TTL that they inherit.
func (w *walk) base() (out uint8, reason string) {
	if w.last != nil && len(w.pushed) == 0 {
		return 0, w.penultimate()
	}
	switch {
	case !w.bare:
		out = lse(w.wire).ttl()
	case w.ceiling != none:
		out = uint8(w.ceiling)
	default:
		out = ipTTL(w.wire)
	}
	if !w.stepped || out == 0 {
		if out, reason = decrement(out); reason != "" {
			return 0, reason
		}
	}
	return w.setTTL(out)
}

// penultimate takes the TTL step of a packet whose last step was a pop. The popped label's is
// checked in every model; the pipe models leave what is exposed its own (RFC 3443 §3.5).
func (w *walk) penultimate() string {
	out, reason := decrement(w.last.ttl)
	if reason != "" {
		return reason
	}
	switch w.last.model {
	case ShortPipe:
		return ""
	case Pipe:
		if w.bare {
			out, reason = decrement(ipTTL(w.wire))
		} else {
			out, reason = decrement(lse(w.wire).ttl())
		}
		if reason != "" {
			return reason
		}
	}
	_, reason = w.setTTL(out)
	return reason
}

// decrement is the outgoing TTL of an incoming one.
func decrement(ttl uint8) (uint8, string) {
	switch ttl {
	case 0:
		return 0, TTLZero
	case 1:
		return 0, Expired
	}
	return ttl - 1, ""
}

// setTTL writes a TTL to what is on top of the wire, to an IP header none that is higher, and
// gives the one that is there then. An IP header that came with 0 goes nowhere.
func (w *walk) setTTL(ttl uint8) (uint8, string) {
	if !w.bare {
		lse(w.wire).setTTL(ttl)
		return ttl, ""
	}
	ttl = min(ttl, ipTTL(w.wire))
	if ttl == 0 {
		return 0, TTLZero
	}
	setIPTTL(w.wire, ttl)
	return ttl, ""
}

// impose puts the pushes on the wire.
func (w *walk) impose(out uint8) string {
	tcs, reason := w.pushTCs()
	if reason != "" {
		return reason
	}
	for i := range w.pushed {
		p := &w.pushed[i]
		ttl := out
		if p.TTL != nil {
			ttl = *p.TTL
		}
		if w.swapped && i == 0 {
			bottom := lse(w.wire).bottom()
			w.wire = append(newLSE(p.Label, tcs[i], bottom, ttl), w.wire[lseLen:]...)
			continue
		}
		if p.Entropy {
			w.prepend(EntropyLabel(w.hash()), 0, 0)
			w.prepend(ELI, tcs[i], ttl)
		}
		w.prepend(p.Label, tcs[i], ttl)
	}
	return ""
}

// alertAgain puts router alert labels back, with the TTL of what is beneath. An IP packet that
// lost its last label has none to put them on.
func (w *walk) alertAgain() {
	for i := len(w.alerts) - 1; i >= 0 && !w.bare; i-- {
		w.prepend(RouterAlert, w.alerts[i], lse(w.wire).ttl())
	}
}

func (w *walk) prepend(label Label, tc, ttl uint8) {
	w.wire = append(newLSE(label, tc, w.bare, ttl), w.wire...)
	w.bare = false
}

// pushTCs are the TCs of what is pushed: said, mapped, or that of what is beneath.
func (w *walk) pushTCs() (tcs []uint8, reason string) {
	var tc uint8
	if w.bare {
		tc = dscp(w.wire) >> 3
	} else {
		tc = lse(w.wire).tc()
	}
	for i := range w.pushed {
		switch p := &w.pushed[i]; {
		case p.TC != nil:
			tc = *p.TC
		case p.Map != "":
			if tc, reason = w.mapped(p.Map); reason != "" {
				return nil, reason
			}
		}
		tcs = append(tcs, tc)
	}
	return tcs, ""
}

// way is the way out of the NHLFE whose list ended.
func (w *walk) way() *Send {
	list := w.t.nhlfes[w.id].List
	end := &list[len(list)-1]
	return &Send{end.Port, end.Via, end.MAC}
}

// fits tells whether the packet can go out as it is now.
func (w *walk) fits() string {
	mtu := w.mtu
	if w.env.Adjacency != nil {
		most, ok := w.env.Adjacency(w.way())
		if !ok {
			return NoAdjacency
		}
		if mtu == 0 || most < mtu {
			mtu = most
		}
	}
	w.mtu = mtu
	if mtu > 0 && len(w.wire) > mtu {
		return OverMTU
	}
	return Switched
}
