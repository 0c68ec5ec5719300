// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// XDPFeatures is what a driver can do for XDP now (enum netdev_xdp_act in
// include/uapi/linux/netdev.h). It changes at run time: a veth takes redirected
// frames only while its peer polls (GRO on, or an XDP program there).
type XDPFeatures uint64

// The features.
const (
	XDPBasic         XDPFeatures = 1 << iota // run a program, in the driver
	XDPRedirect                              // send frames elsewhere
	XDPTransmit                              // take redirected frames
	XDPZeroCopy                              // AF_XDP without copying
	XDPHardware                              // run programs on the card
	XDPFrags                                 // run programs on frames of several buffers
	XDPTransmitFrags                         // take redirected frames of several buffers
)

// Has reports whether all of want are there.
func (f XDPFeatures) Has(want XDPFeatures) bool { return f&want == want }

// Offloads are the switches of `ethtool -k` that decide what XDP and TC see.
type Offloads struct {
	RxVLAN      bool     // rx-vlan-hw-parse or -stag-hw-parse: a tag is taken out of the frame before XDP
	RxVLANFixed bool     // one of them is on and cannot be switched off
	LRO         bool     // rx-lro: the card merges segments before XDP
	HWGRO       bool     // rx-gro-hw: so does the card, or a virtual card's host
	Switchable  []string // of these, by ethtool's names, those that are on and can be switched off
	GRO         bool     // rx-gro
	TxChecksum  bool     // tx-checksum-*: checksums may be left to this device
	TSO         bool     // tx-tcp-segmentation
}

// The netdev family (Documentation/netlink/specs/netdev.yaml); x/sys lacks it.
const (
	netdevFamily       = "netdev"
	netdevGroup        = "mgmt"
	netdevCmdDevGet    = 1
	netdevCmdDevChange = 4
	netdevDevIndex     = 1
	netdevDevXDP       = 3
)

// genlHeader is the size of struct genlmsghdr, which follows the netlink header.
const genlHeader = 4

// xdpFeatures returns the XDP features of all devices, by interface.
func xdpFeatures() (map[int]XDPFeatures, error) {
	answers, err := generic(netdevFamily, netdevCmdDevGet, netlink.Dump, nil)
	if err != nil {
		return nil, err
	}
	features := make(map[int]XDPFeatures)
	for _, attrs := range answers {
		index, f, err := decodeNetdev(attrs)
		if err != nil {
			return nil, err
		}
		features[index] = f
	}
	return features, nil
}

func decodeNetdev(attrs []byte) (index int, f XDPFeatures, err error) {
	err = nl.Nested(attrs, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case netdevDevIndex:
			index = int(ad.Uint32())
		case netdevDevXDP:
			f = XDPFeatures(ad.Uint64())
		}
	})
	return index, f, err
}

// generic sends a request to a generic netlink family and returns the attributes of
// each answer.
func generic(family string, command uint8, flags netlink.HeaderFlags, attrs []byte) ([][]byte, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	f, err := genericFamily(conn, family)
	if err != nil {
		return nil, err
	}
	raw, err := netlink.Dial(unix.NETLINK_GENERIC, nil)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	body := append([]byte{command, f.Version, 0, 0}, attrs...)
	messages, err := nl.Ask(raw, netlink.HeaderType(f.ID), flags, body)
	if err != nil {
		return nil, err
	}
	var answers [][]byte
	for _, m := range messages {
		if len(m.Data) >= genlHeader {
			answers = append(answers, m.Data[genlHeader:])
		}
	}
	return answers, nil
}

func genericFamily(conn *genetlink.Conn, name string) (genetlink.Family, error) {
	f, err := conn.GetFamily(name)
	if errors.Is(err, os.ErrNotExist) {
		return f, fmt.Errorf("the kernel has no %q generic netlink family; Linux 6.6 or newer is needed", name)
	}
	return f, err
}

// offloadTable returns the offloads of all devices that speak ethtool, by interface.
//
// The bits are asked for in their compact form: with names one device's answer is
// over 4 kB, which does not fit the first message of a dump (EMSGSIZE).
func offloadTable() (map[int]Offloads, error) {
	names, err := featureNames()
	if err != nil {
		return nil, err
	}
	request, err := ethtoolRequest().Encode()
	if err != nil {
		return nil, err
	}
	answers, err := generic(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_FEATURES_GET, netlink.Dump, request)
	if err != nil {
		return nil, err
	}
	offloads := make(map[int]Offloads)
	for _, attrs := range answers {
		index, o, err := decodeOffloads(attrs, names)
		if err != nil {
			return nil, err
		}
		offloads[index] = o
	}
	return offloads, nil
}

// ethtoolRequest begins a request about all devices with the header that all of them have.
func ethtoolRequest() *netlink.AttributeEncoder { return ethtoolRequestFor(0) }

// ethtoolRequestFor begins a request about one device.
func ethtoolRequestFor(index int) *netlink.AttributeEncoder {
	const header = 1 // ETHTOOL_A_*_HEADER
	ae := netlink.NewAttributeEncoder()
	ae.Nested(header, func(ae *netlink.AttributeEncoder) error {
		if index != 0 {
			ae.Uint32(unix.ETHTOOL_A_HEADER_DEV_INDEX, uint32(index))
		}
		ae.Uint32(unix.ETHTOOL_A_HEADER_FLAGS, unix.ETHTOOL_FLAG_COMPACT_BITSETS)
		return nil
	})
	return ae
}

