// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"
	"unsafe"
)

// TestWatched: what is known of TCP connections counts until somebody may have sent packets unseen: in a pause,
// while TCP was off, or by a port without programs. A change of ports elsewhere or another process is none.
func TestWatched(t *testing.T) {
	r := newRouter(t)
	p := r.open(t, 1024)
	settings := Settings{Threshold: 7, Lease: 100, LeaseLive: 200, HZ: 250, TCP: true}
	p.Configure(settings)
	r.apply(t, p, r.want())
	at := func(n int) int64 { return int64(n) * int64(tcAbiSLOT_SIZE) }
	put := func() {
		for i, port := range r.ports {
			s := tcSlot{State: uint8(tcSlotStateSLOT_ARMED), Watch: uint16(p.control().Watch)}
			s.Key.Kind = uint32(port)<<tcKindKIND_PORT | 6
			if _, err := p.flows.WriteAt(unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s)), at(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	counts := func(what string, lan, wan bool) {
		t.Helper()
		for i, want := range []bool{lan, wan} {
			if w := p.table.slot(i).Watch; (w != 0 && uint32(w) == p.control().Watch) != want {
				t.Errorf("%s: port %d: watch %d of %d; want it to count: %v", what, i, w, p.control().Watch, want)
			}
		}
		put()
	}
	put()
	counts("at first", true, true)
	p.Pause(false)
	counts("resumed without a pause", true, true)
	p.Bump()
	r.apply(t, p, r.want())
	counts("another generation", true, true)
	p.Pause(true)
	p.Pause(false)
	counts("after a pause", false, false)
	settings.TCP = false
	p.Configure(settings)
	p.Configure(settings)
	settings.TCP = true
	p.Configure(settings)
	counts("after TCP was off", false, false)
	r.apply(t, p, r.want()[:1])
	r.apply(t, p, r.want())
	counts("wan was no port for a while", true, false)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}

	p = r.open(t, 1024)
	defer p.Close()
	p.Configure(settings)
	r.apply(t, p, r.want())
	counts("another process", true, true)
	p.setWord(unsafe.Offsetof(tcControl{}.Watch), 0xffff)
	put()
	p.Pause(true)
	p.Pause(false)
	counts("when the count turns over", false, false)
	if p.control().Watch == 0 {
		t.Error("0 is what a slot has that was never watched")
	}
}
