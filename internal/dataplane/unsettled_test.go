// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAcknowledged(t *testing.T) {
	for _, c := range []struct {
		end, ack uint32
		want     Acknowledged
	}{
		{1000, 1000, All}, {1000, 999, NotAll}, {1000, 1001, Unknown},
		{5, 0xffff_fff0, NotAll}, {0xffff_fff0, 5, Unknown}, {0, 0xffff_ffff, NotAll}, // past the end of 32 bits
	} {
		if got := acknowledged(c.end, c.ack); got != c.want {
			t.Errorf("end %#x, acknowledged %#x: %d, want %d", c.end, c.ack, got, c.want)
		}
	}
}

// TestUnsettled: which connections are yielded, with what, and whose bit stays for the next time.
func TestUnsettled(t *testing.T) {
	const hz, there, back = 1000, 3, 4 // ports by which the two directions come in
	const now = 50 * hz
	client, server := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("198.51.100.1:22")
	word := func(a netip.AddrPort) uint32 { return wireWords(a.Addr(), new([3]uint32)) }
	type pair struct{ own, rev tcSlot }
	quiet := func() pair {
		flags := uint8(tcSlotFlagSLOT_CT | tcSlotFlagSLOT_LIBERAL | tcSlotFlagSLOT_PAIRED)
		s := tcSlot{
			State: uint8(tcSlotStateSLOT_ARMED), Flags: flags, Lease: now - hz, Seen: now - 5*hz, Zone: 7, TcpSeq: 500, TcpAck: 900, TcpWnd: 10, Oif: back,
			Key:   tcFlowKey{Saddr: word(client), Daddr: word(server), Sport: hostOrder(1000), Dport: hostOrder(22), Kind: there<<uint32(tcKindKIND_PORT) | unix.IPPROTO_TCP},
			Saddr: word(client), Daddr: word(server), Sport: hostOrder(1000), Dport: hostOrder(22),
		}
		r := s
		r.Key = tcFlowKey{Saddr: word(server), Daddr: word(client), Sport: hostOrder(22), Dport: hostOrder(1000), Kind: back<<uint32(tcKindKIND_PORT) | unix.IPPROTO_TCP}
		r.Saddr, r.Daddr, r.Sport, r.Dport, r.Oif = s.Daddr, s.Saddr, s.Dport, s.Sport, there
		r.TcpSeq, r.TcpAck, r.Seen = 900, 500, now-6*hz
		return pair{s, r}
	}
	good := Conversation{Tuple: Tuple{client, server}, Zone: 7, There: All, Back: All, Silent: 5 * hz}
	with := func(f func(*Conversation)) Conversation { k := good; f(&k); return k }
	for name, c := range map[string]struct {
		change func(*pair)
		all    bool
		want   []Conversation
		stays  bool
	}{
		"all acknowledged":        {func(*pair) {}, false, []Conversation{good}, false},
		"not all":                 {func(p *pair) { p.own.TcpSeq++ }, false, []Conversation{with(func(k *Conversation) { k.There, k.Unanswered = NotAll, true })}, false},
		"not all, the other way":  {func(p *pair) { p.rev.TcpSeq++ }, false, []Conversation{with(func(k *Conversation) { k.Back, k.Unanswered = NotAll, true })}, false},
		"more than was seen":      {func(p *pair) { p.own.TcpSeq-- }, false, []Conversation{with(func(k *Conversation) { k.There = Unknown })}, false},
		"no room":                 {func(p *pair) { p.rev.TcpWnd = 0 }, false, []Conversation{with(func(k *Conversation) { k.ZeroWindow = true })}, false},
		"one direction":           {func(p *pair) { p.rev = tcSlot{} }, false, []Conversation{with(func(k *Conversation) { k.There, k.Back = Unknown, Unknown })}, false},
		"answered, never counted": {func(p *pair) { p.rev.State, p.rev.TcpWnd, p.rev.Count = uint8(tcSlotStateSLOT_SEEN), 0, 0 }, false, []Conversation{with(func(k *Conversation) { k.There, k.Back = Unknown, Unknown })}, false},
		"repeated no more":        {func(p *pair) { p.own.State = uint8(tcSlotStateSLOT_SEEN) }, false, []Conversation{good}, false},
		"in use":                  {func(p *pair) { p.own.Lease = now + 1 }, false, nil, true},
		"in use, at the end":      {func(p *pair) { p.own.Lease = now + 1 }, true, []Conversation{good}, false},
		"in use, the other way":   {func(p *pair) { p.rev.Lease = now + 1 }, false, nil, true},
		"in use, in a pause":      {func(p *pair) { p.rev.Seen = now - hz/2 }, false, nil, true},
		"not all, heard at the end": {func(p *pair) { p.own.TcpSeq++; p.rev.Lease = now + 1 }, true,
			[]Conversation{with(func(k *Conversation) { k.There = NotAll })}, false},
		"being written": {func(p *pair) { p.own.Seq = 1 }, false, nil, true},
		"ended":         {func(p *pair) { p.own.State = uint8(tcSlotStateSLOT_CLOSED) }, false, nil, false},
		"no conntrack":  {func(p *pair) { p.own.Flags &^= uint8(tcSlotFlagSLOT_CT) }, false, nil, false},
	} {
		p := quiet()
		c.change(&p)
		tab := &table{slots: make([]byte, 2*int(tcAbiSLOT_SIZE)), unsettled: []uint64{1}}
		*tab.slot(0), *tab.slot(1) = p.own, p.rev
		u := unsettled{table: tab, places: placing{shift: 32}, now: now, hz: hz, lease: hz} // one bucket
		var got []Conversation
		if k, ok := u.inspect(0, c.all); ok {
			got = append(got, k)
		}
		if len(got) != len(c.want) || len(got) == 1 && got[0] != c.want[0] {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if stays := tab.unsettled[0]&1 != 0; stays != c.stays {
			t.Errorf("%s: the bit stays: %v, want %v", name, stays, c.stays)
		}
	}
}
