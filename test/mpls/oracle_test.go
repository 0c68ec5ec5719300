// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"shunt/internal/lfib"
)

// oracle is a router of lfib's own, slow reading of its tables, on raw sockets: what the
// data path is held against elsewhere is held against the cases here. It routes IP as a
// kernel would, as far as the cases go, and answers pings.
type oracle struct {
	*network
	taps    [2]*tap
	came    chan arrival
	mu      sync.Mutex
	table   *lfib.Table
	reasons map[string]uint64
	stop    chan struct{}
	ended   chan struct{}
}

func newOracle() (*rig, error) {
	n, err := newNetwork("mpls-oracle")
	if err != nil {
		return nil, err
	}
	o := &oracle{network: n, came: make(chan arrival, 1<<16), table: lfib.New(), reasons: map[string]uint64{}, stop: make(chan struct{}), ended: make(chan struct{})}
	for i, e := range n.ports {
		err = errors.Join(err,
			n.router().Sysctl("net.ipv4.ip_forward", "0"), n.router().Sysctl("net.ipv6.conf.all.forwarding", "0"),
			n.router().IP("address flush dev "+e.Device), // or the kernel would answer too
			e.NS.Do(func() (err error) {
				o.taps[i], err = openTap(port(i), e.Device, o.came)
				return err
			}))
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	go o.serve()
	return n.rig(o)
}

func (o *oracle) name() string { return "oracle" }

// offers: ICMP errors and fragments are the daemon's, and not in the tables.
func (o *oracle) offers(c trial) string {
	switch {
	case c.config == nil:
		return "the grammar has no words for it"
	case c.needs != "" && c.needs != "ftn":
		return "is none of the tables' business"
	}
	return ""
}

// apply makes a transaction of lines.
func (o *oracle) apply(lines []string) error {
	var changes []lfib.Change
	for _, line := range lines {
		some, err := lfib.Parse(o.names(line))
		if err != nil {
			return err
		}
		for _, change := range some {
			if n, ok := change.Object.(lfib.NHLFE); ok && n.List != nil {
				if last := n.List[len(n.List)-1]; last.Op == lfib.OpSend && !slices.Contains(deviceNames[:], last.Port) {
					return fmt.Errorf("there is no port %s", last.Port)
				}
			}
		}
		changes = append(changes, some...)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.table.Apply("test", changes)
	return err
}

func (o *oracle) configure(c trial) error { return o.apply(withFence(c)) }

func (o *oracle) reset(trial) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.table = lfib.New()
	return nil
}

func (o *oracle) refusals(c trial) []string { return c.refused }

func (o *oracle) refuse(_ trial, line string) error {
	err := o.apply([]string{line})
	if err != nil && strings.Contains(err.Error(), "\n") {
		return nil // the contract is one line
	}
	return err
}

func (o *oracle) counters() (map[string]uint64, error) {
	reasons, err := o.stages()
	flat := map[string]uint64{}
	for why, n := range reasons {
		flat[dropped(why)] = n
	}
	return flat, err
}

func (o *oracle) stages() (map[string]uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.reasons), nil
}

func (o *oracle) close() error {
	close(o.stop)
	<-o.ended
	return errors.Join(o.taps[a].close(), o.taps[b].close(), o.network.Close())
}

func (o *oracle) serve() {
	defer close(o.ended)
	for {
		select {
		case <-o.stop:
			return
		case f := <-o.came:
			o.mu.Lock()
			at, kind, packet := o.forward(f)
			o.mu.Unlock()
			if packet != nil {
				_ = o.taps[at].send(o.framed(at, kind, packet)) // one that cannot be sent is lost, as on a wire
			}
		}
	}
}

func (o *oracle) framed(at port, kind uint16, packet []byte) []byte {
	return slices.Concat(o.hosts[at].MAC, o.ports[at].MAC, binary.BigEndian.AppendUint16(nil, kind), packet)
}

// forward says where a frame goes and what it becomes; nil drops it.
func (o *oracle) forward(f arrival) (at port, kind uint16, packet []byte) {
	if len(f.bytes) < ethernetBytes || !slices.Equal(f.bytes[:6], o.ports[f.at].MAC) {
		return 0, 0, nil
	}
	packet = f.bytes[ethernetBytes:]
	switch binary.BigEndian.Uint16(f.bytes[12:]) {
	case kindMPLS:
		space := o.table.Space(deviceNames[f.at])
		if space < 0 {
			o.reasons[whySpaceOff]++
			return 0, 0, nil
		}
		v := o.table.Switch(lfib.Space(space), packet, lfib.Env{Adjacency: adjacency})
		o.reasons[v.Reason]++
		if v.Reason == lfib.Delivered {
			return o.route(f.at, v.Packet)
		}
		return o.sent(v)
	case kindIPv4, kindIPv6:
		return o.route(f.at, packet)
	case kindUpstream:
		o.reasons["mpls_off"]++ // no port has a space for these
		return 0, 0, nil
	}
	o.reasons[notMPLS]++
	return 0, 0, nil
}

