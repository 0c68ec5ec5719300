// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"shunt/internal/nl"
)

// Of include/uapi/linux/nexthop.h.
const (
	nhaResGroup          = 12
	nhaResGroupIdleTimer = 2
)

// userHZ is the unit of clock_t towards programs, in ticks a second.
const userHZ = 100

// IdleGroup returns the resilient next-hop group whose buckets count as idle after the least time
// without a packet, and that time; 0: there is none. A group whose timer is 0 moves its
// buckets whether packets come or not.
func IdleGroup() (least time.Duration, id uint32, err error) {
	messages, err := nl.Dump(unix.NETLINK_ROUTE, unix.RTM_GETNEXTHOP, make([]byte, sizeofNhmsg))
	if nl.Absent(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("next-hop groups: %w", err)
	}
	for _, m := range messages {
		idle, group, err := idleTimer(m)
		if err != nil {
			return 0, 0, fmt.Errorf("next-hop groups: %w", err)
		}
		if idle > 0 && (least == 0 || idle < least) {
			least, id = idle, group
		}
	}
	return least, id, nil
}

func idleTimer(m netlink.Message) (idle time.Duration, id uint32, err error) {
	const nhaID = 1
	err = nl.Attributes(m, sizeofNhmsg, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case nhaID:
			id = ad.Uint32()
		case nhaResGroup:
			nl.Inner(ad, func(ad *netlink.AttributeDecoder) {
				if ad.Type() == nhaResGroupIdleTimer {
					idle = time.Duration(ad.Uint32()) * time.Second / userHZ
				}
			})
		}
	})
	return idle, id, err
}
