// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf/ringbuf"
)

// Request is what the data path wants done to a connection: be-liberal, given by its
// original tuple; or, after a Reset that conntrack may not have believed, the end of it,
// given by the tuple of the direction that the reset came in.
type Request struct {
	Reset bool
	Zone  uint16
	Tuple Tuple
}

// Form is what a packet becomes.
type Form struct {
	Out            int // ifindex
	NAT            Tuple
	MAC            [2]net.HardwareAddr // destination, source
	DSCP, MTU      int
	Mark, Priority uint32
}

// Difference is what a renewal found: in one and the same generation the kernel does
// something else to a flow than it did when the lease was given.
type Difference struct {
	Generation    uint32
	Port          int // ifindex
	Proto         uint8
	In            Tuple
	Packets       uint64 // repeated since the flow was first armed
	Before, After Form

	raw tcDifference // for Announced
}

// Listener is who is told what the data path has to say; both may be nil.
type Listener struct {
	Request    func(Request)
	Difference func(Difference)
}

// Events opens the ring that the data path speaks by; there can be one reader only. read
// tells the listener of each event, and returns when stop is called.
func (p *Plane) Events() (read func(Listener) error, stop func() error, err error) {
	r, err := ringbuf.NewReader(p.maps["events"])
	if err != nil {
		return nil, nil, fmt.Errorf("event ring: %w", err)
	}
	read = func(l Listener) error {
		for {
			rec, err := r.Read()
			if errors.Is(err, ringbuf.ErrClosed) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("event ring: %w", err)
			}
			l.tell(rec.RawSample)
		}
	}
	return read, r.Close, nil
}

// tell passes one record on. All of them begin with their kind.
func (l Listener) tell(b []byte) {
	if len(b) < 4 {
		return
	}
	if tcEventKind(binary.NativeEndian.Uint32(b)) == tcEventKindEVENT_DIFFERENCE {
		if d, ok := decodeDifference(b); ok && l.Difference != nil {
			l.Difference(d)
		}
		return
	}
	if q, ok := decodeEvent(b); ok && l.Request != nil {
		l.Request(q)
	}
}

func decodeEvent(b []byte) (Request, bool) {
	var e tcEvent
	if _, err := binary.Decode(b, binary.NativeEndian, &e); err != nil {
		return Request{}, false
	}
	addr := func(w [4]uint32) netip.Addr {
		if e.Family == 4 {
			return address(4, [3]uint32{}, w[0])
		}
		return address(6, [3]uint32(w[:3]), w[3])
	}
	return Request{Reset: tcEventKind(e.Kind) == tcEventKindEVENT_RESET, Zone: e.Zone, Tuple: Tuple{
		netip.AddrPortFrom(addr(e.Saddr), hostOrder(e.Sport)),
		netip.AddrPortFrom(addr(e.Daddr), hostOrder(e.Dport)),
	}}, true
}

func decodeDifference(b []byte) (Difference, bool) {
	var d tcDifference
	if _, err := binary.Decode(b, binary.NativeEndian, &d); err != nil {
		return Difference{}, false
	}
	form := func(f tcForm) Form {
		return Form{
			Out: int(f.Oif), NAT: tuple(d.Key.family(), f.Out6, f.Saddr, f.Daddr, f.Sport, f.Dport),
			MAC:  [2]net.HardwareAddr{f.Dmac[:], f.Smac[:]},
			DSCP: int(f.Dscp >> 2), MTU: int(f.Mtu), Mark: f.Mark, Priority: f.Priority,
		}
	}
	return Difference{
		Generation: d.Gen, Port: int(d.Key.Kind >> uint32(tcKindKIND_PORT)), Proto: uint8(d.Key.Kind),
		In: d.Key.tuple(d.In6), Packets: d.Packets, Before: form(d.Before), After: form(d.After), raw: d,
	}, true
}
