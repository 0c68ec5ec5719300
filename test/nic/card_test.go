// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"shunt/internal/kernel"
)

func ipHere(args ...string) error { return exec.Command("ip", args...).Run() }

// xdp reports whether the cards can have a program at all. The others are repeated at TC, and nothing is
// switched on them.
func (b *bed) xdp() bool { return b.driver != "e1000e" }

// TestCardDefaults: at the defaults both cards go by XDP and take frames, masqueraded datagrams and TCP arrive,
// tagged frames reach the right network, and stop leaves the cards as it found them.
func TestCardDefaults(t *testing.T) {
	b := newBed(t)
	b.must(b.client.IP("link add link eth name eth.7 type vlan id 7", "link set eth.7 up", "addr add 10.7.0.2/24 dev eth.7"))
	b.must(b.router.IP("link add link lan name lan.7 type vlan id 7", "link set lan.7 up", "addr add 10.7.0.1/24 dev lan.7"))
	before := b.offloads()
	b.start()
	if !b.xdp() {
		b.slow(before)
	} else {
		r := b.fast("at the defaults")
		if want := netip.MustParseAddrPort(wanAddress + ":7777"); r.from != want {
			t.Errorf("the server sees %v, want %v", r.from, want)
		}
		for name, p := range b.ports() {
			if !p.XDPReceive || !p.XDPTransmit || p.Drops > 0 || p.Errors > 0 {
				t.Errorf("%s: %+v", name, p)
			}
			if l := b.link(name); l.Offloads.RxVLAN || l.Offloads.LRO {
				t.Errorf("%s: %+v", name, l.Offloads)
			}
		}
		r = b.burst(4000)
		if r.lost() > 0 || r.twice > 0 || r.xdp < 3600 {
			t.Errorf("a burst: %+v", r)
		}
	}
	b.tcp()
	if out, err := b.client.Run("ping", "-q", "-c", "3", "-i", "0.1", "-W", "5", "10.7.0.1"); err != nil {
		t.Errorf("tagged frames: %v\n%s", err, out)
	}
	b.stop()
	if after := b.offloads(); after != before {
		t.Errorf("offloads after stop:\n%s\nbefore:\n%s", after, before)
	}
	if l := b.link("lan"); l.XDP != kernel.XDPNone {
		t.Errorf("a program is left: %+v", l)
	}
}

// slow is how a card without XDP works: by TC, with the reason, and untouched.
func (b *bed) slow(before string) {
	b.t.Helper()
	var r result
	for range 10 {
		if r = b.burst(200); r.tc >= 190 {
			break
		}
	}
	if r.lost() > 0 || r.twice > 0 || r.tc < 190 || r.xdp > 0 {
		b.t.Errorf("a burst: %+v", r)
	}
	for name, p := range b.ports() {
		if p.XDPReceive || p.XDPTransmit || !strings.Contains(p.Reason, "driver "+b.driver+" cannot redirect in XDP") {
			b.t.Errorf("%s: %+v", name, p)
		}
	}
	if now := b.offloads(); now != before {
		b.t.Errorf("offloads were switched for nothing:\n%s\nbefore:\n%s", now, before)
	}
}

// tcp sends random bytes to the server and back, and compares. Most segments are repeated, at XDP where that can be.
func (b *bed) tcp() {
	b.t.Helper()
	before := b.status()
	stop, err := b.server.ServeTCP(netip.MustParseAddrPort(serverAddress+":80"), func(c *net.TCPConn) {
		io.Copy(c, c)
		c.CloseWrite()
	})
	b.must(err)
	defer stop()
	var c net.Conn
	b.must(b.client.Do(func() error {
		c, err = net.DialTimeout("tcp4", serverAddress+":80", 10*time.Second)
		return err
	}))
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	go func() {
		c.Write(data)
		c.(*net.TCPConn).CloseWrite()
	}()
	back, err := io.ReadAll(c)
	if err != nil || sha256.Sum256(back) != sha256.Sum256(data) {
		b.t.Errorf("TCP: %d of %d bytes came back, %v", len(back), len(data), err)
	}
	stage, least := "tc-ingress", uint64(20) // GRO has merged them before, up to 64 KB each
	if b.xdp() {
		stage, least = "xdp", 100
	}
	if hits := b.status().Counters[stage]["hit"] - before.Counters[stage]["hit"]; hits < least {
		b.t.Errorf("TCP: %d packets were repeated at %s", hits, stage)
	}
}

