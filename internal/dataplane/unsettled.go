// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Acknowledged is what the sequence numbers in the flow table say of a direction's data.
type Acknowledged uint8

// Unknown: the other direction was not seen, or acknowledged data that was not seen.
const (
	Unknown Acknowledged = iota
	All
	NotAll
)

// Conversation is a repeated TCP connection in conntrack, by the packets that the data path saw.
type Conversation struct {
	Tuple      Tuple        // of one direction, as it comes in
	Zone       uint16       // conntrack's, of that direction
	There      Acknowledged // data of that direction
	Back       Acknowledged // data of the other direction
	ZeroWindow bool         // one side advertised no room last
	Unanswered bool         // data is not acknowledged, by a side that has been quiet for a lease
	Silent     uint32       // jiffies since the kernel saw the last packet that the flow table counted
}

// state is the part of a slot that a Conversation needs.
type state struct {
	key                      tcFlowKey
	in6                      tcFlowWords
	lease, seen              uint32
	seq, ack                 uint32
	window, zone             uint16
	armed, conntrack, paired bool
	open                     bool // not ended by FIN or RST
	known                    bool // seq, ack and window are of this connection
}

// repeated reports whether the slot belongs to a TCP connection in conntrack that was repeated at some time. After a new
// rule it may be slow for good, and its timer is wrong all the same.
func (s *state) repeated() bool {
	return s.open && s.conntrack && uint8(s.key.Kind) == unix.IPPROTO_TCP
}

// Unsettled yields the TCP connections that are quiet now and of which the kernel saw a packet since they were last
// yielded. It stops when yield returns false, and the next call goes on from there. With all it also yields those that
// are in use. now is the kernel's jiffies. It reads one cache line of each slot in use.
func (p *Plane) Unsettled(now uint32, all bool, yield func(Conversation) bool) {
	t := &p.table
	ctl := p.control()
	u := unsettled{table: t, places: placingOf(&ctl, t.size()), now: now, hz: ctl.Hz, lease: min(ctl.Lease, ctl.Hz)}
	for range t.unsettled {
		p.turn = (p.turn + 1) % len(t.unsettled)
		for word := atomic.LoadUint64(&t.unsettled[p.turn]); word != 0; word &= word - 1 {
			c, ok := u.inspect(p.turn*64+bits.TrailingZeros64(word), all)
			if ok && !yield(c) {
				return
			}
		}
	}
}

