// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attach says which programs a port gets.
type Attach struct {
	Index       int
	XDPReceive  bool // attach the XDP program; TC ingress and egress always are
	XDPTransmit bool // XDP may redirect frames to it
	KeepsMark   bool // what leaves by it goes on as an skb with its mark: XDP repeats no marked flow
	LooksDeeper bool // its qdiscs and filters may read what a hit does not carry: nothing out by it is learned
	Wire        bool // what comes in is finished and not merged when XDP sees it: only GRO merges, later
}

type attachment struct {
	link  link.Link
	index int
	kind  string
	prog  *ebpf.Program // ingress: which of the two, once known
}

// release detaches the program now: closing alone leaves that to a kernel worker, and
// whoever attaches next finds the place taken.
func (a *attachment) release() error {
	err := a.link.Detach()
	if errors.Is(err, link.ErrNotSupported) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOLINK) {
		err = nil // the interface is gone, and the program with it
	}
	return errors.Join(err, a.link.Unpin(), a.link.Close())
}

// ErrTaken tells that somebody else's program sits where shunt's would go.
var ErrTaken = errors.New("another XDP program is attached")

// XDPError tells that a port cannot have the XDP program, and goes by TC alone.
type XDPError struct{ err error }

func (e *XDPError) Error() string { return e.err.Error() }
func (e *XDPError) Unwrap() error { return e.err }

func linkName(index int, kind string) string { return strconv.Itoa(index) + "-" + kind }

// adoptLinks puts the new programs into the links of an earlier process.
func (p *Plane) adoptLinks() error {
	entries, err := os.ReadDir(p.pin("links", ""))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := p.pin("links", e.Name())
		num, kind, _ := strings.Cut(e.Name(), "-")
		if kind == imposerKind { // goes on by an earlier daemon's tables, too
			continue
		}
		index, err := strconv.Atoi(num)
		if err == nil && index == watchers { // Watch replaces it
			continue
		}
		prog := p.program(kind, index)
		if err != nil || prog == nil {
			return fmt.Errorf("%s: not a link of shunt; remove it", path)
		}
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if kind == "xdp" && switchesLabels(l) {
			// by an earlier daemon's tables, which go on until there are new ones (giveXDP)
			p.links[e.Name()] = &attachment{link: l, index: index, kind: kind}
			p.special[index] = nil
			if info, err := l.Info(); err == nil {
				p.given[info.Program] = true
			}
			continue
		}
		// the interface may be gone: then the link is dead, and Apply makes a new one
		if err := l.Update(prog); err != nil {
			l.Unpin()
			l.Close()
			continue
		}
		p.links[e.Name()] = &attachment{link: l, index: index, kind: kind}
	}
	return nil
}

// program is what belongs into a link that an earlier process left.
func (p *Plane) program(kind string, index int) *ebpf.Program {
	switch kind {
	case "xdp":
		return p.xdp
	case "ingress":
		if _, err := os.Stat(p.pin("links", linkName(index, "xdp"))); err == nil {
			return p.after
		}
		return p.in
	case "egress":
		return p.out
	}
	return nil
}

// Apply makes the attached programs and the port table what `want` says. It may be called
// again with the same. A port that cannot be had is reported in the map by its index; the
// others are done all the same. An XDPError is only told again, not tried again, until
// something else is wanted of the port.
func (p *Plane) Apply(want []Attach) map[int]error {
	want, failed := p.Fit(want)
	keep := map[string]bool{}
	next := map[int]Attach{}
	for _, a := range want {
		next[a.Index] = a
		for _, kind := range []string{"ingress", "egress", "xdp"} {
			keep[linkName(a.Index, kind)] = kind != "xdp" || a.XDPReceive
		}
	}
	p.bury()
	maps.DeleteFunc(p.refused, func(index int, _ error) bool { return p.ports[index] != next[index] })
	// before anything is detached: what was learned must not be sent there any more
	changed := p.forget(next)
	for name, a := range p.links {
		if !keep[name] {
			a.release()
			delete(p.links, name)
		}
	}
	for _, a := range want {
		if err := p.settle(a); err != nil {
			failed[a.Index] = err
		}
	}
	p.raise.Lock()
	p.ports = next
	p.raise.Unlock()
	if changed {
		p.Bump()
	}
	return failed
}

// Fit leaves out what the port table has no room for, as Apply does, and tells why. Ports that
// have a place keep it.
func (p *Plane) Fit(want []Attach) (fits []Attach, failed map[int]error) {
	wanted, places := map[uint32]bool{}, map[uint32]bool{}
	for _, a := range want {
		wanted[uint32(a.Index)] = true
	}
	var index uint32
	var port tcPort
	for it := p.maps["ports"].Iterate(); it.Next(&index, &port); {
		if wanted[index] {
			places[index] = true
		}
	}
	failed = map[int]error{}
	for _, a := range want {
		if !places[uint32(a.Index)] {
			if len(places) == int(tcAbiMAX_PORTS) {
				failed[a.Index] = fmt.Errorf("over %d ports; name fewer", tcAbiMAX_PORTS)
				continue
			}
			places[uint32(a.Index)] = true
		}
		fits = append(fits, a)
	}
	return fits, failed
}

