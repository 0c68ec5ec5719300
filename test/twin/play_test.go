// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/api"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

const (
	threshold = 10
	// Long enough for a body, short enough to see every flow proved again at the end.
	lease = 1500 * time.Millisecond
	// After this a UDP connection that is still used becomes ASSURED, by the next packet
	// that conntrack sees (nf_conntrack_udp_packet). The rest comes later than that and
	// than every lease (12 % jitter), so both performances end in the same state.
	streamAge = 2200 * time.Millisecond
	// In bursts: leases that end many times in a body.
	shortLease = 200 * time.Millisecond
	burstSize  = 48
)

// performance is what came of a script.
type performance struct {
	frames    captures
	conntrack [2][]string
	shares    []share // of each flow since its threshold, with shunt
	body      share   // of all that was sent after the last was armed, with shunt
}

// stage is a lab while a script is played in it.
type stage struct {
	*testing.T
	lab    *lab.Topology
	taps   [2]*tap
	script *script
	frames captures
	burst  int
	way    string // "": without shunt
	api    *api.Client
	undo   []func() error
}

// close takes the lab away at once, not only when the whole trial ends.
func (s *stage) close() {
	for _, f := range slices.Backward(s.undo) {
		if err := f(); err != nil {
			s.Error(err)
		}
	}
}

