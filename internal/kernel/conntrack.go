// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// ErrNoConnection says that conntrack does not know the connection: it ended, or
// never was.
var ErrNoConnection = errors.New("conntrack has no such connection")

// Tuple is one direction of a connection as conntrack names it. For ICMP both ports
// are 0 and Echo holds the id.
type Tuple struct {
	Proto       uint8
	Source      netip.AddrPort
	Destination netip.AddrPort
	Zone        uint16 // conntrack zone of both directions
	Echo        uint16 // ICMP and ICMPv6 id
	Type        uint8  // of an ICMP message, to ask by; not read
}

// Flags of a TCP connection's direction
// (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
const (
	TCPLiberal        = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL
	TCPUnacknowledged = 0x10 // IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED: of what this direction sent
	TCPMaxAckSet      = 0x20 // IP_CT_TCP_FLAG_MAXACK_SET
)

// Bits of Connection.Status (enum ip_conntrack_status).
const (
	StatusSeenReply = 1 << 1
	StatusAssured   = 1 << 2
	StatusConfirmed = 1 << 3
	StatusSourceNAT = 1 << 4
	StatusDestNAT   = 1 << 5

	StatusFixedTimeout = 1 << 10
	StatusOffload      = 1 << 14
)

// Connection is an entry of the conntrack table.
type Connection struct {
	Original, Reply           Tuple
	Status                    uint32 // Status*
	Timeout                   time.Duration
	Mark                      uint32
	TCPState                  uint8 // enum tcp_conntrack; 3 is ESTABLISHED
	FlagsOriginal, FlagsReply uint8 // TCP*
}

// Conntrack is a ctnetlink socket. Its methods may be called at the same time.
type Conntrack struct {
	conn *netlink.Conn
	mu   sync.Mutex // from a request to its answer
}

// OpenConntrack opens a ctnetlink socket. It needs CAP_NET_ADMIN.
func OpenConntrack() (*Conntrack, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	return &Conntrack{conn: conn}, nil
}

// LoadConntrack has the kernel load the module of conntrack, where it is one and not
// loaded yet: nfnetlink does so on the first question. A program that is loaded before
// does not know conntrack's structs. Whatever comes of it, there is nothing to report: a
// kernel without conntrack has no connections.
func LoadConntrack() {
	c, err := OpenConntrack()
	if err != nil {
		return
	}
	defer c.Close()
	// the module is there when this returns; the answer says that more will come, and none does
	_, _ = c.conn.Send(netlink.Message{
		Header: netlink.Header{Type: ctGetStats, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
}

// Close closes the socket.
func (c *Conntrack) Close() error { return c.conn.Close() }

// Attributes of ctnetlink (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	ctNew      = unix.NFNL_SUBSYS_CTNETLINK << 8   // IPCTNL_MSG_CT_NEW
	ctGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5 // IPCTNL_MSG_CT_GET_STATS

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoinfo  = 4
	ctaTimeout    = 7
	ctaMark       = 8
	ctaZone       = 18

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Source = 1
	ctaIPv4Dest   = 2
	ctaIPv6Source = 3
	ctaIPv6Dest   = 4

	ctaProtoNumber     = 1
	ctaProtoSourcePort = 2
	ctaProtoDestPort   = 3
	ctaProtoICMPID     = 4
	ctaProtoICMPv6ID   = 7

	ctaProtoinfoTCP     = 1
	ctaTCPState         = 1
	ctaTCPFlagsOriginal = 4
	ctaTCPFlagsReply    = 5

	tcpClose = 8 // TCP_CONNTRACK_CLOSE
)

// SetLiberal turns off conntrack's window check for both directions of the TCP
// connection whose original direction is t, and makes it forget the last
// acknowledgement it checks resets against: both stand still while packets go past
// conntrack (flow_offload_fixup_tcp in net/netfilter/nf_flow_table_core.c does the
// same). It returns ErrNoConnection if there is none. Everybody who listens to
// conntrack gets one update event.
func (c *Conntrack) SetLiberal(t Tuple) error {
	return c.update(t, liberal, 0)
}

func liberal(ae *netlink.AttributeEncoder) error {
	flags := []byte{TCPLiberal, TCPLiberal | TCPMaxAckSet} // struct nf_ct_tcp_flags: value, mask
	ae.Bytes(ctaTCPFlagsOriginal, flags)
	ae.Bytes(ctaTCPFlagsReply, flags)
	return nil
}

// SetReset gives the TCP connection one of whose directions is t the state CLOSE: after a
// reset that conntrack did not believe because it had not seen the packets before. It
// gets that state's timeout too: not every kernel set it when the reset went by. It
// returns ErrNoConnection if there is none.
func (c *Conntrack) SetReset(t Tuple) error {
	return c.update(t, func(ae *netlink.AttributeEncoder) error {
		ae.Uint8(ctaTCPState, tcpClose)
		return nil
	}, closeTimeout())
}

// closeTimeout is how long conntrack keeps a reset connection, in seconds, as it is set
// for the calling thread's network namespace; tcp_timeouts[] of nf_conntrack_proto_tcp.c
// if it cannot be read.
func closeTimeout() uint32 {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close")
	if err == nil {
		if seconds, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			return uint32(seconds)
		}
	}
	return 10
}

// update changes, in the TCP connection with the tuple t, what tcp says, and its timeout
// to so many seconds if that is not 0.
func (c *Conntrack) update(t Tuple, tcp func(*netlink.AttributeEncoder) error, timeout uint32) error {
	body, err := tcpRequest(t, tcp, timeout)
	if err != nil {
		return fmt.Errorf("conntrack: %v: %w", t, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: ctNew, Flags: netlink.Request | netlink.Acknowledge},
		Data:   body,
	})
	if errors.Is(err, unix.ENOENT) {
		return ErrNoConnection
	}
	if err != nil {
		return fmt.Errorf("conntrack: %v: update: %w", t, err)
	}
	return nil
}

