// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

const (
	echoTTL     = 64
	echoTimeout = 5 * time.Second
	echoHead    = 14 + 20 + 8 // Ethernet, IPv4, ICMP

	etherIPv4 = 0x0800
	etherMPLS = 0x8847
)

// echoes is a host that sends ICMP echo requests, one after the answer to the other, and looks at
// every byte of the answers. Between veths on one core all that becomes of a packet happens before the
// call that sends it returns, so what is measured is the time that the way takes the processor. It is for one goroutine.
type echoes struct {
	fd    int    // of the host that sends: it would get the answers to all others there, too
	frame []byte // the next request
	seq   uint16
	hops  int // that answers have come over
	sent  uint64
}

// echoWay says where the requests go.
type echoWay struct {
	from     lab.End    // with this MAC address, by this device
	source   netip.Addr // of from
	to       lab.End    // that takes them first
	dest     netip.Addr
	hops     int // to it
	id       uint16
	ethernet int // bytes, without FCS: 60 to 1514
}

// newEchoes lays out the requests that go by a socket of the host.
func newEchoes(fd int, w echoWay) *echoes {
	e := &echoes{fd: fd, hops: w.hops}
	f := make([]byte, w.ethernet)
	copy(f, w.to.MAC)
	copy(f[6:], w.from.MAC)
	binary.BigEndian.PutUint16(f[12:], etherIPv4)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, echoTTL, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], w.source.AsSlice())
	copy(ip[16:], w.dest.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], inetSum(ip[:20]))
	ip[20] = 8 // echo request
	binary.BigEndian.PutUint16(ip[24:], w.id)
	for i := range ip[28:] {
		ip[28+i] = byte(i)
	}
	e.frame = f
	return e
}

// packetSocket takes frames of a type at a host, and sends any.
func packetSocket(at lab.End, etherType uint16) (fd int, err error) {
	err = at.NS.Do(func() error {
		device, err := net.InterfaceByName(at.Device)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.NsecToTimeval(echoTimeout.Nanoseconds())
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: etherType<<8 | etherType>>8, Ifindex: device.Index}))
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("bench: a packet socket on %v: %w", at, err)
	}
	return fd, nil
}

// pinned calls do on a thread of its own, which stays on the last core.
func pinned(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock the thread, and its affinity, end with this goroutine
		var set unix.CPUSet
		set.Set(core())
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("bench: pin to CPU %d: %w", core(), err)
			return
		}
		done <- do()
	}()
	return <-done
}

// next numbers the next request.
func (e *echoes) next() {
	e.seq++
	icmp := e.frame[14+20:]
	binary.BigEndian.PutUint16(icmp[6:], e.seq)
	binary.BigEndian.PutUint16(icmp[2:], 0)
	binary.BigEndian.PutUint16(icmp[2:], inetSum(icmp))
}

// send sends it.
func (e *echoes) send() error {
	e.sent++
	err := retry(func() error { _, err := unix.Write(e.fd, e.frame); return err })
	if err != nil {
		return fmt.Errorf("bench: send an echo request: %w", err)
	}
	return nil
}

// trips makes so many round trips, and adds how long each took, in seconds. The first one without an
// answer, or with another than there must be, is an error.
func (e *echoes) trips(count int, to []float64) ([]float64, error) {
	buffer := make([]byte, 2048)
	for range count {
		e.next()
		begin := time.Now()
		if err := e.send(); err != nil {
			return to, err
		}
		n, err := e.receive(buffer)
		took := time.Since(begin)
		if err == nil {
			err = e.check(buffer[:n])
		}
		if err != nil {
			return to, err
		}
		to = append(to, took.Seconds())
	}
	return to, nil
}

// receive reads the next frame.
func (e *echoes) receive(buffer []byte) (n int, err error) {
	err = retry(func() error { n, err = unix.Read(e.fd, buffer); return err })
	if errors.Is(err, unix.EAGAIN) {
		return 0, fmt.Errorf("bench: echo request %d over %d routers was not answered in %v", e.seq, e.hops, echoTimeout)
	}
	if err != nil {
		return 0, fmt.Errorf("bench: receive an echo reply: %w", err)
	}
	return n, nil
}

// check wants the answer to the last request, byte by byte: its EtherType, a TTL that is less by
// one for each router, and what was sent.
func (e *echoes) check(got []byte) error {
	sent := e.frame[14:]
	switch {
	case len(got) < echoHead || len(got) != 14+len(sent):
		return fmt.Errorf("bench: an answer of %d bytes to a request of %d", len(got), 14+len(sent))
	case binary.BigEndian.Uint16(got[12:]) != etherIPv4:
		return fmt.Errorf("bench: an answer of EtherType %x", got[12:14])
	case got[14] != 0x45 || got[34] != 0 || inetSum(got[14:34]) != 0 || inetSum(got[34:]) != 0:
		return fmt.Errorf("bench: the answer is no echo reply with good checksums: %x", got[14:echoHead])
	case int(got[22]) != echoTTL-e.hops:
		return fmt.Errorf("bench: an answer over %d routers has a TTL of %d", e.hops, got[22])
	case !bytes.Equal(got[26:30], sent[16:20]) || !bytes.Equal(got[30:34], sent[12:16]):
		return fmt.Errorf("bench: the answer is from %v to %v", netip.AddrFrom4([4]byte(got[26:30])), netip.AddrFrom4([4]byte(got[30:34])))
	case !bytes.Equal(got[38:], sent[24:]):
		return fmt.Errorf("bench: the answer's id, number or payload is not the request's: %x", got[38:echoHead])
	}
	return nil
}

// inetSum is the Internet checksum (RFC 1071): 0 over what has a right one in it.
func inetSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
