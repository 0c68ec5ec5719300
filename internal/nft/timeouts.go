// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// milliseconds reads a timeout as nftables has it.
func milliseconds(ad *netlink.AttributeDecoder) time.Duration {
	return time.Duration(min(ad.Uint64(), uint64(time.Hour/time.Millisecond)*24*365)) * time.Millisecond
}

// Of include/uapi/linux/netfilter/ipset/ip_set.h.
const (
	ipsetList       = unix.NFNL_SUBSYS_IPSET<<8 | 7
	ipsetProtocol   = 7
	ipsetListHeader = 1 << 2

	ipsetAttrProtocol = 1
	ipsetAttrFlags    = 6
	ipsetAttrData     = 7
	ipsetAttrIndex    = 11
	ipsetAttrTimeout  = 6 // inside of data
)

// IPSetTimeouts returns the default timeouts of the ipsets of this network namespace, by index.
func IPSetTimeouts() (map[uint16]time.Duration, error) {
	timeouts := map[uint16]time.Duration{}
	ae := netlink.NewAttributeEncoder()
	ae.Uint8(ipsetAttrProtocol, ipsetProtocol)
	ae.ByteOrder = binary.BigEndian
	ae.Uint32(ipsetAttrFlags|unix.NLA_F_NET_BYTEORDER, ipsetListHeader)
	attrs, err := ae.Encode()
	if err != nil {
		return nil, err
	}
	messages, err := nl.Dump(unix.NETLINK_NETFILTER, ipsetList, append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attrs...))
	if nl.Absent(err) {
		return timeouts, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ipsets: %w", err)
	}
	for _, m := range messages {
		var index uint16
		var seconds uint32
		err := nl.Attributes(m, nl.SizeofNfgenmsg, func(ad *netlink.AttributeDecoder) {
			nl.BigEndian(ad)
			switch ad.Type() {
			case ipsetAttrIndex:
				index = ad.Uint16()
			case ipsetAttrData:
				nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
					nl.BigEndian(ad)
					if ad.Type() == ipsetAttrTimeout {
						seconds = ad.Uint32()
					}
				})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("ipsets: %w", err)
		}
		timeouts[index] = time.Duration(seconds) * time.Second
	}
	return timeouts, nil
}
