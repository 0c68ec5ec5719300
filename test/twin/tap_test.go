// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// patience is how long a frame may be under way before it counts as lost.
const patience = 2 * time.Second

// offload is struct virtio_net_hdr (linux/virtio_net.h): what a network card, or the peer
// of a veth, is told beside the frame's bytes. Only what reaches a wire is kept:
// VIRTIO_NET_HDR_F_DATA_VALID and hdr_len are about the receiver's memory.
type offload struct {
	partial       bool   // VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum is still to be finished
	gso           uint8  // VIRTIO_NET_HDR_GSO_*
	size          uint16 // bytes of payload in each segment
	start, offset uint16 // where the checksum begins and where it goes
	headers       int    // bytes before the payload, for sending only
}

// Kinds of segmentation, VIRTIO_NET_HDR_GSO_*.
const gsoTCP4, gsoTCP6, gsoUDP = 1, 4, 5

const offloadLen = 10

func (o offload) append(b []byte) []byte {
	var flags byte
	if o.partial {
		flags = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	}
	b = append(b, flags, o.gso)
	b = binary.NativeEndian.AppendUint16(b, uint16(o.headers))
	b = binary.NativeEndian.AppendUint16(b, o.size)
	b = binary.NativeEndian.AppendUint16(b, o.start)
	return binary.NativeEndian.AppendUint16(b, o.offset)
}

func readOffload(b []byte) (o offload) {
	o.partial = b[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0
	if o.gso = b[1]; o.gso != 0 {
		o.size = binary.NativeEndian.Uint16(b[4:])
	}
	if o.partial {
		o.start, o.offset = binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint16(b[8:])
	}
	return o
}

// tap sends frames out of a host's interface and captures what comes in there.
type tap struct {
	fd     int
	name   string
	buffer []byte
}

// openTap opens an AF_PACKET socket. It outlives the call, inside the host's namespace.
func openTap(e lab.End) (*tap, error) {
	t := &tap{fd: -1, name: e.String(), buffer: make([]byte, 1<<17)}
	err := e.NS.Do(func() error {
		device, err := net.InterfaceByName(e.Device)
		if err != nil {
			return err
		}
		everything := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		timeout := unix.NsecToTimeval(patience.Nanoseconds())
		return errors.Join(
			unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
			unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
			unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: device.Index}))
	})
	if err != nil {
		unix.Close(t.fd)
		return nil, fmt.Errorf("capture on %s: %w", e, err)
	}
	return t, nil
}

func (t *tap) close() error { return unix.Close(t.fd) }

func (t *tap) send(frame []byte, o offload) error {
	message := append(o.append(make([]byte, 0, offloadLen+len(frame))), frame...)
	if _, err := unix.Write(t.fd, message); err != nil {
		return fmt.Errorf("send %d bytes on %s: %w", len(frame), t.name, err)
	}
	return nil
}

// receive returns the next frame that a script can have caused, or nil if none comes in
// time: at once with flags of MSG_DONTWAIT, else within `patience`.
func (t *tap) receive(flags int) ([]byte, offload, error) {
	for {
		n, _, err := unix.Recvfrom(t.fd, t.buffer, flags)
		if errors.Is(err, unix.EAGAIN) {
			return nil, offload{}, nil
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, offload{}, fmt.Errorf("receive on %s: %w", t.name, err)
		}
		if frame := t.buffer[offloadLen:n]; !chatter(frame) {
			return append([]byte(nil), frame...), readOffload(t.buffer), nil
		}
	}
}

// chatter is what hosts and routers say on their own: to groups (MLD), and neighbour
// discovery, among it the redirects that ip6_forward() answers to a hairpin.
func chatter(frame []byte) bool {
	if len(frame) < 14 || frame[0]&1 != 0 {
		return true
	}
	if binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IPV6 || len(frame) < 14+41 || frame[20] != protoICMPv6 {
		return false
	}
	kind := frame[14+40]
	return kind >= 133 && kind <= 137
}
