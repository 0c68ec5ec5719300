// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

// TestWatchNexthops: one that is new is no news, since no route uses it yet.
func TestWatchNexthops(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link set va up
		ip link set vb up
		ip nexthop add id 9 dev va`)
	events := listen(t)
	for _, c := range []struct {
		command string
		told    []bool // deletions among them
	}{
		{"ip nexthop replace id 9 dev vb", []bool{false}},
		{"ip nexthop add id 10 dev va", nil},
		{"ip nexthop add id 20 group 9/10", nil},
		{"ip nexthop replace id 20 group 9", []bool{false}},
		{"ip nexthop del id 10", []bool{true}},
		{"ip nexthop del id 9", []bool{true, true}}, // and the group that is empty now
	} {
		nltest.Run(t, c.command)
		got := until(t, events, EventNexthop)
		same := len(got) == len(c.told)
		for i, e := range got {
			same = same && e.Deleted == c.told[i]
		}
		if !same {
			t.Errorf("%s: %+v, want deletions %v", c.command, got, c.told)
		}
	}
}

// TestWatchXFRM: policies and states, in the order in which they were changed.
func TestWatchXFRM(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	events := listen(t)
	for _, command := range []string{
		"ip xfrm policy add src 10.0.0.0/24 dst 10.1.0.0/24 dir fwd action block",
		"ip xfrm policy update src 10.0.0.0/24 dst 10.1.0.0/24 dir fwd action allow",
		"ip xfrm policy del src 10.0.0.0/24 dst 10.1.0.0/24 dir fwd",
	} {
		nltest.Run(t, command)
		await(t, events, EventXFRM)
	}
	// a state needs an algorithm, which not every kernel has; one under way does not
	nltest.Run(t, `
		ip xfrm state allocspi src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel
		ip xfrm state flush`)
	await(t, events, EventXFRM)
}

// frame sends a broadcast from a MAC out of an interface.
func frame(t *testing.T, name string, from net.HardwareAddr) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from...)
	b = binary.BigEndian.AppendUint16(b, 0x88b5) // for experiments
	b = append(b, make([]byte, 46)...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: index(t, name)}); err != nil {
		t.Fatal(err)
	}
}

// forwarding waits until a bridge forwards what its port gets: before, it learns nothing of it.
func forwarding(t *testing.T, port string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < patience; time.Sleep(10 * time.Millisecond) {
		if out, err := exec.Command("bridge", "link", "show", "dev", port).Output(); err != nil {
			t.Fatalf("bridge link show dev %s: %v", port, err)
		} else if strings.Contains(string(out), "state forwarding") {
			return
		}
	}
	t.Fatalf("%s does not forward", port)
}

// TestWatchFDB: a bridge learns a MAC, hears it again, finds it behind another port, and is
// told by hand.
func TestWatchFDB(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name br0 type bridge
		ip link add name pa type veth peer name ha
		ip link add name pb type veth peer name hb
		ip link set pa master br0
		ip link set pb master br0`)
	for _, name := range []string{"br0", "pa", "pb", "ha", "hb"} {
		nltest.Run(t, "ip link set "+name+" up")
	}
	forwarding(t, "pa")
	forwarding(t, "pb")
	pa, pb := index(t, "pa"), index(t, "pb")
	mac, _ := net.ParseMAC("02:00:00:00:00:99")
	events := listen(t)
	for _, c := range []struct {
		what    string
		do      func()
		port    int // 0: nothing is told
		deleted bool
	}{
		{"learned", func() { frame(t, "ha", mac) }, pa, false},
		{"heard again", func() { frame(t, "ha", mac) }, 0, false},
		{"moved", func() { frame(t, "hb", mac) }, pb, false},
		{"set by hand", func() { nltest.Run(t, "bridge fdb replace "+mac.String()+" dev pa master static") }, pa, false},
		{"deleted", func() { nltest.Run(t, "bridge fdb del "+mac.String()+" dev pa master") }, pa, true},
	} {
		c.do()
		var got []Event
		if c.port != 0 { // frames arrive in their own time
			got = append(got, awaitThat(t, events, c.what, func(e Event) bool {
				return e.Kind == EventFDB && e.MAC.String() == mac.String()
			}))
		}
		for _, e := range until(t, events, EventFDB) {
			if e.MAC.String() == mac.String() {
				got = append(got, e)
			}
		}
		switch {
		case c.port == 0 && len(got) > 0:
			t.Errorf("%s: %+v, want nothing", c.what, got)
		case c.port != 0 && (len(got) != 1 || got[0].Index != c.port || got[0].Deleted != c.deleted):
			t.Errorf("%s: %+v, want port %d", c.what, got, c.port)
		}
	}
}