// TestCardChanges: after each change of a card under its program, flows are repeated at XDP again. Datagrams
// arrive meanwhile, but for those of the time in which the card or the link is down.
func TestCardChanges(t *testing.T) {
	b := newBed(t)
	if !b.xdp() {
		t.Log("no XDP to lose")
		return
	}
	b.start()
	b.fast("at the defaults")
	for _, c := range []struct{ name, commands string }{
		{"MTU", "ip link set lan mtu 1400; ip link set wan mtu 1400"},
		{"MTU back", "ip link set lan mtu 1500; ip link set wan mtu 1500"},
		{"rings", "ethtool -G lan rx 512; ethtool -G wan rx 512; true"},
		{"down and up", "ip link set lan down; ip link set lan up; ip link set wan down; ip link set wan up"},
		{"another offload", "ethtool -K lan gro off; ethtool -K wan gro off"},
		{"tags stripped again", "ethtool -K lan rxvlan on; ethtool -K wan rxvlan on; true"},
	} {
		if out, err := b.router.Run("sh", "-c", c.commands); err != nil {
			t.Fatalf("%s: %v\n%s", c.name, err, out)
		}
		began := time.Now()
		b.fast(c.name)
		t.Logf("%s: at XDP again after %v", c.name, time.Since(began).Round(100*time.Millisecond))
	}
	// Jumbo frames: XDP where the driver carries them, else TC, and the reason.
	b.must(b.router.IP("link set lan mtu 9000", "link set wan mtu 9000"))
	time.Sleep(4 * time.Second)
	if r := b.burst(200); r.lost() > 0 || r.xdp+r.tc < 190 {
		t.Errorf("MTU 9000: %+v", r)
	}
	for name, p := range b.ports() {
		if b.link(name).MTU != 9000 || !(p.XDPReceive && p.XDPTransmit) && !strings.Contains(p.Reason, "MTU 9000") {
			t.Errorf("MTU 9000: %s: %+v", name, p)
		}
	}
	b.must(b.router.IP("link set lan mtu 1500", "link set wan mtu 1500"))
	b.fast("MTU 1500 after 9000")
	b.stop()
}

// TestCardCrash: what a daemon switched off is known to the next one, and to `shunt stop` where none runs.
func TestCardCrash(t *testing.T) {
	b := newBed(t)
	before := b.offloads()
	b.start()
	b.daemon.Kill9()
	b.must(b.router.IP("link set lan address 02:00:00:00:00:99")) // it is the same card all the same
	b.start()
	b.stop()
	b.must(b.router.IP("link set lan address " + lanMAC))
	if after := b.offloads(); after != before {
		t.Errorf("offloads after kill, run and stop:\n%s\nbefore:\n%s", after, before)
	}
	b.start()
	b.daemon.Kill9()
	if out, err := b.router.Run(*program, "stop", "--state", b.daemon.State, "--bpffs", b.daemon.BPFFS); err != nil {
		t.Errorf("stop: %v\n%s", err, out)
	}
	if after := b.offloads(); after != before {
		t.Errorf("offloads after kill and stop:\n%s\nbefore:\n%s", after, before)
	}
}

