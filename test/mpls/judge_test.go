// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// judge is run by Debian's python3: scapy takes frames apart and tells what it sees.
//
//go:embed judge.py
var judge string

// seen is a frame as scapy sees it, and as a case states it.
type seen struct {
	Type   int      `json:"type"`
	Labels [][4]int `json:"labels"` // label, TC, S, TTL
	IP     *seenIP  `json:"ip,omitempty"`
	ICMP   *seenErr `json:"icmp,omitempty"`
}

type seenIP struct {
	Version  int    `json:"version"`
	TTL      int    `json:"ttl"`
	DSCP     int    `json:"dscp"`
	ECN      int    `json:"ecn"`
	Length   int    `json:"length"`
	Source   string `json:"source"`
	Dest     string `json:"dest"`
	DF       bool   `json:"df"`
	More     bool   `json:"more"`
	Offset   int    `json:"offset"`
	Checksum bool   `json:"checksum"` // of the IPv4 header: is right
}

type seenErr struct {
	Type     int      `json:"type"`
	Code     int      `json:"code"`
	MTU      int      `json:"mtu"`
	Checksum bool     `json:"checksum"`
	Stack    [][4]int `json:"stack"` // of the object of RFC 4950
}

// TestJudge: what scapy sees in every frame of every case is what the case states.
func TestJudge(t *testing.T) {
	var stated []frame
	var raw []string
	for _, c := range trials() {
		// Thousands of one form tell no more than some.
		for _, f := range c.in[:min(64, len(c.in))] {
			stated, raw = append(stated, f), append(raw, hex.EncodeToString(f.sent(p0)))
		}
		expected := c.expectations()
		for _, f := range expected[:min(64, len(expected))] {
			stated, raw = append(stated, f), append(raw, hex.EncodeToString(f.expected(p0, nil)))
		}
	}
	checkFrames(t, stated, raw)
}

// p0 is any place.
var p0 = place{
	host:   [2]net.HardwareAddr{{2, 0, 0, 0, 18, 2}, {2, 0, 0, 0, 19, 2}},
	router: [2]net.HardwareAddr{{2, 0, 0, 0, 18, 1}, {2, 0, 0, 0, 19, 1}},
}

func checkFrames(t *testing.T, stated []frame, raw []string) {
	t.Helper()
	for i, got := range scapy(t, raw) {
		if diff := cmp.Diff(stated[i].state(), relevant(stated[i], got)); diff != "" {
			t.Errorf("%s\n%s (- the case, + scapy):\n%s", raw[i], describe(stated[i].expected(p0, nil)), diff)
		}
	}
	t.Logf("scapy sees in %d frames what the cases state", len(stated))
}

// scapy tells what it sees in frames.
func scapy(t *testing.T, raw []string) (all []seen) {
	t.Helper()
	input, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", "-c", judge)
	var complaints bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &complaints
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("scapy: %v; is python3-scapy installed (make deps)? %s", err, complaints.String())
	}
	if err := json.Unmarshal(output, &all); err != nil || len(all) != len(raw) {
		t.Fatalf("%v, %d verdicts on %d frames", err, len(all), len(raw))
	}
	return all
}

// relevant is what a case says something about.
func relevant(f frame, got seen) seen {
	want := f.state()
	if want.ICMP == nil {
		got.ICMP = nil // an ICMP error that is somebody's payload
	}
	if n := len(want.Labels); want.Type == kindMPLS && (n == 0 || want.Labels[n-1][2] == 0) {
		// No S: what follows is labels to scapy, and nothing that the case states.
		got = seen{Type: got.Type, Labels: got.Labels[:min(n, len(got.Labels))]}
	}
	return got
}

// TestJudgeBites: a judge that sees nothing wrong in these would see nothing at all.
func TestJudgeBites(t *testing.T) {
	f := on(a, l(200, 5, 63), l(300, 1, 9), exceeded(v4(64), l(100, 5, 1), l(301, 7, 255)))
	whole := f.expected(p0, nil)
	ip, end := f.ipAt(), len(whole)
	var raw []string
	for _, at := range []int{
		13, 14, 15, 16, 17, 18, 20, 21, // EtherType, labels, TC, S, TTL
		ip + 1, ip + 8, ip + 10, ip + 12, // TOS, TTL, checksum, source
		ip + 20, ip + 22, ip + 25, // type, checksum, length
		end - 16, end - 15, end - 14, end - 13, end - 11, end - 9, end - 8, end - 6, end - 5, end - 1, // extension, object, labels
	} {
		bad := bytes.Clone(whole)
		bad[at] ^= 1
		raw = append(raw, hex.EncodeToString(bad))
	}
	for i, got := range scapy(t, raw) {
		if cmp.Equal(f.state(), got) {
			t.Errorf("%s passes", raw[i])
		}
	}
}

