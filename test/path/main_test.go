// SPDX-License-Identifier: Apache-2.0

// Package path tests the way of a packet through the shipped programs: a frame and a
// state go in; verdict, bytes and the whole difference in all counters come out, and
// each is stated in full. Frames are built twice, before and after, by a builder that
// knows nothing of bpf/.
//
// A reason that no case reaches, or that the daemon's explanation was never asked for after
// it was reached, fails the run: see TestMain. Root only.
package path

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
)

// stages are where each reason can be: the stage's first letters behind the reason. A
// reason that is new in bpf/abi.h has no line here, and fails.
const stages = `
hit                  xdp tc-ingress
paused               xdp tc-ingress
not_ip               xdp tc-ingress
vlan_tag             xdp tc-ingress
not_host             xdp tc-ingress mpls
runt                 xdp tc-ingress
malformed            xdp tc-ingress
bad_checksum         xdp tc-ingress
ip_options           xdp tc-ingress
extension_header     xdp tc-ingress
fragment             xdp tc-ingress
ttl                  xdp tc-ingress
not_echo             xdp tc-ingress
tcp_syn              xdp tc-ingress
tcp_no_ack           xdp tc-ingress
tcp_close            xdp tc-ingress
tcp_implausible      xdp tc-ingress
judged               tc-ingress
table_full           xdp tc-ingress
below_threshold      xdp tc-ingress
learning             xdp tc-ingress
lease_ended          xdp tc-ingress
old_generation       xdp tc-ingress tc-egress
closed               xdp tc-ingress
busy                 xdp tc-ingress tc-egress
mac_differs          xdp tc-ingress
dscp_differs         xdp tc-ingress
label_differs        xdp tc-ingress
over_mtu             xdp tc-ingress
egress_gone          xdp
draining             xdp
tc_way               xdp
learned              tc-egress
renewed              tc-egress
changed              tc-egress
unsighted            tc-egress
redirected           tc-egress
local_socket         tc-egress
stale_sighting       tc-egress
other_packet         tc-egress
port_unknown         tc-egress
encapsulated         tc-egress
no_conntrack         tc-egress
ct_unconfirmed       tc-egress
ct_related           tc-egress
ct_helper            tc-egress
ct_seqadj            tc-egress
ct_tuple_differs     tc-egress
ct_not_established   tc-egress
ct_not_liberal       tc-egress
ct_expiring          tc-egress
ttl_step             tc-egress
header_changed       tc-egress
payload_changed      tc-egress
l4_rewritten         tc-egress
tcp_off              xdp tc-ingress
slot_lost            tc-egress
not_marked           tc-egress
excluded             tc-egress
per_packet_rule      tc-egress
queue_looks_deeper   tc-egress
route_program        tc-egress
group_neighbour      tc-egress
unwatched            tc-ingress tc-egress
source_full          xdp tc-ingress
policed              xdp tc-ingress
mpls_switched        mpls
mpls_delivered       mpls
mpls_off             xdp tc-ingress mpls
mpls_malformed       mpls
mpls_no_label        mpls
mpls_ttl             mpls
mpls_ttl_zero        mpls
mpls_special         mpls
mpls_alert           mpls
mpls_oam             mpls
mpls_payload         mpls
mpls_over_mtu        mpls
mpls_depth           mpls
mpls_discard         mpls
mpls_no_adjacency    mpls
mpls_orphaned        mpls
mpls_egress_gone     mpls
mpls_no_room         mpls
mpls_imposed         mpls
`

// exempt are reasons that no packet of this machine can reach, each with the evidence
// and with the test that does what can be done instead.
var exempt = map[string]string{
	// A security path is put on a packet by xfrm_input() alone, for a protocol of
	// IPsec. A kernel without CONFIG_INET_ESP, INET_AH, INET_IPCOMP and IPV6_MIP6 has
	// none: `ip xfrm state add` says "Requested type not found". The same instructions,
	// with the extension's number relocated to one that such a kernel does put on
	// packets, are run by TestSecurityPath in internal/dataplane.
	"ipsec": "no xfrm type in this kernel",
	// skb->ipvs_property is set by IPVS alone, which this kernel lacks (CONFIG_IP_VS). TestIPVS in test/e2e
	// runs under Debian's.
	"ipvs": "no IPVS in this kernel",
}

// reached is the sum of all differences that were stated and met.
var reached = exercise.Tally{}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	// a run of chosen tests proves nothing about the others
	if code == 0 && flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		code = checkReached()
	}
	os.Exit(code)
}

