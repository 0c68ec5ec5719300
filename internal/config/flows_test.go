// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseFlows(t *testing.T) {
	got, err := Parse("x", []byte(`
policy = "mark"
mark = {value = 0x10, mask = 0xf0}

[[exclude]]
from = "192.0.2.7"
to = "198.51.100.0/24"
proto = "udp"
port = "5060-5061"
in = "eth0"
out = "lan*"

[[include]]
proto = "esp"

[[exclude]]
to = "2001:db8::/32"
[[exclude]]
proto = "89"
[[exclude]]
proto = "tcp"
port = "443"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Policy, want.Mark = PolicyMark, Mark{0x10, 0xf0}
	want.Exclude = []Flows{
		{From: netip.MustParsePrefix("192.0.2.7/32"), To: netip.MustParsePrefix("198.51.100.0/24"), Proto: 17,
			Port: [2]uint16{5060, 5061}, In: "eth0", Out: "lan*"},
		{To: netip.MustParsePrefix("2001:db8::/32")}, {Proto: 89}, {Proto: 6, Port: [2]uint16{443, 443}},
	}
	want.Include = []Flows{{Proto: 50}}
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseFlowsErrors(t *testing.T) {
	const prefix, ports = `allowed is an address or a prefix`, `allowed is a port or a range from 1 to 65535`
	for _, c := range []struct{ text, want string }{
		{`policy = "all"`, `f:1: policy = "all": allowed are "established", "mark"`},
		{`policy = 1`, `f:1: policy = 1: allowed are "established", "mark"`},
		{"[mark]\nvalue = -1", `f:2: value = -1: allowed is a number from 0 to 0xffffffff`},
		{"[mark]\nvalue = 0x100000000", `f:2: value = 0x100000000: allowed is a number from 0`},
		{"[mark]\nmask = 0", `f:2: mask = 0: allowed is a number from 1`},
		{"[mark]\nmask = \"all\"", `f:2: mask = "all": allowed is a number from 1`},
		{"[mark]\nvalue = 2", `f:2: mark.value 0x2 with mark.mask 0x1: allowed are bits of the mask`},
		{"[mark]\nmask = 2", `f:2: mark.value 0x1 with mark.mask 0x2: allowed are bits of the mask`},
		{"[mark]\nmarkk = 2", `f:2: unknown key "mark.markk": allowed are mask, value`},
		{"mark = 3", `f:1: mark = 3: allowed is a table, [mark]`},
		{"[[exclude]]\nfrom = \"192.0.2.1/24\"", `f:2: from = "192.0.2.1/24": ` + prefix},
		{"[[exclude]]\nfrom = \"\"", `f:2: from = "": ` + prefix},
		{"[[exclude]]\nto = \"fe80::1%eth0\"", `f:2: to = "fe80::1%eth0": ` + prefix},
		{"[[exclude]]\nto = \"::ffff:192.0.2.1\"", `f:2: to = "::ffff:192.0.2.1": ` + prefix},
		{"[[exclude]]\nto = 4", `f:2: to = 4: ` + prefix},
		{"[[exclude]]\nto = \"192.0.2.1\"\nfrom = \"::1\"", `f:2: to = "192.0.2.1": allowed is a prefix of the family of from`},
		{"[[exclude]]\nproto = \"quic\"", `f:2: proto = "quic": allowed is a protocol`},
		{"[[exclude]]\nproto = \"0\"", `f:2: proto = "0": allowed is a protocol`},
		{"[[exclude]]\nproto = \"256\"", `f:2: proto = "256": allowed is a protocol`},
		{"[[exclude]]\nproto = \"udp\"\nport = \"0\"", `f:3: port = "0": ` + ports},
		{"[[exclude]]\nproto = \"udp\"\nport = \"2-1\"", `f:3: port = "2-1": ` + ports},
		{"[[exclude]]\nproto = \"udp\"\nport = \"1-\"", `f:3: port = "1-": ` + ports},
		{"[[exclude]]\nproto = \"udp\"\nport = 53", `f:3: port = 53: ` + ports},
		{"[[exclude]]\nport = \"53\"", `f:2: port = "53": ` + ports},
		{"[[exclude]]\nport = \"53\"\nproto = \"icmp\"\n[[exclude]]\n", `f:2: port = "53": ` + ports},
		{"[[exclude]]\nin = \"a/b\"", `f:2: in = "a/b": allowed is the name of an interface`},
		{"[[exclude]]\nout = \"lan[\"", `f:2: out = "lan[": allowed is the name of an interface`},
		{"[[exclude]]\n[[exclude]]\nproto = \"tcp\"", `f:1: [[exclude]]: allowed is some of from, in, out, port, proto, to`},
		{"\n[[include]]", `f:2: [[include]]: allowed is some of from,`},
		{"[[exclude]]\nprot = \"tcp\"", `f:2: unknown key "exclude.prot": allowed are proto, from,`},
		{"[exclude]\nproto = \"tcp\"", `f:1: [exclude]: allowed is [[exclude]], a table for each rule`},
		{"exclude = [{proto = \"tcp\"}]", `f:1: exclude = [{proto = "tcp"}]: allowed is [[exclude]]`},
		{"exclude = []", `f:1: exclude = []: allowed is [[exclude]]`},
		{"exclude = 3", `f:1: exclude = 3: allowed is [[exclude]]`},
		{"[[include]]\nproto = \"tcp\"\n[[include.proto]]", `f:3: [[include.proto]]: `},
		{strings.Repeat("[[exclude]]\nproto = \"tcp\"\n", 33) + strings.Repeat("[[include]]\nproto = \"tcp\"\n", 32),
			`f:129: [[include]]: allowed is [[include]], a table for each rule, with some of from, in, out, port, proto, to; at most 64 of them in all`},
	} {
		_, err := Parse("f", []byte(c.text))
		var bad *Error
		if !errors.As(err, &bad) {
			t.Errorf("%q: got %v, want an *Error", c.text, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q:\n got %s\nwant %s", c.text, err, c.want)
		}
	}
}
