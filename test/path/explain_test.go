// SPDX-License-Identifier: Apache-2.0

package path

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/explain"
	"shunt/internal/reason"
)

// explained are the reasons that the daemon's own explanation was asked for, after a packet
// had met them in the data path, and got right. TestMain wants all of them.
var explained = map[string]bool{}

// look is what the daemon would answer from.
func (b *bench) look(t *testing.T) *explain.Look {
	t.Helper()
	now, err := b.Now()
	check(t, err)
	xdp := map[int]bool{}
	for _, index := range []int{b.LANIndex, b.WANIndex} {
		var port struct{ Flags, Tx uint32 }
		xdp[index] = b.Map("ports").Lookup(uint32(index), &port) == nil && port.Flags&1 != 0
	}
	return &explain.Look{Plane: b.Plane, Now: now, HZ: b.HZ, TCP: b.Control().TcpOff == 0, Ports: map[int]explain.Port{
		b.LANIndex: {Name: "lan", XDP: xdp[b.LANIndex]}, b.WANIndex: {Name: "wan", XDP: xdp[b.WANIndex]},
	}}
}

// queryOf asks for a packet's flow.
func queryOf(p exercise.Packet) api.FlowQuery {
	q := api.FlowQuery{Source: p.Src, Destination: p.Dst, Proto: p.Proto}
	switch p.Proto {
	case 6, 17, 33, 132, 136:
	case 1, 58:
		q.Destination = exchange(p.Dst, p.Src)
	default:
		q.AnyID = true
	}
	if p.Payload != nil && (p.Proto == 33 || p.Proto == 132 || p.Proto == 136) {
		at := func(n int) uint16 { return uint16(p.Payload[n])<<8 | uint16(p.Payload[n+1]) }
		q.Source, q.Destination = netip.AddrPortFrom(p.Src.Addr(), at(0)), netip.AddrPortFrom(p.Dst.Addr(), at(2))
	}
	return q
}

// answers says that the explanation of a flow, the one that comes in with its source, is a
// word, with the word's meaning, and gives the whole of it.
func (b *bench) answers(t *testing.T, q api.FlowQuery, word string) api.Explanation {
	t.Helper()
	list, err := b.look(t).Explain(api.ExplainQuery{Flow: &q})
	check(t, err)
	at := slices.IndexFunc(list, func(x api.Explanation) bool {
		if x.Flow == nil && len(x.Also) == 0 {
			return true
		}
		return !x.Near && (x.Flow == nil && x.Also[0].Source.Addr() == q.Source.Addr() || x.Flow != nil && x.Flow.Source.Addr() == q.Source.Addr())
	})
	if at < 0 {
		t.Fatalf("no explanation of %v: %+v", q, list)
	}
	x := list[at]
	words, rule, remedy := reason.Words(word)
	if x.Reason != word || x.Words != words || x.Rule != rule || x.Remedy != remedy || words == "" {
		t.Errorf("%v is explained by %+v, want %s: %s", q, x, word, words)
	}
	if fast := word == "hit" || word == "draining"; x.Fast != fast {
		t.Errorf("%v: %s: fast %v", q, word, x.Fast)
	}
	explained[word] = true
	return x
}

// besides says that an explanation names a second reason.
func besides(t *testing.T, x api.Explanation, word string) api.Also {
	t.Helper()
	at := slices.IndexFunc(x.Also, func(a api.Also) bool { return a.Reason == word })
	if at < 0 {
		t.Fatalf("%+v does not tell of %s", x, word)
	}
	a := x.Also[at]
	if words, _, remedy := reason.Words(word); a.Words != words || a.Remedy != remedy {
		t.Errorf("%s is told as %+v", word, a)
	}
	explained[word] = true
	return a
}

