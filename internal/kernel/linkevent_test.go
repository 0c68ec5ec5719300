// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl/nltest"
)

// linkNews is a message about interface 7, up.
func linkNews(t testing.TB, typ netlink.HeaderType, family byte, attrs func(*netlink.AttributeEncoder)) netlink.Message {
	m := nltest.Message(t, typ, unix.SizeofIfInfomsg, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "eth7")
		attrs(ae)
	})
	m.Data[4], m.Data[8] = 7, unix.IFF_UP
	return m
}

// bridgePort is one with a bridge's view of its port.
func bridgePort(t testing.TB, typ netlink.HeaderType, isolated, timer byte) netlink.Message {
	return linkNews(t, typ, unix.AF_BRIDGE, func(ae *netlink.AttributeEncoder) {
		nltest.Nest(ae, unix.IFLA_PROTINFO, func(ae *netlink.AttributeEncoder) {
			ae.Uint8(unix.IFLA_BRPORT_ISOLATED, isolated)
			ae.Uint64(unix.IFLA_BRPORT_HOLD_TIMER, uint64(timer))
		})
	})
}

// TestLinkEvents: what is new about a link since the message before.
func TestLinkEvents(t *testing.T) {
	number := func(typ uint16, n uint32) func(*netlink.AttributeEncoder) {
		return func(ae *netlink.AttributeEncoder) { ae.Uint32(typ, n) }
	}
	none := func(*netlink.AttributeEncoder) {}
	promiscuous := linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_PROMISCUITY, 1))
	promiscuous.Data[9] = unix.IFF_PROMISC >> 8
	down := linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none)
	down.Data[8] = 0
	scan := func(ae *netlink.AttributeEncoder) { ae.Bytes(unix.IFLA_WIRELESS, make([]byte, 8)) }
	d := newRouteDecoder()
	for i, c := range []struct {
		m       netlink.Message
		tell    bool
		want    LinkChange
		deleted bool
	}{
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none), true, LinkNew, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none), true, 0, false},
		{promiscuous, true, 0, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_MTU, 1400)), true, LinkMTU, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_MASTER, 3)), true, LinkMTU | LinkMaster, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none), true, LinkMaster, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_GROUP, 9)), true, LinkSettings, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none), true, LinkSettings, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_CARRIER_CHANGES, 9)), true, 0, false},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, scan), false, 0, false},
		{down, true, LinkState, false},
		{bridgePort(t, unix.RTM_NEWLINK, 0, 1), true, LinkBridgePort, false},
		{bridgePort(t, unix.RTM_NEWLINK, 0, 2), false, LinkBridgePort, false},
		{bridgePort(t, unix.RTM_NEWLINK, 1, 2), true, LinkBridgePort, false},
		{bridgePort(t, unix.RTM_DELLINK, 1, 2), true, LinkBridgePort, false},
		{linkNews(t, unix.RTM_DELLINK, unix.AF_UNSPEC, none), true, 0, true},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, none), true, LinkNew, false},
		{linkNews(t, unix.RTM_DELLINK, unix.AF_UNSPEC, none), true, 0, true},
		{linkNews(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, number(unix.IFLA_LINK, 2)), true, LinkNew | LinkSettings, false},
	} {
		e, tell, err := d.decode(c.m)
		if err != nil || tell != c.tell || e.Link != c.want || e.Deleted != c.deleted || e.Index != 7 || e.Name != "eth7" {
			t.Errorf("step %d: %+v, told %v, %v", i, e, tell, err)
		}
	}
	if got := (LinkMTU | LinkName).String(); got != "MTU, name" {
		t.Errorf("in words: %q", got)
	}
}

// settled waits until the kernel's link watch has looked at an interface that is up.
func settled(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		state, err := exec.Command("ip", "-o", "link", "show", "dev", name).Output()
		if err == nil && strings.Contains(string(state), " state UP ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s, %v", state, err)
		}
	}
}

// TestWatchLinks: what the kernel says about a link for each change of it.
func TestWatchLinks(t *testing.T) {
	if !nltest.InNetns(t) {
		return
	}
	nltest.Run(t, `
		ip link add name va type veth peer name vb
		ip link add name br0 type bridge
		ip link set br0 up
		ip link set va up
		ip link set vb up`)
	va := index(t, "va")
	settled(t, "va")
	events := listen(t)
	for _, c := range []struct {
		command string
		want    LinkChange // 0: no news of va that a packet could meet
	}{
		{"ip link set va mtu 1400", LinkMTU},
		{"ip link set va promisc on", 0},
		{"ip link set va alias uplink", 0},
		{"ip link set va txqueuelen 10", 0},
		{"ip link set va address 02:00:00:00:00:77", LinkMAC},
		{"ip link set va group 5", LinkSettings},
		{"ip link set vb down", LinkState}, // its carrier
		{"ip link set vb up", LinkState},
		{"ip link set va master br0", LinkMaster | LinkState | LinkSettings | LinkBridgePort},
		{"bridge link set dev va isolated on", LinkBridgePort},
		{"bridge link set dev va isolated on", 0},
		{"bridge link set dev va learning off", LinkBridgePort},
		{"ip link set va nomaster", LinkMaster | LinkState | LinkSettings | LinkBridgePort},
		{"ip link set va down", LinkState},
		{"ip link set va name vx", LinkName},
		{"ip link set vx up", LinkState},
	} {
		nltest.Run(t, c.command)
		var got LinkChange
		if c.want == LinkState { // the link watch works in its own time
			got = awaitThat(t, events, c.command, func(e Event) bool {
				return e.Kind == EventLink && e.Index == va && e.Link&LinkState != 0
			}).Link
		}
		for _, e := range until(t, events, EventLink) {
			if e.Index == va {
				got |= e.Link
			}
		}
		if got&^c.want != 0 || c.want&^(LinkState|LinkSettings)&^got != 0 || (got == 0) != (c.want == 0) {
			t.Errorf("%s: %v, want %v", c.command, got, c.want)
		}
	}
	nltest.Run(t, `ip link del vx`)
	if got := until(t, events, EventLink); !slices.ContainsFunc(got, func(e Event) bool { return e.Index == va && e.Deleted }) {
		t.Errorf("deletion: %+v", got)
	}
	nltest.Run(t, `ip link add name va type veth peer name vb`)
	va = index(t, "va")
	if got := until(t, events, EventLink); !slices.ContainsFunc(got, func(e Event) bool { return e.Index == va && e.Link == LinkNew }) {
		t.Errorf("a new one: %+v", got)
	}
}
