// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Scope says which entries a change is about: those that match any of its fields that are set.
type Scope struct {
	// Prefix: flows whose source or destination is inside, before or after translation.
	Prefix netip.Prefix
	// Out: flows that leave by this ifindex; with MAC, those of them that go to it. With MAC
	// alone those that go to it by any.
	Out int
	MAC net.HardwareAddr
	// In: flows that come in by this ifindex.
	In int
	// Tuple: the flow of this protocol that looks so where it comes in, by whatever port. The
	// destination's port counts where conntrack keeps one, so for ICMP it does not.
	Tuple Tuple
	Proto uint8
}

// table is the flow table as it lies in memory: the data path's own, not a copy.
type table struct {
	slots []byte
	armed []uint64 // a bit for each slot: it may be armed
	ctl   []byte

	unsettled []uint64 // a bit for each slot: the kernel saw a TCP packet of it (unsettled.go)
}

func (p *Plane) mapTable() (err error) {
	t := &p.table
	t.slots, err = p.mapMemory(flowsMap)
	if err != nil {
		return err
	}
	if t.armed, err = p.mapBits(armedMap); err != nil {
		return err
	}
	if t.unsettled, err = p.mapBits(unsettledMap); err != nil {
		return err
	}
	t.ctl, err = p.mapMemory(controlMap)
	return err
}

func (p *Plane) mapBits(name string) ([]uint64, error) {
	b, err := p.mapMemory(name)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8), nil
}

func (p *Plane) mapMemory(name string) ([]byte, error) {
	m := p.maps[name]
	b, err := unix.Mmap(m.FD(), 0, int(m.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", name, err)
	}
	p.closers = append(p.closers, func() error { return unix.Munmap(b) })
	return b, nil
}

// slot points into the table. Its key is written under seq; what is read of it here are single
// words, each old or new.
func (t *table) slot(n int) *tcSlot {
	return (*tcSlot)(unsafe.Pointer(&t.slots[n*int(tcAbiSLOT_SIZE)]))
}

func (t *table) size() int { return len(t.slots) / int(tcAbiSLOT_SIZE) }

// tick raises the clock: no packet that was sighted before teaches anything from now on. It is
// a locked instruction, so what is read after it is not older; see slot_tell() in bpf/arm.h.
func (t *table) tick() {
	var c tcControl
	atomic.AddUint32((*uint32)(unsafe.Pointer(&t.ctl[unsafe.Offsetof(c.Clock)])), 1)
}

// Forget puts the entries that any of the scopes is about out of use, and returns how many
// those were: their flows are the kernel's until a packet comes out, as after Bump, and no
// other flow notices. It goes through all armed entries, which takes about 0.15 ms for each
// thousand of them where memory is slow; but scopes of nothing but a Tuple are looked up, in
// the order of a microsecond each, if the protocol has nothing that conntrack does not know.
func (p *Plane) Forget(scopes []Scope) (n int) {
	p.raise.Lock()
	defer p.raise.Unlock()
	p.table.tick()
	c := p.control()
	p.note(scopes)
	may := func(s *tcSlot) bool { return mayServe(s, c.Beat, c.Hz) }
	out := func(s *tcSlot) {
		if may(s) && atomic.SwapUint32(&s.Gen, uint32(tcAbiGEN_NEVER)) != uint32(tcAbiGEN_NEVER) {
			n++
		}
	}
	places, ports := placingOf(&c, p.table.size()), slices.Collect(maps.Keys(p.ports))
	rest := slices.Clone(scopes)
	rest = slices.DeleteFunc(rest, func(s Scope) bool {
		if !s.Tuple.Source.IsValid() || s.Prefix.IsValid() || s.Out != 0 || s.In != 0 || len(s.MAC) > 0 || !keyed(s.Proto) {
			return false
		}
		places.ended(&p.table, &s, ports, out)
		return true
	})
	if len(rest) > 0 {
		p.walk(newScopes(rest), may, out)
	}
	return n
}

// Active returns for how many slots walk asks at the most.
func (p *Plane) Active() (n int) {
	for w := range p.table.armed {
		n += bits.OnesCount64(atomic.LoadUint64(&p.table.armed[w]))
	}
	return n
}

// walk calls out for all entries that the scopes are about, and clears the bits of those that
// may not serve.
func (p *Plane) walk(set *scopes, may func(*tcSlot) bool, out func(*tcSlot)) {
	for w := range p.table.armed {
		for word := atomic.LoadUint64(&p.table.armed[w]); word != 0; word &= word - 1 {
			bit := word & -word
			s := p.table.slot(w*64 + bits.TrailingZeros64(bit))
			if !may(s) {
				atomic.AndUint64(&p.table.armed[w], ^bit)
				if may(s) { // armed meanwhile, and its bit was set too early
					atomic.OrUint64(&p.table.armed[w], bit)
				}
				continue
			}
			if set.match(s) {
				out(s)
			}
		}
	}
}

// mayServe tells whether a slot is armed, and its lease did not end a second before the last
// heartbeat or earlier: a lease that ended may still be used until a poll's end.
func mayServe(s *tcSlot, beat, hz uint32) bool {
	state := atomic.LoadUint32((*uint32)(unsafe.Pointer(&s.State))) & 0xff // the four are one word
	return tcSlotState(state) == tcSlotStateSLOT_ARMED && (beat == 0 || int32(atomic.LoadUint32(&s.Lease)+hz-beat) > 0)
}

// scopes are many scopes, to be asked together.
type scopes struct {
	v4, v6  []span              // the prefixes, in order and apart
	out, in map[uint32]struct{} // ifindexes
	next    map[hop]struct{}
	tuples  map[wire]struct{}
}

type span struct{ first, last number }

// number is an address that is compared fast.
type number struct{ high, low uint64 }

func (a number) compare(b number) int {
	return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
}

func numberOf(a netip.Addr) number {
	b := a.As16() // IPv4: behind ::ffff, as wordsNumber has it
	return number{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// wordsNumber is numberOf for an address as a slot has it, in wire order.
func wordsNumber(v6 bool, head *[3]uint32, last uint32) number {
	low := uint64(bits.ReverseBytes32(last))
	if !v6 {
		return number{0, 0xffff<<32 | low}
	}
	return number{
		uint64(bits.ReverseBytes32(head[0]))<<32 | uint64(bits.ReverseBytes32(head[1])),
		uint64(bits.ReverseBytes32(head[2]))<<32 | low,
	}
}

type hop struct {
	port uint32
	mac  [6]byte
}

// wire is a flow's key but for the port that it comes in by.
type wire struct {
	source, destination netip.AddrPort
	proto               uint8
}

func wireOf(t Tuple, proto uint8) wire {
	w := wire{t.Source, t.Destination, proto}
	switch proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		return w
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6: // the id stands in the source
	default:
		w.source = netip.AddrPortFrom(w.source.Addr(), 0)
	}
	w.destination = netip.AddrPortFrom(w.destination.Addr(), 0)
	return w
}

func newScopes(list []Scope) *scopes {
	s := &scopes{
		out: map[uint32]struct{}{}, in: map[uint32]struct{}{},
		next: map[hop]struct{}{}, tuples: map[wire]struct{}{},
	}
	for _, c := range list {
		if c.Prefix.IsValid() {
			spans := &s.v6
			if c.Prefix.Addr().Is4() {
				spans = &s.v4
			}
			*spans = append(*spans, spanOf(c.Prefix))
		}
		switch {
		case len(c.MAC) == 6:
			s.next[hop{uint32(c.Out), [6]byte(c.MAC)}] = struct{}{}
		case c.Out != 0:
			s.out[uint32(c.Out)] = struct{}{}
		}
		if c.In != 0 {
			s.in[uint32(c.In)] = struct{}{}
		}
		if c.Tuple.Source.IsValid() {
			s.tuples[wireOf(c.Tuple, c.Proto)] = struct{}{}
		}
	}
	s.v4, s.v6 = apart(s.v4), apart(s.v6)
	return s
}

// spanOf is a prefix by its first and its last address.
func spanOf(p netip.Prefix) span {
	from := numberOf(p.Masked().Addr())
	to, host := from, p.Addr().BitLen()-p.Bits()
	if host > 64 {
		to.high |= 1<<(host-64) - 1
	}
	to.low |= 1<<min(host, 64) - 1
	return span{from, to}
}

// apart sorts spans, IPv4 first, and leaves out those that are inside of others: prefixes do
// not overlap otherwise.
func apart(spans []span) (kept []span) {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.first.compare(b.first), b.last.compare(a.last))
	})
	for _, s := range spans {
		if n := len(kept); n == 0 || kept[n-1].last.compare(s.last) < 0 {
			kept = append(kept, s)
		}
	}
	return kept
}

