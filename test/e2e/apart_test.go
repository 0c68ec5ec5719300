// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestInterfacesApart: interfaces that no port stands under or beside come, change and go, and no
// flow must prove itself. One that does concern flows still makes them.
func TestInterfacesApart(t *testing.T) {
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade})
	r.ip("link add name before type ifb", "link set before up", "route add 203.0.113.0/24 dev before")
	r.start(program, both...)
	raised := func(what string, want uint32, lines ...string) {
		t.Helper()
		s := r.status()
		generation, events := s.Generation, s.Events["rule"]
		r.ip(lines...)
		time.Sleep(200 * time.Millisecond) // what belongs to these events
		if got := r.status().Generation - generation; want == 0 && got != 0 || want > 0 && got == 0 {
			t.Errorf("%s: raised %d times", what, got)
		}
		r.ip("rule add pref 4711 lookup main", "rule del pref 4711")
		r.eventually("the rule is heard", 5*time.Second, func() bool { return r.status().Events["rule"] >= events+2 })
		time.Sleep(50 * time.Millisecond)
	}
	var come, leave []string
	for i := range 10 {
		come = append(come, fmt.Sprintf("link add name cv%d type veth peer name cw%d", i, i), fmt.Sprintf("link set cv%d up", i), fmt.Sprintf("link set cw%d up", i))
		leave = append(leave, fmt.Sprintf("link del cv%d", i))
	}
	raised("veths come", 0, come...)
	raised("they change", 0, "link set cv0 down", "link set cv1 mtu 1400", "link set cv2 address 02:00:00:00:77:77", "link set cw0 name other")
	raised("they join a bridge", 0, "link add name br0 type bridge", "link set br0 up", "link set cv3 master br0", "link set cv4 master br0", "link set cv4 nomaster")
	raised("they go", 0, append(leave, "link del br0")...)
	raised("one goes that was there before", 0, "link del before")
	raised("a default route goes with its interface", 1, "link add name gone type ifb", "link set gone up", "route add default dev gone metric 1", "link del gone")
	raised("one above a port goes", 1, "link add name above link "+r.LAN.Device+" type macvlan", "link del above")
	if out, _, _ := r.shunt("status"); strings.Contains(out, "resync") {
		t.Errorf("events were lost: %s", out)
	}
	r.must(r.daemon.Stop())
	r.nothing()
}
