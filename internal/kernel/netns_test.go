// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net"
	"testing"
)

func index(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.Index
}