// featureNames returns the bit number of each offload by its name (netdev_features_strings
// in net/ethtool/common.c): the numbers are not ABI.
func featureNames() (map[string]uint32, error) {
	const featureStrings = 4 // ETH_SS_FEATURES
	ae := ethtoolRequest()
	ae.Nested(unix.ETHTOOL_A_STRSET_STRINGSETS, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(unix.ETHTOOL_A_STRINGSETS_STRINGSET, func(ae *netlink.AttributeEncoder) error {
			ae.Uint32(unix.ETHTOOL_A_STRINGSET_ID, featureStrings)
			return nil
		})
		return nil
	})
	request, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	answers, err := generic(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_STRSET_GET, 0, request)
	if err != nil {
		return nil, err
	}
	names := make(map[string]uint32)
	for _, attrs := range answers {
		if err := decodeStrings(attrs, names); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// decodeStrings digs the strings out of three nests: sets, set, strings.
func decodeStrings(attrs []byte, names map[string]uint32) error {
	one := func(ad *netlink.AttributeDecoder) {
		var index uint32
		var name string
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.ETHTOOL_A_STRING_INDEX:
				index = ad.Uint32()
			case unix.ETHTOOL_A_STRING_VALUE:
				name = ad.String()
			}
		})
		names[name] = index
	}
	return nl.Nested(attrs, func(ad *netlink.AttributeDecoder) {
		if ad.Type() != unix.ETHTOOL_A_STRSET_STRINGSETS {
			return
		}
		nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == unix.ETHTOOL_A_STRINGSET_STRINGS {
					nl.Inner(ad, one)
				}
			})
		})
	})
}

func decodeOffloads(attrs []byte, names map[string]uint32) (index int, o Offloads, err error) {
	var active, changeable, never bitset
	err = nl.Nested(attrs, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.ETHTOOL_A_FEATURES_HEADER:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == unix.ETHTOOL_A_HEADER_DEV_INDEX {
					index = int(ad.Uint32())
				}
			})
		case unix.ETHTOOL_A_FEATURES_HW:
			changeable = decodeBitset(ad)
		case unix.ETHTOOL_A_FEATURES_ACTIVE:
			active = decodeBitset(ad)
		case unix.ETHTOOL_A_FEATURES_NOCHANGE:
			never = decodeBitset(ad)
		}
	})
	in := func(set bitset, name string) bool {
		bit, known := names[name]
		return known && set.has(bit)
	}
	o = Offloads{
		LRO:   in(active, RxLRO),
		HWGRO: in(active, RxGROHW),
		GRO:   in(active, "rx-gro"),
		TxChecksum: in(active, "tx-checksum-ip-generic") || in(active, "tx-checksum-ipv4") ||
			in(active, "tx-checksum-ipv6"),
		TSO: in(active, "tx-tcp-segmentation"),
	}
	for _, name := range []string{RxVLAN, RxVLANSTag, RxLRO, RxGROHW} {
		fixed := !in(changeable, name) || in(never, name)
		if !in(active, name) {
			continue
		}
		if name == RxVLAN || name == RxVLANSTag {
			o.RxVLAN, o.RxVLANFixed = true, o.RxVLANFixed || fixed
		}
		if !fixed {
			o.Switchable = append(o.Switchable, name)
		}
	}
	return index, o, err
}

// bitset is ethtool's compact bitset: 32-bit words in host order, least significant
// first (Documentation/networking/ethtool-netlink.rst, "Bit sets").
type bitset []byte

func (b bitset) has(bit uint32) bool {
	word := int(bit / 32 * 4)
	return word+4 <= len(b) && binary.NativeEndian.Uint32(b[word:])&(1<<(bit%32)) != 0
}

func decodeBitset(ad *netlink.AttributeDecoder) bitset {
	var set bitset
	nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.ETHTOOL_A_BITSET_VALUE {
			set = ad.Bytes()
		}
	})
	return set
}

// driverNames asks each link's driver for its name. sysfs would tell too, but of
// the namespace it was mounted in. Devices without ethtool operations have none.
//
// For a name that is nobody's (any more) that question has the kernel start modprobe, and wait for
// it (dev_load()): who asks after a thousand interfaces that have just gone starts a thousand. So
// it is asked by the name that the index has now.
func driverNames(links []Link) map[int]string {
	names := make(map[int]string, len(links))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return names
	}
	defer unix.Close(fd)
	now, err := unix.NewIfreq("")
	if err != nil {
		return names
	}
	for _, l := range links {
		now.SetUint32(uint32(l.Index))
		if unix.IoctlIfreq(fd, unix.SIOCGIFNAME, now) != nil {
			continue
		}
		if info, err := unix.IoctlGetEthtoolDrvinfo(fd, now.Name()); err == nil {
			names[l.Index] = unix.ByteSliceToString(info.Driver[:])
		}
	}
	return names
}

// netdevGroupID returns the family and multicast group that tell of changed XDP
// features.
func netdevGroupID() (family uint16, group uint32, err error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	f, err := genericFamily(conn, netdevFamily)
	if err != nil {
		return 0, 0, err
	}
	for _, g := range f.Groups {
		if g.Name == netdevGroup {
			return f.ID, g.ID, nil
		}
	}
	return 0, 0, fmt.Errorf("generic netlink family %q has no group %q; Linux 6.6 or newer is needed",
		netdevFamily, netdevGroup)
}