// expectations are all frames that may come, those in place of others too.
func (c trial) expectations() []frame {
	all := append([]frame(nil), c.out...)
	for _, o := range c.or {
		all = append(all, o.out...)
	}
	return all
}

// state is what a case says of a frame, taken from its fields and not from its bytes.
func (f frame) state() seen {
	s := seen{Type: int(f.etherType()), Labels: [][4]int{}}
	for i, e := range f.stack {
		if e.asIP {
			e.ttl = usual.ttl - e.below
		}
		s.Labels = append(s.Labels, e.state(i == len(f.stack)-1))
	}
	switch p := f.load.(type) {
	case packet:
		s.IP = p.state()
	case answer:
		s.IP, s.ICMP = p.state()
	}
	return s
}

func (e entry) state(last bool) [4]int {
	bottom := 0
	if e.bottom == always || e.bottom == byPlace && last {
		bottom = 1
	}
	return [4]int{int(e.label), int(e.tc), bottom, int(e.ttl)}
}

func (p packet) state() *seenIP {
	if p.own {
		p.ttl = usual.ttl
	}
	return &seenIP{
		Version: p.version, TTL: int(p.ttl), DSCP: int(p.dscp), ECN: int(p.ecn), Length: p.length(),
		Source: p.source.String(), Dest: p.dest.String(), DF: p.df, More: p.more && p.version == 4, Offset: p.offset, Checksum: p.spoil == 0,
	}
}

// length is that of the whole packet, by its parts.
func (p packet) length() int {
	n := map[int]int{4: 20, 6: 40}[p.version] + len(p.options) + len(p.data)
	if p.data == nil {
		n += 8 + p.size
	}
	return n
}

// state of an ICMP error with the usual fields: RFC 4884 wants 128 bytes of the datagram
// if an extension follows.
func (w answer) state() (*seenIP, *seenErr) {
	quoted := min(usual.quote, len(w.about))
	ip := &seenIP{Version: w.version, TTL: int(usual.ttl), DSCP: int(usual.tos >> 2), Source: w.source.String(), Dest: w.dest.String(), Checksum: true}
	icmp := &seenErr{Type: int(w.icmp), Code: int(w.code), MTU: int(w.mtu), Checksum: true, Stack: [][4]int{}}
	if w.stack != nil {
		quoted = usual.quote + 4 + 4 + entryBytes*len(w.stack)
	}
	for i, e := range w.stack {
		icmp.Stack = append(icmp.Stack, e.state(i == len(w.stack)-1))
	}
	ip.Length = map[int]int{4: 20, 6: 40}[w.version] + 8 + quoted
	return ip, icmp
}

// TestVectors are stack entries that others have written down.
func TestVectors(t *testing.T) {
	for want, e := range map[string]entry{
		"00010140": l(16, 0, 64).s(), "000c8b3f": l(200, 5, 63).s(), "000c8a3f": l(200, 5, 63).open(),
		"00000740": l(0, 3, 64).s(), "00002140": l(2, 0, 64).s(), "00001040": l(1, 0, 64).open(),
		"00007040": l(7, 0, 64).open(), "003e8100": l(1000, 0, 0).s(), "0000f040": l(15, 0, 64).open(), "ffffffff": l(1048575, 7, 255).s(),
	} {
		if got := fmt.Sprintf("%08x", e.word(false)); got != want {
			t.Errorf("%+v is %s, want %s", e, got, want)
		}
	}
	// RFC 4950 with one label over IPv4 is 168 bytes, with a length of 32 words.
	w := exceeded(v4(64), l(100, 0, 1)).bytes(usual)
	if len(w) != 168 || w[25] != 32 {
		t.Errorf("%d bytes, length %d", len(w), w[25])
	}
	if w = exceeded(v6(64), l(100, 0, 1)).bytes(usual); len(w) != 40+8+128+12 || w[44] != 16 {
		t.Errorf("IPv6: %d bytes, length %d", len(w), w[44])
	}
}
