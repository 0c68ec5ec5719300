// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"shunt/internal/lab"
)

// TestRulesetDifferential: random rulesets, of what nftables and iptables can say, judge the same
// packets twice: by the kernel alone, while shunt is paused, and beside shunt. No packet may arrive
// with shunt that the kernel alone drops. Where rates or chance decide, numbers are compared instead.
func TestRulesetDifferential(t *testing.T) {
	const seeds = 30
	r := newRig(t, lab.FirewallOptions{Open: true, Neighbours: true})
	r.start(program, with("--xdp", "off")...)
	p := newPlayer(r)
	var sent, hits uint64
	for seed := range uint64(seeds) {
		random := rand.New(rand.NewPCG(seed, 7))
		text := drawRuleset(random)
		for !p.install(text) {
			text = drawRuleset(random)
		}
		alone := []map[packetID]bool{p.alone(seed, text)}
		before := r.status().Hits
		beside := p.play(seed, text)
		hits += r.status().Hits - before
		sent += packetsSent
		for again := 0; again < 3 && len(judgeDelivery(text, alone, beside)) > 0; again++ { // the rig may have lost packets
			alone = append(alone, p.alone(seed, text))
		}
		for _, complaint := range judgeDelivery(text, alone, beside) {
			t.Errorf("seed %d, %s:\n%s", seed, complaint, text)
		}
	}
	t.Logf("%d of %d packets were repeated", hits, sent)
	if hits < sent/20 {
		t.Errorf("%d of %d packets were repeated: nothing was compared", hits, sent)
	}
}

// judgeDelivery compares what arrived with one or more runs of the kernel alone, and says what
// arrived that should not have.
func judgeDelivery(text string, alone []map[packetID]bool, beside map[packetID]bool) (complaints []string) {
	for f := range uint8(flowKinds) {
		count := func(got map[packetID]bool) (n int) {
			for id := range got {
				if id.flow == f {
					n++
				}
			}
			return n
		}
		most, m, extra := 0, count(beside), -1
		for _, run := range alone {
			most = max(most, count(run))
		}
		for id := range beside {
			if id.flow == f && !slices.ContainsFunc(alone, func(run map[packetID]bool) bool { return run[id] }) {
				extra = int(id.seq)
			}
		}
		if dependsOnTime(text) && m > most+most/5+12 || !dependsOnTime(text) && extra >= 0 {
			complaints = append(complaints, fmt.Sprintf("flow %d: %d packets arrive, with the kernel alone %d, and not number %d", f, m, most, extra))
		}
	}
	return complaints
}

// The flows: UDP that is answered, UDP that is not, ICMP echo, TCP.
const (
	answered uint8 = iota
	unanswered
	echoes
	stream
	flowKinds

	rounds      = 160
	plainRounds = 60 // before packets differ
	packetsSent = rounds * uint64(flowKinds)
)

type packetID struct {
	flow uint8
	seq  uint16
}

// player sends flows from client to server and notes which packets arrive.
type player struct {
	r              *rig
	client, server int // packet sockets

	mu  sync.Mutex
	got map[packetID]bool
}

func newPlayer(r *rig) *player {
	p := &player{r: r, client: packetSocket(r, r.Client), server: packetSocket(r, r.Server)}
	go p.collect()
	return p
}

func packetSocket(r *rig, e lab.End) (fd int) {
	r.t.Helper()
	r.must(e.NS.Do(func() error {
		device, err := net.InterfaceByName(e.Device)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index})
	}))
	r.t.Cleanup(func() { unix.Shutdown(fd, unix.SHUT_RDWR); unix.Close(fd) })
	return fd
}

// collect runs until its socket is closed.
func (p *player) collect() {
	b := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(p.server, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if id, ok := identify(b[:n]); ok {
			p.mu.Lock()
			p.got[id] = true
			p.mu.Unlock()
		}
	}
}

const magic = 0x53444946

// identify finds the number that a packet carries.
func identify(frame []byte) (id packetID, ok bool) {
	const ip = 14
	if len(frame) < ip+20 || frame[12] != 8 {
		return id, false
	}
	at := map[byte]int{unix.IPPROTO_UDP: 8, unix.IPPROTO_ICMP: 8, unix.IPPROTO_TCP: 20}[frame[ip+9]] + ip + 20
	if len(frame) < at+7 || binary.BigEndian.Uint32(frame[at:]) != magic {
		return id, false
	}
	return packetID{frame[at+4], binary.BigEndian.Uint16(frame[at+5:])}, true
}

// alone is play while shunt is paused.
func (p *player) alone(seed uint64, text string) map[packetID]bool {
	p.r.t.Helper()
	p.r.must(p.r.api.Pause(context.Background()))
	got := p.play(seed, text)
	p.r.must(p.r.api.Resume(context.Background()))
	return got
}

