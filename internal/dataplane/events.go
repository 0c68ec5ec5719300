package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/ringbuf"
)

// Request is what the data path wants done to a connection: be-liberal, given by its
// original tuple; or, after a Reset that conntrack may not have believed, the end of it,
// given by the tuple of the direction that the reset came in.
type Request struct {
	Reset bool
	Zone  uint16 // 0 with Reset
	Tuple Tuple
}

// Listener is who is told what the data path has to say.
type Listener struct {
	Request func(Request)
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

// tell passes one record on.
func (l Listener) tell(b []byte) {
	if q, ok := decodeEvent(b); ok {
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
