// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"reflect"
	"strings"
	"testing"
)

// Lines that are as String writes them: what Parse reads of them is written the same again.
var plain = []string{
	"ilm add 100 nhlfe 7",
	"ilm replace 1048575 space 254 tc 7 nhlfe 4294967295",
	"ilm change 0 nhlfe 7",
	"ilm del 2 space 3 tc 0",
	"nhlfe add 7 pop push 200 tc 3 send dev eth1 via inet 10.0.0.2",
	"nhlfe replace 8 mtu 1400 ttl short-pipe swap 200 push 300 tc-map gold ttl 64 send dev eth1.5 via inet6 fe80::1",
	"nhlfe change 9 ttl pipe pop set-tc 3 peek space 5",
	"nhlfe add 10 pop pop set-dscp 46 deliver",
	"nhlfe add 11 tc-map gold send dev wan lladdr 02:00:00:00:00:01",
	"nhlfe add 12 pop dscp-map back deliver",
	"nhlfe add 13 entropy push 200 push 0 push 3 send dev wan via inet 10.0.0.2",
	"nhlfe add 14 by-tc 0:7 7:8 default 9",
	"nhlfe add 15 by-tc default 9",
	"nhlfe add 16 by-dscp 0:7 63:8",
	"nhlfe add 17 by-hash 7 8*3 9*65535",
	"nhlfe add 18 forward 7",
	"nhlfe add 19 pop peek",
	"nhlfe add 20 drop",
	"nhlfe del 7",
	"ftn add 10.0.0.0/8 nhlfe 7",
	"ftn replace 2001:db8::/32 nhlfe 7",
	"ftn del 0.0.0.0/0",
	"map add gold dscp-to-tc 0:0 46:5 63:7",
	"map replace back tc-to-dscp 5:46",
	"map del gold",
	"space set eth1 0",
	"space set eth1 0 upstream 254",
	"space set upstream 7 upstream 8",
	"space set upstream 5",
	"nhlfe add 11 swap 200 send dev eth1 lladdr 01:00:5e:8f:ff:ff upstream",
	"space set eth1 off",
}

func TestParseAndStringAreInverse(t *testing.T) {
	for _, line := range plain {
		changes, err := Parse(line)
		if err != nil {
			t.Error(err)
			continue
		}
		if len(changes) != 1 || changes[0].String() != line {
			t.Errorf("%q became %q", line, changes)
		}
	}
}

func TestParseReadsWords(t *testing.T) {
	tc, ttl, space, other := uint8(3), uint8(64), Space(5), uint32(9)
	for line, want := range map[string]any{
		"ilm add 100 space 5 tc 3 nhlfe 7": ILM{5, 100, 3, 7},
		"ilm del 100":                      ILM{Label: 100, TC: -1},
		"ftn add 10.0.0.1 nhlfe 7":         FTN{parsePrefix("10.0.0.1/32"), 7},
		"map add m tc-to-dscp 1:2":         Map{"m", TCToDSCP, map[int]int{1: 2}},
		"space set eth1 5":                 PortSpace{"eth1", 5, -1},
		"space set off off":                PortSpace{"off", -1, -1},
		"nhlfe add 7 ttl pipe push 200 tc 3 ttl 64 peek space 5": NHLFE{ID: 7, Model: Pipe, List: []Instruction{
			{Op: OpPush, Label: 200, TC: &tc, TTL: &ttl}, {Op: OpPeek, Space: &space}}},
		"nhlfe add 7 by-dscp 46:8 default 9": NHLFE{ID: 7, List: []Instruction{
			{Op: OpByDSCP, Choices: []Choice{{Key: 46, ID: 8}}, Default: &other}}},
		"nhlfe add 7 by-hash 8*2": NHLFE{ID: 7, List: []Instruction{
			{Op: OpByHash, Choices: []Choice{{ID: 8, Weight: 2}}}}},
	} {
		changes, err := Parse(line + "  # as it is")
		if err != nil {
			t.Error(err)
		} else if got := changes[0].Object; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, not %+v", line, got, want)
		}
	}
}

// What stands for several changes, or is written in another way than String does.
func TestParseExpands(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                    nil,
		" # a remark":                         nil,
		"space set a b 3":                     {"space set a 3", "space set b 3"},
		"space set a b 3 upstream 4":          {"space set a 3 upstream 4", "space set b 3 upstream 4"},
		"space set 3 upstream 4":              {"space set 3 4", "space set upstream 4"},
		"nhlfe add 007 drop":                  {"nhlfe add 7 drop"},
		"nhlfe add 7 send dev a via 10.0.0.2": {"nhlfe add 7 send dev a via inet 10.0.0.2"},
		"nhlfe add 7 by-hash 8*1":             {"nhlfe add 7 by-hash 8"},
		"route add 100 as 200/300 via inet 10.0.0.2 dev eth1": {
			"nhlfe add 2147483748 pop push 300 push 200 send dev eth1 via inet 10.0.0.2", "ilm add 100 nhlfe 2147483748"},
		"route replace 100 ttl-propagate disabled dev eth1 via inet6 fe80::1 as to 200": {
			"nhlfe replace 2147483748 ttl pipe pop push 200 send dev eth1 via inet6 fe80::1", "ilm replace 100 nhlfe 2147483748"},
		"route add 100 via link 02:00:00:00:00:01 dev eth1": {
			"nhlfe add 2147483748 pop send dev eth1 lladdr 02:00:00:00:00:01", "ilm add 100 nhlfe 2147483748"},
		"route change 100 dev lo": {"nhlfe change 2147483748 pop peek", "ilm change 100 nhlfe 2147483748"},
		"route del 100":           {"ilm del 100", "nhlfe del 2147483748"},
	} {
		changes, err := Parse(line)
		var got []string
		for _, c := range changes {
			got = append(got, c.String())
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, not %q (%v)", line, got, want, err)
		}
	}
}

