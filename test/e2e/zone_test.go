// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"shunt/internal/lab"
)

// TestZones: TCP is repeated in conntrack zones too, whether one is set for both directions or for one.
func TestZones(t *testing.T) {
	for _, c := range []struct{ name, lan, wan string }{
		{"both", "ct zone set 7", "ct zone set 7"},
		{"original", "ct original zone set 7", ""},
		{"reply", "ct reply zone set 7", "ct reply zone set 7"},
		{"one each", "ct original zone set 7", "ct original zone set 7"},
	} {
		for _, mode := range []string{"off", "on"} {
			t.Run(c.name+" "+mode, func(t *testing.T) {
				r := newRig(t, lab.FirewallOptions{})
				rules := `iifname "lan" ` + c.lan + "\n"
				if c.wan != "" {
					rules += `iifname "wan" ` + c.wan + "\n"
				}
				r.nft("table inet zones { chain pre { type filter hook prerouting priority -300;\n" + rules + "}; }")
				r.start(program, with("--xdp", mode)...)
				for _, at := range []netip.Addr{r.Server.V4.Addr(), r.Server.V6.Addr()} {
					before := r.status().Hits
					r.talk(netip.AddrPortFrom(at, 5000), 200)
					if hits := r.status().Hits - before; hits < 200 {
						t.Errorf("%v: %d hits of about 800 packets", at, hits)
					}
				}
				if log := r.daemon.Log(); strings.Contains(log, "be-liberal") {
					t.Errorf("log: %s", log)
				}
			})
		}
	}
}

// talk has client and server exchange words over one connection.
func (r *rig) talk(at netip.AddrPort, n int) {
	r.t.Helper()
	var l net.Listener
	r.must(r.Server.NS.Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err }))
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	var c net.Conn
	r.must(r.Client.NS.Do(func() (err error) { c, err = net.DialTimeout("tcp", at.String(), ioTime); return err }))
	defer c.Close()
	c.SetDeadline(time.Now().Add(ioTime))
	b := make([]byte, 4)
	for i := range n {
		word := fmt.Sprintf("%04d", i)
		if _, err := c.Write([]byte(word)); err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil || string(b) != word {
			r.t.Fatalf("%q came back as %q: %v", word, b, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
