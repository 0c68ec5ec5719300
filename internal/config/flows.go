// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Policy says which flows may be fast.
type Policy string

// The policies.
const (
	PolicyEstablished Policy = "established" // whatever the kernel forwards, but for what rules look at packet by packet
	PolicyMark        Policy = "mark"        // what the ruleset marked, in its connmark
)

// Mark is a connmark: of the bits in Mask those of Value are set.
type Mark struct{ Value, Mask uint32 }

// MaxFlowRules bounds Include and Exclude together.
const MaxFlowRules = 64

// Flows names conversations: all that is given must fit, with the packets of the answer
// turned around. Addresses count on either side of a NAT.
type Flows struct {
	From, To netip.Prefix // zero: any
	Proto    uint8        // 0: any
	Port     [2]uint16    // the other side's, from and to; zero: any. Proto has ports then
	In, Out  string       // interface names, shell wildcards allowed; "": any
}

// Protocols by name, as the file and the command line know them.
var protocols = map[string]uint8{
	"icmp": 1, "tcp": 6, "udp": 17, "dccp": 33, "gre": 47, "esp": 50, "icmpv6": 58, "sctp": 132, "udplite": 136,
}

// withPorts are the protocols that have ports, in the file's words.
var withPorts = []string{"tcp", "udp", "sctp", "dccp", "udplite"}

// flowKeys are what the keys of an [[exclude]] or [[include]] take.
var flowKeys = map[string]string{
	"from":  `is an address or a prefix, such as "192.0.2.0/24" or "2001:db8::/32"`,
	"to":    `is an address or a prefix, such as "192.0.2.0/24" or "2001:db8::/32"`,
	"proto": `is a protocol, such as "tcp", "udp", "icmp", "icmpv6", "gre", or its number from 1 to 255`,
	"port":  `is a port or a range from 1 to 65535, such as "443" or "5060-5061", with proto = "` + strings.Join(withPorts, `", "`) + `"`,
	"in":    `is the name of an interface, or a wildcard for some`,
	"out":   `is the name of an interface, or a wildcard for some`,
}

func init() {
	for _, list := range []string{"exclude", "include"} {
		for key, rule := range flowKeys {
			allowed[list+"."+key] = rule
		}
		allowed[list] = fmt.Sprintf("is [[%s]], a table for each rule, with some of %s; at most %d of them in all",
			list, strings.Join(slices.Sorted(maps.Keys(flowKeys)), ", "), MaxFlowRules)
	}
}

// rawMark is [mark] as it is typed.
type rawMark struct {
	Value *int64 `toml:"value"`
	Mask  *int64 `toml:"mask"`
}

// rawFlows is a rule as it is typed.
type rawFlows struct {
	From  *string `toml:"from"`
	To    *string `toml:"to"`
	Proto *string `toml:"proto"`
	Port  *string `toml:"port"`
	In    *string `toml:"in"`
	Out   *string `toml:"out"`
}

func (r *rawFlows) value(key string) *string {
	return map[string]*string{"from": r.From, "to": r.To, "proto": r.Proto, "port": r.Port, "in": r.In, "out": r.Out}[key]
}

// set gives a key its value; false: it does not take that.
func (f *Flows) set(key, value string) (ok bool) {
	switch key {
	case "from":
		f.From, ok = parsePrefix(value)
	case "to":
		f.To, ok = parsePrefix(value)
	case "proto":
		f.Proto, ok = parseProto(value)
	case "port":
		f.Port, ok = parsePorts(value)
	case "in":
		f.In, ok = value, validName(value)
	case "out":
		f.Out, ok = value, validName(value)
	}
	return ok
}

func parsePrefix(s string) (netip.Prefix, bool) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		return netip.PrefixFrom(a, a.BitLen()), err == nil && a.Zone() == "" && !a.Is4In6()
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil && !p.Addr().Is4In6() && p == p.Masked()
}