// counted says that a reason, asked for by itself, is told with its meaning and with how many
// packets left by it at a stage of a port.
func (b *bench) counted(t *testing.T, word, stage, port string, index int) api.Explanation {
	t.Helper()
	list, err := b.look(t).Explain(api.ExplainQuery{Reason: word})
	check(t, err)
	c, err := b.Counters(slices.Index(dataplane.Stages, stage), index)
	check(t, err)
	words, rule, _ := reason.Words(word)
	want := api.Counted{Port: port, Stage: stage, Reason: word, Packets: c.Of(word)}
	if len(list) != 1 || list[0].Reason != word || list[0].Words != words || list[0].Rule != rule ||
		want.Packets == 0 || !slices.Contains(list[0].Counted, want) {
		t.Fatalf("%s is explained by %+v, want %+v", word, list, want)
	}
	explained[word] = true
	return list[0]
}

// TestExplainStates: what a slot, or the settings, say of a flow.
func TestExplainStates(t *testing.T) {
	b := open(t, exercise.Options{})
	defaults := b.Control()
	now, err := b.Now()
	check(t, err)
	for _, c := range stateCases(now, b.HZ) {
		if c.reason == "" {
			c.reason = "hit"
		}
		t.Run(c.name, func(t *testing.T) {
			check(t, b.Clear())
			in, out := b.udp4()
			if c.v6 {
				in, out = b.udp6()
			}
			s := b.Learned(in, out, b.lease(t))
			s.Seen = now
			if c.slot != nil {
				c.slot(&s)
			}
			if s.State == exercise.Seen {
				s.Why = uint8(slices.Index(dataplane.Reasons, "below_threshold"))
			}
			_, err := b.Put(s)
			check(t, err)
			if c.packet != nil {
				c.packet(&in)
			}
			if c.control != nil {
				b.Edit(c.control)
				defer b.Edit(func(ctl *exercise.Control) { *ctl = defaults })
			}
			_, err = b.XDP(b.LANIndex, in.Bytes())
			check(t, err)
			x := b.answers(t, queryOf(in), c.reason)
			if x.Flow == nil || x.Flow.Port != "lan" {
				t.Errorf("%+v: nothing of its slot", x)
			}
		})
	}
}

// wireOf is the flow that a frame claims to be of, as far as addresses can be read in it, by
// gopacket, and whether its ports can be.
func wireOf(frame []byte) (q api.FlowQuery, readable bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Lazy)
	at := func(a net.IP, port uint16) netip.AddrPort {
		ip, _ := netip.AddrFromSlice(a)
		return netip.AddrPortFrom(ip, port)
	}
	n := p.NetworkLayer()
	switch ip := n.(type) {
	case *layers.IPv4:
		q = api.FlowQuery{Source: at(ip.SrcIP, 0), Destination: at(ip.DstIP, 0), Proto: uint8(ip.Protocol), AnyID: true}
	case *layers.IPv6:
		q = api.FlowQuery{Source: at(ip.SrcIP, 0), Destination: at(ip.DstIP, 0), Proto: uint8(ip.NextHeader), AnyID: true}
	default:
		return q, false
	}
	return q, p.ErrorLayer() == nil || q.Source.IsValid()
}

