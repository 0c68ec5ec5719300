// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/icmp"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

// fakeSocket notes what is sent.
type fakeSocket struct {
	listens []int
	pair    int
	route   error
	send    error
	went    []string
	last    []byte
}

func (s *fakeSocket) Listen(indexes []int) error { s.listens = indexes; return nil }

func (s *fakeSocket) Hear([]byte) (int, int, error) { return 0, 0, os.ErrClosed }

func (s *fakeSocket) ListenPair(index int) error { s.pair = index; return nil }

func (s *fakeSocket) HearPair([]byte) (int, error) { return 0, os.ErrClosed }

func (s *fakeSocket) Speaker(to netip.Addr) (netip.Addr, error) { return to.Next(), nil }

func (s *fakeSocket) Send(index int, to net.HardwareAddr, etherType uint16, packet []byte) error {
	if s.send != nil {
		return s.send
	}
	s.went, s.last = append(s.went, fmt.Sprintf("%d %s %#04x %d bytes", index, to, etherType, len(packet))), slices.Clone(packet)
	return nil
}

func (s *fakeSocket) Route(to netip.Addr, packet []byte) error {
	if s.route != nil {
		return s.route
	}
	s.went, s.last = append(s.went, fmt.Sprintf("route %s %d bytes", to, len(packet))), slices.Clone(packet)
	return nil
}

// puntRig is labels with a socket, and labels 100 (swap), 101 (narrow), 102 (delivers).
func puntRig(t *testing.T) (*labelRig, *punts, *fakeSocket) {
	t.Helper()
	r, s := newLabelRig(t), &fakeSocket{}
	r.punts = newPunts(r.labels, s, func() (map[int][]netip.Prefix, error) {
		return map[int][]netip.Prefix{
			3: {netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.2.0.1/24"), netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("2001:db8:1::1/64")},
			4: {netip.MustParsePrefix("10.0.0.1/24")},
		}, nil
	})
	r.must("space set lan 0", "nhlfe add 1 swap 200 "+viaWAN, "ilm add 100 nhlfe 1", "nhlfe add 2 mtu 100 swap 201 "+viaWAN, "ilm add 101 nhlfe 2",
		"nhlfe add 3 pop deliver", "ilm add 102 nhlfe 3", "nhlfe add 4 pop peek", "ilm add 50 nhlfe 4")
	return r, r.punts, s
}

func entry(label uint32, bottom, ttl uint8) []byte {
	return binary.BigEndian.AppendUint32(nil, label<<12|uint32(bottom)<<8|uint32(ttl))
}

// datagram is an IPv4 packet of so many bytes.
func datagram(from string, size int, flags uint16) []byte {
	b := make([]byte, size)
	b[0], b[8], b[9] = 0x45, 9, 17
	binary.BigEndian.PutUint16(b[2:], uint16(size))
	binary.BigEndian.PutUint16(b[6:], flags)
	copy(b[12:], netip.MustParseAddr(from).AsSlice())
	copy(b[16:], []byte{203, 0, 113, 9})
	sum := uint32(0)
	for at := 0; at < 20; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[at:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	return b
}

func TestPunts(t *testing.T) {
	const wan = "4 02:00:00:00:00:02 0x8847 "
	for _, c := range []struct {
		name  string
		by    int
		in    []byte
		route error
		want  []string
	}{
		{"expired", 3, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0)), nil, []string{"route 10.1.0.9 168 bytes"}},
		{"expired, no way back", 3, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0)), kernel.ErrNoRoute, []string{wan + "172 bytes"}},
		{"no way back, and the label ends here", 3, slices.Concat(entry(50, 0, 1), entry(102, 1, 1), datagram("10.1.0.9", 60, 0)), kernel.ErrNoRoute, nil},
		{"of this host's own address", 3, slices.Concat(entry(100, 1, 1), datagram("10.0.0.1", 60, 0)), nil, nil},
		{"by a port without labels", 4, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"by a port that is not there", 9, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"what the data path switches", 3, slices.Concat(entry(100, 1, 9), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"what it delivers", 3, slices.Concat(entry(102, 1, 9), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"what it drops", 3, slices.Concat(entry(900, 1, 9), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"OAM", 3, slices.Concat(entry(13, 1, 9), datagram("10.1.0.9", 60, 0)), nil, nil},
		{"nothing", 3, nil, nil, nil},
		{"too big, DF", 3, slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 97, 0x4000)), nil, []string{"route 10.1.0.9 168 bytes"}},
		{"too big, cut", 3, slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 97, 0)), nil, []string{wan + "96 bytes", wan + "29 bytes"}},
		{"too big, and no IP", 3, slices.Concat(entry(101, 1, 9), make([]byte, 97)), nil, nil},
		{"alert", 3, slices.Concat(entry(1, 0, 9), entry(100, 1, 9), datagram("10.1.0.9", 60, 0)), nil, []string{wan + "68 bytes"}},
		{"alert that expires", 3, slices.Concat(entry(1, 0, 1), entry(100, 1, 9), datagram("10.1.0.9", 60, 0)), nil, []string{"route 10.1.0.9 172 bytes"}},
		{"alert that ends here", 3, slices.Concat(entry(1, 0, 9), entry(102, 1, 9), datagram("10.1.0.9", 60, 0)), nil, nil},
	} {
		_, p, s := puntRig(t)
		s.route = c.route
		before := slices.Clone(c.in)
		if err := p.take(c.by, c.in); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(s.went, c.want) || !bytes.Equal(c.in, before) {
			t.Errorf("%s: %q, want %q", c.name, s.went, c.want)
		}
	}
}

