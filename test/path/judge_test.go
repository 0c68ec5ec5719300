// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os/exec"
	"testing"

	"shunt/internal/dataplane/exercise"
)

// judge is run by Debian's python3 with scapy. It takes frames apart, throws all
// checksums and lengths away, and has scapy put them together again.
const judge = `
import json, sys
from scapy.all import Ether, IP, IPv6, TCP, UDP, ICMP, ICMPv6EchoRequest, ICMPv6EchoReply
verdicts = []
for text in json.load(sys.stdin):
    raw = bytes.fromhex(text)
    frame = Ether(raw)
    for layer, fields in ((IP, ("len", "chksum")), (IPv6, ("plen",)), (UDP, ("len", "chksum")), (TCP, ("chksum",)),
                          (ICMP, ("chksum",)), (ICMPv6EchoRequest, ("cksum",)), (ICMPv6EchoReply, ("cksum",))):
        if layer not in frame:
            continue
        for field in fields:
            if layer is UDP and field == "chksum" and frame[UDP].chksum == 0 and IP in frame:
                continue  # none
            frame[layer].delfieldval(field)
    verdicts.append(bytes(frame).hex())
json.dump(verdicts, sys.stdout)
`

// TestOutsideJudge: what scapy says that the checksums and lengths of rewritten frames
// are, is what they are. The other tests trust this package's own builder.
func TestOutsideJudge(t *testing.T) {
	b := open(t, exercise.Options{})
	var frames []string
	for _, r := range b.natted() {
		if r.in.Proto != 6 && r.in.Proto != 17 && r.in.Proto != 1 && r.in.Proto != 58 {
			continue // scapy has no checksum to say anything about
		}
		b.arm(t, r.in, r.out)
		for _, shape := range shapes(r.in, r.out) {
			b.counts(t, "xdp hit, tc-ingress hit", func() {
				o, err := b.XDP(b.LANIndex, shape.in.Bytes())
				check(t, err)
				frames = append(frames, hex.EncodeToString(o.Frame))
				o, err = b.Ingress(b.LANIndex, shape.in.Bytes(), exercise.Buffer{})
				check(t, err)
				frames = append(frames, hex.EncodeToString(o.Frame))
			})
		}
	}
	input, err := json.Marshal(frames)
	check(t, err)
	cmd := exec.Command("/usr/bin/python3", "-c", judge)
	cmd.Stdin = bytes.NewReader(input)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("scapy: %v; is python3-scapy installed (make deps)? %s", err, complaints.String())
	}
	var verdicts []string
	check(t, json.Unmarshal(output, &verdicts))
	if len(verdicts) != len(frames) || len(frames) < 500 {
		t.Fatalf("%d verdicts on %d frames", len(verdicts), len(frames))
	}
	for i := range frames {
		if frames[i] != verdicts[i] {
			t.Errorf("frame %d\nours  %s\nscapy %s", i, frames[i], verdicts[i])
		}
	}
}
