// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tap sends frames into one port of the router and takes in what comes out there.
type tap struct {
	at     port
	fd     int
	device *net.Interface
	closed atomic.Bool
	done   chan struct{}
}

// arrival is a frame that came out.
type arrival struct {
	at    port
	bytes []byte
}

// openTap opens a raw socket on a device of this thread's namespace, and lets every frame
// that comes in go to a channel.
func openTap(at port, device string, to chan<- arrival) (*tap, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("port %s: %s: %w", at, device, err)
	}
	t := &tap{at: at, device: i, done: make(chan struct{})}
	everything := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	wake := unix.NsecToTimeval(int64(50 * time.Millisecond))
	err = errors.Join(
		unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
		unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: i.Index}))
	if err != nil {
		unix.Close(t.fd)
		return nil, fmt.Errorf("raw socket on %s: %w", device, err)
	}
	go t.listen(to)
	return t, nil
}

func (t *tap) listen(to chan<- arrival) {
	defer close(t.done)
	buffer, control := make([]byte, 1<<17), make([]byte, 256)
	for !t.closed.Load() {
		n, m, _, _, err := unix.Recvmsg(t.fd, buffer, control, 0)
		if err != nil {
			continue
		}
		if frame := withTag(buffer[:n], control[:m]); !chatter(frame) {
			to <- arrival{t.at, frame}
		}
	}
}

// withTag copies a frame, and puts its VLAN tag back: the kernel takes it out of the bytes
// (skb_vlan_untag) and tells it beside them (struct tpacket_auxdata).
func withTag(frame, control []byte) []byte {
	messages, _ := unix.ParseSocketControlMessage(control)
	for _, c := range messages {
		const status, tci = 0, 16
		if c.Header.Type == unix.PACKET_AUXDATA && len(c.Data) >= tci+2 && binary.NativeEndian.Uint32(c.Data[status:])&unix.TP_STATUS_VLAN_VALID != 0 {
			tag := binary.BigEndian.AppendUint16([]byte{kindVLAN >> 8, kindVLAN & 255}, binary.NativeEndian.Uint16(c.Data[tci:]))
			return slices.Concat(frame[:12], tag, frame[12:])
		}
	}
	return slices.Clone(frame)
}

// close ends the listener first: the number of a closed socket may be another's soon.
func (t *tap) close() error {
	t.closed.Store(true)
	<-t.done
	return unix.Close(t.fd)
}

func (t *tap) send(frame []byte) error {
	if _, err := unix.Write(t.fd, frame); err != nil {
		return fmt.Errorf("send %d bytes at port %s: %w", len(frame), t.at, err)
	}
	return nil
}

// chatter is what routers say by themselves: ARP, to groups, and neighbour discovery. A
// labelled frame is never that.
func chatter(frame []byte) bool {
	if len(frame) < ethernetBytes {
		return true
	}
	switch kind := binary.BigEndian.Uint16(frame[12:]); kind {
	case kindMPLS, kindUpstream:
		return false
	case unix.ETH_P_ARP:
		return true
	case kindIPv6:
		if len(frame) > ethernetBytes+40 && frame[ethernetBytes+6] == protoICMPv6 {
			icmp := frame[ethernetBytes+40]
			return icmp >= 133 && icmp <= 137
		}
	}
	return frame[0]&1 != 0
}
