// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/hex"
	"strings"
	"testing"
)

// What is part of a flow makes a difference, what is not makes none (RFC 7325 §2.4.5, RFC 6790
// §4.3). That it is the data path's own number, test/mpls shows: fragments go the way of whole
// packets.
func TestLabelHash(t *testing.T) {
	hash := func(words string) uint32 {
		b, err := hex.DecodeString(strings.ReplaceAll(words, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return hasher(0x9e3779b97f4a7c15).packet(b)
	}
	const ip = "45000020 12340000 40110000 c6120002 c6130002"
	const six = "60000000 00081140 20010db8000000000000000000000001 20010db8000000000000000000000002"
	for _, c := range []struct {
		name, x, y string
		same       bool
	}{
		{"TTL and TC", "00064140" + ip + "27100009", "00064f01" + ip + "27100009", true},
		{"label", "00064140" + ip + "27100009", "00065140" + ip + "27100009", false},
		{"ports", "00064140" + ip + "27100009", "00064140" + ip + "27110009", false},
		{"ports of a fragment", "00064140" + strings.Replace(ip, "12340000", "12342000", 1) + "27100009",
			"00064140" + strings.Replace(ip, "12340000", "12342000", 1) + "27110009", true},
		{"ports of ICMP", "00064140" + strings.Replace(ip, "4011", "4001", 1) + "27100009", "00064140" + strings.Replace(ip, "4011", "4001", 1) + "27110009", true},
		{"ports of IPv6", "00064140" + six + "27100009", "00064140" + six + "27110009", false},
		{"address of IPv6", "00064140" + six + "27100009", "00064140" + strings.Replace(six, "01 20", "03 20", 1) + "27100009", false},
		{"what is no IP", "00064140 0000000127100009", "00064140 0000000227100009", true},
		{"all but the entropy label", "00064040 00007040 003e8100" + ip, "00065040 00007040 003e8100" + six, true},
		{"the entropy label", "00064040 00007040 003e8100" + ip, "00064040 00007040 003e9100" + ip, false},
		{"special-purpose labels", "00064040 00001040 00065140" + ip, "00064040 00002040 00065140" + ip, true},
		{"an extended one", "00064040 0000f040 00065040 00066140" + ip, "00064040 0000f040 00067040 00066140" + ip, true},
		{"an indicator alone", "00064040 00007040", "00065040 00007040", true},
		{"no bottom", "00064040", "00065040", false},
	} {
		if x, y := hash(c.x), hash(c.y); (x == y) != c.same {
			t.Errorf("%s: %#x and %#x", c.name, x, y)
		}
	}
}
