// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// reference switches labels by hand, on raw sockets in a lab: uniform swap, pop and push in
// one label space. It is here to show that the harness passes what is right, and, with a
// fault, that it sees what is wrong; it is no judge of anybody.
type reference struct {
	*network
	fault string
	taps  [2]*tap
	came  chan arrival
	mu    sync.Mutex
	ilm   map[uint32]step
	stop  chan struct{}
	ended chan struct{}
}

// step is what is done with a label: so many pops, labels in front, out by a port.
type step struct {
	pops int
	push []uint32 // the innermost first
	swap bool     // the first of push replaces the label
	out  port
}

// Faults, each of which some case must find.
var faults = map[string]func(f []byte) []byte{
	"ttl":       func(f []byte) []byte { f[ethernetBytes+3]++; return f },
	"tc":        func(f []byte) []byte { f[ethernetBytes+2] ^= 2; return f },
	"s":         func(f []byte) []byte { f[ethernetBytes+2] ^= 1; return f },
	"label":     func(f []byte) []byte { f[ethernetBytes+2] ^= 0x10; return f },
	"mac":       func(f []byte) []byte { f[5]++; return f },
	"ethertype": func(f []byte) []byte { f[13]++; return f },
	"payload":   func(f []byte) []byte { f[len(f)-1]++; return f },
	"short":     func(f []byte) []byte { return f[:len(f)-1] },
	"lost":      func([]byte) []byte { return nil },
}

func newReference(fault string) (*rig, error) {
	n, err := newNetwork("mpls-reference")
	if err != nil {
		return nil, err
	}
	r := &reference{network: n, fault: fault, came: make(chan arrival, 1<<16), ilm: map[uint32]step{}, stop: make(chan struct{}), ended: make(chan struct{})}
	for i, e := range n.ports {
		err = errors.Join(err, e.NS.Do(func() (err error) {
			r.taps[i], err = openTap(port(i), e.Device, r.came)
			return err
		}))
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	go r.serve()
	return n.rig(r)
}

func (r *reference) name() string { return "reference" }

// offers says which cases are made of what it knows.
func (r *reference) offers(c trial) string {
	special := func(f frame) bool {
		return slices.ContainsFunc(f.stack, func(e entry) bool { return e.label < 16 })
	}
	if slices.ContainsFunc(c.in, special) && len(c.out) > 0 {
		return "knows no special-purpose label"
	}
	if c.needs != "" || c.config == nil || c.spaces != [2]string{} || len(c.refused) > 0 || len(c.config) == 0 {
		return "not one of the few things that it does"
	}
	for _, line := range c.config {
		if err := new(reference).learn(line, map[string]step{}, map[uint32]step{}); err != nil {
			return err.Error()
		}
	}
	return ""
}

// learn reads a line into NHLFEs and the label map.
func (r *reference) learn(line string, nhlfes map[string]step, ilm map[uint32]step) error {
	w := strings.Fields(line)
	switch {
	case len(w) == 5 && w[0] == "ilm" && w[1] == "add" && w[3] == "nhlfe":
		label, err := strconv.ParseUint(w[2], 10, 20)
		ilm[uint32(label)] = nhlfes[w[4]]
		return err
	case len(w) == 7 && w[0] == "ilm" && w[3] == "space" && w[4] == "0":
		return r.learn(strings.Replace(line, "space 0 ", "", 1), nhlfes, ilm)
	case w[0] == "nhlfe" && w[1] == "add":
		var s step
		for i, rest := 3, w; i < len(rest); i++ {
			switch rest[i] {
			case "pop":
				s.pops++
			case "swap", "push":
				label, err := strconv.ParseUint(rest[i+1], 10, 20)
				if err != nil || label < 16 {
					return fmt.Errorf("does not do %q", line)
				}
				s.swap = s.swap || rest[i] == "swap"
				s.push = append(s.push, uint32(label))
				i++
			case "send":
				s.out = port(slices.Index([]string{"@A", "@B"}, rest[i+2]))
				i = len(rest)
			default:
				return fmt.Errorf("does not do %q", rest[i])
			}
		}
		if s.pops > 1 || s.pops == 1 && len(s.push) > 0 {
			return errors.New("does not do more than one pop")
		}
		nhlfes[w[2]] = s
		return nil
	}
	return fmt.Errorf("does not do %q", line)
}

func (r *reference) configure(c trial) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	nhlfes := map[string]step{}
	for _, line := range withFence(c) {
		if strings.HasPrefix(line, "space ") {
			continue // there is one
		}
		if err := r.learn(line, nhlfes, r.ilm); err != nil {
			return err
		}
	}
	return nil
}

func (r *reference) reset(trial) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.ilm)
	return nil
}