func adjacency(s *lfib.Send) (mtu int, ok bool) {
	at := slices.Index(deviceNames[:], s.Port)
	return mtus[max(at, 0)], at >= 0
}

func (o *oracle) sent(v lfib.Verdict) (port, uint16, []byte) {
	if v.Reason != lfib.Switched {
		return 0, 0, nil
	}
	return port(slices.Index(deviceNames[:], v.Send.Port)), v.EtherType, v.Packet
}

// route is what a kernel does with an IP packet: to itself, out by a port, or into an LSP.
func (o *oracle) route(from port, in []byte) (port, uint16, []byte) {
	ip := slices.Clone(in)
	var dest netip.Addr
	var ttl *byte
	kind := uint16(kindIPv4)
	switch {
	case len(ip) >= 20 && ip[0]>>4 == 4:
		dest, ttl = netip.AddrFrom4([4]byte(ip[16:20])), &ip[8]
	case len(ip) >= 40 && ip[0]>>4 == 6:
		dest, ttl, kind = netip.AddrFrom16([16]byte(ip[24:40])), &ip[7], kindIPv6
	default:
		return 0, 0, nil
	}
	out, known := map[netip.Addr]port{host4[a]: a, host4[b]: b, host6[a]: a, host6[b]: b, beyond4: b, beyond6: b}[dest]
	switch {
	case dest == router4[a] || dest == router6[a]:
		return from, kind, pong(ip, kind)
	case !known || *ttl < 2:
		return 0, 0, nil
	}
	*ttl--
	ip = ip[:min(len(ip), length(ip))]
	if kind == kindIPv4 {
		fixSum(ip)
	}
	if v, labelled := o.table.Impose(ip, lfib.Env{Adjacency: adjacency}); labelled {
		o.reasons[v.Reason]++
		return o.sent(v)
	}
	return out, kind, ip
}

// length is what an IP header says it is.
func length(ip []byte) int {
	if ip[0]>>4 == 4 {
		return int(binary.BigEndian.Uint16(ip[2:]))
	}
	return 40 + int(binary.BigEndian.Uint16(ip[4:]))
}

// fixSum makes the checksum of an IPv4 header right.
func fixSum(ip []byte) {
	n := int(ip[0]&15) * 4
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], sum(ip[:n]))
}

// pong answers an echo request.
func pong(ip []byte, kind uint16) []byte {
	if kind == kindIPv4 {
		p := v4(64).from(netip.AddrFrom4([4]byte(ip[16:20]))).to(netip.AddrFrom4([4]byte(ip[12:16])))
		return p.icmp(0, 0, ip[24:]...).bytes(usual)
	}
	p := v6(64).from(netip.AddrFrom16([16]byte(ip[24:40]))).to(netip.AddrFrom16([16]byte(ip[8:24])))
	return p.icmp(129, 0, ip[44:]...).bytes(usual)
}

// TestOracle: the cases and the slow reading of the tables agree, also where these were told
// in the words of iproute2, which `shunt mpls route` takes.
func TestOracle(t *testing.T) {
	r, err := newOracle()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	agree := func(name string, least int, cases []trial) {
		n := 0
		for _, c := range cases {
			found, err := r.judge(c, true)
			if err != nil {
				t.Fatal(err)
			}
			switch found.Verdict {
			case failed:
				t.Errorf("%s: %s %s: %s", name, c.rule, c.name, found.Words)
			case passed:
				n++
			}
		}
		if n < least {
			t.Errorf("%s: only %d cases passed", name, n)
		}
		t.Logf("%s: %d cases passed", name, n)
	}
	agree("shunt mpls", 150, trials())
	var routes []trial
	for _, c := range trials() {
		if c, ok := asRoutes(c); ok {
			routes = append(routes, c)
		}
	}
	agree("shunt mpls route", 75, routes)
}

// asRoutes is a case in the words of iproute2; false if it has others too.
func asRoutes(c trial) (trial, bool) {
	var config []string
	for _, line := range c.kernel {
		words, ok := strings.CutPrefix(line, "-f mpls ")
		if !ok || strings.Contains(line, "nexthop") {
			return c, false
		}
		config = append(config, words)
	}
	c.config, c.refused, c.counts = config, nil, nil // the counters of NHLFEs have other names
	return c, len(config) > 0 && len(c.in) > 0
}
