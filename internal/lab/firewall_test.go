// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// echo answers each datagram to address with the source it saw, once.
func echo(n *NS, address netip.AddrPort) (stop func(), err error) {
	var c *net.UDPConn
	err = n.Do(func() error {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			c.WriteToUDPAddrPort([]byte(from.Addr().Unmap().String()), from)
		}
	}()
	return func() { c.Close() }, nil
}

// ask sends a datagram and returns the answer, or "" if none comes.
func ask(n *NS, to netip.AddrPort) (string, error) {
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = net.Dial("udp", to.String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 100)
	for range 3 { // an unresolved neighbour may cost one
		c.Write([]byte("?"))
		c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := c.Read(buf); err == nil {
			return string(buf[:n]), nil
		}
	}
	return "", nil
}

// TestNAT asks over the router and compares the source that the other side saw.
func TestNAT(t *testing.T) {
	const c4, c6, s4, s6 = "198.18.0.2", "2001:2:0:18::2", "198.19.0.2", "2001:2:0:19::2"
	const wan4, wan6 = "198.19.0.1", "2001:2:0:19::1"
	type route struct {
		inward     bool // the server asks
		to         string
		port       uint16
		at         string // who answers
		service    uint16
		wantSource string
	}
	plain4 := route{false, s4, 7000, s4, 7000, c4}
	plain6 := route{false, s6, 7000, s6, 7000, c6}
	for kind, routes := range map[NAT][]route{
		NATNone:       {plain4, plain6, {true, c4, 7000, c4, 7000, ""}, {true, c6, 7000, c6, 7000, ""}},
		NATMasquerade: {{false, s4, 7000, s4, 7000, wan4}, plain6},
		NATSource:     {{false, s4, 7000, s4, 7000, SNATAddress.String()}, plain6},
		NAT66:         {plain4, {false, s6, 7000, s6, 7000, wan6}},
		NATDest:       {plain4, {true, wan4, 7000, c4, 7000, s4}, {true, wan6, 7000, c6, 7000, s6}},
		NATDestPort:   {plain6, {true, wan4, PublicPort, c4, ServicePort, s4}, {true, wan6, PublicPort, c6, ServicePort, s6}},
		NATHairpin: {{false, wan4, PublicPort, Second4.String(), ServicePort, "198.18.0.1"},
			{false, wan6, PublicPort, Second6.String(), ServicePort, "2001:2:0:18::1"}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			f := firewall(t, FirewallOptions{NAT: kind, Fillers: 10})
			for _, r := range routes {
				from, at := f.Client.NS, f.Server.NS
				if r.inward || kind == NATHairpin {
					at = f.Client.NS
				}
				if r.inward {
					from = f.Server.NS
				}
				stop, err := echo(at, netip.AddrPortFrom(netip.MustParseAddr(r.at), r.service))
				if err != nil {
					t.Fatal(err)
				}
				got, err := ask(from, netip.AddrPortFrom(netip.MustParseAddr(r.to), r.port))
				stop()
				if err != nil || got != r.wantSource {
					t.Errorf("%s port %d: seen as %q (%v), want %q", r.to, r.port, got, err, r.wantSource)
				}
			}
		})
	}
}

// TestFillers: the rules are there and are the ones ahead of the accept.
func TestFillers(t *testing.T) {
	f := firewall(t, FirewallOptions{Fillers: 70000})
	out, err := f.LAN.NS.Run("nft", "list", "chain", "inet", "filter", "forward")
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(out, "established")
	if n := strings.Count(before, "ip saddr 100."); !found || n != 70000 {
		t.Errorf("%d rules ahead of the accept, want 70000", n)
	}
}

func TestOffloads(t *testing.T) {
	for offloads, want := range map[Offloads]string{Wire: "off", Stack: "on"} {
		f := firewall(t, FirewallOptions{Offloads: offloads, MTU: 1400})
		for _, host := range []End{f.Client, f.Server} {
			out, err := host.NS.Run("ethtool", "-k", host.Device)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range []string{"tx-checksumming: " + want, "tcp-segmentation-offload: " + want, "generic-receive-offload: on"} {
				if !strings.Contains(out, line) {
					t.Errorf("offloads %d: %v has no %q", offloads, host, line)
				}
			}
		}
		for _, e := range []End{f.Client, f.LAN, f.WAN, f.Server} {
			out, err := e.NS.Run("ip", "link", "show", e.Device)
			if err != nil || !strings.Contains(out, "mtu 1400") || !strings.Contains(out, e.MAC.String()) {
				t.Errorf("%v: %q, %v: want mtu 1400 and MAC %v", e, out, err, e.MAC)
			}
		}
	}
}

// TestQuiet: no frame is sent that nobody asked for.
func TestQuiet(t *testing.T) {
	f := firewall(t, FirewallOptions{Neighbours: true})
	time.Sleep(500 * time.Millisecond)
	for _, e := range []End{f.Client, f.LAN, f.WAN, f.Server} {
		var text []byte
		err := e.NS.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/snmp6")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"RouterSolicits", "NeighborSolicits", "NeighborAdvertisements"} {
			for line := range strings.Lines(string(text)) {
				if fields := strings.Fields(line); fields[0] == "Icmp6Out"+kind && fields[1] != "0" {
					t.Errorf("%v sent %s %s", e, fields[1], kind)
				}
			}
		}
	}
}

func TestDaemon(t *testing.T) {
	f := firewall(t, FirewallOptions{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	start := func() *Daemon {
		t.Helper()
		d, err := f.StartDaemon(context.Background(), f.LAN.NS, self)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := start()
	if ns := inode(fmt.Sprintf("/proc/%d/ns/net", d.PID())); ns != inode("/run/netns/"+f.LAN.NS.Name()) {
		t.Errorf("the daemon is in namespace %d", ns)
	}
	d.Kill9()
	if err := d.Wait(); err == nil {
		t.Error("a killed daemon ended well")
	}
	d = start()
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	if got := d.Log(); got != "ready\nready\n" {
		t.Errorf("log %q", got)
	}
	t.Setenv("LAB_TEST_BROKEN", "1")
	if _, err := f.StartDaemon(context.Background(), f.LAN.NS, self); err == nil || !strings.Contains(err.Error(), "no such port") {
		t.Errorf("error %v: want the log's end", err)
	}
}