// play plays a trial in a lab of its own: without shunt if way is "", else to be compared
// with the kernel's performance as the model.
func play(t *testing.T, name string, trial trial, stack bool, way string, model *performance) *performance {
	t.Helper()
	labs <- struct{}{}
	defer func() { <-labs }()
	s := &stage{T: t, frames: captures{}, burst: 1}
	defer s.close()
	s.open(name, trial, stack)
	if s.way = way; way != "" {
		s.daemon(trial)
	}
	began := time.Now()
	s.send(s.script.warm, 1)
	s.waitLiberal()
	s.send(s.script.learn, 1)
	before := s.armed()
	s.send(s.script.body, s.burst)
	p := &performance{frames: s.frames}
	if s.api != nil {
		p.shares, p.body = s.shares(), s.repeated(before)
	}
	time.Sleep(max(lease*9/8, time.Until(began.Add(streamAge))))
	s.send(s.script.late, 1)
	s.send(s.script.end, 1)
	s.silence()
	var err error
	for range 10 { // the daemon tells conntrack of a RST a moment later
		if p.conntrack, err = connections(s.lab.LAN.NS); err != nil {
			t.Fatal(err)
		}
		if model == nil || reflect.DeepEqual(p.conntrack, model.conntrack) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return p
}

// open builds the lab, without shunt.
func (s *stage) open(name string, trial trial, stack bool) {
	s.Helper()
	l, err := lab.Firewall(trial.options(name, stack))
	if err != nil {
		s.Fatal(err)
	}
	s.undo = append(s.undo, l.Close)
	s.lab, s.script = l, trial.write(l, stack)
	if trial.burst {
		s.burst = burstSize
		s.batch()
	}
	// The hosts' own stacks hear nothing, so they answer nothing.
	const deaf = "table inet deaf {\n\tchain in {\n\t\ttype filter hook prerouting priority -500; policy drop;\n\t}\n}\n"
	lan := l.LAN.NS
	err = errors.Join(l.Client.NS.NFT(deaf), l.Server.NS.NFT(deaf), lan.NFT(trial.addition(l)),
		lan.IP(fmt.Sprintf("neighbour replace %s lladdr %s dev lan nud permanent", lab.Second4, l.Client.MAC),
			fmt.Sprintf("neighbour replace %s lladdr %s dev lan nud permanent", lab.Second6, l.Client.MAC)))
	if err != nil {
		s.Fatal(err)
	}
	for i, e := range []lab.End{l.Client, l.Server} {
		if s.taps[i], err = openTap(e); err != nil {
			s.Fatal(err)
		}
		s.undo = append(s.undo, s.taps[i].close)
	}
}

// batch lets the router's ports take frames by a thread of their own, which finds several
// waiting: with the ordinary softirq each frame is through before the next one is sent.
func (s *stage) batch() {
	s.Helper()
	for _, port := range []string{"lan", "wan"} {
		if _, err := s.lab.LAN.NS.Run("sh", "-c", "echo 1 > /sys/class/net/"+port+"/threaded"); err != nil {
			s.Fatal(err)
		}
	}
}

// daemon starts shunt on the router, for one way alone.
func (s *stage) daemon(trial trial) {
	s.Helper()
	mode, length := "off", lease
	if s.way == api.WayXDP {
		mode = "on"
	}
	if trial.burst {
		length = shortLease
	}
	file := filepath.Join(s.lab.Dir(), "shunt.toml")
	text := fmt.Sprintf("port = [\"lan\", \"wan\"]\nxdp = %q\nthreshold = %d\nlease = %q\nflows = 16384\n", mode, threshold, length)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	d, err := s.lab.StartDaemon(s.Context(), s.lab.LAN.NS, program, "--config", file)
	if err != nil {
		s.Fatal(err)
	}
	s.api = api.NewClient(d.Socket())
	s.undo = append(s.undo, func() error {
		if s.Failed() {
			s.Log(d.Log())
		}
		return d.Stop()
	})
}

// send plays steps in chunks: all frames of one are sent, then all that they cause are
// awaited. Chunks of one make everything happen in one order only.
func (s *stage) send(steps []step, chunk int) {
	s.Helper()
	for len(steps) > 0 {
		n := min(chunk, len(steps))
		var want [2]int
		for _, x := range steps[:n] {
			if err := s.taps[x.from].send(x.frame, x.offload); err != nil {
				s.Fatal(err)
			}
			want[x.to] += x.want
		}
		for at, count := range want {
			for range count {
				s.await(at, steps[0])
			}
		}
		steps = steps[n:]
		if chunk > 1 {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (s *stage) await(at int, x step) {
	s.Helper()
	frame, o, err := s.taps[at].receive(0)
	if err != nil {
		s.Fatal(err)
	}
	if frame == nil {
		c := s.script.conversations[x.flow/2]
		s.Fatalf("%s (direction %d): a frame, or one of the burst after it, does not come out within %v\n%s", c.name, x.flow%2, patience, dump(x.frame))
	}
	s.frames.add(at, frame, o)
}

// silence records what nobody waited for.
func (s *stage) silence() {
	s.Helper()
	time.Sleep(50 * time.Millisecond)
	for at, tap := range s.taps {
		for {
			frame, o, err := tap.receive(unix.MSG_DONTWAIT)
			if err != nil {
				s.Fatal(err)
			}
			if frame == nil {
				break
			}
			s.frames.add(at, frame, o)
		}
	}
}

// until asks again and again; the threshold's count lasts for a second without packets.
func (s *stage) until(what string, done func() (bool, string)) {
	s.Helper()
	var state string
	for deadline := time.Now().Add(900 * time.Millisecond); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		ok, now := done()
		if ok {
			return
		}
		state = now
	}
	s.Fatalf("%s: not in time: %s", what, state)
}

// waitLiberal waits until the daemon has told conntrack to let the TCP connections be.
func (s *stage) waitLiberal() {
	s.Helper()
	if s.api == nil {
		return
	}
	s.until("be-liberal", func() (bool, string) {
		entries, err := dumpConntrack(s.lab.LAN.NS)
		if err != nil {
			return false, err.Error()
		}
		for _, c := range entries {
			if c.Original.Proto == protoTCP && c.FlagsOriginal&c.FlagsReply&kernel.TCPLiberal == 0 {
				return false, fmt.Sprintf("%v", c.Original)
			}
		}
		return true, ""
	})
}

// armed waits until every flow that can be is armed, and returns the counters.
func (s *stage) armed() map[string]map[string]uint64 {
	s.Helper()
	if s.api == nil {
		return nil
	}
	s.until("armed flows", func() (bool, string) {
		flows, err := s.api.Flows(context.Background(), api.FlowFilter{})
		if err != nil {
			return false, err.Error()
		}
		for i, c := range s.script.conversations {
			for d := range c.ends {
				f := c.find(flows, d)
				if f == nil {
					return false, fmt.Sprintf("%s (direction %d) is not known", s.script.conversations[i].name, d)
				}
				if c.slow {
					if f.State != api.FlowSeen {
						s.Fatalf("%s (direction %d) is %s; it must never be repeated", c.name, d, f.State)
					}
					continue
				}
				// in bursts of short leases one may have ended already
				if f.State != api.FlowArmed && f.State != api.FlowExpired {
					return false, fmt.Sprintf("%s (direction %d) is %s: %s", c.name, d, f.State, f.Why)
				}
				if f.Way != s.way {
					return false, fmt.Sprintf("%s (direction %d) goes by %s", c.name, d, f.Way)
				}
			}
		}
		return true, ""
	})
	return s.counters()
}

func (s *stage) counters() map[string]map[string]uint64 {
	s.Helper()
	status, err := s.api.Status(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	return status.Counters
}

// repeated is what the stage that should have done it counts since before.
func (s *stage) repeated(before map[string]map[string]uint64) share {
	s.Helper()
	word := api.StageXDP
	if s.way == api.WayTC {
		word = api.StageTCIngress
	}
	packets := uint64(0)
	for _, x := range s.script.body {
		if !s.script.conversations[x.flow/2].slow {
			packets++
		}
	}
	return share{"body, counters of " + word, packets, s.counters()[word]["hit"] - before[word]["hit"]}
}

// shares asks how much of each flow was repeated.
func (s *stage) shares() (all []share) {
	s.Helper()
	flows, err := s.api.Flows(context.Background(), api.FlowFilter{})
	if err != nil {
		s.Fatal(err)
	}
	sent := s.script.sent()
	for i, c := range s.script.conversations {
		for d := range c.ends {
			f := c.find(flows, d)
			if f == nil {
				s.Fatalf("%s (direction %d) is not known any more", c.name, d)
			}
			if c.slow {
				if f.State != api.FlowSeen || f.Packets > 0 {
					s.Errorf("%s (direction %d) is %s with %d hits; it must never be repeated", c.name, d, f.State, f.Packets)
				}
				continue
			}
			if s.burst > 1 && f.Renewals < 2 {
				s.Errorf("%s (direction %d): %d renewals; the body must outlast several leases", c.name, d, f.Renewals)
			}
			all = append(all, share{fmt.Sprintf("%s direction %d", c.name, d), sent[2*i+d] - threshold, f.Packets})
		}
	}
	return all
}

// sent is how many packets of each flow there were up to the end of the body.
func (s *script) sent() map[int]uint64 {
	n := map[int]uint64{}
	for _, steps := range [][]step{s.warm, s.learn, s.body} {
		for _, x := range steps {
			n[x.flow] += uint64(x.packets)
		}
	}
	return n
}

// find is the flow that shunt calls a direction of the conversation.
func (c *conversation) find(flows []api.Flow, d int) *api.Flow {
	l := c.ends[d]
	for i := range flows {
		f := &flows[i]
		if f.Proto != api.ProtoName(c.proto) || f.Port != [...]string{"lan", "wan"}[l.at] ||
			f.Source.Addr() != l.source.Addr() || f.Destination.Addr() != l.dest.Addr() {
			continue
		}
		switch c.proto {
		case protoTCP, protoUDP, protoSCTP, protoUDPLite:
			if f.Source != l.source || f.Destination != l.dest {
				continue
			}
		case protoICMP, protoICMPv6:
			if f.Source.Port() != [...]uint16{l.source.Port(), l.dest.Port()}[d] {
				continue
			}
		case protoGRE:
			if f.Key != c.key {
				continue
			}
		}
		return f
	}
	return nil
}
