// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"shunt/internal/api"
	"shunt/internal/lab"
)

// TestHangs: a daemon that is stopped by a signal for longer than the data path takes it for
// alive (3 s) costs no packet: flows renew their leases, and it goes on where it stood.
func TestHangs(t *testing.T) {
	for _, mode := range []string{"on", "off"} {
		t.Run("xdp="+mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			r.start(program, with("--xdp", mode, "--lease", survivedLease.String())...)
			sink := r.sink(r.Server, 16)
			stop := r.background(r.generator(20, 4000))
			r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 20 })
			before := r.status()

			r.must(r.daemon.Signal(syscall.SIGSTOP))
			time.Sleep(5 * time.Second)
			r.must(r.daemon.Signal(syscall.SIGCONT))
			after := r.status()
			hits := after.Hits - before.Hits
			if sent := uint64(4000 * 5); hits < sent*8/10 {
				t.Errorf("%d hits while the daemon hung, of %d packets", hits, sent)
			}
			if renewed := after.Counters["tc-egress"]["renewed"] - before.Counters["tc-egress"]["renewed"]; renewed < 20*5 {
				t.Errorf("%d leases were renewed while the daemon hung, want 20 flows at least 5 times", renewed)
			}
			sent := stop()
			r.unharmed(sink, sent.Sent, r.status().Generation)
		})
	}
}

// TestConnectionSurvives: one TCP connection of real sockets lives through all that happens to
// daemons, and ends as conntrack wants it.
func TestConnectionSurvives(t *testing.T) {
	const port = 35000
	for _, way := range []string{"xdp", "tc"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			k := staleTalk(t, way, port)
			r := k.r
			args := with("--lease", "200ms", "--xdp", map[string]string{"xdp": "on", "tc": "off"}[way])
			for _, step := range []struct {
				name string
				do   func()
			}{
				{"killed", func() { r.daemon.Kill9() }},
				{"started", func() { r.start(program, args...) }},
				{"upgraded", func() { r.terminate(); r.start(upgrade, args...) }},
				{"hanging", func() { r.must(r.daemon.Signal(syscall.SIGSTOP)) }},
				{"going on", func() { r.must(r.daemon.Signal(syscall.SIGCONT)) }},
				{"stopped", func() { r.must(r.daemon.Stop()) }},
				{"started from nothing", func() { r.start(program, args...) }},
			} {
				during := make(chan error, 1)
				go func() { during <- k.transfer(4 << 20) }()
				step.do()
				if err := <-during; err != nil {
					t.Fatalf("while the daemon is %s: %v", step.name, err)
				}
				if err := k.transfer(1 << 20); err != nil {
					t.Fatalf("with the daemon %s: %v", step.name, err)
				}
			}
			r.eventually("both directions are armed again", patience, func() bool { k.say(5); return r.armedTCP(way) == 2 })
			k.client.CloseWrite()
			k.ends("the server", k.server, 0)
			k.server.Close()
			k.ends("the client", k.client, 0)
			r.eventually("conntrack's state is TIME_WAIT", patience, func() bool { return r.state(port) == ctTimeWait })
		})
	}
}

// transfer sends so many bytes each way and compares them.
func (k *talk) transfer(size int) error {
	data := pattern(size, size)
	for _, pair := range [][2]*net.TCPConn{{k.client, k.server}, {k.server, k.client}} {
		for _, c := range pair {
			c.SetDeadline(time.Now().Add(patience))
		}
		failed := make(chan error, 1)
		go func() { _, err := pair[0].Write(data); failed <- err }()
		got := make([]byte, size)
		if _, err := io.ReadFull(pair[1], got); err != nil {
			return err
		}
		if string(got) != string(data) {
			return fmt.Errorf("%d bytes arrived altered", size)
		}
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// TestEventStorm: up to two thousand interfaces come, go up, get addresses, go down and go, while
// flows are repeated. No packet is lost or altered, the daemon goes on answering, and all
// flows are fast again when it is over. More ports than shunt can have are refused by name.
func TestEventStorm(t *testing.T) {
	for _, c := range []struct {
		name  string
		pairs int
		args  []string
	}{{"of others", 1000, []string{"--xdp", "on"}}, {"of ports", 270, []string{"--xdp", "off", "--port", "st*"}}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
			r.start(program, with(c.args...)...)
			sink := r.sink(r.Server, 16)
			stop := r.background(r.generator(20, 2000))
			r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 20 })
			before := r.status()

			var made, addressed []string
			for i := range c.pairs {
				made = append(made, fmt.Sprintf("link add st%d group 7 type veth peer name su%d group 7", i, i))
				addressed = append(addressed, fmt.Sprintf("address add 10.%d.%d.1/24 dev st%d", i/250, i%250, i))
			}
			began := time.Now()
			r.ip(made...)
			r.ip(addressed...)
			r.ip("link set group 7 up", "link set group 7 down", "link set group 7 up")
			if c.name == "of ports" {
				r.tooMany("st", c.pairs)
			}
			r.ip("link del group 7")
			took := time.Since(began)

			r.eventually("the daemon answers, and all flows are armed", 20*time.Second, func() bool { return len(r.armed()) == 20 })
			sent := stop()
			after := r.status()
			r.unharmed(sink, sent.Sent, after.Generation-before.Generation)
			share := float64(after.Hits-before.Hits) / float64(sent.Sent)
			t.Logf("%v; %d link and %d address events; %.0f %% of %d packets repeated", took.Round(time.Millisecond),
				after.Events["link"]-before.Events["link"], after.Events["addr"]-before.Events["addr"], 100*share, sent.Sent)
			if after.Events["link"]-before.Events["link"]+after.Events["resync"]-before.Events["resync"] == 0 {
				t.Error("the daemon heard nothing of it")
			}
			if share < 0.5 {
				t.Errorf("only %.0f %% of the packets were repeated", 100*share)
			}
			if err := r.daemon.Stop(); err != nil {
				t.Error(err)
			}
			r.nothing()
		})
	}
}

