package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// Stages are the words for enum stage, in its order.
var Stages = []string{"xdp", "tc-ingress", "tc-egress"}

// Stage indices into Stages.
const (
	StageXDP       = int(tcStageSTAGE_XDP)
	StageTCIngress = int(tcStageSTAGE_TC_INGRESS)
	StageTCEgress  = int(tcStageSTAGE_TC_EGRESS)
)

// Reasons are the words for enum reason, in its order: the enum's names, read from the
// object's type information, in lower case and without their prefix.
var Reasons = reasonNames()

func reasonNames() []string {
	spec, err := loadTc()
	if err != nil {
		panic("embedded object: " + err.Error())
	}
	var e *btf.Enum
	if err := spec.Types.TypeByName("reason", &e); err != nil {
		panic("embedded object: " + err.Error())
	}
	names := make([]string, tcReasonREASONS)
	for _, v := range e.Values {
		if v.Value < uint64(len(names)) {
			names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, "REASON_"))
		}
	}
	return names
}

// Counters are packets by reason, for one stage of one port, summed over CPUs.
type Counters struct {
	Packets [tcReasonREASONS]uint64
	Partial uint64 // TC ingress: packets with partial checksums
}

// Of returns the count for a reason word; a word that is none is a programming error.
func (c *Counters) Of(reason string) uint64 {
	for i, name := range Reasons {
		if name == reason {
			return c.Packets[i]
		}
	}
	panic("no reason " + reason)
}

// Total returns all packets that left.
func (c *Counters) Total() (n uint64) {
	for _, v := range c.Packets {
		n += v
	}
	return n
}

// Add sums.
func (c *Counters) Add(o *Counters) {
	for i := range c.Packets {
		c.Packets[i] += o.Packets[i]
	}
	c.Partial += o.Partial
}

const (
	tallySize      = int(unsafe.Sizeof(tcTally{}))
	countersOfCPU  = int(tcStageSTAGES) * int(tcAbiMAX_PORTS) * tallySize
	sightingsOfCPU = int(tcAbiSIGHTINGS) * int(tcAbiSIGHTING_SIZE)
	transmitSize   = int(unsafe.Sizeof(tcTransmit{}))
	transmitsOfCPU = int(tcAbiMAX_PORTS) * transmitSize
)

// Counters reads one row. Ports whose indices are equal modulo MAX_PORTS share rows.
func (p *Plane) Counters(stage, index int) (Counters, error) {
	row := stage*int(tcAbiMAX_PORTS) + index%int(tcAbiMAX_PORTS)
	var c Counters
	for at := row * tallySize; at < int(p.count.Size()); at += countersOfCPU {
		var t tcTally
		if _, err := p.count.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&t)), tallySize), int64(at)); err != nil {
			return c, fmt.Errorf("counters: %w", err)
		}
		for r := range c.Packets {
			c.Packets[r] += t.Packets[r]
		}
		c.Partial += t.Partial
	}
	return c, nil
}

// Totals sums the counters of a stage over all rows.
func (p *Plane) Totals(stage int) (Counters, error) {
	var sum Counters
	for i := 0; i < int(tcAbiMAX_PORTS); i++ {
		c, err := p.Counters(stage, i)
		if err != nil {
			return sum, err
		}
		sum.Add(&c)
	}
	return sum, nil
}

// Transmit is what became of frames that were redirected to a port.
type Transmit struct{ Sent, Drops, Errors uint64 }

// Transmit reads the figures of an interface, summed over CPUs. They only grow, and
// interfaces share rows as in Counters.
func (p *Plane) Transmit(index int) (Transmit, error) {
	var t Transmit
	for at := index % int(tcAbiMAX_PORTS) * transmitSize; at < int(p.sent.Size()); at += transmitsOfCPU {
		var c tcTransmit
		if _, err := p.sent.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&c)), transmitSize), int64(at)); err != nil {
			return t, fmt.Errorf("transmit figures: %w", err)
		}
		t.Sent += c.Sent
		t.Drops += c.Drops
		t.Errors += c.Errors
	}
	return t, nil
}

// Tuple is a pair of addresses with ports, as on the wire. ICMP: Source's port is the id.
type Tuple struct{ Source, Destination netip.AddrPort }

// Flow is one slot in plain types. Times are jiffies.
type Flow struct {
	Port, Out       int // ifindex; Out is 0 until learned
	Proto           uint8
	In, NAT         Tuple // NAT is In again where nothing is rewritten
	XDP, Translated bool
	Conntrack       bool
	State           string // seen, armed, closed
	Why             string
	MACIn, MACOut   [2]net.HardwareAddr // destination, source
	DSCPIn, DSCPOut int
	MTU             int
	Generation      uint32
	Lease, Seen     uint32
	Born            uint32
	Count, Renewals uint32
	Packets, Bytes  uint64
	Mark, Priority  uint32
}

func address(family uint8, head [3]uint32, last uint32) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint32(b[12:], last)
	if family == 4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	for i, w := range head {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b)
}

