// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// bed is a client, a router that masquerades, and a server.
type bed struct {
	t      *testing.T
	lab    *lab.Lab
	client *lab.NS
	router *lab.NS
	server *lab.NS
	daemon *lab.Daemon
	driver string
}

const (
	clientAddress = "10.1.0.2"
	serverAddress = "10.2.0.2"
	wanAddress    = "10.2.0.1"
)

// firewall masquerades, and accepts what the client begins. %s is for a flow table.
const firewall = `
	flush ruleset
	table inet f {
		%s
		chain f1 { type filter hook forward priority 0; policy drop;
			%s
			ct state established,related accept
			iifname "lan*" accept
		}
		chain p1 { type nat hook postrouting priority 100; oifname "wan*" masquerade; }
	}`

func newBed(t *testing.T) *bed {
	t.Helper()
	if *card == "" {
		t.Skip("make test-nic boots guests, where it runs")
	}
	b := &bed{t: t}
	var err error
	if b.lab, err = lab.New("nic"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.lab.Close(); err != nil {
			t.Error(err)
		}
	})
	all, err := b.lab.Namespaces("client", "router", "server")
	if err != nil {
		t.Fatal(err)
	}
	b.client, b.router, b.server = all[0], all[1], all[2]
	for _, c := range []struct {
		mac, name string
		ns        *lab.NS
		address   string
	}{
		{clientMAC, "eth", b.client, clientAddress}, {lanMAC, "lan", b.router, "10.1.0.1"},
		{wanMAC, "wan", b.router, wanAddress}, {serverMAC, "eth", b.server, serverAddress},
	} {
		b.enter(c.mac, c.name, c.ns)
		b.must(c.ns.IP("link set "+c.name+" mtu 1500 up", "addr add "+c.address+"/24 dev "+c.name))
	}
	b.must(b.client.IP("route add default via 10.1.0.1"))
	b.must(b.router.Sysctl("net.ipv4.ip_forward", "1"))
	b.must(b.router.NFT(fmt.Sprintf(firewall, "", "")))
	b.driver = b.link("lan").Driver
	return b
}

// enter moves the card with a MAC into a namespace. Cards of an earlier test come back when its namespaces
// go, which takes a moment.
func (b *bed) enter(mac, name string, to *lab.NS) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		links, err := kernel.Links()
		b.must(err)
		for _, l := range links {
			if l.MAC.String() == mac {
				b.must(ipHere("link", "set", l.Name, "netns", to.Name(), "name", name))
				return
			}
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no card has the MAC %s", mac)
		}
	}
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// link is an interface of the router.
func (b *bed) link(name string) (found kernel.Link) {
	b.t.Helper()
	b.must(b.router.Do(func() error {
		links, err := kernel.Links()
		if err != nil {
			return err
		}
		at := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == name })
		if at < 0 {
			return fmt.Errorf("the router has no %s", name)
		}
		found = links[at]
		return nil
	}))
	return found
}

// offloads is what `ethtool -k` shows of the router's cards.
func (b *bed) offloads() (text string) {
	b.t.Helper()
	for _, name := range []string{"lan", "wan"} {
		out, err := b.router.Run("ethtool", "-k", name)
		b.must(err)
		text += out
	}
	return text
}

// start runs shunt on both cards of the router, as users do.
func (b *bed) start(more ...string) {
	b.t.Helper()
	var err error
	b.daemon, err = b.lab.StartDaemon(context.Background(), b.router, *program, append([]string{"--port", "lan", "--port", "wan"}, more...)...)
	b.must(err)
}

// configured runs shunt with a configuration.
func (b *bed) configured(text string) {
	b.t.Helper()
	b.start("--config", b.configure(text))
}

func (b *bed) configure(text string) (file string) {
	b.t.Helper()
	file = filepath.Join(b.lab.Dir(), "shunt.toml")
	b.must(os.WriteFile(file, []byte(text+"\n"), 0o600))
	return file
}

// reload changes the configuration of a daemon that runs by it.
func (b *bed) reload(text string) {
	b.t.Helper()
	b.configure(text)
	if out, err := b.router.Run(*program, "reload", "--state", b.daemon.State); err != nil {
		b.t.Fatalf("reload with %q: %v\n%s", text, err, out)
	}
}

func (b *bed) stop() {
	b.t.Helper()
	b.must(b.daemon.Stop())
}

func (b *bed) status() api.Status {
	b.t.Helper()
	s, err := api.NewClient(b.daemon.Socket()).Status(context.Background())
	b.must(err)
	return s
}

// ports are the router's two, by name.
func (b *bed) ports() map[string]api.Port {
	b.t.Helper()
	list, err := api.NewClient(b.daemon.Socket()).Ports(context.Background())
	b.must(err)
	ports := map[string]api.Port{}
	for _, p := range list {
		ports[p.Name] = p
	}
	return ports
}

// result is what became of a burst.
type result struct {
	sent, arrived, twice int
	from                 netip.AddrPort // source of the last one, as the server sees it
	xdp, tc              uint64         // hits
}

func (r result) lost() int { return r.sent - r.arrived }

// burst sends n datagrams of one flow from the client to the server, a few at a time, and waits for them.
// Each has a number, so that one which comes twice is found.
func (b *bed) burst(n int) (r result) {
	b.t.Helper()
	var before api.Status
	if b.daemon != nil {
		before = b.status()
	}
	server, client := b.socket(b.server, serverAddress+":7"), b.socket(b.client, clientAddress+":7777")
	defer server.Close()
	defer client.Close()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddress + ":7"))
	done := make(chan result)
	go func() {
		r := result{sent: n}
		seen := make([]bool, n)
		b := make([]byte, 64)
		for r.arrived < n {
			server.SetReadDeadline(time.Now().Add(3 * time.Second))
			size, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				break
			}
			at := int(binary.BigEndian.Uint32(b))
			if size != 18 || at >= n || seen[at] {
				r.twice++
				continue
			}
			seen[at], r.from = true, from
			r.arrived++
		}
		done <- r
	}()
	for i := range n {
		var b [18]byte
		binary.BigEndian.PutUint32(b[:], uint32(i))
		client.WriteToUDP(b[:], to) // refused while the router is down
		if i%8 == 7 {
			time.Sleep(time.Millisecond)
		}
	}
	r = <-done
	if b.daemon != nil {
		after := b.status()
		r.xdp = after.Counters["xdp"]["hit"] - before.Counters["xdp"]["hit"]
		r.tc = after.Counters["tc-ingress"]["hit"] - before.Counters["tc-ingress"]["hit"]
	}
	return r
}

func (b *bed) socket(ns *lab.NS, at string) (conn *net.UDPConn) {
	b.t.Helper()
	b.must(ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	}))
	raw, err := conn.SyscallConn()
	b.must(err)
	b.must(raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) }))
	return conn
}

// fast sends bursts until one is repeated at XDP but for a few packets, and returns it.
func (b *bed) fast(what string) (r result) {
	b.t.Helper()
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); {
		if r = b.burst(200); r.lost() == 0 && r.twice == 0 && r.xdp >= 190 {
			return r
		}
	}
	b.t.Fatalf("%s: not repeated at XDP: %+v\nports: %+v\nlog:\n%s", what, r, b.ports(), lastLines(b.daemon.Log(), 12))
	return r
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