// bury drops links whose interface is gone, even if another one has its index by now.
func (p *Plane) bury() {
	for name, a := range p.links {
		info, err := a.link.Info()
		if err != nil {
			continue
		}
		var index uint32
		if x := info.XDP(); x != nil {
			index = x.Ifindex
		} else if t := info.TCX(); t != nil {
			index = t.Ifindex
		}
		if int(index) == a.index {
			continue
		}
		a.release()
		delete(p.links, name)
		// what XDP met on the interface before says nothing about the new one
		delete(p.refused, a.index)
	}
}

// settle gives a port what it is to have. Without TC it gets nothing; without XDP it is a
// port that goes by TC.
func (p *Plane) settle(a Attach) error {
	if a.Index >= int(tcKindPORT_LIMIT) {
		return fmt.Errorf("interface number %d is too high for a flow's key; make the interface again, or restart its network namespace", a.Index)
	}
	if err := p.attach(a.Index, "egress", "ingress"); err != nil {
		p.detach(a.Index)
		return err
	}
	refused := p.refused[a.Index]
	if had := p.links[linkName(a.Index, "xdp")] != nil; a.XDPReceive && refused == nil {
		if err := p.attach(a.Index, "xdp"); err != nil {
			refused = &XDPError{err}
			p.refused[a.Index] = refused
		} else if !had && p.AttachedXDP != nil {
			p.AttachedXDP(a.Index)
		}
	}
	a.XDPReceive = a.XDPReceive && refused == nil
	if err := p.writePort(a); err != nil {
		return err
	}
	if err := p.pairIngress(a); err != nil {
		return err
	}
	return refused
}

// pairIngress puts the right one of the two TC ingress programs in: after XDP it leaves
// alone what XDP did not mark. Between the two steps packets are slow, never wrong.
func (p *Plane) pairIngress(a Attach) error {
	l := p.links[linkName(a.Index, "ingress")]
	prog := p.in
	if a.XDPReceive {
		prog = p.after
	}
	if l.prog == prog {
		return nil
	}
	if err := l.link.Update(prog); err != nil {
		return fmt.Errorf("replace ingress program: %w", err)
	}
	l.prog = prog
	return nil
}

// forget takes from the port table what `next` does not have, and tells whether anything
// differs from before.
func (p *Plane) forget(next map[int]Attach) bool {
	changed := len(next) != len(p.ports)
	for index, a := range next {
		changed = changed || p.ports[index] != a
	}
	var index uint32
	var port tcPort
	var gone, mute []uint32
	for it := p.maps["ports"].Iterate(); it.Next(&index, &port); {
		if a, ok := next[int(index)]; !ok {
			gone = append(gone, index)
		} else if !a.XDPTransmit && port.Flags&uint32(tcPortFlagPORT_XDP_TX) != 0 {
			mute = append(mute, index)
		}
	}
	changed = changed || len(gone)+len(mute) > 0
	if changed {
		p.withdraw(gone, mute)
	}
	return changed
}

// withdraw takes ports out of the redirect map, and those that are gone out of the port table
// too. First nothing more is learned for them, then nothing is used that was, and only when
// every program that may have begun before that has ended the entries go: a packet whose
// redirect fails is lost.
func (p *Plane) withdraw(gone, mute []uint32) {
	var out []uint32
	for _, index := range append(slices.Clone(gone), mute...) {
		var port tcPort
		if p.maps["ports"].Lookup(index, &port) != nil {
			continue
		}
		out = append(out, port.Tx)
		port.Flags &^= uint32(tcPortFlagPORT_XDP_TX)
		p.maps["ports"].Put(index, port)
	}
	p.Bump()
	if len(out) > 0 {
		grace()
	}
	for _, tx := range out {
		p.maps["tx"].Delete(tx)
	}
	for _, index := range gone {
		p.maps["ports"].Delete(index)
	}
}

// grace returns when every program has ended that was running when it was called: an RCU
// grace period, which membarrier(2) waits for, or time enough where the kernel has none, as
// with nohz_full. With one CPU online it returns at once: whoever calls it is what runs.
func grace() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(100 * time.Millisecond)
	}
}

// attach makes the links of these kinds that are not there yet.
func (p *Plane) attach(index int, kinds ...string) error {
	for _, kind := range kinds {
		name := linkName(index, kind)
		if p.links[name] != nil {
			continue
		}
		if kind == "ingress" {
			p.table.unwatch(index)
		}
		l, err := p.pinnedLink(index, kind)
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return ErrTaken
		}
		if err != nil {
			return err
		}
		p.links[name] = &attachment{link: l, index: index, kind: kind}
	}
	return nil
}

