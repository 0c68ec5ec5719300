// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// capture returns the frames that come to an end while send runs, at most want of them.
func capture(t *testing.T, e lab.End, want int, send func()) (frames [][]byte) {
	t.Helper()
	var fd int
	err := e.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16([]byte{8, 0})))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		t.Fatal(err)
	}
	send()
	for len(frames) < want {
		b := make([]byte, 2048)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			t.Fatalf("%d of %d frames came: %v", len(frames), want, os.NewSyscallError("recvfrom", err))
		}
		frames = append(frames, b[:n])
	}
	return frames
}

// TestAttackFrames: what attackers send is what it says, and sums up.
func TestAttackFrames(t *testing.T) {
	a, b := pair(t)
	t.Run("swept resets", func(t *testing.T) {
		c := between(a, b, false, TCP, 64, 2)
		c.Flags, c.Sweep = 4, true
		seen := map[uint32]bool{}
		for _, f := range capture(t, b, 100, func() { send(t, c, 100) }) {
			if f[47] != 4 || !valid(f[14:34], 0) || !valid(f[34:], sum(f[26:34])+6<<8+uint32(len(f)-34)<<8) {
				t.Fatalf("flags %#x, or a wrong sum in %x", f[47], f)
			}
			seen[binary.BigEndian.Uint32(f[38:])] = true
		}
		if len(seen) != 100 {
			t.Errorf("%d sequence numbers in 100 frames", len(seen))
		}
	})
	t.Run("fragments", func(t *testing.T) {
		c := between(a, b, false, UDP, 64, 50)
		c.Fragment = true
		ids := map[uint16]bool{}
		for _, f := range capture(t, b, 50, func() { send(t, c, 50) }) {
			if binary.BigEndian.Uint16(f[20:]) != 0x2000 || !valid(f[14:34], 0) {
				t.Fatalf("no first fragment, or a wrong sum: %x", f)
			}
			ids[binary.BigEndian.Uint16(f[18:])] = true
		}
		if len(ids) != 50 {
			t.Errorf("%d ids in 50 fragments", len(ids))
		}
	})
	t.Run("a flow that stays", func(t *testing.T) {
		c := between(a, b, false, UDP, 64, 3)
		c.Stay = 4
		order := ""
		for _, f := range capture(t, b, 24, func() { send(t, c, 24) }) {
			order += fmt.Sprint(binary.BigEndian.Uint16(f[34:]) - 10000)
		}
		if order != "000011112222000011112222" {
			t.Errorf("the flows were sent in the order %s", order)
		}
	})
}

// valid tells whether bytes and what is summed already make all ones (RFC 1071).
func valid(b []byte, s uint32) bool {
	s += sum(b)
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return s == 0xffff
}