// checkReached compares what was reached with what can be.
func checkReached() (code int) {
	complain := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
		code = 1
	}
	known, pairs := map[string]bool{}, exercise.Tally{}
	for line := range strings.Lines(stages) {
		fields := strings.Fields(line)
		for i, word := range fields {
			known[fields[0]] = true
			if i > 0 {
				pairs[word+" "+fields[0]]++
			}
		}
	}
	for _, reason := range dataplane.Reasons {
		if !known[reason] && exempt[reason] == "" {
			complain("reason %s: test/path does not say where it can be; add it to stages with a case that reaches it", reason)
		}
		if !explained[reason] && exempt[reason] == "" {
			complain("reason %s: no case brings a flow to it and asks for the explanation; add one to explain_test.go", reason)
		}
	}
	for pair := range pairs {
		if reached[pair] == 0 {
			complain("%s: no case reaches it; add one", pair)
		}
	}
	for pair := range reached {
		if pairs[pair] == 0 {
			complain("%s: reached, but stages does not know that it can be; add it", pair)
		}
	}
	return code
}

// bench is a rig with a tap at either end.
type bench struct {
	*exercise.Rig
	client, server *exercise.Tap
}

func open(t *testing.T, o exercise.Options) *bench {
	t.Helper()
	o.Name = "path"
	r, err := exercise.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, r.Close()) })
	b := &bench{Rig: r}
	if b.client, err = exercise.NewTap(r.Client); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.client.Close() })
	if b.server, err = exercise.NewTap(r.Server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.server.Close() })
	return b
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counts runs f and says that all counters together move by exactly what is wanted.
func (b *bench) counts(t *testing.T, want string, f func()) {
	t.Helper()
	w, err := exercise.ParseTally(want)
	check(t, err)
	before, err := b.Count()
	check(t, err)
	f()
	var got exercise.Tally
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		now, err := b.Count()
		check(t, err)
		got = now.Minus(before)
		leaveOut(got, w)
		if got.String() == w.String() || time.Now().After(deadline) {
			break
		}
	}
	if got.String() != w.String() {
		t.Fatalf("counted %q\nwanted  %q", got, w)
	}
	for k, n := range got {
		reached[k] += n
	}
}

// leaveOut takes the links' own MLD and ARP, which come when they like, out of a count.
func leaveOut(got, wanted exercise.Tally) {
	for _, stray := range []string{"not_host", "not_ip"} {
		if wanted["tc-ingress "+stray] == 0 {
			delete(got, "tc-ingress "+stray)
		}
		n := got["xdp "+stray]
		if wanted["xdp "+stray] > 0 || n == 0 {
			continue
		}
		delete(got, "xdp "+stray)
		if got["tc-ingress judged"] -= n; got["tc-ingress judged"] == 0 {
			delete(got, "tc-ingress judged")
		}
	}
}

// same compares frames.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s:\ngot    %x\nwanted %x", what, got, want)
	}
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// udp4 goes from client to server, and out is what a router without rules makes of it.
func (b *bench) udp4() (in, out exercise.Packet) {
	in = exercise.Packet{
		To: b.LAN.MAC, From: b.Client.MAC, Proto: 17, TTL: 64, ID: 0x1234,
		Src: addr("198.18.0.2:1000"), Dst: addr("198.19.0.2:2000"), Payload: []byte("something to carry"),
	}
	return in, b.routed(in)
}

func (b *bench) udp6() (in, out exercise.Packet) {
	in, _ = b.udp4()
	in.Src, in.Dst = addr("[2001:2:0:18::2]:1000"), addr("[2001:2:0:19::2]:2000")
	in.ID, in.Label = 0, 0x12345
	return in, b.routed(in)
}

// tcp4 and tcp6 are in the middle of a connection.
func (b *bench) tcp4() (in, out exercise.Packet) {
	in, _ = b.udp4()
	in.Proto, in.TCP = 6, exercise.TCP{Seq: 1000, Ack: 2000, Window: 500, ACK: true}
	return in, b.routed(in)
}

func (b *bench) tcp6() (in, out exercise.Packet) {
	in, _ = b.udp6()
	in.Proto, in.TCP = 6, exercise.TCP{Seq: 1000, Ack: 2000, Window: 500, ACK: true}
	return in, b.routed(in)
}

// routed is a packet after plain routing from lan to wan.
func (b *bench) routed(p exercise.Packet) exercise.Packet {
	p.To, p.From = b.Server.MAC, b.WAN.MAC
	p.TTL--
	p.Trailer = nil
	return p
}

// lease is a time in jiffies far enough from now.
func (b *bench) lease(t *testing.T) uint32 {
	t.Helper()
	now, err := b.Now()
	check(t, err)
	return now + 60*b.HZ
}

func num(v uint16) string { return strconv.Itoa(int(v)) }
