// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// tap sends frames out of a host's device and takes in what comes to the host. It is bound to
// no device, so that it outlives one.
type tap struct {
	fd    int
	end   lab.End
	index int // of the device that it sends by
}

func openTap(e lab.End) (*tap, error) {
	t := &tap{fd: -1, end: e}
	err := e.NS.Do(func() (err error) {
		everything := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(everything)); err != nil {
			return err
		}
		wake := unix.NsecToTimeval(int64(50 * time.Millisecond))
		return errors.Join(
			unix.SetsockoptInt(t.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
			t.find())
	})
	if err != nil {
		unix.Close(t.fd)
		return nil, fmt.Errorf("capture at %s: %w", e, err)
	}
	return t, nil
}

// find looks for the device, inside the namespace.
func (t *tap) find() error {
	device, err := net.InterfaceByName(t.end.Device)
	if err == nil {
		t.index = device.Index
	}
	return err
}

// refind is find from outside, after the device was made anew.
func (t *tap) refind() error { return t.end.NS.Do(t.find) }

func (t *tap) close() error { return unix.Close(t.fd) }

// send sends a frame; false if the device is down or gone.
func (t *tap) send(frame []byte) (bool, error) {
	err := unix.Sendto(t.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: t.index})
	switch {
	case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOBUFS):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("send %d bytes at %s: %w", len(frame), t.end, err)
	}
	return true, nil
}

// receive waits for a frame, 50 ms at the most, and says when the kernel had it. It returns
// no bytes if none came.
func (t *tap) receive(buffer, control []byte) (n int, at int64, err error) {
	n, m, _, _, err := unix.Recvmsg(t.fd, buffer, control, 0)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
		return 0, 0, nil
	case err != nil:
		return 0, 0, os.NewSyscallError("recvmsg", err)
	}
	at = time.Now().UnixNano()
	messages, err := unix.ParseSocketControlMessage(control[:m])
	for _, c := range messages {
		if c.Header.Type == unix.SCM_TIMESTAMPNS && len(c.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			at = (*unix.Timespec)(unsafe.Pointer(&c.Data[0])).Nano()
		}
	}
	return n, at, err
}