// OpenDead opens the flow table that a dead process left pinned in dir, for Unsettled and Retire. It fails if the layout
// is another one, or if a living process uses the directory.
func OpenDead(dir string) (*Plane, error) {
	release, err := hold(dir)
	if err != nil {
		return nil, err
	}
	p := &Plane{dir: dir, maps: map[string]*ebpf.Map{}, closers: []func() error{release}}
	if err := p.openTable(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Plane) openTable() (err error) {
	for _, name := range []string{controlMap, flowsMap, armedMap, unsettledMap} {
		if p.maps[name], err = ebpf.LoadPinnedMap(p.pin("maps", name), nil); err != nil {
			return fmt.Errorf("%s: %w", p.pin("maps", name), err)
		}
		p.closers = append(p.closers, p.maps[name].Close)
	}
	if p.ctl, err = p.maps[controlMap].Memory(); err != nil {
		return fmt.Errorf("map %s: %w", controlMap, err)
	}
	if abi := int(p.control().Abi); abi != ABIVersion {
		return fmt.Errorf("%s: layout %d, not %d", p.dir, abi, ABIVersion)
	}
	return p.mapTable()
}

// unsettled is one walk through the table.
type unsettled struct {
	*table
	places    placing
	now, hz   uint32
	lease     uint32 // quiet for so long, where packets come in spite of a lease that ended
	pair, own state
}

// inspect clears the bit of a slot before it reads the numbers of its connection: a packet that arrives meanwhile sets
// the bit again (slot_unsettled() in bpf/unsettled.h).
func (u *unsettled) inspect(n int, all bool) (Conversation, bool) {
	s := u.slot(n)
	if !all && s.State == uint8(tcSlotStateSLOT_ARMED) && !u.over(s.Lease) {
		return Conversation{}, false // decided by line 0 alone: most of a busy table is in use
	}
	if !u.read(s, &u.own) {
		return Conversation{}, false // it is being written: next time
	}
	if !u.own.repeated() {
		u.clear(n)
		if u.read(s, &u.own) && u.own.repeated() {
			u.set(n) // armed meanwhile
		}
		return Conversation{}, false
	}
	rev, found := u.reverse(s)
	if !all && !u.bothQuiet(found) {
		return Conversation{}, false
	}
	u.clear(n)
	if found && u.mutual(s, rev) {
		u.clear(u.number(rev))
	}
	if !u.read(s, &u.own) || found && !u.read(rev, &u.pair) || !all && !u.bothQuiet(found) {
		u.set(n)
		return Conversation{}, false
	}
	return u.conversation(found), true
}

// bothQuiet reports whether both directions are quiet.
func (u *unsettled) bothQuiet(found bool) bool {
	return u.quiet(&u.own) && (!found || u.quiet(&u.pair))
}

func (u *unsettled) conversation(found bool) Conversation {
	own, pair := &u.own, &u.pair
	t := Conversation{Tuple: own.key.tuple(own.in6), Zone: own.zone, Silent: u.now - own.seen, ZeroWindow: own.known && own.window == 0}
	if int32(t.Silent) < 0 {
		t.Silent = 0
	}
	if !found || !own.known || !pair.known {
		return t
	}
	if s := u.now - pair.seen; int32(s) >= 0 {
		t.Silent = min(t.Silent, s)
	}
	t.ZeroWindow = t.ZeroWindow || pair.window == 0
	t.There, t.Back = acknowledged(own.seq, pair.ack), acknowledged(pair.seq, own.ack)
	t.Unanswered = t.There == NotAll && u.quiet(pair) || t.Back == NotAll && u.quiet(own)
	return t
}

func acknowledged(end, ack uint32) Acknowledged {
	switch ahead := int32(end - ack); {
	case ahead == 0:
		return All
	case ahead > 0:
		return NotAll
	}
	return Unknown
}

// quiet reports whether no packet arrived since the lease ended (hits within the lease leave no time), or, where packets
// arrive but renew nothing (a pause, a firewall that drops them), for a while.
func (u *unsettled) quiet(s *state) bool {
	silent := int32(u.now - s.seen)
	if !s.armed {
		return silent >= int32(u.lease)
	}
	if !u.over(s.lease) {
		return false
	}
	return int32(s.lease-s.seen) > 0 || silent >= int32(u.lease)
}

// over reports whether a lease ended, and the NAPI poll in which XDP may still use its entry.
func (u *unsettled) over(lease uint32) bool { return int32(u.now-lease) >= int32(u.hz/10) }

// reverse finds the slot of the other direction, as reverse_key() in bpf/flow.h does.
func (u *unsettled) reverse(s *tcSlot) (rev *tcSlot, found bool) {
	if !u.own.paired {
		return nil, false
	}
	k, w := reverseKey(s)
	u.places.find(u.table, &k, &w, func(r *tcSlot) { rev = r })
	return rev, rev != nil && u.read(rev, &u.pair)
}

// mutual reports whether the reverse of rev is s: both are one connection then, to be settled once.
func (u *unsettled) mutual(s, rev *tcSlot) bool {
	if rev.Flags&uint8(tcSlotFlagSLOT_PAIRED) == 0 {
		return false
	}
	k, w := reverseKey(rev)
	return k == s.Key && (k.Kind&uint32(tcKindKIND_IPV6) == 0 || w == s.In6)
}

func reverseKey(s *tcSlot) (k tcFlowKey, w tcFlowWords) {
	k = tcFlowKey{Saddr: s.Daddr, Daddr: s.Saddr, Sport: s.Dport, Dport: s.Sport}
	k.Kind = s.Oif<<uint32(tcKindKIND_PORT) | s.Key.Kind&(1<<uint32(tcKindKIND_PORT)-1)
	return k, tcFlowWords{Saddr: s.Out6.Daddr, Daddr: s.Out6.Saddr}
}

// read copies a slot's state; false: the slot is being written.
func (u *unsettled) read(s *tcSlot, to *state) bool {
	seq := atomic.LoadUint32(&s.Seq)
	flag := func(f tcSlotFlag) bool { return s.Flags&uint8(f) != 0 }
	*to = state{
		key: s.Key, in6: s.In6, lease: s.Lease, seen: s.Seen, seq: s.TcpSeq, ack: s.TcpAck, window: s.TcpWnd, zone: s.Zone,
		armed: tcSlotState(s.State) == tcSlotStateSLOT_ARMED, open: tcSlotState(s.State) != tcSlotStateSLOT_CLOSED, conntrack: flag(tcSlotFlagSLOT_CT), paired: flag(tcSlotFlagSLOT_PAIRED),
	}
	to.known = to.armed || to.window != 0 || s.Count > 1 // XDP takes no numbers from a flow's first packet
	return seq&1 == 0 && atomic.LoadUint32(&s.Seq) == seq
}

func (t *table) clear(n int) { atomic.AndUint64(&t.unsettled[n/64], ^(1 << (n % 64))) }
func (t *table) set(n int)   { atomic.OrUint64(&t.unsettled[n/64], 1<<(n%64)) }

func (t *table) number(s *tcSlot) int {
	return int(uintptr(unsafe.Pointer(s))-uintptr(unsafe.Pointer(&t.slots[0]))) / int(tcAbiSLOT_SIZE)
}