func tcpRequest(t Tuple, tcp func(*netlink.AttributeEncoder) error, timeout uint32) ([]byte, error) {
	return request(t, func(ae *netlink.AttributeEncoder) {
		ae.Nested(ctaProtoinfo, func(ae *netlink.AttributeEncoder) error {
			ae.Nested(ctaProtoinfoTCP, tcp)
			return nil
		})
		if timeout != 0 {
			ae.Uint32(ctaTimeout, timeout)
		}
	})
}

// request names the TCP connection one of whose directions is t, and what more is to say.
func request(t Tuple, more func(*netlink.AttributeEncoder)) ([]byte, error) {
	source, dest := t.Source.Addr().Unmap(), t.Destination.Addr().Unmap()
	if !source.IsValid() || !dest.IsValid() || source.Is4() != dest.Is4() {
		return nil, errors.New("addresses of one family are needed")
	}
	if t.Proto != unix.IPPROTO_TCP {
		return nil, errors.New("only TCP has a window check")
	}
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Nested(ctaTupleOrig, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(ctaTupleIP, func(ae *netlink.AttributeEncoder) error {
			from, to := uint16(ctaIPv4Source), uint16(ctaIPv4Dest)
			if source.Is6() {
				from, to = ctaIPv6Source, ctaIPv6Dest
			}
			ae.Bytes(from, source.AsSlice())
			ae.Bytes(to, dest.AsSlice())
			return nil
		})
		ae.Nested(ctaTupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(ctaProtoNumber, t.Proto)
			ae.Uint16(ctaProtoSourcePort, t.Source.Port())
			ae.Uint16(ctaProtoDestPort, t.Destination.Port())
			return nil
		})
		return nil
	})
	if t.Zone != 0 {
		ae.Uint16(ctaZone, t.Zone)
	}
	more(ae)
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	family := byte(unix.AF_INET)
	if source.Is6() {
		family = unix.AF_INET6
	}
	return append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...), nil
}

// Dump returns the connections of one family, unix.AF_INET or unix.AF_INET6, or of
// both with unix.AF_UNSPEC.
func (c *Conntrack) Dump(family uint8) ([]Connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	messages, err := nl.Ask(c.conn, ctGet, netlink.Dump, []byte{family, unix.NFNETLINK_V0, 0, 0})
	if err != nil {
		return nil, fmt.Errorf("conntrack: dump: %w", err)
	}
	connections := make([]Connection, 0, len(messages))
	for _, m := range messages {
		entry, err := decodeConnection(m)
		if err != nil {
			return nil, fmt.Errorf("conntrack: dump: %w", err)
		}
		connections = append(connections, entry)
	}
	return connections, nil
}

func decodeConnection(m netlink.Message) (Connection, error) {
	var c Connection
	var zone uint16
	err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
		nl.BigEndian(ad)
		switch ad.Type() {
		case ctaTupleOrig:
			nl.Inner(ad, c.Original.decode)
		case ctaTupleReply:
			nl.Inner(ad, c.Reply.decode)
		case ctaStatus:
			c.Status = ad.Uint32()
		case ctaProtoinfo:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == ctaProtoinfoTCP {
					nl.Inner(ad, c.decodeTCP)
				}
			})
		case ctaTimeout:
			c.Timeout = time.Duration(ad.Uint32()) * time.Second
		case ctaMark:
			c.Mark = ad.Uint32()
		case ctaZone:
			zone = ad.Uint16()
		}
	})
	c.Original.Zone, c.Reply.Zone = zone, zone
	return c, err
}

func (c *Connection) decodeTCP(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case ctaTCPState:
		c.TCPState = ad.Uint8()
	case ctaTCPFlagsOriginal, ctaTCPFlagsReply:
		b := ad.Bytes()
		if len(b) == 0 {
			return
		}
		if ad.Type() == ctaTCPFlagsOriginal {
			c.FlagsOriginal = b[0]
		} else {
			c.FlagsReply = b[0]
		}
	}
}

// decode reads one attribute of a tuple: the addresses or the protocol's part.
func (t *Tuple) decode(ad *netlink.AttributeDecoder) {
	switch ad.Type() {
	case ctaTupleIP:
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			addr, _ := netip.AddrFromSlice(ad.Bytes()) // not valid if of another length
			switch ad.Type() {
			case ctaIPv4Source, ctaIPv6Source:
				t.Source = netip.AddrPortFrom(addr, t.Source.Port())
			case ctaIPv4Dest, ctaIPv6Dest:
				t.Destination = netip.AddrPortFrom(addr, t.Destination.Port())
			}
		})
	case ctaTupleProto:
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			nl.BigEndian(ad)
			switch ad.Type() {
			case ctaProtoNumber:
				t.Proto = ad.Uint8()
			case ctaProtoSourcePort:
				t.Source = netip.AddrPortFrom(t.Source.Addr(), ad.Uint16())
			case ctaProtoDestPort:
				t.Destination = netip.AddrPortFrom(t.Destination.Addr(), ad.Uint16())
			case ctaProtoICMPID, ctaProtoICMPv6ID:
				t.Echo = ad.Uint16()
			}
		})
	}
}
