// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// needed are the capabilities that it takes to load, attach and listen. CAP_SYS_ADMIN
// holds the last two (capable() in bpf_capable() and perfmon_capable()).
var needed = []struct {
	number int
	name   string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_PERFMON, "CAP_PERFMON"}}

// MissingRights returns the names of the capabilities that shunt needs and the calling
// thread does not have. Root of a user namespace has them in name only: what they do not
// allow, the calls that need them tell.
func MissingRights() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	return missing(sets), nil
}

func missing(sets [2]unix.CapUserData) (names []string) {
	has := func(number int) bool { return sets[number/32].Effective&(1<<(number%32)) != 0 }
	for _, c := range needed {
		if !has(c.number) && (c.number == unix.CAP_NET_ADMIN || !has(unix.CAP_SYS_ADMIN)) {
			names = append(names, c.name)
		}
	}
	return names
}