func (p *Plane) pinnedLink(index int, kind string) (link.Link, error) {
	p.give.Lock()
	defer p.give.Unlock()
	l, err := p.newLink(index, kind)
	if err != nil {
		return nil, fmt.Errorf("attach %s program: %w", kind, err)
	}
	if err := l.Pin(p.pin("links", linkName(index, kind))); err != nil {
		l.Close()
		return nil, fmt.Errorf("%s: %w", p.pin("links", linkName(index, kind)), err)
	}
	return l, nil
}

func (p *Plane) newLink(index int, kind string) (link.Link, error) {
	p.counts(index)
	switch kind {
	case "xdp":
		prog := p.special[index]
		if prog == nil {
			prog = p.xdp
		}
		return link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: link.XDPDriverMode})
	case "ingress":
		return link.AttachTCX(link.TCXOptions{Program: p.in, Interface: index, Attach: ebpf.AttachTCXIngress})
	}
	return link.AttachTCX(link.TCXOptions{Program: p.out, Interface: index, Attach: ebpf.AttachTCXEgress})
}

func (p *Plane) detach(index int) {
	p.withdraw([]uint32{uint32(index)}, nil)
	for name, a := range p.links {
		if a.index == index {
			a.release()
			delete(p.links, name)
		}
	}
}

// writePort makes the port known to the programs, with an index of its own. What is as
// before is not written: the kernel would put it into another element, and give this one to
// another port while a program may still read it (alloc_htab_elem(), extra_elems). After a
// change Apply raises the generation, so what was read meanwhile is not used.
func (p *Plane) writePort(a Attach) error {
	var port tcPort
	known := p.maps["ports"].Lookup(uint32(a.Index), &port) == nil
	if !known {
		tx, err := p.freeIndex()
		if err != nil {
			return err
		}
		port = tcPort{Tx: tx}
	}
	before := port
	port.Flags = 0
	if a.XDPReceive {
		port.Flags |= uint32(tcPortFlagPORT_XDP_RX)
	}
	if a.XDPReceive && a.Wire {
		port.Flags |= uint32(tcPortFlagPORT_WIRE)
	}
	if a.XDPTransmit {
		port.Flags |= uint32(tcPortFlagPORT_XDP_TX)
		if err := p.maps["tx"].Put(port.Tx, uint32(a.Index)); err != nil {
			return fmt.Errorf("redirect map: %w", err)
		}
	}
	if a.KeepsMark {
		port.Flags |= uint32(tcPortFlagPORT_KEEPS_MARK)
	}
	if a.LooksDeeper {
		port.Flags |= uint32(tcPortFlagPORT_LOOKS_DEEPER)
	}
	if known && port == before {
		return nil
	}
	if err := p.maps["ports"].Put(uint32(a.Index), port); err != nil {
		return fmt.Errorf("port table: %w", err)
	}
	return nil
}

func (p *Plane) freeIndex() (uint32, error) {
	used := map[uint32]bool{}
	var index uint32
	var port tcPort
	for it := p.maps["ports"].Iterate(); it.Next(&index, &port); {
		used[port.Tx] = true
	}
	for tx := uint32(0); tx < uint32(tcAbiMAX_PORTS); tx++ {
		if !used[tx] {
			return tx, nil
		}
	}
	return 0, errors.New("the redirect map is full") // Fit sees to it that it is not
}

// ForeignTCX returns the names of other people's tcx programs at ingress and at egress of an interface,
// always in the same order: callers compare them with those of the last time.
func (p *Plane) ForeignTCX(index int) (ingress, egress []string, err error) {
	if ingress, err = p.foreignTCX(index, "ingress", ebpf.AttachTCXIngress); err != nil {
		return nil, nil, err
	}
	egress, err = p.foreignTCX(index, "egress", ebpf.AttachTCXEgress)
	return ingress, egress, err
}

func (p *Plane) foreignTCX(index int, kind string, at ebpf.AttachType) ([]string, error) {
	q, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
	if err != nil {
		return nil, fmt.Errorf("query tcx programs: %w", err)
	}
	var names []string
	for _, a := range q.Programs {
		if p.owns(index, kind, a.ID) {
			continue
		}
		if p.names[a.ID] == "" {
			p.names[a.ID] = programName(a.ID)
		}
		names = append(names, p.names[a.ID])
	}
	return names, nil
}

func (p *Plane) owns(index int, kind string, id ebpf.ProgramID) bool {
	a := p.links[linkName(index, kind)]
	if a == nil {
		return false
	}
	info, err := a.link.Info()
	return err == nil && info.Program == id
}

func programName(id ebpf.ProgramID) string {
	name := fmt.Sprintf("program %d", id)
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return name
	}
	defer prog.Close()
	if info, err := prog.Info(); err == nil && info.Name != "" {
		name = fmt.Sprintf("%s (program %d)", info.Name, id)
	}
	return name
}
