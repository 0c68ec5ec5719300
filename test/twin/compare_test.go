// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// What may differ between two performances, and why. Everything else is the same.
//
//   - The id of IPv6 fragments: the router has put the packet together for conntrack and
//     cuts it again with a random id (ip6_fragment, ipv6_select_ident). Two performances
//     without shunt differ there too.
//   - Conntrack's timeouts, which run.
//   - The be-liberal and max-ack flags of TCP connections, which shunt sets before it
//     repeats them (design, rule 6). Status, state and tuples are compared.
func normal(frame []byte) []byte {
	const ip, fragment = 14, 44
	if len(frame) >= ip+48 && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6 && frame[ip+6] == fragment {
		clear(frame[ip+40+4 : ip+40+8])
	}
	return frame
}

// capture is a frame as it came out.
type capture struct {
	frame   []byte
	offload offload
}

// captures are the frames by what the far side calls their flow.
type captures map[string][]capture

func (c captures) add(at int, frame []byte, o offload) {
	name := flowName(at, frame)
	c[name] = append(c[name], capture{normal(frame), o})
}

// flowName is host, protocol and addresses, and ports where they stand right behind the
// IP header. Fragments and packets with extension headers are flows of their own.
func flowName(at int, frame []byte) string {
	ip := slices.Concat(frame[14:], make([]byte, 60)) // a short one is compared all the same
	var proto uint8
	var source, dest netip.Addr
	var l4 []byte
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_IP:
		proto, l4 = ip[9], ip[int(ip[0]&15)*4:]
		source, dest = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		if binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			l4 = nil
		}
	case unix.ETH_P_IPV6:
		proto, l4 = ip[6], ip[40:]
		source, dest = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return fmt.Sprintf("to %d: %x", at, frame[:14])
	}
	ports := ""
	if slices.Contains([]uint8{protoTCP, protoUDP, protoSCTP}, proto) && len(l4) >= 4 {
		ports = fmt.Sprintf(" ports %d %d", binary.BigEndian.Uint16(l4), binary.BigEndian.Uint16(l4[2:]))
	}
	return fmt.Sprintf("to %s: proto %d %s > %s%s", [...]string{"client", "server"}[at], proto, source, dest, ports)
}

// compare says where a performance with shunt is another one than the kernel's.
func compare(t *testing.T, want, got *performance) {
	t.Helper()
	names := slices.Sorted(maps.Keys(want.frames))
	for _, name := range slices.Sorted(maps.Keys(got.frames)) {
		if want.frames[name] == nil {
			t.Errorf("%s: %d frames that the kernel did not send, the first is %x", name, len(got.frames[name]), got.frames[name][0].frame)
		}
	}
	for _, name := range names {
		compareFlow(t, name, want.frames[name], got.frames[name])
	}
	for i, text := range []string{"dump", "conntrack -L"} {
		if missing, extra := difference(want.conntrack[i], got.conntrack[i]), difference(got.conntrack[i], want.conntrack[i]); missing != nil || extra != nil {
			t.Errorf("conntrack (%s) differs\nkernel only:\n\t%s\nshunt only:\n\t%s", text, strings.Join(missing, "\n\t"), strings.Join(extra, "\n\t"))
		}
	}
}

func compareFlow(t *testing.T, name string, want, got []capture) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%s: %d frames, the kernel sent %d", name, len(got), len(want))
	}
	for i := range min(len(want), len(got)) {
		if bytes.Equal(want[i].frame, got[i].frame) && want[i].offload == got[i].offload {
			continue
		}
		at := 0
		for at < min(len(want[i].frame), len(got[i].frame)) && want[i].frame[at] == got[i].frame[at] {
			at++
		}
		t.Errorf("%s: frame %d of %d differs at byte %d\nkernel: %d bytes, %+v\n%sshunt: %d bytes, %+v\n%s", name, i, len(want), at,
			len(want[i].frame), want[i].offload, dump(want[i].frame), len(got[i].frame), got[i].offload, dump(got[i].frame))
		return
	}
}

func dump(frame []byte) string { return hex.Dump(frame[:min(len(frame), 96)]) }

// difference is what of a is not in b.
func difference(a, b []string) (only []string) {
	for _, line := range a {
		if !slices.Contains(b, line) {
			only = append(only, line)
		}
	}
	return only
}

// connections lists what conntrack knows, without what runs: by netlink, with all status
// bits, and by the conntrack tool, which names the states of all protocols.
func connections(router *lab.NS) (lists [2][]string, err error) {
	entries, err := dumpConntrack(router)
	if err != nil {
		return lists, err
	}
	for _, c := range entries {
		lists[0] = append(lists[0], trackedLine(c))
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		text, err := router.Run("conntrack", "-L", "-f", family)
		if err != nil {
			return lists, err
		}
		for line := range strings.Lines(text) {
			if words := strings.Fields(line); len(words) > 3 { // name, number, timeout
				lists[1] = append(lists[1], strings.Join(slices.Delete(words, 2, 3), " "))
			}
		}
	}
	slices.Sort(lists[0])
	slices.Sort(lists[1])
	return lists, nil
}

func dumpConntrack(router *lab.NS) (entries []kernel.Connection, err error) {
	err = router.Do(func() error {
		table, err := kernel.OpenConntrack()
		if err != nil {
			return err
		}
		defer table.Close()
		entries, err = table.Dump(unix.AF_UNSPEC)
		return err
	})
	return entries, err
}
