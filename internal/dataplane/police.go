// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
	"unsafe"
)

// Rate bounds what each CPU hands to the kernel for one reason: a token bucket.
type Rate struct {
	PerSecond int // packets, from 1 to 1,000,000,000
	Burst     int // packets that may come at once, at least 1
}

// police writes the rates; a reason without one is not policed. A word that is no reason
// is a programming error. Packets that come between two writes meet an old rate or a new one.
func (p *Plane) police(rates map[string]Rate) {
	var c tcControl
	var policed uint64
	for word, rate := range rates {
		reason := slices.Index(Reasons, word)
		if reason < 0 {
			panic("no reason " + word)
		}
		policed |= 1 << reason
		every := uint64(time.Second) / uint64(rate.PerSecond)
		at := unsafe.Offsetof(c.Rates) + uintptr(reason)*unsafe.Sizeof(c.Rates[0])
		p.setLong(at+unsafe.Offsetof(c.Rates[0].Every), every)
		p.setLong(at+unsafe.Offsetof(c.Rates[0].Ahead), every*uint64(rate.Burst-1))
	}
	p.setLong(unsafe.Offsetof(c.Policed), policed)
}

func (p *Plane) setLong(offset uintptr, v uint64) {
	p.ctl.WriteAt(binary.NativeEndian.AppendUint64(nil, v), int64(offset))
}

// Policed returns how many packets were dropped for being over the rate of their reason, by
// reason, since the data path began. Reasons without any are left out.
func (p *Plane) Policed() (map[string]uint64, error) {
	dropped := map[string]uint64{}
	var meters []tcMeter
	for reason, word := range Reasons[:tcAbiRATES] {
		if err := p.maps["meters"].Lookup(uint32(reason), &meters); err != nil {
			return nil, fmt.Errorf("meters: %w", err)
		}
		for _, m := range meters {
			if m.Dropped > 0 {
				dropped[word] += m.Dropped
			}
		}
	}
	return dropped, nil
}
