// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/eligible"
	"shunt/internal/kernel"
	"shunt/internal/lfib"
)

const (
	lookEvery = time.Second // at every way out: use it, and see what no event told
	mostNews  = 4096        // neighbours of which there is news; with more, all are looked at
)

// news is what the kernel announced and nobody has looked at yet. Who announces waits for
// nobody.
type news struct {
	mu    *sync.Mutex
	wake  chan struct{}
	found *found
}

// found is a part of it.
type found struct {
	all   bool // anything may have changed
	addrs map[netip.Addr]bool
	use   bool // ask for neighbours, as look has it
}

func newNews() news {
	return news{&sync.Mutex{}, make(chan struct{}, 1), &found{addrs: map[netip.Addr]bool{}}}
}

// hear notes an event, if it can concern a way out.
func (n news) hear(e kernel.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Kind {
	case kernel.EventNeigh, kernel.EventNeighNew:
		n.found.addrs[e.Prefix.Addr()] = true
		n.found.all = n.found.all || len(n.found.addrs) > mostNews
	case kernel.EventLink:
		if e.Link == 0 && !e.Deleted {
			return
		}
		n.found.all = true
	case kernel.EventResync:
		n.found.all = true
	default:
		return
	}
	n.ring()
}

// ask has the kernel ask for neighbours now.
func (n news) ask() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.found.all, n.found.use = true, true
	n.ring()
}

func (n news) ring() {
	select {
	case n.wake <- struct{}{}:
	default: // it rings
	}
}

func (n news) take() found {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := *n.found
	*n.found = found{addrs: map[netip.Addr]bool{}}
	return taken
}

// run keeps ways out and label spaces as links and neighbours are, until ctx ends.
func (l *labels) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.lookAgain(found{all: true, use: true})
		case <-l.news.wake:
			l.lookAgain(l.news.take())
		}
	}
}

// lookAgain looks at what there is news of. What fails is tried again by the next tick.
func (l *labels) lookAgain(f found) {
	err := l.lookAt(f)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && f.all {
		err = l.lookAtImposer()
	}
	if err == nil && l.unsure {
		err = l.putAll()
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != l.failed && err != nil {
		l.log.Error("ways out of labels could not be looked at; trying again", "err", err)
	}
	l.failed = text
	if f.all {
		l.notice(nil, l.byName())
	}
}

func (l *labels) newLook(use bool) *look {
	ports := map[int]eligible.Decision{}
	for _, p := range l.ports() {
		ports[p.link.Index] = p.decision
	}
	return &look{kernel: l.kernel, use: use, ports: ports}
}

// lookAt asks the kernel, without a lock, and then puts in force what is new.
func (l *labels) lookAt(f found) error {
	l.mu.Lock()
	var keys []wayOut
	for key := range l.ways.at {
		if f.all || f.addrs[key.via] {
			keys = append(keys, key)
		}
	}
	var spaces []lfib.PortSpace
	if f.all {
		spaces = l.table.Spaces()
	}
	l.mu.Unlock()

	look, ways, failed := l.newLook(f.use), map[wayOut]way{}, error(nil)
	for _, key := range keys {
		now, why, err := look.resolve(key)
		if err != nil {
			failed = err
			continue
		}
		ways[key] = way{now: now, why: why}
	}
	ports := map[string]dataplane.LabelPort{}
	for _, space := range spaces {
		port, err := look.space(space)
		if err != nil {
			failed = err
			continue
		}
		ports[space.Port] = port
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takeOver(ways, ports); err != nil {
		return err
	}
	return failed
}

// takeOver puts in force what a look has found and is new. The caller holds mu.
func (l *labels) takeOver(seen map[wayOut]way, ports map[string]dataplane.LabelPort) error {
	p := putting{labels: l, spaces: map[string]dataplane.LabelPort{}, update: dataplane.LabelUpdate{Imposer: l.imposer}}
	next := map[*way]way{}
	for key, now := range seen {
		w := l.ways.at[key]
		if w == nil { // it went meanwhile
			continue
		}
		now.now.ID = w.now.ID
		if w.now != now.now {
			p.update.Adjacencies = append(p.update.Adjacencies, now.now)
		}
		if w.now != now.now || w.why != now.why {
			next[w] = now
		}
	}
	for name, want := range ports {
		now := l.table.PortSpace(name)
		if want.Index != 0 && (want.Space != now.Space || want.Upstream != now.Upstream) { // it was set meanwhile
			continue
		}
		if l.spaces[name] != want {
			p.space(name, want)
		}
	}
	if len(p.update.Adjacencies)+len(p.update.Ports) > 0 {
		if err := l.plane.UpdateLabels(&p.update); err != nil {
			return err
		}
	}
	p.inForce()
	for w, now := range next {
		l.tell(w, now.why)
		w.now, w.why = now.now, now.why
	}
	return nil
}

// tell makes known that a way out is up or down now, or down for another reason.
func (l *labels) tell(w *way, why string) {
	e := api.MPLSEvent{Seq: l.seq, Time: time.Now(), Origin: "kernel", Verb: api.MPLSUp, Kind: "adjacency", Line: w.key.String()}
	if why == "" {
		l.log.Info("a way out of labels is up", "way", e.Line)
	} else {
		l.log.Warn("a way out of labels is down; what goes there is dropped", "way", e.Line, "reason", why)
		e.Verb, e.Line = api.MPLSDown, e.Line+": "+why
	}
	l.monitors.tell([]api.MPLSEvent{e})
}
