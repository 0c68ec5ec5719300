// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Features of `ethtool -k` that hide from XDP what came in.
const (
	RxVLAN     = "rx-vlan-hw-parse"
	RxVLANSTag = "rx-vlan-stag-hw-parse"
	RxLRO      = "rx-lro"
	RxGROHW    = "rx-gro-hw"
)

// CardFeature is one switch of `ethtool -k`. The two differ where the driver refuses what was
// asked for, or another feature or program rules it out.
type CardFeature struct {
	Wanted bool `json:"wanted"`
	Active bool `json:"active"`
}

// CardFeatures returns all features of a device that can be switched, by ethtool's names.
func CardFeatures(index int) (map[string]CardFeature, error) {
	names, err := featureNames()
	if err != nil {
		return nil, fmt.Errorf("offloads: %w", err)
	}
	request, err := ethtoolRequestFor(index).Encode()
	if err != nil {
		return nil, err
	}
	answers, err := generic(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_FEATURES_GET, 0, request)
	if err != nil {
		return nil, fmt.Errorf("offloads: %w", err)
	}
	if len(answers) == 0 {
		return nil, errors.New("offloads: no answer")
	}
	return decodeCardFeatures(answers[0], names)
}

func decodeCardFeatures(attrs []byte, names map[string]uint32) (map[string]CardFeature, error) {
	var changeable, wanted, active, never bitset
	err := nl.Nested(attrs, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.ETHTOOL_A_FEATURES_HW:
			changeable = decodeBitset(ad)
		case unix.ETHTOOL_A_FEATURES_WANTED:
			wanted = decodeBitset(ad)
		case unix.ETHTOOL_A_FEATURES_ACTIVE:
			active = decodeBitset(ad)
		case unix.ETHTOOL_A_FEATURES_NOCHANGE:
			never = decodeBitset(ad)
		}
	})
	features := map[string]CardFeature{}
	for name, bit := range names {
		if changeable.has(bit) && !never.has(bit) {
			features[name] = CardFeature{Wanted: wanted.has(bit), Active: active.has(bit)}
		}
	}
	return features, err
}

// SetCardFeatures switches features of a device in one request, so that a driver that restarts
// for it does so once. Success says only that the kernel has tried: drivers switch other
// features along with those, or refuse without an error. Read CardFeatures again.
func SetCardFeatures(index int, on map[string]bool) error {
	ae := ethtoolRequestFor(index)
	ae.Nested(unix.ETHTOOL_A_FEATURES_WANTED, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(unix.ETHTOOL_A_BITSET_BITS, func(ae *netlink.AttributeEncoder) error {
			for name, value := range on {
				ae.Nested(unix.ETHTOOL_A_BITSET_BITS_BIT, func(ae *netlink.AttributeEncoder) error {
					ae.String(unix.ETHTOOL_A_BITSET_BIT_NAME, name)
					if value {
						ae.Flag(unix.ETHTOOL_A_BITSET_BIT_VALUE, true)
					}
					return nil
				})
			}
			return nil
		})
		return nil
	})
	request, err := ae.Encode()
	if err != nil {
		return err
	}
	if _, err := generic(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_FEATURES_SET, netlink.Acknowledge, request); err != nil {
		return fmt.Errorf("switch offloads: %w", err)
	}
	return nil
}

// txQueues returns how many queues for sending the devices have, by interface, as far as
// their drivers tell.
func txQueues() (map[int]int, error) {
	request, err := ethtoolRequest().Encode()
	if err != nil {
		return nil, err
	}
	answers, err := generic(unix.ETHTOOL_GENL_NAME, unix.ETHTOOL_MSG_CHANNELS_GET, netlink.Dump, request)
	if err != nil {
		return nil, err
	}
	queues := make(map[int]int)
	for _, attrs := range answers {
		index, n := 0, 0
		err := nl.Nested(attrs, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.ETHTOOL_A_CHANNELS_HEADER:
				nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
					if ad.Type() == unix.ETHTOOL_A_HEADER_DEV_INDEX {
						index = int(ad.Uint32())
					}
				})
			case unix.ETHTOOL_A_CHANNELS_TX_COUNT, unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT:
				n += int(ad.Uint32())
			}
		})
		if err != nil {
			return nil, err
		}
		queues[index] = n
	}
	return queues, nil
}

// Received returns how many packets a device's driver has counted coming in.
func Received(index int) (uint64, error) {
	body := make([]byte, 12) // struct if_stats_msg
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint32(body[8:], 1<<(unix.IFLA_STATS_LINK_64-1))
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	messages, err := nl.Ask(conn, unix.RTM_GETSTATS, 0, body)
	if err != nil {
		return 0, fmt.Errorf("statistics of interface %d: %w", index, err)
	}
	var packets uint64
	for _, m := range messages {
		err = errors.Join(err, nl.Attributes(m, len(body), func(ad *netlink.AttributeDecoder) {
			if b := ad.Bytes(); ad.Type() == unix.IFLA_STATS_LINK_64 && len(b) >= 8 {
				packets = binary.NativeEndian.Uint64(b) // rtnl_link_stats64.rx_packets
			}
		}))
	}
	return packets, err
}

// HasCarrier reports whether somebody is at the other end of an interface.
func HasCarrier(index int) (bool, error) {
	links, err := linkTable()
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(links, func(l Link) bool { return l.Index == index })
	if at < 0 {
		return false, unix.ENODEV
	}
	return links[at].Carrier, nil
}

// CPUs returns how many queues it takes for every CPU that is online to have one of its own number.
func CPUs() (int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online") // "0-3,8"
	if err != nil {
		return 0, fmt.Errorf("CPUs: %w", err)
	}
	list := strings.TrimSpace(string(text))
	last := list[strings.LastIndexAny(list, "-,")+1:]
	n, err := strconv.Atoi(last)
	if err != nil {
		return 0, fmt.Errorf("CPUs %q: %w", list, err)
	}
	return n + 1, nil
}

// Differing returns the names of features that two readings of a device show otherwise, sorted.
func Differing(a, b map[string]CardFeature) (names []string) {
	for name, f := range a {
		if g, ok := b[name]; ok && g.Active != f.Active {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