// The address that answers is the port's, of a subnet that both share if there is one.
func TestPuntSpeaker(t *testing.T) {
	_, p, s := puntRig(t)
	for from, want := range map[string]string{"10.1.0.9": "10.1.0.1", "10.2.0.9": "10.2.0.1", "198.51.100.9": "10.1.0.1"} {
		if err := p.take(3, slices.Concat(entry(100, 1, 1), datagram(from, 60, 0))); err != nil {
			t.Fatal(err)
		}
		if got, _ := netip.AddrFromSlice(s.last[12:16]); got.String() != want {
			t.Errorf("%s is answered from %s, want %s", from, got, want)
		}
	}
	if got, err := p.speaker(3, netip.MustParseAddr("2001:db8:9::9")); err != nil || got.String() != "2001:db8:1::1" {
		t.Errorf("IPv6: %s, %v", got, err)
	}
	if got, err := p.speaker(4, netip.MustParseAddr("2001:db8:9::9")); err != nil || got.IsValid() {
		t.Errorf("without an address: %s, %v", got, err)
	}
	p.addresses, p.learned = func() (map[int][]netip.Prefix, error) { return nil, errors.New("netlink: no memory") }, p.learned.Add(-2*addressesFor)
	if err := p.take(3, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0))); err == nil {
		t.Error("an error is lost")
	}
}

