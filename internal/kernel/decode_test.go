// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
	"shunt/internal/nl/nltest"
)

func flowtable(t testing.TB) netlink.Message {
	return nltest.Message(t, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWFLOWTABLE, nl.SizeofNfgenmsg, unix.NFPROTO_INET,
		func(ae *netlink.AttributeEncoder) {
			ae.String(nftaFlowtableTable, "filter")
			ae.String(nftaFlowtableName, "ft")
			nltest.Nest(ae, nftaFlowtableHook, func(ae *netlink.AttributeEncoder) {
				nltest.Nest(ae, nftaFlowtableHookDevs, func(ae *netlink.AttributeEncoder) {
					ae.String(nftaDeviceName, "eth0")
					ae.String(nftaDevicePrefix, "lan")
				})
			})
		})
}

// Flowtables need a kernel that has them; their messages do not.
func TestDecodeFlowtable(t *testing.T) {
	h, err := decodeFlowtable(flowtable(t))
	if err != nil || h.String() != "nftables flowtable inet filter ft" {
		t.Fatalf("%v, %v", h, err)
	}
	for device, want := range map[string]bool{"eth0": true, "eth00": false, "lan": true, "lan7": true, "la": false} {
		if h.on(device) != want {
			t.Errorf("on %s: %v", device, !want)
		}
	}
}

func chain(t testing.TB, family byte, hook uint32) netlink.Message {
	return nltest.Message(t, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN, nl.SizeofNfgenmsg, family,
		func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_CHAIN_TABLE, "t")
			ae.String(unix.NFTA_CHAIN_NAME, "c")
			nltest.Nest(ae, unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) {
				ae.Bytes(unix.NFTA_HOOK_HOOKNUM, []byte{0, 0, 0, byte(hook)})
				nltest.Nest(ae, nftaHookDevs, func(ae *netlink.AttributeEncoder) { ae.String(nftaDevicePrefix, "eth") })
			})
		})
}

func TestDecodeChain(t *testing.T) {
	for _, c := range []struct {
		family byte
		hook   uint32
		want   bool
	}{
		{unix.NFPROTO_NETDEV, unix.NF_NETDEV_INGRESS, true},
		{unix.NFPROTO_NETDEV, unix.NF_NETDEV_EGRESS, true},
		{unix.NFPROTO_INET, nfInetIngress, true},
		{unix.NFPROTO_INET, unix.NF_INET_FORWARD, false},
	} {
		h, err := decodeChain(chain(t, c.family, c.hook))
		if err != nil || h.on("eth7") != c.want {
			t.Errorf("family %d hook %d: %+v, %v", c.family, c.hook, h, err)
		}
	}
}

func TestDecodeXDPAttached(t *testing.T) {
	l, err := decodeLink(nltest.Message(t, unix.RTM_NEWLINK, unix.SizeofIfInfomsg, unix.AF_UNSPEC, func(ae *netlink.AttributeEncoder) {
		nltest.Nest(ae, unix.IFLA_XDP, func(ae *netlink.AttributeEncoder) {
			ae.Uint8(unix.IFLA_XDP_ATTACHED, uint8(XDPGeneric))
			ae.Uint32(unix.IFLA_XDP_PROG_ID, 42)
		})
		ae.Uint32(unix.IFLA_LINK, 5)
		ae.Uint32(unix.IFLA_LINK_NETNSID, 0)
	}))
	if err != nil || l.XDP != XDPGeneric || l.XDPID != 42 || l.Parent != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

// A truncated message is an error, not an event.
func TestShortMessages(t *testing.T) {
	for _, typ := range routeTypes {
		m := netlink.Message{Header: netlink.Header{Type: typ}, Data: []byte{0, 0}}
		if e, tell, err := newRouteDecoder().decode(m); err == nil && tell && typ != unix.RTM_NEWRULE && typ != unix.RTM_NEWNEXTHOP {
			t.Errorf("type %d: %+v", typ, e)
		}
	}
}

var routeTypes = []netlink.HeaderType{unix.RTM_NEWLINK, unix.RTM_NEWNEIGH, unix.RTM_NEWADDR, unix.RTM_NEWROUTE,
	unix.RTM_NEWRULE, unix.RTM_NEWNEXTHOP, unix.RTM_NEWQDISC, unix.RTM_NEWTFILTER, unix.RTM_NEWNETCONF,
	unix.RTM_DELLINK, unix.RTM_DELNEIGH, unix.RTM_DELNEXTHOP}

func newRouteDecoder() *routeDecoder {
	d := &routeDecoder{}
	d.reset()
	return d
}

// neighbour is the kernel's message about a host of 10.0.0.0/8.
func neighbour(t *testing.T, typ netlink.HeaderType, state uint16, mac string, host int) netlink.Message {
	t.Helper()
	m := nltest.Message(t, typ, sizeofNdmsg, unix.AF_INET, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.NDA_DST, []byte{10, byte(host >> 16), byte(host >> 8), byte(host)})
		if mac != "" {
			ae.Bytes(unix.NDA_LLADDR, []byte(mac))
		}
	})
	binary.NativeEndian.PutUint16(m.Data[8:], state)
	return m
}

// TestDeletedNeighbour: what comes back under the MAC of before is no change of what was
// learned, and like any other that is new; under another one it is a change.
func TestDeletedNeighbour(t *testing.T) {
	const was, is = "\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02"
	d := newRouteDecoder()
	for i, s := range []struct {
		typ   netlink.HeaderType
		state uint16
		mac   string
		tell  bool
		kind  EventKind
		told  string
	}{
		{unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, was, true, EventNeighNew, was},
		{unix.RTM_DELNEIGH, unix.NUD_STALE, was, true, EventNeigh, was},
		{unix.RTM_NEWNEIGH, unix.NUD_INCOMPLETE, "", false, EventNeigh, ""},
		{unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, was, true, EventNeighNew, was},
		{unix.RTM_DELNEIGH, unix.NUD_STALE, was, true, EventNeigh, was},
		{unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, is, true, EventNeigh, was},
		{unix.RTM_NEWNEIGH, unix.NUD_STALE, is, false, EventNeigh, is},
	} {
		e, tell, err := d.decode(neighbour(t, s.typ, s.state, s.mac, 2))
		if err != nil || tell != s.tell || e.Kind != s.kind || string(e.MAC) != s.told || e.Deleted != (s.typ == unix.RTM_DELNEIGH) {
			t.Errorf("step %d: %+v, told %v, %v", i, e, tell, err)
		}
	}
}

// TestManyDeletedNeighbours: the memory is bounded, and its loss is told.
func TestManyDeletedNeighbours(t *testing.T) {
	const mac = "\x02\x00\x00\x00\x00\x01"
	d := newRouteDecoder()
	lost := 0
	for host := range mostForgotten + 2 {
		d.decode(neighbour(t, unix.RTM_NEWNEIGH, unix.NUD_REACHABLE, mac, host))
		e, _, err := d.decode(neighbour(t, unix.RTM_DELNEIGH, unix.NUD_STALE, mac, host))
		if err != nil || len(d.forgotten) > mostForgotten || len(d.neighbours) != 0 {
			t.Fatalf("%v: %d neighbours, %d forgotten", err, len(d.neighbours), len(d.forgotten))
		}
		if e.Kind == EventResync {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("the loss was told %d times, want once", lost)
	}
}
