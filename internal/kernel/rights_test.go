// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestKept(t *testing.T) {
	for _, c := range []struct {
		name      string
		has, want []int
	}{
		{"root", []int{unix.CAP_CHOWN, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_PERFMON, unix.CAP_BPF},
			[]int{unix.CAP_NET_ADMIN, unix.CAP_BPF}},
		{"as before Linux 5.8", []int{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}, []int{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}},
		{"no network", []int{unix.CAP_BPF}, []int{unix.CAP_BPF}},
		{"nothing", nil, nil},
	} {
		var sets [2]unix.CapUserData
		for _, n := range c.has {
			sets[n/32].Permitted |= 1 << (n % 32)
		}
		if got := keptOf(sets); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestMissingRights(t *testing.T) {
	for _, c := range []struct {
		name string
		has  []int
		want []string
	}{
		{"nothing", nil, []string{"CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"}},
		{"just enough", []int{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}, nil},
		{"as before Linux 5.8", []int{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}, nil},
		{"no network", []int{unix.CAP_SYS_ADMIN}, []string{"CAP_NET_ADMIN"}},
		{"no BPF", []int{unix.CAP_NET_ADMIN, unix.CAP_PERFMON}, []string{"CAP_BPF"}},
	} {
		var sets [2]unix.CapUserData
		for _, n := range c.has {
			sets[n/32].Effective |= 1 << (n % 32)
		}
		if got := missing(sets); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v missing, want %v", c.name, got, c.want)
		}
	}
	if got, err := MissingRights(); err != nil || len(got) > 0 {
		t.Errorf("of root: %v, %v", got, err)
	}
}