// A flood is answered at a rate, and hears nothing of what is sent by the daemon otherwise.
func TestPuntRate(t *testing.T) {
	_, p, s := puntRig(t)
	p.answers = icmp.NewBucket(0, 50)
	for range 3000 {
		if err := p.take(3, slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.went) != 50 {
		t.Errorf("%d answers", len(s.went))
	}
	if err := p.take(3, slices.Concat(entry(1, 0, 9), entry(100, 1, 9), datagram("10.1.0.9", 60, 0))); err != nil || len(s.went) != 51 {
		t.Errorf("%d packets went, %v", len(s.went), err)
	}
}

// Only ports with a label space are listened to.
func TestPuntPorts(t *testing.T) {
	r, _, s := puntRig(t)
	for _, c := range []struct {
		line string
		want []int
	}{{"space set wan 7", []int{3, 4}}, {"space set lan off", []int{4}}, {"space set wan off", nil}} {
		r.must(c.line)
		if slices.Sort(s.listens); !slices.Equal(s.listens, c.want) {
			t.Errorf("%s: %v, want %v", c.line, s.listens, c.want)
		}
	}
}

// What the daemon sends is counted beside what the data path does; what that called an error is
// none, if it went on; what goes takes its counters along.
func TestPuntCounters(t *testing.T) {
	r, p, s := puntRig(t)
	label := func(n lfib.Label) dataplane.LabelKey { return dataplane.LabelKey{Label: n} }
	r.plane.stats = dataplane.LabelStats{
		In: map[dataplane.LabelKey]dataplane.Segment{label(100): {Packets: 5, Octets: 500}, label(101): {Packets: 3, Octets: 300, Errors: 3}, label(50): {Packets: 1, Octets: 72, Errors: 1}},
	}
	counters := func() (lines []string) {
		stats, err := r.Stats(api.MPLSFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range stats.InSegments {
			lines = append(lines, fmt.Sprintf("in %d: %d %d %d", o.Label, o.Packets, o.HCOctets, o.Errors))
		}
		for _, o := range stats.OutSegments {
			lines = append(lines, fmt.Sprintf("out %d: %d %d", o.NHLFE, o.Packets, o.HCOctets))
		}
		for _, o := range stats.Interfaces {
			lines = append(lines, fmt.Sprintf("%s: cut %d", o.Name, o.OutFragmentedPkts))
		}
		return lines
	}
	for _, in := range [][]byte{
		slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 97, 0)),                                  // cut
		slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 97, 0x4000)),                             // answered
		slices.Concat(entry(50, 0, 9), entry(1, 0, 9), entry(100, 1, 9), datagram("10.1.0.9", 60, 0)), // goes on
	} {
		if err := p.take(3, in); err != nil {
			t.Fatal(err)
		}
	}
	s.send = errors.New("network is down")
	if err := p.take(3, slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 97, 0))); err == nil {
		t.Error("an error is lost")
	}
	want := []string{"in 100: 6 572 0", "in 101: 3 300 1", "in 50: 1 72 0", "in 102: 0 0 0", "out 2: 2 125", "out 1: 1 68", "platform: cut 1", "lan: cut 0", "wan: cut 1"}
	if got := counters(); !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
	r.must("ilm del 101", "nhlfe del 2")
	r.must("nhlfe add 2 mtu 100 swap 201 "+viaWAN, "ilm add 101 nhlfe 2")
	r.plane.stats.In[label(101)] = dataplane.Segment{}
	want = []string{"in 100: 6 572 0", "in 50: 1 72 0", "in 101: 0 0 0", "in 102: 0 0 0", "out 1: 1 68", "out 2: 0 0", "platform: cut 1", "lan: cut 0", "wan: cut 1"}
	if got := counters(); !slices.Equal(got, want) {
		t.Errorf("made anew\n got %s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// Whatever comes up: nothing that does not fit goes out, and the packet stays as it is.
func FuzzTake(f *testing.F) {
	f.Add(slices.Concat(entry(100, 1, 1), datagram("10.1.0.9", 60, 0)), false)
	f.Add(slices.Concat(entry(101, 1, 9), datagram("10.1.0.9", 300, 0)), false)
	f.Add(slices.Concat(entry(1, 0, 9), entry(50, 0, 9), entry(1, 0, 9), entry(101, 1, 9), datagram("10.1.0.9", 97, 0x4000)), true)
	f.Add(slices.Concat(entry(7, 0, 9), entry(100, 0, 9)), true)
	f.Add(datagram("10.1.0.9", 300, 0), false) // as it comes where IP packets get labels
	f.Add(datagram("10.1.0.9", 300, 0x4000), true)
	f.Fuzz(func(t *testing.T, packet []byte, lost bool) {
		l := newLabels(nil, newFakePlane(), nil, nil)
		changes, err := parseLines([]string{"nhlfe add 1 swap 200 " + viaWAN, "ilm add 100 nhlfe 1", "nhlfe add 2 mtu 100 swap 201 " + viaWAN,
			"ilm add 101 nhlfe 2", "nhlfe add 4 pop peek", "ilm add 50 nhlfe 4", "nhlfe add 5 mtu 90 pop " + viaWAN, "ilm add 103 nhlfe 5",
			"nhlfe add 6 mtu 100 push 300 push 301 " + viaWAN, "ftn add 0.0.0.0/0 nhlfe 6", "ftn add ::/0 nhlfe 6"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.table.Apply("fuzz", changes); err != nil {
			t.Fatal(err)
		}
		l.spaces["lan"] = dataplane.LabelPort{Index: 3}
		key := wayOut{port: "wan", via: nextHop}
		l.ways.at[key] = &way{key: key, now: dataplane.Adjacency{ID: 1, Index: 4, MTU: 1500}}
		s := &fakeSocket{}
		if lost {
			s.route = kernel.ErrNoRoute
		}
		p := newPunts(l, s, func() (map[int][]netip.Prefix, error) {
			return map[int][]netip.Prefix{3: {netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("2001:db8:1::1/64")}}, nil
		})
		before := slices.Clone(packet)
		for _, take := range []func() error{func() error { return p.take(3, packet) }, func() error { return p.takeIP(packet) }} {
			if err := take(); err != nil || !bytes.Equal(packet, before) {
				t.Fatal(err, "or the packet was changed")
			}
			if len(s.last) > 1500 {
				t.Fatalf("%d bytes went out", len(s.last))
			}
		}
	})
}
