// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// Tap sends and receives whole frames at one end of a wire, past the network stack of
// that end.
type Tap struct {
	fd   int
	name string
}

// NewTap opens a tap at an end. It sees what comes in, not what it sends.
func NewTap(e lab.End) (*Tap, error) {
	t := &Tap{name: e.String()}
	err := e.NS.Do(func() error {
		device, err := net.InterfaceByName(e.Device)
		if err != nil {
			return err
		}
		all := Wire16(unix.ETH_P_ALL)
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return err
		}
		return unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index})
	})
	if err != nil {
		return nil, fmt.Errorf("tap at %v: %w", e, err)
	}
	return t, nil
}

// Close closes the tap.
func (t *Tap) Close() error { return unix.Close(t.fd) }

// Send puts a frame on the wire, from CPU 0: a veth delivers on the sender's CPU, mostly
// before the system call ends, and what one frame left there the next is to find.
func (t *Tap) Send(frame []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var home, first unix.CPUSet
	first.Set(0)
	if err := unix.SchedGetaffinity(0, &home); err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return err
	}
	defer unix.SchedSetaffinity(0, &home)
	if _, err := unix.Write(t.fd, frame); err != nil {
		return fmt.Errorf("%s: send %d bytes: %w", t.name, len(frame), err)
	}
	return nil
}

// Receive returns the next frame, or nil if none comes within the given time.
func (t *Tap) Receive(patience time.Duration) ([]byte, error) {
	f, _, err := t.ReceivePartial(patience)
	return f, err
}

// ReceivePartial is Receive that also tells whether the checksum is still to be
// finished by a device (CHECKSUM_PARTIAL).
func (t *Tap) ReceivePartial(patience time.Duration) (frame []byte, partial bool, err error) {
	ready := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, int(patience.Milliseconds()))
	for err == unix.EINTR {
		n, err = unix.Poll(ready, int(patience.Milliseconds()))
	}
	if err != nil || n == 0 {
		return nil, false, err
	}
	frame, oob := make([]byte, 1<<16), make([]byte, 64)
	n, oobn, _, _, err := unix.Recvmsg(t.fd, frame, oob, 0)
	if err != nil {
		return nil, false, fmt.Errorf("%s: receive: %w", t.name, err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, false, err
	}
	for _, m := range messages {
		if m.Header.Type == unix.PACKET_AUXDATA { // struct tpacket_auxdata begins with tp_status
			partial = binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_CSUMNOTREADY != 0
		}
	}
	return frame[:n], partial, nil
}

// Drain throws away what has come in so far.
func (t *Tap) Drain() error {
	for {
		f, err := t.Receive(0)
		if f == nil || err != nil {
			return err
		}
	}
}