// TestCardTouched: who insists on an offload keeps it, and pays with XDP. It is on after stop, too.
func TestCardTouched(t *testing.T) {
	b := newBed(t)
	if !b.link("lan").Offloads.RxVLAN || !b.xdp() {
		t.Log("the card does not strip tags")
		return
	}
	b.start()
	for range 3 {
		if out, err := b.router.Run("ethtool", "-K", "lan", "rxvlan", "on"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		time.Sleep(3 * time.Second)
	}
	p := b.ports()["lan"]
	if p.XDPReceive || !strings.Contains(p.Reason, "strips VLAN tags") || !strings.Contains(p.Remedy, "ethtool -K lan rxvlan off") {
		t.Errorf("lan: %+v", p)
	}
	if l := b.link("lan"); !l.Offloads.RxVLAN || l.XDP != kernel.XDPNone {
		t.Errorf("lan: %+v", l)
	}
	if p := b.ports()["wan"]; !p.XDPReceive {
		t.Errorf("wan: %+v", p)
	}
	b.stop()
	if l := b.link("lan"); !l.Offloads.RxVLAN {
		t.Error("after stop tags are not stripped, although somebody switched that on")
	}
}

// TestCardKept: offloads = "keep" switches nothing. A card that strips tags goes by TC, and says what would change that.
func TestCardKept(t *testing.T) {
	b := newBed(t)
	before := b.offloads()
	b.start()
	b.daemon.Kill9() // what it has switched is put back, too
	b.configured("offloads = \"keep\"\n")
	if now := b.offloads(); now != before {
		t.Errorf("offloads were switched:\n%s\nbefore:\n%s", now, before)
	}
	time.Sleep(2 * time.Second) // the next review
	if p := b.ports()["lan"]; b.link("lan").Offloads.RxVLAN && b.xdp() &&
		(p.XDPReceive || !strings.Contains(p.Reason, "strips VLAN tags") || !strings.Contains(p.Remedy, `offloads = "switch"`)) {
		t.Errorf("lan: %+v", p)
	}
	b.stop()
}

// TestCardReload: a reload puts back what it forbids, of one port or all, and switches off again what it allows.
func TestCardReload(t *testing.T) {
	b := newBed(t)
	strips, before := b.link("lan").Offloads.RxVLAN && b.xdp(), b.offloads()
	b.configured("")
	for _, c := range []struct {
		config   string
		lan, wan bool // off is what hides something
	}{
		{`offloads = "keep"`, false, false},
		{`offloads = "switch"`, true, true},
		{"[ports.lan]\nxdp = \"off\"", false, true},
		{"", true, true},
	} {
		b.reload(c.config)
		if strips && (b.link("lan").Offloads.RxVLAN == c.lan || b.link("wan").Offloads.RxVLAN == c.wan) {
			t.Errorf("%q: lan %+v, wan %+v", c.config, b.link("lan").Offloads, b.link("wan").Offloads)
		}
		if now := b.offloads(); !c.lan && !c.wan && now != before {
			t.Errorf("%q: offloads:\n%s\nbefore:\n%s", c.config, now, before)
		}
		if p := b.ports()["lan"]; strips && !c.lan && (p.XDPReceive || b.link("lan").XDP != kernel.XDPNone) {
			t.Errorf("%q: lan: %+v", c.config, p)
		}
	}
	if b.xdp() {
		b.fast("after the reloads")
	}
	b.stop()
	if after := b.offloads(); after != before {
		t.Errorf("offloads after stop:\n%s\nbefore:\n%s", after, before)
	}
}

// TestCardDoctor: before the first run doctor says what that will do to the cards.
func TestCardDoctor(t *testing.T) {
	b := newBed(t)
	out, _ := b.router.Run(*program, "doctor", "lan", "--state", b.lab.State(), "--bpffs", b.lab.BPFFS())
	want := map[string]string{
		"vmxnet3": "shunt run switches off rx-vlan-hw-parse", "igb": "takes the link down for some seconds",
		"e1000e": "driver e1000e cannot redirect in XDP", "virtio_net": "not yet known whether",
	}[b.driver]
	if !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
}
