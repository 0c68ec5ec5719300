// SPDX-License-Identifier: Apache-2.0

package dataplane

import "testing"

// TestWithoutLookups: the kernel takes the programs also where conntrack cannot be asked.
func TestWithoutLookups(t *testing.T) {
	was := ctLookups
	defer func() { ctLookups = was }()
	r := newRouter(t)
	for _, n := range []int{0, 1} {
		ctLookups = func() int { return n }
		p := r.open(t, 1024)
		r.apply(t, p, r.want())
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
		p.Close()
	}
}