// TestExplainSlotless: packets of which no slot is kept, at either stage; asked for by flow
// and by reason.
func TestExplainSlotless(t *testing.T) {
	b := open(t, exercise.Options{})
	stages := map[string]func(frame []byte) error{
		"xdp":        func(f []byte) error { _, err := b.XDP(b.LANIndex, f); return err },
		"tc-ingress": func(f []byte) error { _, err := b.Ingress(b.LANIndex, f, exercise.Buffer{}); return err },
	}
	for _, c := range slices.Concat(linkFrames(b), header6Frames(b), transportFrames(b)) {
		for stage, run := range stages {
			t.Run(c.name+" at "+stage, func(t *testing.T) {
				check(t, b.Clear())
				check(t, b.ForgetSamples())
				if len(c.frame) < 14+40 && c.frame[12] == 0x86 || len(c.frame) < 14+20 {
					return // bpf_prog_test_run_skb() makes no such skb, and no address is in it
				}
				check(t, run(c.frame))
				x := b.counted(t, c.reason, stage, "lan", b.LANIndex)
				q, ok := wireOf(c.frame)
				if !ok {
					if c.reason != "not_ip" && c.reason != "mpls_off" && c.reason != "malformed" {
						t.Errorf("gopacket reads no address: nothing was tested")
					}
					return
				}
				a := besides(t, x, c.reason)
				if a.Port != "lan" || a.Packets != 1 || a.Source.Addr() != q.Source.Addr() || a.Destination.Addr() != q.Destination.Addr() ||
					(c.reason == "vlan_tag") != (a.VLAN == 7) {
					t.Errorf("%+v, want a packet of %v", a, q)
				}
				b.answers(t, q, c.reason)
			})
		}
	}
}

// TestExplainPorts: a flow is known by its ports where they can be read, by its addresses
// where not, and one that was not seen by others between the same addresses.
func TestExplainPorts(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	send := func(f []byte) {
		t.Helper()
		_, err := b.XDP(b.LANIndex, f)
		check(t, err)
	}
	none := func(q api.FlowQuery) []api.Explanation {
		t.Helper()
		list, err := b.look(t).Explain(api.ExplainQuery{Flow: &q})
		check(t, err)
		if list[0].Reason != "not_seen" || list[0].Fast || list[0].Remedy == "" {
			t.Errorf("%v is explained by %+v", q, list[0])
		}
		return list
	}
	mine, other := queryOf(in), queryOf(in)
	other.Source = addr("198.18.0.2:1001")

	options := linkFrames(b)[slices.IndexFunc(linkFrames(b), func(c punted) bool { return c.reason == "ip_options" })].frame
	for range 3 {
		send(options)
	}
	x := b.answers(t, mine, "ip_options")
	if a := x.Also[0]; a.Source != in.Src || a.Destination != in.Dst || a.Proto != "udp" || a.Packets != 3 {
		t.Errorf("%+v, want the ports behind the options, thrice", a)
	}
	if list := none(other); len(list[0].Counted) == 0 || list[0].Counted[0] != (api.Counted{Port: "lan", Stage: "xdp", Reason: "ip_options", Packets: 3}) {
		t.Errorf("%+v: not what the port counted", list[0])
	}
	send(with(in, func(p *exercise.Packet) { p.Flags = 100 })) // a last fragment
	b.answers(t, other, "fragment")
	tagged := slices.Concat(in.Bytes()[:12], []byte{0x81, 0, 0x20, 9}, in.Bytes()[12:])
	check(t, b.ForgetSamples())
	send(tagged)
	if a := b.answers(t, mine, "vlan_tag").Also[0]; a.VLAN != 9 || a.Source != in.Src {
		t.Errorf("%+v, want VLAN 9", a)
	}

	check(t, b.ForgetSamples())
	b.arm(t, in, out)
	list := none(other)
	if len(list) != 2 || !list[1].Near || list[1].Reason != "hit" || list[1].Flow.Source != in.Src {
		t.Errorf("%+v: nothing of the flow between the same addresses", list)
	}
}