// tooMany asserts that of so many ports, which are as good as each other, as many are fast as
// shunt can have beside its two, and that all others are refused with a reason and left alone.
func (r *rig) tooMany(prefix string, count int) {
	r.t.Helper()
	const most = 256
	var fast, refused []api.Port
	r.eventually("all ports are judged", 30*time.Second, func() bool {
		ports, err := r.api.Ports(context.Background())
		r.must(err)
		fast, refused = nil, nil
		for _, p := range ports {
			switch {
			case !strings.HasPrefix(p.Name, prefix):
			case p.State == api.PortRefused:
				refused = append(refused, p)
			default:
				fast = append(fast, p)
			}
		}
		return len(fast)+len(refused) == count
	})
	if len(fast) != most-2 {
		r.t.Errorf("%d ports are fast, want %d", len(fast), most-2)
	}
	for _, p := range refused {
		if !strings.Contains(p.Reason, "over 256 ports") {
			r.t.Errorf("%s is refused for %q", p.Name, p.Reason)
		}
	}
	if at := (lab.End{NS: r.LAN.NS, Device: refused[0].Name}); len(r.attached(at)) > 0 {
		r.t.Errorf("%s is refused, and yet has %v", at.Device, r.attached(at))
	}
}

// TestClockAhead: the daemon's own clock is ten days ahead of the kernel's (a time namespace):
// heartbeats and leases are in the data path's time, so nothing is different.
func TestClockAhead(t *testing.T) {
	ahead := []string{"unshare", "--time", "--monotonic", "864000", "--boottime", "864000"}
	r := newRig(t, lab.FirewallOptions{NAT: lab.NATMasquerade, Neighbours: true})
	if _, errs, code := r.exec(append(ahead, "true")...); code != 0 {
		t.Skipf("%s: %s", strings.Join(ahead, " "), errs)
	}
	wrapper := filepath.Join(r.Dir(), "later")
	r.must(os.WriteFile(wrapper, fmt.Appendf(nil, "#!/bin/sh\nexec %s %s \"$@\"\n", strings.Join(ahead, " "), program), 0o700))
	r.start(wrapper, with("--xdp", "on", "--lease", survivedLease.String())...)
	sink := r.sink(r.Server, 16)
	stop := r.background(r.generator(20, 2000))
	r.eventually("all flows are armed", patience, func() bool { return len(r.armed()) == 20 })
	before := r.status()
	time.Sleep(2 * time.Second)
	for _, f := range r.flows() {
		if f.LeaseLeft > 10 || f.Age < 1 || f.Age > 60 || f.Renewals < 2 {
			t.Errorf("lease %v s, age %v s, %d renewals", f.LeaseLeft, f.Age, f.Renewals)
		}
	}
	if hits := r.status().Hits - before.Hits; hits < 2000 {
		t.Errorf("%d hits in two seconds at 2,000 packets a second", hits)
	}
	// back to the right time
	r.terminate()
	r.start(program, with("--xdp", "on", "--lease", survivedLease.String())...)
	r.eventually("all flows are armed again", patience, func() bool { return len(r.armed()) == 20 })
	sent := stop()
	r.unharmed(sink, sent.Sent, r.status().Generation)
	if s, err := r.api.Status(context.Background()); err != nil || s.Flows.Armed != 20 {
		t.Errorf("%+v, %v", s.Flows, err)
	}
}
