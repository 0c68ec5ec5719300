// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseFlow(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"192.0.2.7:4000 198.51.100.9:443/tcp", ""},
		{"[2001:db8::1]:4000 [2001:db8::2]:443/udp", ""},
		{"192.0.2.7 198.51.100.9/icmp", ""},
		{"192.0.2.7:77 198.51.100.9/icmp", ""},
		{"2001:db8::1 2001:db8::2/icmp", "2001:db8::1 2001:db8::2/icmp6"},
		{"[2001:db8::1]:77 2001:db8::2/icmp6", ""},
		{"192.0.2.7 198.51.100.9/47", "192.0.2.7 198.51.100.9/gre"},
		{"192.0.2.7 198.51.100.9/89", ""},
		{"[2001:db8::1] [2001:db8::2]/ESP", "2001:db8::1 2001:db8::2/esp"},
		{"192.0.2.7:1 198.51.100.9:2/17", "192.0.2.7:1 198.51.100.9:2/udp"},
	} {
		q, err := ParseFlow(c.text)
		if c.want == "" {
			c.want = c.text
		}
		if err != nil || q.String() != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.text, q, err, c.want)
		}
	}
}

func TestParseFlowErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "write ADDR:PORT",
		"192.0.2.7:1":                   "write ADDR:PORT",
		"a b c":                         "write ADDR:PORT",
		"192.0.2.7:1 192.0.2.8:2":       `"192.0.2.8:2" names no protocol`,
		"192.0.2.7:1 192.0.2.8:2/tpc":   `protocol "tpc"`,
		"192.0.2.7:1 192.0.2.8:2/256":   `protocol "256"`,
		"192.0.2.7 192.0.2.8:2/tcp":     "tcp needs a port at both ends",
		"192.0.2.7:1 192.0.2.8/tcp":     "tcp needs a port at both ends",
		"192.0.2.7:1 192.0.2.8/gre":     "protocol gre has no ports",
		"192.0.2.7 192.0.2.8:2/icmp":    "the id of an echo stands behind the first address",
		"192.0.2.7:1 [::1]:2/tcp":       `192.0.2.7:1 and [::1]:2 are of different families`,
		"192.0.2.7:70000 192.0.2.8/tcp": `"192.0.2.7:70000" is no address`,
		"fe80::1%eth0 fe80::2/udp":      `"fe80::1%eth0" is no address`,
		"::ffff:192.0.2.7 ::1/89":       `"::ffff:192.0.2.7" is no address`,
	} {
		_, err := ParseFlow(text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %s...", text, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	ap := netip.MustParseAddrPort
	// The two directions of one masqueraded connection.
	out := Flow{Proto: "tcp", Source: ap("10.0.0.2:4000"), Destination: ap("192.0.2.9:443"),
		Rewrite: &Rewrite{ap("192.0.2.1:4000"), ap("192.0.2.9:443")}}
	back := Flow{Proto: "tcp", Source: ap("192.0.2.9:443"), Destination: ap("192.0.2.1:4000"),
		Rewrite: &Rewrite{ap("192.0.2.9:443"), ap("10.0.0.2:4000")}}
	for text, want := range map[string]bool{
		"10.0.0.2:4000 192.0.2.9:443/tcp":  true,
		"192.0.2.9:443 10.0.0.2:4000/tcp":  true,
		"192.0.2.1:4000 192.0.2.9:443/tcp": true,
		"10.0.0.2:4000 192.0.2.9:443/udp":  false,
		"10.0.0.2:4001 192.0.2.9:443/tcp":  false,
		"10.0.0.2:4000 192.0.2.1:4000/tcp": false,
	} {
		q, err := ParseFlow(text)
		if err != nil {
			t.Fatal(err)
		}
		if q.Match(&out) != want || q.Match(&back) != want {
			t.Errorf("%s: out %v, back %v, want %v", text, q.Match(&out), q.Match(&back), want)
		}
	}
	ping := Flow{Proto: "icmp", Source: ap("10.0.0.2:77"), Destination: ap("192.0.2.9:77")}
	for text, want := range map[string]bool{
		"10.0.0.2 192.0.2.9/icmp":    true,
		"10.0.0.2:77 192.0.2.9/icmp": true,
		"192.0.2.9:77 10.0.0.2/icmp": true,
		"10.0.0.2:78 192.0.2.9/icmp": false,
	} {
		if q, _ := ParseFlow(text); q.Match(&ping) != want {
			t.Errorf("%s: want %v", text, want)
		}
	}
}

func TestProtoNames(t *testing.T) {
	for n := range 256 {
		got, err := ProtoNumber(ProtoName(uint8(n)))
		if err != nil || int(got) != n {
			t.Errorf("%d: %s, %d, %v", n, ProtoName(uint8(n)), got, err)
		}
	}
}

// What parses is written so that it parses to the same; what does not is one line.
func FuzzParseFlow(f *testing.F) {
	f.Add("192.0.2.7:4000 198.51.100.9:443/tcp")
	f.Add("[2001:db8::1]:77 2001:db8::2/icmp6")
	f.Add("192.0.2.7 198.51.100.9/47")
	f.Add("[1.2.3.4]:5 ::/6/6")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := ParseFlow(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("%q is not one line", err)
			}
			return
		}
		again, err := ParseFlow(q.String())
		if err != nil || again != q {
			t.Fatalf("%q is written %q, which is %+v, %v", text, q, again, err)
		}
	})
}
