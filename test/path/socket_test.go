// SPDX-License-Identifier: Apache-2.0

package path

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane/exercise"
	"shunt/internal/lab"
)

// dial and listen use the network stacks of client and server.
func (b *bench) dial(t *testing.T, network string, from, to string) (c net.Conn) {
	t.Helper()
	check(t, b.Client.NS.Do(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(addr(from))
		}
		c, err = d.Dial(network, to)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

func (b *bench) listen(t *testing.T, at string) (l net.Listener) {
	t.Helper()
	check(t, b.Server.NS.Do(func() (err error) { l, err = net.Listen("tcp", at); return err }))
	t.Cleanup(func() { l.Close() })
	return l
}

// moved are stateless rules that give the client another address beyond the router.
const moved = `
chain there { type filter hook postrouting priority 300; oifname wan ip saddr set 198.19.0.9; oifname wan ip6 saddr set 2001:2:0:19::9; }
chain again { type filter hook prerouting priority -300; iifname wan ip daddr 198.19.0.9 ip daddr set 198.18.0.2; iifname wan ip6 daddr 2001:2:0:19::9 ip6 daddr set 2001:2:0:18::2; }`

// between is a rig like the wire between containers: checksums stay partial and TCP
// travels in large pieces.
func between(t *testing.T) *bench {
	b := open(t, exercise.Options{TCOnly: true, Offloads: lab.Stack})
	check(t, b.Speak())
	b.rules(t, moved)
	for _, a := range []string{"198.19.0.9", "2001:2:0:19::9"} {
		check(t, b.Server.NS.IP("neighbour replace "+a+" lladdr "+b.WAN.MAC.String()+" dev eth0 nud permanent"))
	}
	// nobody is at home at the server's ports: its refusals are not what is tested
	check(t, b.Server.NS.NFT("table inet quiet { chain out { type filter hook output priority 0; meta l4proto { icmp, icmpv6 } drop; }; }"))
	return b
}

// TestPartialChecksum: what a socket sends has the sum of its pseudo header in place of a
// checksum. Repeated at TC under NAT, it has that of the new one, as from the kernel.
func TestPartialChecksum(t *testing.T) {
	b := between(t)
	for _, c := range []struct {
		name, source   string
		packet         func() (in, out exercise.Packet)
		from, to, mark string
	}{
		{"IPv4", "198.19.0.9:1000", b.udp4, "198.18.0.2:1000", "198.19.0.2:2000", ""},
		{"IPv6", "[2001:2:0:19::9]:1000", b.udp6, "[2001:2:0:18::2]:1000", "[2001:2:0:19::2]:2000", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, out := c.packet()
			out.Src = addr(c.source)
			conn := b.dial(t, "udp", c.from, c.to)
			want := "tc-ingress learning, tc-egress learned"
			for _, n := range []int{1, 0, 1, 2, 17, 501, 1400} {
				out.Payload = slices.Repeat([]byte{0xa7}, n)
				b.counts(t, want, func() {
					_, err := conn.Write(out.Payload)
					check(t, err)
					got, partial, err := b.server.ReceivePartial(patience)
					check(t, err)
					if !partial {
						t.Error("the checksum is whole: nothing was tested")
					}
					same(t, "at the far end", b.finished(out, got), b.likeSent(out, got))
				})
				want = "tc-ingress hit, tc-egress unsighted"
			}
			s := b.slotOf(t, with2(c.packet))
			if s.Flags&exercise.FlagXDP != 0 {
				t.Error("partial checksums are not for XDP")
			}
		})
	}
}

// with2 is the first of two packets.
func with2(f func() (in, out exercise.Packet)) exercise.Packet {
	in, _ := f()
	return in
}

// finished does what a device does to a partial checksum (skb_checksum_help).
func (b *bench) finished(p exercise.Packet, frame []byte) []byte {
	sum := ^exercise.Fold(exercise.Sum(frame[p.L4():]))
	if sum == 0 {
		sum = 0xffff
	}
	at := p.L4() + 6
	if p.Proto == 6 {
		at = p.L4() + 16
	}
	return put16(frame, at, sum)
}

// likeSent is the packet with what the sending host chose for itself.
func (b *bench) likeSent(p exercise.Packet, frame []byte) []byte {
	if p.Src.Addr().Is4() {
		p.ID, p.Flags = binary.BigEndian.Uint16(frame[18:]), 0x4000
	} else {
		p.Label = binary.BigEndian.Uint32(frame[14:]) & 0xfffff
	}
	return p.Bytes()
}

// TestLargeSegments: TCP in pieces of up to 64 KiB, by a rewritten address both ways: all
// bytes arrive, most packets are hits, and what is on the far wire is still in one piece.
func TestLargeSegments(t *testing.T) {
	for _, c := range []struct{ name, at string }{{"IPv4", "198.19.0.2:5000"}, {"IPv6", "[2001:2:0:19::2]:5000"}} {
		t.Run(c.name, func(t *testing.T) {
			b := between(t)
			l := b.listen(t, c.at)
			sum := make(chan [32]byte, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				h := sha256.New()
				io.Copy(h, conn)
				sum <- [32]byte(h.Sum(nil))
			}()
			data := make([]byte, 8<<20)
			random := rand.NewChaCha8([32]byte{1})
			random.Read(data)
			before, err := b.Count()
			check(t, err)
			conn := b.dial(t, "tcp", "", c.at).(*net.TCPConn)
			_, err = conn.Write(data)
			check(t, err)
			check(t, conn.CloseWrite())
			select {
			case got := <-sum:
				if got != sha256.Sum256(data) {
					t.Error("other bytes arrived than were sent")
				}
			case <-time.After(10 * time.Second):
				t.Fatal("not all arrived in 10 s")
			}
			now, err := b.Count()
			check(t, err)
			d := now.Minus(before)
			if all := d["tc-ingress hit"] + d["tc-ingress learning"]; d["tc-ingress hit"]*10 < all*9 || all < 50 {
				t.Errorf("hits are too few: %v", d)
			}
			large := 0
			for range 200 {
				f, partial, err := b.server.ReceivePartial(0)
				check(t, err)
				if partial && len(f) > 1600 {
					large++
				}
			}
			if large == 0 {
				t.Error("no large segment with a partial checksum among 200 frames: nothing was tested")
			}
		})
	}
}

// TestSequenceAdjusted: FTP's PORT command gets longer by NAT; from then on conntrack
// shifts the sequence numbers of the connection, which shunt does not do.
func TestSequenceAdjusted(t *testing.T) {
	b := open(t, exercise.Options{})
	check(t, b.Speak())
	b.track(t, `ct helper ftp { type "ftp" protocol tcp; }
		chain help { type filter hook prerouting priority 0; tcp dport 21 ct helper set "ftp"; }
		chain source { type nat hook postrouting priority 100; oifname wan meta l4proto 6 snat ip to 198.19.0.100; }`)
	check(t, b.Server.NS.IP("neighbour replace 198.19.0.100 lladdr "+b.WAN.MAC.String()+" dev eth0 nud permanent"))
	l := b.listen(t, "198.19.0.2:21")
	got := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 100)
		for range 2 {
			n, _ := conn.Read(buf)
			got <- string(buf[:n])
		}
		io.Copy(conn, conn)
	}()
	conn := b.dial(t, "tcp", "", "198.19.0.2:21")
	_, err := conn.Write([]byte("USER me\r\n")) // the helper reads from the first whole line on
	check(t, err)
	<-got
	_, err = conn.Write([]byte("PORT 198,18,0,2,200,10\r\n"))
	check(t, err)
	if line := <-got; line != "PORT 198,19,0,100,200,10\r\n" {
		t.Fatalf("the helper made %q of it: nothing was tested", line)
	}
	b.eventually(t, "tc-egress ct_seqadj", 5*time.Second, func() {
		_, err := conn.Write([]byte("NOOP\r\n"))
		check(t, err)
		_, err = io.ReadFull(conn, make([]byte, 6))
		check(t, err)
	})
	from := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	b.answers(t, api.FlowQuery{Source: from, Destination: addr("198.19.0.2:21"), Proto: 6}, "ct_seqadj")
}
