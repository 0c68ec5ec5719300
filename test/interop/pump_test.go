// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// pump sends packets over a path and looks at what comes out of it.
type pump struct {
	path    *path
	in, out int // raw sockets
	came    []byte
}

// burst is how many packets are under way at once: a veth takes 256 (VETH_RING_SIZE).
const burst = 32

// patience is how long they may be. It is long: the machine may be emulated, and busy.
const patience = 20 * time.Second

func newPump(p *path) (*pump, error) {
	m := &pump{path: p, came: make([]byte, 1<<16)}
	var err error
	if m.in, err = rawSocket(p.sender, 0); err != nil {
		return nil, err
	}
	if m.out, err = rawSocket(p.receiver, unix.ETH_P_ALL); err != nil {
		return nil, errors.Join(err, unix.Close(m.in))
	}
	return m, nil
}

// rawSocket takes in what comes to a device with this EtherType; 0: nothing.
func rawSocket(e lab.End, kind uint16) (fd int, err error) {
	err = e.NS.Do(func() error {
		i, err := net.InterfaceByName(e.Device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wake := unix.NsecToTimeval(int64(100 * time.Millisecond))
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind<<8 | kind>>8, Ifindex: i.Index}))
	})
	if err != nil {
		err = fmt.Errorf("raw socket on %s: %w", e, err)
	}
	return fd, err
}

func (m *pump) close() error { return errors.Join(unix.Close(m.in), unix.Close(m.out)) }

// send puts packets on the way, and waits until as many have come out. What came is what was
// to come, or the error says what is not.
func (m *pump) send(packets []packet) error {
	w := awaited{}
	for i := range packets {
		p := packets[i]
		if _, err := unix.Write(m.in, p.frame(m.path.sender.MAC, m.path.routers[ingress].lan.MAC)); err != nil {
			return fmt.Errorf("send packet %d: %w", p.number, err)
		}
		p.ttl, p.dscp = p.lsp.became(m.path.kinds[egress], p.ttl, p.dscp)
		w.add(p, p.frame(m.path.routers[egress].wan.MAC, m.path.receiver.MAC))
	}
	for deadline := time.Now().Add(patience); len(w) > 0; {
		got, err := m.receive()
		switch {
		case err != nil:
			return err
		case got == nil && time.Now().After(deadline):
			return fmt.Errorf("%d of %d packets did not come: %s", len(w), len(packets), w)
		case got == nil:
			continue
		}
		if err := w.take(got); err != nil {
			return err
		}
	}
	return nil
}

// receive is the next frame for the receiver; nil: there is none yet.
func (m *pump) receive() ([]byte, error) {
	n, _, err := unix.Recvfrom(m.out, m.came, 0)
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("receive: %w", err)
	case n < ethernetBytes+4 || !bytes.Equal(m.came[:6], m.path.receiver.MAC):
		return nil, nil // to a group: what routers say by themselves
	}
	return m.came[:n], nil
}
