// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"shunt/internal/dataplane/traffic"
	"shunt/internal/lab"
)

// A phase in which anything is not as it must be gives no figure.
func TestLSRAuditBites(t *testing.T) {
	sound := func(op LSROperation) (LSRPhase, *LSRResult) {
		r := newLSRResult(op, 1, 60)
		p := LSRPhase{Sent: 640, Sunk: 640, stats: traffic.Stats{Frames: 640, Bytes: 640 * uint64(r.BytesOut), Verified: 10}}
		switch op {
		case LSRLimit:
		case LSRKernel:
			p.Forwarded = 640
		case lab.OpPush:
			p.Imposed, p.Hits, p.Forwarded = 640, 630, 10
		case lab.OpIP:
			p.Hits, p.Forwarded = 630, 10
		default:
			p.Switched = 640
		}
		return p, &r
	}
	for _, op := range LSROperations() {
		if p, r := sound(op); p.audit(r) != nil {
			t.Errorf("%s: %v", op, p.audit(r))
		}
		for what, spoil := range map[string]func(*LSRPhase){
			"a frame lost":      func(p *LSRPhase) { p.Sunk-- },
			"another way":       func(p *LSRPhase) { p.Switched++ },
			"a hit too much":    func(p *LSRPhase) { p.Hits++ },
			"labels too many":   func(p *LSRPhase) { p.Imposed++ },
			"a byte too few":    func(p *LSRPhase) { p.stats.Bytes-- },
			"a bad frame":       func(p *LSRPhase) { p.stats.BadPayload++ },
			"a frame twice":     func(p *LSRPhase) { p.stats.Duplicates++ },
			"nothing looked at": func(p *LSRPhase) { p.stats.Verified = 0 },
			"nothing sent":      func(p *LSRPhase) { *p = LSRPhase{} },
			"by the kernel too": func(p *LSRPhase) { p.Forwarded += 700 },
		} {
			p, r := sound(op)
			if spoil(&p); p.audit(r) == nil {
				t.Errorf("%s: %s passes", op, what)
			}
		}
	}
}

// An answer of which any byte behind the MAC addresses differs is none.
func TestEchoCheckBites(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	e := newEchoes(-1, echoWay{from: lab.End{MAC: mac}, source: netip.MustParseAddr("10.0.0.1"),
		to: lab.End{MAC: mac}, dest: netip.MustParseAddr("10.0.0.2"), hops: 3, id: 7, ethernet: 75})
	e.next()
	answer := bytes.Clone(e.frame)
	copy(answer[26:], e.frame[30:34])
	copy(answer[30:], e.frame[26:30])
	answer[22] -= 3
	answer[24], answer[25] = 0, 0
	sum := inetSum(answer[14:34])
	answer[24], answer[25] = byte(sum>>8), byte(sum)
	answer[34], answer[36], answer[37] = 0, 0, 0
	sum = inetSum(answer[34:])
	answer[36], answer[37] = byte(sum>>8), byte(sum)
	if err := e.check(answer); err != nil {
		t.Fatal(err)
	}
	for i := 12; i < len(answer); i++ {
		wrong := bytes.Clone(answer)
		wrong[i] ^= 0x10
		if e.check(wrong) == nil {
			t.Errorf("with another byte %d it passes", i)
		}
	}
	if e.check(answer[:len(answer)-1]) == nil || e.check(append(answer, 0)) == nil || e.check(nil) == nil {
		t.Error("an answer of another length passes")
	}
}