func (s *scopes) match(slot *tcSlot) bool {
	port, k := atomic.LoadUint32(&slot.Oif), &slot.Key
	if has(s.out, port) || has(s.in, k.Kind>>uint32(tcKindKIND_PORT)) {
		return true
	}
	if len(s.next) > 0 && (has(s.next, hop{port, slot.DmacOut}) || has(s.next, hop{0, slot.DmacOut})) {
		return true
	}
	if len(s.tuples) > 0 {
		if has(s.tuples, wireOf(k.tuple(slot.In6), uint8(k.Kind))) {
			return true
		}
	}
	spans, v6 := s.v4, k.Kind&uint32(tcKindKIND_IPV6) != 0
	if v6 {
		spans = s.v6
	}
	if len(spans) == 0 {
		return false
	}
	return inside(spans, wordsNumber(v6, &slot.In6.Saddr, k.Saddr)) ||
		inside(spans, wordsNumber(v6, &slot.In6.Daddr, k.Daddr)) ||
		inside(spans, wordsNumber(v6, &slot.Out6.Saddr, slot.Saddr)) ||
		inside(spans, wordsNumber(v6, &slot.Out6.Daddr, slot.Daddr))
}

func has[K comparable](m map[K]struct{}, k K) bool {
	if len(m) == 0 {
		return false
	}
	_, ok := m[k]
	return ok
}

// inside tells whether one of the spans has the address.
func inside(spans []span, a number) bool {
	from, to := 0, len(spans) // the first span that begins behind the address is in between
	for from < to {
		if mid := (from + to) / 2; spans[mid].first.compare(a) <= 0 {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from > 0 && spans[from-1].last.compare(a) >= 0
}
