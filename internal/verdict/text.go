// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"shunt/internal/nft"
)

var protoNames = map[uint8]string{protoICMP: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", protoICMPv6: "icmpv6", 132: "sctp"}

// sayMatch adds a comparison to the rule's text, much as nft writes it.
func (e *evaluation) sayMatch(x *nft.Expr) {
	name := ""
	if x.Source >= 0 && x.Source < len(e.name) {
		name = e.name[x.Source]
	}
	base, mask, masked := strings.Cut(name, "&")
	value := valueWords(base, x.Data)
	switch {
	case x.Name == "range":
		value += "-" + valueWords(base, x.To)
	case base == "ct state" && masked: // "state in mask": and with the mask, not 0
		value = mask
	case masked:
		value += mask
	}
	operator := ""
	if x.Op == 1 && !(base == "ct state" && masked) { // NFT_CMP_NEQ, NFT_RANGE_NEQ
		operator = "!= "
	} else if x.Name == "cmp" && x.Op > 1 {
		operator = [...]string{"< ", "<= ", "> ", ">= "}[min(x.Op-2, 3)]
	}
	// nft adds these where the next match asks for a header of theirs
	if n := len(e.words) - 1; n >= 0 {
		last := e.words[n]
		network := strings.HasPrefix(base, "ip ") || strings.HasPrefix(base, "ip6 ")
		transport := strings.HasSuffix(base, "port") || strings.HasPrefix(base, "icmp")
		if network && strings.HasPrefix(last, "meta nfproto") || transport && strings.HasPrefix(last, "meta l4proto") {
			e.words = e.words[:n]
		}
	}
	e.say(base + " " + operator + value)
}

// valueWords writes a value as nft does for what it is compared with.
func valueWords(name string, b []byte) string {
	switch {
	case strings.HasSuffix(name, "ifname"):
		text, _, _ := bytes.Cut(b, []byte{0})
		if len(b) < 16 {
			return strconv.Quote(string(text) + "*")
		}
		return strconv.Quote(string(text))
	case strings.HasSuffix(name, "addr"):
		size := 4
		if strings.HasPrefix(name, "ip6") {
			size = 16
		}
		a, ok := netip.AddrFromSlice(append(bytes.Clone(b), make([]byte, max(0, size-len(b)))...))
		switch {
		case ok && len(b) < size: // a prefix of whole bytes: nft compares no more than those
			return netip.PrefixFrom(a, 8*len(b)).String()
		case ok:
			return a.String()
		}
	case strings.HasSuffix(name, "port") && len(b) == 2:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	case name == "meta l4proto" || name == "ip protocol" || name == "ip6 nexthdr":
		if len(b) > 0 && protoNames[b[0]] != "" {
			return protoNames[b[0]]
		}
		fallthrough
	case strings.HasSuffix(name, "type") || strings.HasSuffix(name, "code"):
		if len(b) > 0 {
			return strconv.Itoa(int(b[0]))
		}
	case name == "meta nfproto" && len(b) > 0:
		return map[byte]string{2: "ipv4", 10: "ipv6"}[b[0]]
	case name == "ct state":
		return stateWords(b)
	}
	return fmt.Sprintf("0x%x", b)
}

func stateWords(b []byte) string {
	if len(b) != 4 {
		return fmt.Sprintf("0x%x", b)
	}
	n := binary.NativeEndian.Uint32(b)
	var words []string
	for i, word := range []string{"invalid", "established", "related", "new"} {
		if n&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if n&(1<<6) != 0 {
		words = append(words, "untracked")
	}
	return strings.Join(words, ",")
}

// maskWords is what a mask adds to the name of what it was put on, behind "&": the length of a prefix, or the states.
func maskWords(name string, mask []byte) string {
	if name == "ct state" {
		return "&" + stateWords(mask)
	}
	length := 0
	for _, b := range mask {
		length += bits.OnesCount8(b)
	}
	if strings.HasSuffix(name, "addr") {
		return "&/" + strconv.Itoa(length)
	}
	return fmt.Sprintf("& & 0x%x", mask)
}