func (r *reference) refusals(trial) []string              { return nil }
func (r *reference) refuse(trial, string) error           { return nil }
func (r *reference) counters() (map[string]uint64, error) { return nil, nil }

func (r *reference) close() error {
	close(r.stop)
	<-r.ended
	return errors.Join(r.taps[a].close(), r.taps[b].close(), r.network.Close())
}

func (r *reference) serve() {
	defer close(r.ended)
	for {
		select {
		case <-r.stop:
			return
		case f := <-r.came:
			r.mu.Lock()
			at, out := r.forward(f)
			r.mu.Unlock()
			if fault := faults[r.fault]; fault != nil && out != nil && !isFence(out) {
				out = fault(out)
			}
			if out != nil {
				_ = r.taps[at].send(out) // a frame that cannot be sent is lost, as on a wire
			}
		}
	}
}

// forward is what RFC 3031 and RFC 3443 have a router do to one frame; nil drops it.
func (r *reference) forward(f arrival) (port, []byte) {
	in := f.bytes
	if len(in) < ethernetBytes+entryBytes || binary.BigEndian.Uint16(in[12:]) != kindMPLS || !slices.Equal(in[:6], r.ports[f.at].MAC) {
		return 0, nil
	}
	top, bottom := parseEntry(in[ethernetBytes:])
	step, known := r.ilm[top.label]
	if !known || top.ttl < 2 {
		return 0, nil
	}
	rest := slices.Clone(in[ethernetBytes+entryBytes:])
	kind, ttl := uint16(kindMPLS), top.ttl-1
	switch {
	case step.pops == 0 && !step.swap:
		rest = append(binary.BigEndian.AppendUint32(nil, l(top.label, top.tc, ttl).word(bottom)), rest...)
		bottom = false
	case step.pops == 1:
		if kind, rest = expose(rest, bottom, top.tc, ttl); rest == nil {
			return 0, nil
		}
	}
	for _, label := range step.push {
		rest = append(binary.BigEndian.AppendUint32(nil, l(label, top.tc, ttl).word(bottom)), rest...)
		bottom = false
	}
	if len(rest) > mtus[step.out] {
		return 0, nil
	}
	head := slices.Concat([]byte(r.peer(step.out)), []byte(r.ports[step.out].MAC), binary.BigEndian.AppendUint16(nil, kind))
	return step.out, append(head, rest...)
}

func (r *reference) peer(p port) net.HardwareAddr { return r.hosts[p].MAC }

// expose writes TTL and class into what a uniform pop has laid open.
func expose(rest []byte, bottom bool, tc, ttl uint8) (uint16, []byte) {
	switch {
	case !bottom && len(rest) >= entryBytes:
		e, s := parseEntry(rest)
		binary.BigEndian.PutUint32(rest, l(e.label, tc, ttl).word(s))
		return kindMPLS, rest
	case bottom && len(rest) >= 20 && rest[0]>>4 == 4:
		rest[8], rest[1] = min(rest[8], ttl), class(rest[1], tc)
		rest[10], rest[11] = 0, 0
		binary.BigEndian.PutUint16(rest[10:], sum(rest[:20]))
		return kindIPv4, rest
	case bottom && len(rest) >= 40 && rest[0]>>4 == 6:
		w := binary.BigEndian.Uint32(rest)
		binary.BigEndian.PutUint32(rest, w&^(0xff<<20)|uint32(class(uint8(w>>20), tc))<<20)
		rest[7] = min(rest[7], ttl)
		return kindIPv6, rest
	}
	return 0, nil
}

// class puts a TC into a TOS octet, unless it is there.
func class(tos, tc uint8) uint8 {
	if tos>>5 == tc {
		return tos
	}
	return tc<<5 | tos&3
}

// TestHarness: the reference passes all cases that it knows; each fault fails some.
func TestHarness(t *testing.T) {
	passes := func(fault string) (n int, wrong []string) {
		r, err := newReference(fault)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.close(); err != nil {
				t.Error(err)
			}
		}()
		for _, c := range trials() {
			found, err := r.judge(c, true)
			if err != nil {
				t.Fatal(err)
			}
			switch found.Verdict {
			case passed:
				n++
			case failed:
				wrong = append(wrong, fmt.Sprintf("%s %s: %s", c.rule, c.name, found.Words))
			}
			if fault != "" && len(wrong) > 0 {
				break
			}
		}
		return n, wrong
	}
	n, wrong := passes("")
	for _, w := range wrong {
		t.Error(w)
	}
	if n < 30 {
		t.Errorf("only %d cases passed", n)
	}
	t.Logf("%d cases passed", n)
	for fault := range faults {
		if _, wrong := passes(fault); len(wrong) == 0 {
			t.Errorf("fault %q: nothing was wrong", fault)
		} else {
			t.Logf("fault %s: %s", fault, wrong[0])
		}
	}
}