// Every refusal is one line that begins with the line that is meant, and names thing and fix.
func TestParseRefuses(t *testing.T) {
	for line, parts := range map[string]string{
		"lfib":                         `"lfib" is no noun: use ilm, nhlfe`,
		"ilm":                          `the line ends where verb of ilm is wanted`,
		"ilm show":                     `"show" is no verb of ilm: use add, change, replace, del`,
		"ftn change 10.0.0.0/8":        `use add, replace, del`,
		"space add eth1 3":             `"add" is no verb of space: use set`,
		"ilm add 1048576 nhlfe 7":      `label "1048576": use a number from 0 to 1048575`,
		"ilm add -1 nhlfe 7":           `label "-1": use a number`,
		"ilm add 3 nhlfe 7":            `label 3 is implicit null and never on the wire: use`,
		"ilm add 1 nhlfe 7":            `label 1 is special-purpose`,
		"ilm add 15 nhlfe 7":           `label 15 is special-purpose`,
		"ilm add 16 space 255 nhlfe 7": `space "255": use a number from 0 to 254`,
		"ilm add 16 tc 8 nhlfe 7":      `tc "8": use a number from 0 to 7`,
		"ilm add 16 nhlfe 0":           `nhlfe "0": use a number from 1 to 4294967295`,
		"ilm add 16 nhlfe 4294967296":  `use a number from 1`,
		"ilm add 16":                   `the line ends where "nhlfe" is wanted`,
		"ilm add 16 nhlfe 7 nhlfe 8":   `"nhlfe" is left over behind "7": leave it away`,
		"ilm add 16 nhlfe 7 \x00":      `byte 20 of the line is none of a text`,

		"nhlfe add 7":                                              `no instruction: end it in send`,
		"nhlfe add 7 pop":                                          `the list ends in pop: end it in send`,
		"nhlfe add 7 pop push 200":                                 `the list ends in push 200: end it in send`,
		"nhlfe add 7 drop pop":                                     `pop stands behind drop, which ends the list`,
		"nhlfe add 7 peek deliver":                                 `deliver stands behind peek, which ends the list`,
		"nhlfe add 7 jump":                                         `"jump" is no instruction: use pop, push`,
		"nhlfe add 7 mtu 67 drop":                                  `mtu "67": use a number from 68`,
		"nhlfe add 7 mtu 1500 pop peek":                            `mtu 1500 counts for what is sent, not behind peek`,
		"nhlfe add 7 ttl long drop":                                `"long" is no ttl model: use uniform, pipe, short-pipe`,
		"nhlfe add 7 push 1048576 drop":                            `label "1048576"`,
		"nhlfe add 7 push 7 drop":                                  `label 7 is the entropy label indicator: write "entropy"`,
		"nhlfe add 7 push 1 drop":                                  `push 1: the label is special-purpose`,
		"nhlfe add 7 swap 13 drop":                                 `swap 13: the label is special-purpose`,
		"nhlfe add 7 push 200 tc 8 drop":                           `tc "8"`,
		"nhlfe add 7 push 200 ttl 0 drop":                          `ttl "0": use a number from 1 to 255`,
		"nhlfe add 7 push 200 ttl 256 drop":                        `ttl "256"`,
		"nhlfe add 7 set-dscp 64 drop":                             `dscp "64"`,
		"nhlfe add 7 tc-map a/b drop":                              `"a/b" is no name of a map`,
		"nhlfe add 7 entropy drop":                                 `drop stands behind entropy: put the push`,
		"nhlfe add 7 entropy push 3 drop":                          `push 3 stands behind entropy`,
		"nhlfe add 7 entropy swap 200 drop":                        `swap 200 stands behind entropy`,
		"nhlfe add 7 send eth1":                                    `"eth1" where "dev" is wanted`,
		"nhlfe add 7 send dev eth1":                                `dev eth1 names no next hop`,
		"nhlfe add 7 send dev eth1 via inet fe80::1":               `fe80::1 is no address of inet`,
		"nhlfe add 7 send dev eth1 via inet6 10.0.0.1":             `10.0.0.1 is no address of inet6`,
		"nhlfe add 7 send dev eth1 via inet 224.0.0.1":             `via 224.0.0.1 is no address of one station`,
		"nhlfe add 7 send dev eth1 via inet6 fe80::1%a":            `is no address of a next hop`,
		"nhlfe add 7 send dev eth1 lladdr 01:00:5e:00:00:01":       `is no MAC address of one station`,
		"nhlfe add 7 send dev eth1 lladdr 00:00:00:00:00:00":       `is no MAC address of one station`,
		"nhlfe add 7 send dev eth1 lladdr 02:00:00:00:00:00:00:01": `is no MAC address: write one`,
		"nhlfe add 7 send dev a/b via inet 10.0.0.1":               `"a/b" can be no port`,
		"nhlfe add 7 send dev interface-so-long via inet 10.0.0.1": `can be no port`,
		"nhlfe add 7 forward 0":                                    `nhlfe "0"`,
		"nhlfe add 7 by-tc":                                        `by-tc chooses nothing`,
		"nhlfe add 7 by-tc 8:1":                                    `tc "8"`,
		"nhlfe add 7 by-tc 1:1 1:2":                                `by-tc names 1 twice`,
		"nhlfe add 7 by-dscp 64:1":                                 `dscp "64"`,
		"nhlfe add 7 by-hash":                                      `by-hash has 0 members`,
		"nhlfe add 7 by-hash" + strings.Repeat(" 8", 65):           `by-hash has 65 members`,
		"nhlfe add 7 by-hash 8*0":                                  `weight "0": use a number from 1 to 65535`,
		"nhlfe add 7 by-hash 8 8":                                  `by-hash names nhlfe 8 twice: write it once`,

		"ftn add 10.0.0.1/8 nhlfe 7":                                   `10.0.0.1/8 has bits behind its length: write 10.0.0.0/8`,
		"ftn add ten nhlfe 7":                                          `"ten" is no prefix`,
		"ftn add ::ffff:10.0.0.0/104 nhlfe 7":                          `is IPv4 written as IPv6`,
		"map add m":                                                    `the line ends where kind of map is wanted`,
		"map add m tc-to-tc 1:1":                                       `"tc-to-tc" is no kind of map: use tc-to-dscp, dscp-to-tc`,
		"map add m tc-to-dscp":                                         `map m maps nothing: write K:V`,
		"map add m tc-to-dscp 8:1":                                     `key of the map "8": use a number from 0 to 7`,
		"map add m tc-to-dscp 1:64":                                    `value of the map "64": use a number from 0 to 63`,
		"map add m dscp-to-tc 1:8":                                     `value of the map "8": use a number from 0 to 7`,
		"map add m tc-to-dscp 1:1 1:2":                                 `the map names 1 twice`,
		"map add m tc-to-dscp 1":                                       `"1": write K:V`,
		"map add m,n tc-to-dscp 1:1":                                   `"m,n" is no name of a map`,
		"space set eth1":                                               `the line ends where space is wanted`,
		"space set eth1 5 upstream 255":                                `space "255"`,
		"space set eth1 5 upstream 5":                                  `space 5 cannot have upstream-assigned labels too`,
		"space set eth1 off upstream 5":                                `"upstream" is left over`,
		"nhlfe add 7 drop upstream":                                    `"upstream" is no instruction`,
		"nhlfe add 7 pop send dev a lladdr 02:00:00:00:00:01 upstream": `lladdr 01:00:5e:80:00:00, or another up to`,
		"nhlfe add 7 pop send dev a via inet 10.0.0.1 upstream":        `lladdr 01:00:5e:80:00:00, or another up to`,
		"nhlfe add 7 pop send dev a lladdr 01:00:5e:70:00:00":          `no MAC address of one station, nor of an MPLS group`,
		"space set eth1 255":                                           `space "255"`,
		"route add 100 as 200":                                         `the route names no port: write`,
		"route add 100 via inet 10.0.0.2":                              `the route names no port: write`,
		"route add 100 dev eth1":                                       `dev eth1 names no next hop`,
		"route add 100 as 200 dev lo":                                  `dev lo ends the label here`,
		"route add 100 via inet 10.0.0.2 dev a dev b":                  `"dev" stands twice`,
		"route add 100 nexthop via inet 10.0.0.2 dev a":                `"nexthop" is no part of a route: use as, via`,
		"route add 3 via inet 10.0.0.2 dev a":                          `label 3 is implicit null`,
		"route add 100 as 200/1 via inet 10.0.0.2 dev a":               `push 1: the label is special-purpose`,
	} {
		changes, err := Parse(line)
		if err == nil {
			t.Errorf("%s: read as %q", line, changes)
			continue
		}
		start := strings.Join(strings.Fields(line), " ")
		if !strings.Contains(err.Error(), parts) || strings.ContainsAny(err.Error(), "\n\r\x00") ||
			!strings.HasPrefix(err.Error(), start[:min(len(start), 100)]) && !strings.Contains(line, "\x00") {
			t.Errorf("%s:\n%v\nwants %s", line, err, parts)
		}
	}
}
