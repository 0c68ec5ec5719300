// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
)

// TestSettlement: what conntrack is told, for what it has and what the data path's numbers say.
func TestSettlement(t *testing.T) {
	const second = time.Second
	timers := kernel.TCPTimers{Established: 1000 * second, Unacknowledged: 300 * second, MaxRetrans: 200 * second}
	client, server := netip.MustParseAddrPort("192.0.2.1:1000"), netip.MustParseAddrPort("198.51.100.1:22")
	const (
		assured = kernel.StatusConfirmed | kernel.StatusSeenReply | kernel.StatusAssured
		liberal = kernel.TCPLiberal
		flagged = kernel.TCPLiberal | kernel.TCPUnacknowledged
	)
	connection := func(original, reply uint8, left time.Duration) kernel.Connection {
		return kernel.Connection{
			Original: kernel.Tuple{Source: client, Destination: server}, Reply: kernel.Tuple{Source: server, Destination: client},
			Status: assured, TCPState: 3, FlagsOriginal: original, FlagsReply: reply, Timeout: left,
		}
	}
	all := dataplane.Conversation{Tuple: dataplane.Tuple{Source: client, Destination: server}, There: dataplane.All, Back: dataplane.All}
	with := func(f func(*dataplane.Conversation)) dataplane.Conversation { k := all; f(&k); return k }
	not := with(func(k *dataplane.Conversation) { k.There, k.Unanswered = dataplane.NotAll, true })
	none := kernel.Unacknowledged{}
	for name, c := range map[string]struct {
		talk dataplane.Conversation
		has  kernel.Connection
		want settled
		ok   bool
	}{
		"stuck flag":                    {all, connection(liberal, flagged, 296*second), settled{none, 996 * second}, true},
		"stuck flag, seen a little ago": {all, connection(liberal, flagged, 300*second), settled{none, 1000 * second}, true},
		"as it is":                      {all, connection(liberal, liberal, 996*second), settled{}, false},
		"stuck at no room":              {all, connection(liberal, liberal, 197*second), settled{none, 997 * second}, true},
		"no room": {with(func(k *dataplane.Conversation) { k.ZeroWindow = true }), connection(liberal, liberal, 996*second),
			settled{none, 196 * second}, true},
		"no room, known": {with(func(k *dataplane.Conversation) { k.ZeroWindow = true }), connection(liberal, liberal, 196*second), settled{}, false},
		"peer is dead":   {not, connection(liberal, liberal, 996*second), settled{kernel.Unacknowledged{Original: true}, 196 * second}, true},
		"peer is dead, by the other direction": {
			with(func(k *dataplane.Conversation) {
				k.Tuple.Source, k.Tuple.Destination, k.There, k.Unanswered = server, client, dataplane.NotAll, true
			}),
			connection(liberal, liberal, 996*second), settled{kernel.Unacknowledged{Reply: true}, 196 * second}, true},
		"peer is dead, sent again": {not, connection(flagged, liberal, 196*second), settled{}, false},
		"the other flag is stuck":  {not, connection(liberal, flagged, 196*second), settled{kernel.Unacknowledged{Original: true}, 0}, true},
		"not known":                {with(func(k *dataplane.Conversation) { k.Back = dataplane.Unknown }), connection(flagged, liberal, 296*second), settled{}, false},
		"in use, at the end": {with(func(k *dataplane.Conversation) { k.There = dataplane.NotAll }),
			connection(flagged, liberal, 300*second), settled{none, 0}, true},
		"in use, at the end, not stuck": {with(func(k *dataplane.Conversation) { k.There = dataplane.NotAll }),
			connection(liberal, liberal, 1000*second), settled{}, false},
		"in use, all acknowledged, at the end": {all, connection(flagged, liberal, 299*second), settled{none, 999 * second}, true},
		"not acknowledged, yet answered":       {with(func(k *dataplane.Conversation) { k.There = dataplane.NotAll }), connection(flagged, liberal, 296*second), settled{}, false},
		"peer is dead, at the end":             {not, connection(liberal, liberal, 996*second), settled{kernel.Unacknowledged{Original: true}, 196 * second}, true},
		"changed by conntrack -U":              {all, connection(liberal, flagged, 60*second), settled{}, false},
		"a timeout of its own":                 {all, connection(liberal, flagged, 5000*second), settled{}, false},
		"ended": {all, func() kernel.Connection { c := connection(liberal, flagged, 296*second); c.TCPState = 4; return c }(),
			settled{}, false},
		"another connection by now": {all, connection(0, kernel.TCPUnacknowledged, 296*second), settled{}, false},
		"fixed": {all, func() kernel.Connection {
			c := connection(liberal, flagged, 296*second)
			c.Status |= kernel.StatusFixedTimeout
			return c
		}(), settled{}, false},
		"picked up, never answered": {all, func() kernel.Connection {
			c := connection(liberal, liberal, 296*second)
			c.Status &^= kernel.StatusSeenReply | kernel.StatusAssured
			return c
		}(), settled{}, false},
	} {
		got, ok := settlement(c.talk, c.has, timers, 5*second, strings.Contains(name, "at the end"))
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v, want %+v, %v", name, got, ok, c.want, c.ok)
		}
	}
}
