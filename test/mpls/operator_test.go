package mpls

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
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