// TestExplainWays: an armed flow that is not simply repeated in XDP, or not at all.
func TestExplainWays(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	put := func(change func(*exercise.Slot)) exercise.Slot {
		t.Helper()
		check(t, b.Clear())
		s := b.Learned(in, out, b.lease(t))
		change(&s)
		_, err := b.Put(s)
		check(t, err)
		_, err = b.XDP(b.LANIndex, in.Bytes())
		check(t, err)
		return s
	}
	put(func(s *exercise.Slot) { s.Flags &^= exercise.FlagXDP })
	besides(t, b.answers(t, queryOf(in), "hit"), "tc_way")

	put(func(s *exercise.Slot) { s.Flags |= exercise.FlagDrain; s.Given, s.Taken, s.Seen = 3, 2, s.Lease })
	b.answers(t, queryOf(in), "draining")

	tx := put(func(*exercise.Slot) {}).Tx
	var device uint32
	check(t, b.Map("tx").Lookup(uint32(tx), &device))
	check(t, b.Map("tx").Delete(uint32(tx)))
	put(func(*exercise.Slot) {})
	b.answers(t, queryOf(in), "egress_gone")
	check(t, b.Map("tx").Put(uint32(tx), device))

	conn, _, _, _ := b.connection(t, false)
	blind := conn
	blind.TCP = exercise.TCP{Seq: 1 << 31, RST: true}
	b.closes(t, "xdp", b.LANIndex, blind.Bytes(), "tcp_implausible")
	if a := besides(t, b.answers(t, queryOf(conn), "hit"), "tcp_implausible"); a.Source != conn.Src || a.Packets != 1 {
		t.Errorf("%+v", a)
	}
	conn.TCP.FIN, conn.TCP.Seq = true, 1000
	b.closes(t, "xdp", b.LANIndex, conn.Bytes(), "tcp_close")
	besides(t, b.answers(t, queryOf(conn), "closed"), "tcp_close")

	conn, _, _, _ = b.connection(t, false)
	b.Configure(dataplane.Settings{Threshold: 1, Lease: 30 * b.HZ, LeaseLive: 30 * b.HZ, HZ: b.HZ})
	b.meetsBoth(t, "tcp_off", conn, b.routed(conn))
	b.answers(t, queryOf(conn), "tcp_off")
}

// TestExplainFull: a flow that finds no room.
func TestExplainFull(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, stage := range []string{"xdp", "tc-ingress"} {
		check(t, b.ForgetSamples())
		in, out := b.udp4()
		b.fill(t, in, out)
		b.meets(t, stage, "table_full", in, out)
		if a := b.answers(t, queryOf(in), "table_full").Also[0]; a.Source != in.Src || a.Destination != in.Dst || a.Packets != 1 {
			t.Errorf("%+v", a)
		}
	}
}

// TestExplainProofs: what the kernel did last to a flow that is fast.
func TestExplainProofs(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	b.forth(t, teaches+"learned", in.Bytes(), out.Bytes())
	besides(t, b.answers(t, queryOf(in), "hit"), "learned")
	b.endLease(t, in)
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress renewed", in.Bytes(), out.Bytes())
	besides(t, b.answers(t, queryOf(in), "hit"), "renewed")
	b.rules(t, postrouting+"ip dscp set ef; }")
	marked := with(out, func(p *exercise.Packet) { p.TOS = 0xb8 })
	b.endLease(t, in)
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress changed", in.Bytes(), marked)
	x := b.answers(t, queryOf(in), "hit")
	besides(t, x, "changed")
	if x.Flow.DSCPOut != 46 || x.Flow.Renewals != 2 {
		t.Errorf("%+v, want what the kernel does now", x.Flow)
	}

	// it is forwarded still, but by nothing that could be repeated: that is the answer, and
	// not that its lease is over
	b.rules(t, postrouting+"ip ttl set 33; }")
	b.endLease(t, in)
	b.forth(t, "xdp lease_ended, tc-ingress lease_ended, tc-egress ttl_step", in.Bytes(), with(out, func(p *exercise.Packet) { p.TTL = 33 }))
	if x := b.answers(t, queryOf(in), "ttl_step"); x.Flow.State != api.FlowExpired {
		t.Errorf("%+v, want an expired flow", x.Flow)
	}
}

// TestExplainUnlearnable: a flow that the kernel forwards in a way that is not repeated.
func TestExplainUnlearnable(t *testing.T) {
	b := open(t, exercise.Options{})
	for _, c := range b.unlearnable() {
		check(t, b.Clear())
		b.rules(t, postrouting+c.rule+"; }")
		b.counts(t, teaches+c.reason, func() { check(t, b.client.Send(c.in.Bytes())) })
		b.answers(t, queryOf(c.in), c.reason)
	}
}

