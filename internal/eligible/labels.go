// SPDX-License-Identifier: Apache-2.0

package eligible

import (
	"fmt"

	"shunt/internal/kernel"
)

// LabelsIn says why frames with labels that come in by a port are not switched, given what the
// port got, and what would change that: labels are switched by the XDP program alone. Without a
// reason they are.
func LabelsIn(l kernel.Link, got Decision) (reason, remedy string) {
	if got.XDPReceive {
		return "", ""
	}
	return got.Reason, orOn(l, got)
}

// LabelsOut says why frames with labels do not leave by a port, and what would change that. Without
// a reason they do.
func LabelsOut(l kernel.Link, got Decision) (reason, remedy string) {
	if got.XDPTransmit {
		return "", ""
	}
	if got.Attach {
		// what the daemon found out beside these facts is in got
		if ok, reason, remedy := Transmit(Port{Link: l, OwnXDP: 1, Proven: true}); !ok {
			return reason, orOther(remedy)
		}
	}
	return got.Reason, orOn(l, got)
}

// orOn is the remedy for a port without the XDP program, which xdp = "on" would have there.
func orOn(l kernel.Link, got Decision) string {
	if ok, _, _ := Receive(Port{Link: l}, On); ok && got.Attach && !got.XDPReceive && got.Remedy == "" {
		return fmt.Sprintf("set xdp = \"on\" for %s", l.Name)
	}
	return orOther(got.Remedy)
}

func orOther(remedy string) string {
	if remedy == "" {
		return "let labels go by another port"
	}
	return remedy
}