// play puts a ruleset in force from nothing, sends all flows, and returns what arrived.
func (p *player) play(seed uint64, text string) map[packetID]bool {
	p.r.t.Helper()
	p.install(text)
	p.mu.Lock()
	p.got = map[packetID]bool{}
	p.mu.Unlock()
	random := rand.New(rand.NewPCG(seed, 11))
	at := time.Now()
	for seq := range uint16(rounds) {
		for f := range uint8(flowKinds) {
			p.send(seed, f, seq, random)
		}
		at = at.Add(2 * time.Millisecond)
		time.Sleep(time.Until(at))
	}
	time.Sleep(30 * time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}

// install replaces all rules and forgets all connections. It reports whether the kernel takes
// the rules.
func (p *player) install(text string) bool {
	p.r.t.Helper()
	router := p.r.LAN.NS
	run := func(line string, more ...string) {
		p.r.t.Helper()
		if out, err := router.Run(append(strings.Fields(line), more...)...); err != nil {
			p.r.t.Fatalf("%v: %s\n%s", err, out, text)
		}
	}
	p.r.nft("flush ruleset")
	run("iptables-legacy -F FORWARD")
	router.Run("ipset", "destroy") // there may be none
	if tool, rules, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(tool, "iptables") {
		run("ipset create s hash:ip counters")
		run("ipset add s", p.r.Client.V4.Addr().String())
		for rule := range strings.Lines(rules) {
			if out, err := router.Run(strings.Fields(tool + " -A FORWARD " + rule)...); err != nil {
				p.r.t.Logf("not drawn: %s: %s", rule, out)
				return false
			}
		}
	} else if err := router.NFT(text); err != nil {
		p.r.t.Logf("not drawn: %v", err)
		return false
	}
	run("conntrack -F")
	p.r.nft("table ip poke { }\ndelete table ip poke") // legacy iptables announces nothing
	time.Sleep(100 * time.Millisecond)                 // the ruleset is read
	return true
}

// send sends one packet of a flow, and the answer to it if there is one.
func (p *player) send(seed uint64, f uint8, seq uint16, random *rand.Rand) {
	c, s := p.r.Client, p.r.Server
	port := uint16(20000 + seed*8 + uint64(f))
	length, ttl, tos, push := 100, uint8(64), uint8(0), false
	if f == unanswered {
		tos = 46 << 2
	}
	if seq >= plainRounds {
		length, ttl = []int{20, 100, 600, 1200}[random.IntN(4)], []uint8{64, 5, 200}[random.IntN(3)]
		tos |= []uint8{0, 1, 3}[random.IntN(3)]
		push = random.IntN(2) == 0
	}
	payload := binary.BigEndian.AppendUint32(nil, magic)
	payload = append(payload, f, byte(seq>>8), byte(seq))
	payload = append(payload, make([]byte, length-len(payload))...)
	ip := &layers.IPv4{Version: 4, TTL: ttl, TOS: tos, Id: uint16(random.Uint32()), Flags: layers.IPv4DontFragment,
		SrcIP: c.V4.Addr().AsSlice(), DstIP: s.V4.Addr().AsSlice()}
	back := &layers.IPv4{Version: 4, TTL: 64, SrcIP: ip.DstIP, DstIP: ip.SrcIP}
	answer := seq%4 == 1
	switch f {
	case answered, unanswered:
		p.frame(p.client, c.MAC, p.r.LAN.MAC, ip, &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: 7000}, payload)
		if f == answered && answer {
			p.frame(p.server, s.MAC, p.r.WAN.MAC, back, &layers.UDP{SrcPort: 7000, DstPort: layers.UDPPort(port)}, []byte("answer"))
		}
	case echoes:
		p.frame(p.client, c.MAC, p.r.LAN.MAC, ip, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0), Id: port, Seq: seq}, payload)
		if answer {
			p.frame(p.server, s.MAC, p.r.WAN.MAC, back, &layers.ICMPv4{Id: port, Seq: seq}, payload)
		}
	case stream:
		there := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: 7000, Seq: 1001 + uint32(seq)*1200, Ack: 5001, ACK: true, PSH: push, Window: 60000}
		here := &layers.TCP{SrcPort: 7000, DstPort: layers.TCPPort(port), Seq: 5001, Ack: 1001 + uint32(seq)*1200 + uint32(length), ACK: true, Window: 60000}
		if seq == 0 {
			p.frame(p.client, c.MAC, p.r.LAN.MAC, ip, &layers.TCP{SrcPort: there.SrcPort, DstPort: 7000, Seq: 1000, SYN: true, Window: 60000}, nil)
			p.frame(p.server, s.MAC, p.r.WAN.MAC, back, &layers.TCP{SrcPort: 7000, DstPort: there.SrcPort, Seq: 5000, Ack: 1001, SYN: true, ACK: true, Window: 60000}, nil)
		}
		p.frame(p.client, c.MAC, p.r.LAN.MAC, ip, there, payload)
		p.frame(p.server, s.MAC, p.r.WAN.MAC, back, here, nil)
	}
}

// frame sends one frame.
func (p *player) frame(fd int, from, to net.HardwareAddr, ip *layers.IPv4, l4 gopacket.SerializableLayer, payload []byte) {
	p.r.t.Helper()
	switch l := l4.(type) {
	case *layers.UDP:
		ip.Protocol = layers.IPProtocolUDP
		l.SetNetworkLayerForChecksum(ip)
	case *layers.TCP:
		ip.Protocol = layers.IPProtocolTCP
		l.SetNetworkLayerForChecksum(ip)
	default:
		ip.Protocol = layers.IPProtocolICMPv4
	}
	b := gopacket.NewSerializeBuffer()
	p.r.must(gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: layers.EthernetTypeIPv4}, ip, l4, gopacket.Payload(payload)))
	if _, err := unix.Write(fd, b.Bytes()); err != nil {
		p.r.t.Fatal(err)
	}
}