// TestExplainElsewhere: packets that TC egress counts without learning, and what is told of
// reasons that no flow has.
func TestExplainElsewhere(t *testing.T) {
	b := open(t, exercise.Options{})
	b.lives(t)
	in, out := b.udp4()
	t.Run("redirected", func(t *testing.T) {
		check(t, b.LAN.NS.NFT(`table netdev away { chain in { type filter hook ingress device "lan" priority 0; fwd to "wan"; }; }`))
		b.forth(t, teaches+"redirected", in.Bytes(), in.Bytes())
		check(t, b.LAN.NS.NFT("delete table netdev away"))
		b.answers(t, queryOf(in), "redirected")
	})
	t.Run("port unknown", func(t *testing.T) {
		check(t, b.Clear())
		var port struct{ Flags, Tx uint32 }
		check(t, b.Map("ports").Lookup(uint32(b.WANIndex), &port))
		check(t, b.Map("ports").Delete(uint32(b.WANIndex)))
		b.forth(t, teaches+"port_unknown", in.Bytes(), out.Bytes())
		check(t, b.Map("ports").Put(uint32(b.WANIndex), port))
		b.answers(t, queryOf(in), "port_unknown")
	})
	t.Run("slot lost", func(t *testing.T) {
		check(t, b.Clear())
		var slot exercise.Slot
		key, words := exercise.KeyOf(in, b.LANIndex)
		at := b.Offset(exercise.Place{Bucket: b.Hash().Places(key, words)[0]}) + int64(unsafe.Offsetof(slot.Key))
		undo, err := b.SetBefore(b.WANIndex, exercise.Flows, at, 4, 0x01020304)
		check(t, err)
		defer undo()
		b.forth(t, teaches+"slot_lost", in.Bytes(), out.Bytes())
		if a := b.answers(t, queryOf(in), "slot_lost").Also[0]; a.Source != in.Src || a.Destination != in.Dst {
			t.Errorf("%+v", a)
		}
	})
	t.Run("dropped by a rule", func(t *testing.T) {
		check(t, b.Clear())
		check(t, b.ForgetSamples())
		b.rules(t, forward+"drop; }")
		b.forth(t, "xdp learning, tc-ingress learning", in.Bytes(), nil)
		b.rules(t, "")
		b.answers(t, queryOf(in), "learning")
	})
	t.Run("of no flow", func(t *testing.T) {
		check(t, b.Clear())
		b.Edit(func(c *exercise.Control) { c.Threshold = 2 })
		b.forth(t, "xdp below_threshold"+passes, in.Bytes(), out.Bytes())
		b.Edit(func(c *exercise.Control) { c.Threshold = 1 })
		b.counted(t, "judged", "tc-ingress", "lan", b.LANIndex)
		b.counted(t, "unsighted", "tc-egress", "wan", b.WANIndex)
		b.answers(t, queryOf(in), "below_threshold")
	})
}

// TestExplainDefence: a source that may have no more flows, and an exception over its rate.
func TestExplainDefence(t *testing.T) {
	b := open(t, exercise.Options{})
	in, out := b.udp4()
	b.meets(t, "xdp", "learning", in, out)
	b.Edit(func(c *exercise.Control) { c.SourceFlows = 1 })
	next := from(in, "198.18.0.2:9")
	b.meets(t, "xdp", "source_full", next, out)
	b.answers(t, queryOf(next), "source_full")

	options := linkFrames(b)[slices.IndexFunc(linkFrames(b), func(c punted) bool { return c.reason == "ip_options" })].frame
	check(t, b.Clear())
	check(t, b.Exhaust(true))
	b.dropped(t, options, true)
	b.answers(t, queryOf(in), "policed")
}
