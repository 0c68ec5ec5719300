// SPDX-License-Identifier: Apache-2.0

package mpls

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// operator is a router that somebody else configures: by hand, or by a program that is
// given each case as JSON.
type operator struct {
	hook  string
	place place
}

// told is what the JSON says. Frames are as they go over the wire.
type told struct {
	Rule, Clause, Name string
	Needs              string
	Spaces             [2]string // label space of A and B
	Routes             []string  // `ip` lines for what the router routes
	Shunt              []string  // the configuration in the words of `shunt mpls`
	Kernel             []string  // and of iproute2
	Addresses          [2]string // of the router's ports; hosts are .2 and ::2, with the MACs below
	Hosts              [2]string // MACs
	In, Out            []toldFrame
}

type toldFrame struct{ Port, Frame, Words string }

// newOperator opens the two interfaces that the flags name.
func newOperator() (*rig, error) {
	r := &rig{came: make(chan arrival, 1<<16), padded: true}
	for i := range 2 {
		mac, err := net.ParseMAC(*macs[i])
		if *interfaces[i] == "" || err != nil {
			return nil, fmt.Errorf("-router none: name the interface to port %s and the MAC there: -%[2]s IFACE -mac-%[2]s MAC", port(i), strings.ToLower(port(i).String()))
		}
		if r.taps[i], err = openTap(port(i), *interfaces[i], r.came); err != nil {
			return nil, err
		}
		r.host[i], r.place.router[i] = r.taps[i].device.HardwareAddr, mac
	}
	r.router = &operator{*hook, r.place}
	return r, nil
}

func (o *operator) name() string { return "none" }

func (o *operator) offers(c trial) string {
	if len(c.in) == 0 {
		return "nothing is sent"
	}
	return ""
}

func (o *operator) configure(c trial) error {
	text, err := json.MarshalIndent(tell(c, o.place), "", "  ")
	if err != nil {
		return err
	}
	if o.hook == "" {
		fmt.Println(string(text))
		return nil
	}
	cmd := exec.Command(o.hook)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(text)), os.Stdout, os.Stderr
	return cmd.Run()
}

// tell writes a case for somebody else.
func tell(c trial, p place) told {
	t := told{
		Rule: c.rule, Clause: c.clause, Name: c.name, Needs: c.needs, Spaces: c.spaces, Routes: c.setup,
		Shunt: withFence(c), Kernel: c.kernel,
	}
	for i := range 2 {
		t.Addresses[i] = fmt.Sprintf("%s/24 %s/64", router4[i], router6[i])
		t.Hosts[i] = p.host[i].String()
	}
	for _, f := range c.in {
		b := f.sent(p)
		t.In = append(t.In, toldFrame{f.at.String(), fmt.Sprintf("%x", b), describe(b)})
	}
	for _, f := range c.out {
		b := f.expected(p, nil)
		t.Out = append(t.Out, toldFrame{f.at.String(), fmt.Sprintf("%x", b), describe(b)})
	}
	return t
}

func (o *operator) refusals(trial) []string              { return nil }
func (o *operator) refuse(trial, string) error           { return nil }
func (o *operator) reset(trial) error                    { return nil }
func (o *operator) counters() (map[string]uint64, error) { return nil, nil }
func (o *operator) close() error                         { return nil }

// TestOperator plays cases the way that somebody else would, against the reference: this
// program once more, with two interfaces and a program that is told the cases.
func TestOperator(t *testing.T) {
	r, err := newReference("")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := r.configure(trial{config: plainSwap}); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cases := filepath.Join(dir, "cases")
	hook := filepath.Join(dir, "hook")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\ncat >> "+cases+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	n := r.router.(*reference).network
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := n.hosts[a].NS.Command(ctx, self, "-test.run=^TestConformance$/^(P1|Q8)$", "-router=none", "-without=vlan,multicast,upstream", "-configure="+hook,
		"-a="+n.hosts[a].Device, "-b="+n.hosts[b].Device, "-mac-a="+n.ports[a].MAC.String(), "-mac-b="+n.ports[b].MAC.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "10 cases: 5 pass, 1 not offered, 4 left out") {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for d := json.NewDecoder(strings.NewReader(string(text))); d.More(); {
		var c told
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		names = append(names, c.Rule+" "+c.Name)
		if c.Rule == "Q8" && (len(c.In) != 8 || len(c.Out) != 8 || c.Out[5].Port != "B" || !strings.Contains(c.Out[5].Words, "[200 tc 5 ttl 63]") ||
			c.Kernel[0] != "-f mpls route add 100 as 200 via inet 198.19.0.2 dev @B" || c.Hosts[b] != n.hosts[b].MAC.String()) {
			t.Errorf("told: %+v", c)
		}
	}
	if len(names) != 5 {
		t.Errorf("told of %q", names)
	}
}