func hostOrder(wire uint16) uint16 { return wire<<8 | wire>>8 }

func decode(s *tcSlot) Flow {
	fam, k := uint8(4), &s.Key
	if k.Kind&uint32(tcKindKIND_IPV6) != 0 {
		fam = 6
	}
	f := Flow{
		Port: int(k.Kind >> uint32(tcKindKIND_PORT)), Out: int(s.Oif), Proto: uint8(k.Kind),
		XDP:        s.Flags&uint8(tcSlotFlagSLOT_XDP) != 0,
		Translated: s.Flags&uint8(tcSlotFlagSLOT_NAT) != 0,
		Conntrack:  s.Flags&uint8(tcSlotFlagSLOT_CT) != 0,
		Why:        Reasons[min(int(s.Why), len(Reasons)-1)],
		DSCPIn:     int(s.DscpIn >> 2), DSCPOut: int(s.DscpOut >> 2),
		MTU: int(s.Mtu), Generation: s.Gen, Lease: s.Lease, Seen: s.Seen, Born: s.Born,
		Count: s.Count, Renewals: s.Renewals, Packets: s.Packets, Bytes: s.Bytes,
		Mark: s.Mark, Priority: s.Priority,
		MACIn:  [2]net.HardwareAddr{s.DmacIn[:], s.SmacIn[:]},
		MACOut: [2]net.HardwareAddr{s.DmacOut[:], s.SmacOut[:]},
	}
	f.In = Tuple{
		netip.AddrPortFrom(address(fam, s.In6.Saddr, k.Saddr), hostOrder(k.Sport)),
		netip.AddrPortFrom(address(fam, s.In6.Daddr, k.Daddr), hostOrder(k.Dport)),
	}
	f.NAT = Tuple{
		netip.AddrPortFrom(address(fam, s.Out6.Saddr, s.Saddr), hostOrder(s.Sport)),
		netip.AddrPortFrom(address(fam, s.Out6.Daddr, s.Daddr), hostOrder(s.Dport)),
	}
	switch tcSlotState(s.State) {
	case tcSlotStateSLOT_ARMED:
		f.State = "armed"
		f.Count = 0
	case tcSlotStateSLOT_CLOSED:
		f.State = "closed"
	default:
		f.State = "seen"
		f.NAT, f.Out, f.Packets, f.Bytes, f.Renewals = f.In, 0, 0, 0, 0
	}
	return f
}

// Flows calls yield with every slot in use, until it returns false. Slots that a packet
// is writing at the moment are left out.
func (p *Plane) Flows(yield func(Flow) bool) error {
	slots := make([]tcSlot, 1024)
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&slots[0])), len(slots)*int(tcAbiSLOT_SIZE))
	for at := 0; at < int(p.flows.Size()); at += len(raw) {
		if _, err := p.flows.ReadAt(raw, int64(at)); err != nil {
			return fmt.Errorf("flow table: %w", err)
		}
		for i := range slots {
			s := slots[i] // decode points into the slot: each flow has its own
			if tcSlotState(s.State) == tcSlotStateSLOT_EMPTY || s.Seq&1 != 0 {
				continue
			}
			if !yield(decode(&s)) {
				return nil
			}
		}
	}
	return nil
}

// Request is what the data path wants done to a connection: be-liberal, given by its
// original tuple; or, after a Reset that conntrack may not have believed, the end of it,
// given by the tuple of the direction that the reset came in.
type Request struct {
	Reset bool
	Zone  uint16 // 0 with Reset
	Tuple Tuple
}

// Requests calls handle for each request. It returns when stop is called.
func (p *Plane) Requests() (read func(handle func(Request)) error, stop func() error, err error) {
	r, err := ringbuf.NewReader(p.maps["events"])
	if err != nil {
		return nil, nil, fmt.Errorf("event ring: %w", err)
	}
	read = func(handle func(Request)) error {
		for {
			rec, err := r.Read()
			if errors.Is(err, ringbuf.ErrClosed) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("event ring: %w", err)
			}
			if c, ok := decodeEvent(rec.RawSample); ok {
				handle(c)
			}
		}
	}
	return read, r.Close, nil
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

// Objects gives out the loaded programs and maps under the names they have in bpf/, for
// the packages below this one that exercise them without a wire.
func (p *Plane) Objects() (map[string]*ebpf.Program, map[string]*ebpf.Map) {
	return map[string]*ebpf.Program{"shunt_xdp": p.xdp, "shunt_ingress": p.in, "shunt_after_xdp": p.after, "shunt_egress": p.out}, p.maps
}

// Types is the type information of the programs, of bpf/abi.h for one.
func Types() (*btf.Spec, error) {
	spec, err := loadTc()
	if err != nil {
		return nil, err
	}
	return spec.Types, nil
}

// Watch attaches the tracepoint programs that feed Transmit, for as long as the Plane is open.
func (p *Plane) Watch() error {
	for _, prog := range p.watch {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return fmt.Errorf("watch redirected frames: %w", err)
		}
		p.closers = append(p.closers, l.Close)
	}
	return nil
}