func parseProto(s string) (uint8, bool) {
	if n, ok := protocols[s]; ok {
		return n, true
	}
	n, err := strconv.ParseUint(s, 10, 8)
	return uint8(n), err == nil && n > 0
}

func parsePorts(s string) (ports [2]uint16, ok bool) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	for i, word := range []string{first, last} {
		n, err := strconv.ParseUint(word, 10, 16)
		if err != nil || n == 0 {
			return ports, false
		}
		ports[i] = uint16(n)
	}
	return ports, ports[0] <= ports[1]
}

// lacks says what is wrong with a rule as a whole; "": nothing. key: with which part.
func (f Flows) lacks() (key, what string) {
	switch {
	case f == Flows{}:
		return "", "allowed is some of " + strings.Join(slices.Sorted(maps.Keys(flowKeys)), ", ") + "; without any of them it would be about all flows"
	case f.Port != [2]uint16{} && !slices.ContainsFunc(withPorts, func(p string) bool { return protocols[p] == f.Proto }):
		return "port", "allowed " + flowKeys["port"]
	case f.From.IsValid() && f.To.IsValid() && f.From.Addr().Is4() != f.To.Addr().Is4():
		return "to", "allowed is a prefix of the family of from"
	}
	return "", ""
}

// applyMark gives cfg what [mark] says.
func (f *file) applyMark(cfg *Config, r *rawMark) error {
	line := 0
	for _, e := range f.entries {
		if len(e.path) != 2 || e.path[0] != "mark" {
			continue
		}
		typed, to, least := r.Value, &cfg.Mark.Value, int64(0)
		if e.path[1] == "mask" {
			typed, to, least = r.Mask, &cfg.Mark.Mask, 1
		}
		if typed == nil || *typed < least || *typed > math.MaxUint32 {
			return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed[e.pattern()])
		}
		*to, line = uint32(*typed), e.line
	}
	if m := cfg.Mark; m.Value&^m.Mask != 0 {
		return f.errorf(line, "mark.value %#x with mark.mask %#x: allowed are bits of the mask", m.Value, m.Mask)
	}
	return nil
}

// applyFlows gives cfg the rules of one list, "exclude" or "include", in the order of the
// file. Every one begins with its [[list]]; TOML's other ways to write it are not taken,
// since a rule that is overlooked there would be missed.
func (f *file) applyFlows(list string, typed []rawFlows, rules *[]Flows) error {
	var lines map[string]int // of the keys of the last rule; "": of its beginning
	for _, e := range f.entries {
		switch n := len(*rules); {
		case e.path[0] != list:
		case e.array:
			if err := f.checkFlows(*rules, lines); err != nil {
				return err
			}
			*rules, lines = append(*rules, Flows{}), map[string]int{"": e.line}
		case len(e.path) == 1 || n == 0 || n > len(typed):
			return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed[list])
		default:
			key := e.path[1]
			lines[key] = e.line
			if value := typed[n-1].value(key); value == nil || !(*rules)[n-1].set(key, *value) {
				return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed[e.pattern()])
			}
		}
	}
	return f.checkFlows(*rules, lines)
}

// checkFlows looks at the last rule as a whole.
func (f *file) checkFlows(rules []Flows, lines map[string]int) error {
	if len(rules) == 0 {
		return nil
	}
	if key, what := rules[len(rules)-1].lacks(); what != "" {
		return f.errorf(lines[key], "%s: %s", f.text(lines[key]), what)
	}
	return nil
}

// countFlows bounds both lists together.
func (f *file) countFlows(cfg *Config) error {
	n := 0
	for _, e := range f.entries {
		if e.array && (e.path[0] == "exclude" || e.path[0] == "include") {
			if n++; n > MaxFlowRules {
				return f.errorf(e.line, "%s: allowed %s", f.text(e.line), allowed[e.path[0]])
			}
		}
	}
	return nil
}
