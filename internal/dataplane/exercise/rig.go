// SPDX-License-Identifier: Apache-2.0

package exercise

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"shunt/internal/dataplane"
	"shunt/internal/kernel"
	"shunt/internal/lab"
)

// Options say what kind of router the rig is.
type Options struct {
	Name     string       // of the lab
	TCOnly   bool         // ports without XDP
	Offloads lab.Offloads // of client and server
	Flows    int          // slots, a power of two; 0: 4096

	SightingAge time.Duration // 0: a second, so that a packet may stand still inside the stack of a busy machine
}

// Rig is a loaded data path on the two ports of a lab's router.
type Rig struct {
	*dataplane.Plane
	*lab.Topology
	HZ       uint32 // jiffies in a second
	LANIndex int    // ifindex of the router's port to the client
	WANIndex int    // ... to the server
	programs map[string]*ebpf.Program
	maps     map[string]*ebpf.Map
	flows    *ebpf.Memory
	armed    *ebpf.Memory
	others   uint32 // polls that Polls has ended elsewhere
}

// Flows is the name of the map that is the flow table.
const Flows = ".data.flows"

// What keeps the counters to the frames that a test sends: no host answers them (taps
// see frames before these rules do), and nobody has anything to say by itself.
const (
	mute = "table inet mute { chain out { type filter hook output priority 0; policy drop; }; }"
	deaf = "table inet deaf { chain in { type filter hook prerouting priority -450; policy drop; }; }"
)

// Open makes the lab, loads the programs and attaches them. The threshold is 1 and
// leases are 30 s, so that one packet teaches and what it taught lasts for a test.
func Open(o Options) (*Rig, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("exercise: not root; run these tests as root")
	}
	if o.Flows == 0 {
		o.Flows = 4096
	}
	top, err := lab.Firewall(lab.FirewallOptions{Name: o.Name, Open: true, Offloads: o.Offloads, Neighbours: true})
	if err != nil {
		return nil, err
	}
	r := &Rig{Topology: top}
	if err := r.open(o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rig) open(o Options) error {
	if err := r.LAN.NS.NFT(mute); err != nil {
		return err
	}
	for _, n := range []*lab.NS{r.Client.NS, r.Server.NS} {
		if err := n.NFT(mute + "\n" + deaf); err != nil {
			return err
		}
	}
	var err error
	if r.HZ, err = kernel.HZ(); err != nil {
		return err
	}
	return r.LAN.NS.Do(func() error { return r.attach(o) })
}

// attach runs in the router's namespace: interfaces are known by number there alone.
func (r *Rig) attach(o Options) error {
	lan, err := net.InterfaceByName(r.LAN.Device)
	if err != nil {
		return err
	}
	wan, err := net.InterfaceByName(r.WAN.Device)
	if err != nil {
		return err
	}
	r.LANIndex, r.WANIndex = lan.Index, wan.Index
	if r.Plane, err = dataplane.Open(dataplane.Options{Dir: r.BPFFS(), Flows: o.Flows, SightingAge: cmp.Or(o.SightingAge, time.Second)}); err != nil {
		return err
	}
	r.programs, r.maps = r.Plane.Objects()
	if r.flows, err = r.maps[Flows].Memory(); err != nil {
		return err
	}
	if r.armed, err = r.maps[".data.armed"].Memory(); err != nil {
		return err
	}
	if err := checkLayout(); err != nil {
		return err
	}
	r.Configure(dataplane.Settings{Threshold: 1, Lease: 30 * r.HZ, LeaseLive: 30 * r.HZ, HZ: r.HZ, TCP: true})
	// No daemon lives. A heartbeat of 0 would be one to come until jiffies wrap, five minutes after boot (INITIAL_JIFFIES).
	now, err := r.Beat()
	if err != nil {
		return err
	}
	r.Edit(func(c *Control) { c.Beat = now - 60*r.HZ })
	failed := r.Apply([]dataplane.Attach{
		{Index: lan.Index, XDPReceive: !o.TCOnly, XDPTransmit: !o.TCOnly},
		{Index: wan.Index, XDPReceive: !o.TCOnly, XDPTransmit: !o.TCOnly},
	})
	for index, err := range failed {
		return fmt.Errorf("attach to %d: %w", index, err)
	}
	return nil
}

// Close removes the lab and lets go of the programs.
func (r *Rig) Close() error {
	var errs []error
	if r.Plane != nil {
		errs = append(errs, r.Plane.Remove(), r.Plane.Close())
	}
	return errors.Join(append(errs, r.Topology.Close())...)
}

// Speak lets client and server use their network stacks, for tests with real sockets.
func (r *Rig) Speak() error {
	for _, n := range []*lab.NS{r.Client.NS, r.Server.NS} {
		if err := n.NFT("delete table inet mute\ndelete table inet deaf"); err != nil {
			return err
		}
	}
	return nil
}

// Map is one of the programs' maps, by its name in bpf/maps.h.
func (r *Rig) Map(name string) *ebpf.Map { return r.maps[name] }

// Polls makes the tracepoint's count of NAPI polls that sent to a device and ended what it says, on all
// CPUs. Of those that sent to any other one more has ended since the last time.
func (r *Rig) Polls(index int, n uint32) error {
	const size, polls, rows = 64, 24, 256 // struct transmit, MAX_PORTS
	m, err := r.maps[".data.transmits"].Memory()
	if err != nil {
		return err
	}
	r.others++
	for row := range int(m.Size()) / size {
		count := r.others
		if row%rows == index%rows {
			count = n
		}
		if _, err := m.WriteAt(binary.NativeEndian.AppendUint32(nil, count), int64(row*size+polls)); err != nil {
			return err
		}
	}
	return nil
}

// Now returns the kernel's jiffies, as slots keep them. The daemon's heartbeat, which
// tells them, is taken back: leases depend on whether it beats.
func (r *Rig) Now() (uint32, error) {
	before := r.Control().Beat
	now, err := r.Beat()
	r.Edit(func(c *Control) { c.Beat = before })
	return now, err
}
