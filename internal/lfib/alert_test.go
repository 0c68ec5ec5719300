// SPDX-License-Identifier: Apache-2.0

package lfib

import (
	"bytes"
	"reflect"
	"testing"
)

// A packet with a router alert that local software has seen goes by the label beneath it, and
// gets the alert back (RFC 3032 §2.1).
func TestAlerted(t *testing.T) {
	tab := table(t, "nhlfe add 1 swap 200"+hop, "ilm add 100 nhlfe 1", "nhlfe add 2 pop"+hop, "ilm add 101 nhlfe 2",
		"nhlfe add 3 pop peek", "ilm add 50 nhlfe 3", "nhlfe add 4 swap 200 push 300"+hop, "ilm add 102 nhlfe 4")
	alert, four := entryOf(1, 3, 0, 64), ip4(0, 99)
	fits := ip4(0, 9, make([]byte, 164)...) // 192 bytes, and 8 of two labels: what the port takes
	for _, c := range []struct {
		name     string
		in       []byte
		reason   string
		out      []byte
		looked   []Label
		tooLarge int
	}{
		{"swapped", join(alert, entryOf(100, 0, 1, 9), four), Switched, join(entryOf(1, 3, 0, 63), entryOf(200, 3, 1, 63), four), []Label{100}, 0},
		{"pushed on", join(alert, entryOf(102, 0, 1, 9), four), Switched,
			join(entryOf(1, 3, 0, 63), entryOf(300, 3, 0, 63), entryOf(200, 3, 1, 63), four), []Label{102}, 0},
		{"popped with a label left", join(alert, entryOf(101, 0, 0, 9), entryOf(9, 0, 1, 9), four), Switched,
			join(entryOf(1, 3, 0, 63), entryOf(9, 3, 1, 63), four), []Label{101}, 0},
		{"popped with none left", join(entryOf(1, 0, 0, 64), entryOf(101, 0, 1, 9), four), Switched, ip4(0, 63), []Label{101}, 0},
		{"beneath another label", join(entryOf(50, 0, 0, 64), alert, entryOf(100, 0, 1, 9), four), Switched,
			join(entryOf(1, 0, 0, 63), entryOf(200, 0, 1, 63), four), []Label{50, 100}, 0},
		{"twice", join(alert, entryOf(1, 5, 0, 9), entryOf(100, 0, 1, 9), four), Switched,
			join(entryOf(1, 3, 0, 63), entryOf(1, 3, 0, 63), entryOf(200, 3, 1, 63), four), []Label{100}, 0},
		{"its TTL counts", join(entryOf(1, 3, 0, 1), entryOf(100, 0, 1, 9), four), Expired, nil, []Label{100}, 0},
		{"at the bottom", join(entryOf(1, 3, 1, 9), four), Malformed, nil, nil, 0},
		{"no label that is known", join(alert, entryOf(900, 3, 1, 9), four), NoLabel, nil, nil, 0},
		{"alerts without an end", join(bytes.Repeat(alert, 40), four), TooDeep, nil, nil, 0},
		{"just fits", join(entryOf(1, 0, 0, 64), entryOf(100, 0, 1, 9), fits), Switched,
			join(entryOf(1, 0, 0, 63), entryOf(200, 0, 1, 63), fits), []Label{100}, 0},
		{"does not fit with the alert", join(entryOf(1, 0, 0, 64), entryOf(100, 0, 1, 9), fits, []byte{0}), OverMTU,
			join(entryOf(1, 0, 0, 63), entryOf(200, 0, 1, 63), fits, []byte{0}), []Label{100}, 200},
	} {
		env := someWAN
		env.Alerted = true
		v := tab.Switch(0, c.in, env)
		var looked []Label
		for _, o := range v.Labels {
			looked = append(looked, o.Label)
		}
		if v.Reason != c.reason || !bytes.Equal(v.Packet, c.out) || !reflect.DeepEqual(looked, c.looked) || v.MTU != c.tooLarge {
			t.Errorf("%s: %s %x %v %d\nwant %s %x %v %d", c.name, v.Reason, v.Packet, looked, v.MTU, c.reason, c.out, c.looked, c.tooLarge)
		}
	}
}
