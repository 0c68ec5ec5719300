// SPDX-License-Identifier: Apache-2.0

package change

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNothingAlteredIsOverlooked turns over every byte of a packet: none of them may pass for
// the one that was sent, wherever it comes out.
func TestNothingAlteredIsOverlooked(t *testing.T) {
	four, six := netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("2001:2:0:18::2")
	for name, f := range map[string]flow{
		"UDP":      {proto: unix.IPPROTO_UDP, source: netip.AddrPortFrom(four, 1), dest: netip.AddrPortFrom(four, 2)},
		"TCP":      {proto: unix.IPPROTO_TCP, source: netip.AddrPortFrom(four, 1), dest: netip.AddrPortFrom(four, 2), size: 101},
		"IPv6 UDP": {proto: unix.IPPROTO_UDP, source: netip.AddrPortFrom(six, 1), dest: netip.AddrPortFrom(six, 2)},
		"IPv6 TCP": {proto: unix.IPPROTO_TCP, source: netip.AddrPortFrom(six, 1), dest: netip.AddrPortFrom(six, 2)},
	} {
		f.smac, f.dmac = net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
		p := newPump([hosts]*tap{}, []flow{f}, time.Second, newOutcomes())
		s := p.streams[0]
		const number = 3
		came := func(at host, alter func([]byte)) outcome {
			s.packets = make([]packet, number+1)
			frame := append([]byte(nil), s.zero...)
			f.number(frame, number)
			if alter != nil {
				alter(frame)
			}
			p.take(at, frame, 1)
			return s.packets[number].outcome
		}
		right := came(server, nil)
		if right == lost || right != came(server, nil) {
			t.Fatalf("%s: the packet itself is not known again", name)
		}
		if came(spare, nil) == right {
			t.Errorf("%s: it does not matter where it comes out", name)
		}
		for i := range s.zero {
			p.err = nil // one whose flow's number is turned over is nobody's, which is an error too
			if came(server, func(frame []byte) { frame[i] ^= 0x10 }) == right {
				t.Errorf("%s: byte %d was turned over, and nobody minds", name, i)
			}
		}
		s.packets = make([]packet, number+1)
		frame := append([]byte(nil), s.zero...)
		f.number(frame, number)
		p.take(server, frame, 1)
		p.take(server, frame, 2)
		if s.packets[number].outcome == right {
			t.Errorf("%s: it came twice, and nobody minds", name)
		}
		if what := p.name(right); what == "" || what == p.name(lost) {
			t.Errorf("%s: described as %q", name, what)
		}
	}
}
