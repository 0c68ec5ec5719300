// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// FuzzDecode feeds every decoder, which must neither panic nor hang. Its seeds are
// what this kernel says.
func FuzzDecode(f *testing.F) {
	for _, typ := range []netlink.HeaderType{unix.RTM_GETLINK, unix.RTM_GETNEIGH, unix.RTM_GETADDR, unix.RTM_GETROUTE, unix.RTM_GETQDISC} {
		messages, err := nl.Dump(unix.NETLINK_ROUTE, typ, make([]byte, sizeofTcmsg))
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range messages {
			f.Add(uint16(m.Header.Type), m.Data)
		}
	}
	for _, m := range []netlink.Message{
		flowtable(f), chain(f, unix.NFPROTO_NETDEV, 0), bridgePort(f, unix.RTM_NEWLINK, 1, 1),
	} {
		f.Add(uint16(m.Header.Type), m.Data)
	}
	tuple := Tuple{Proto: unix.IPPROTO_TCP, Source: netip.MustParseAddrPort("192.0.2.1:80"), Destination: netip.MustParseAddrPort("192.0.2.2:80")}
	request, err := tcpRequest(tuple, liberal, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(ctNew), request)
	f.Add(uint16(unix.RTM_GETNEXTHOP), []byte{}) // a message without its fixed header

	names := map[string]uint32{"rx-vlan-hw-parse": 9, "rx-gro": 70}
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		m := netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ)}, Data: data}
		route := newRouteDecoder()
		for _, as := range append(slices.Clone(routeTypes), m.Header.Type) {
			route.decode(netlink.Message{Header: netlink.Header{Type: as}, Data: data})
		}
		for _, decode := range []func(netlink.Message) (nftHook, error){decodeChain, decodeFlowtable} {
			if h, err := decode(m); err == nil {
				_ = h.on("eth0")
				_ = h.String()
			}
		}
		decodeConnection(m)
		decodeDestroyed(netlink.Message{Header: netlink.Header{Type: ctDelete}, Data: data})
		netdevDecoder(typ)(m)
		decodeTC(m)
		decodeOffloads(data, names)
		decodeStrings(data, make(map[string]uint32))
	})
}
