// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// stackEntry is one of a label stack (RFC 3032 §2.1).
func stackEntry(label uint32, bottom bool, ttl uint8) []byte {
	word := label<<12 | uint32(ttl)
	if bottom {
		word |= 1 << 8
	}
	return binary.BigEndian.AppendUint32(nil, word)
}

// echoRequest is an IPv4 packet as an LSP ping sends it: TTL 1, to 127/8, UDP 3503 (RFC 8029 §4.3).
func echoRequest(from netip.Addr, words string) []byte {
	p := []byte{0x45, 0, 0, byte(28 + len(words)), 0, 1, 0, 0, 1, unix.IPPROTO_UDP, 0, 0}
	p = append(append(p, from.AsSlice()...), 127, 0, 0, 1)
	sum := uint32(0)
	for i := 0; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum+sum>>16))
	return append(append(p, 0x0d, 0xaf, 0x0d, 0xaf, 0, byte(8+len(words)), 0, 0), words...)
}

// TestOAMIsForOthers: shunt answers no LSP ping, but a program on the router can: it gets echo
// requests by the label that ends here, as UDP, and what shunt passes up with its labels (router
// alert, GAL) by a packet socket.
func TestOAMIsForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, lab.FirewallOptions{Neighbours: true})
	r.start(program, with("--xdp", "on")...)
	r.labelsApply("nhlfe add 7 pop deliver", "ilm add 100 nhlfe 7", "space set lan 0")
	r.must(r.LAN.NS.Sysctl("net.ipv4.conf.lan.route_localnet", "1"))
	r.must(r.LAN.NS.IP("link set lo up"))
	var responder net.PacketConn
	var socket, client *kernel.LabelSocket
	var out int
	r.must(r.LAN.NS.Do(func() (err error) {
		port, err := net.InterfaceByName(r.LAN.Device)
		if err != nil {
			return err
		}
		if responder, err = net.ListenPacket("udp4", "127.0.0.1:3503"); err != nil {
			return err
		}
		if socket, err = kernel.OpenLabelSocket(); err != nil {
			return err
		}
		return socket.Listen([]int{port.Index})
	}))
	r.must(r.Client.NS.Do(func() error {
		port, err := net.InterfaceByName(r.Client.Device)
		if err != nil {
			return err
		}
		out = port.Index
		client, err = kernel.OpenLabelSocket()
		return err
	}))
	t.Cleanup(func() { responder.Close(); socket.Close(); client.Close() })
	send := func(parts ...[]byte) {
		r.must(client.Send(out, r.LAN.MAC, unix.ETH_P_MPLS_UC, bytes.Join(parts, nil)))
	}
	from := r.Client.V4.Addr()
	for words, label := range map[string]uint32{"by its label": 100, "by explicit null": 0} {
		send(stackEntry(label, true, 1), echoRequest(from, words))
		r.must(responder.SetReadDeadline(time.Now().Add(patience)))
		b := make([]byte, 100)
		if n, _, err := responder.ReadFrom(b); err != nil || string(b[:n]) != words {
			t.Errorf("%s: %q, %v", words, b[:max(n, 0)], err)
		}
	}
	achannel := []byte{0x10, 0, 0, 7, 1, 2, 3, 4}
	b := make([]byte, 2000)
	late := time.AfterFunc(patience, func() { socket.Close() }) // it has no deadline
	defer late.Stop()
	for reason, parts := range map[string][][]byte{
		"mpls_alert": {stackEntry(1, false, 64), stackEntry(100, true, 1), echoRequest(from, "alert")},
		"mpls_oam":   {stackEntry(13, true, 1), achannel},
	} {
		send(parts...)
		if n, _, err := socket.Hear(b); err != nil || !bytes.Equal(b[:n], bytes.Join(parts, nil)) {
			t.Errorf("%s: passed up is %x, %v", reason, b[:n], err)
		}
		r.eventually(reason+" is counted once", patience, func() bool { return r.count(reason) == 1 })
	}
	r.must(r.daemon.Stop())
}
