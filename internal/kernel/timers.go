// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TCPTimers are the timeouts that conntrack sets for an established connection after a packet
// (nf_conntrack_tcp_packet() in net/netfilter/nf_conntrack_proto_tcp.c).
type TCPTimers struct {
	Established    time.Duration // if all data is acknowledged
	Unacknowledged time.Duration // if some is not, or no answer was seen
	MaxRetrans     time.Duration // if a side advertises no window, or a segment was sent several times
}

// answerTimeout guards against an answer that was lost: the kernel answers before the request returns.
const answerTimeout = 5 * time.Second

// ReadTCPTimers reads them as they are set for the calling thread's network namespace.
func ReadTCPTimers() (t TCPTimers, err error) {
	for name, to := range map[string]*time.Duration{
		"established": &t.Established, "unacknowledged": &t.Unacknowledged, "max_retrans": &t.MaxRetrans,
	} {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + name)
		if err != nil {
			return t, fmt.Errorf("conntrack's timers: %w", err)
		}
		seconds, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
		if err != nil {
			return t, fmt.Errorf("conntrack's timers: %s: %w", name, err)
		}
		*to = time.Duration(seconds) * time.Second
	}
	return t, nil
}

// Get returns the TCP connection one of whose directions is t. Nobody gets an event. It returns
// ErrNoConnection if there is none.
func (c *Conntrack) Get(t Tuple) (Connection, error) {
	body, err := request(t, func(*netlink.AttributeEncoder) {})
	if err != nil {
		return Connection{}, fmt.Errorf("conntrack: %v: %w", t, err)
	}
	m, err := c.get(body)
	if errors.Is(err, unix.ENOENT) {
		return Connection{}, ErrNoConnection
	}
	if err != nil {
		return Connection{}, fmt.Errorf("conntrack: %v: read: %w", t, err)
	}
	return decodeConnection(m)
}

// get sends a request and returns the one message of its answer. That message is marked as one of several, and no
// other follows (ctnetlink_fill_info()), so netlink.Conn would wait for ever.
func (c *Conntrack) get(body []byte) (netlink.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.SetReadDeadline(time.Now().Add(answerTimeout))
	defer c.conn.SetReadDeadline(time.Time{})
	sent, err := c.conn.Send(netlink.Message{Header: netlink.Header{Type: ctGet, Flags: netlink.Request}, Data: body})
	if err != nil {
		return netlink.Message{}, err
	}
	for {
		m, err := c.receive()
		switch {
		case err != nil:
			return netlink.Message{}, err
		case m.Header.Seq != sent.Header.Sequence: // a late answer to an earlier request
		case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
			return netlink.Message{}, syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
		default:
			return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(m.Header.Type)}, Data: m.Data}, nil
		}
	}
}

// receive returns the next message.
func (c *Conntrack) receive() (syscall.NetlinkMessage, error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return syscall.NetlinkMessage{}, err
	}
	b, n := make([]byte, 8192), 0
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return failed != unix.EAGAIN && failed != unix.EINTR
	})
	if err := errors.Join(err, failed); err != nil {
		return syscall.NetlinkMessage{}, err
	}
	messages, err := syscall.ParseNetlinkMessage(b[:n])
	if err != nil || len(messages) == 0 {
		return syscall.NetlinkMessage{}, errors.Join(errors.New("no netlink message"), err)
	}
	return messages[0], nil
}

// Unacknowledged are the two TCPUnacknowledged flags of a connection.
type Unacknowledged struct{ Original, Reply bool }

// Settle sets the flags of the TCP connection one of whose directions is t, and its timeout, in whole seconds, unless left
// is 0. It returns ErrNoConnection if there is none. Everybody who listens to conntrack gets one update event.
func (c *Conntrack) Settle(t Tuple, u Unacknowledged, left time.Duration) error {
	flags := func(set bool) []byte { // struct nf_ct_tcp_flags: value, mask
		if set {
			return []byte{TCPUnacknowledged, TCPUnacknowledged}
		}
		return []byte{0, TCPUnacknowledged}
	}
	return c.update(t, func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(ctaTCPFlagsOriginal, flags(u.Original))
		ae.Bytes(ctaTCPFlagsReply, flags(u.Reply))
		return nil
	}, uint32(left/time.Second))
}
