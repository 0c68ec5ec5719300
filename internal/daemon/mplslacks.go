// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"maps"
	"slices"

	"shunt/internal/api"
	"shunt/internal/eligible"
	"shunt/internal/lfib"
)

// lack is why a port does not do with labels what the tables want of it, and what would help. The
// zero value: it does.
type lack struct{ reason, remedy string }

func (k lack) String() string { return k.reason + "; " + k.remedy }

// lack judges a port that labels are to come in by, or to leave by. They are switched in XDP alone, and
// not every port has that, or always: what is configured stays, and is in force once the port has it.
func (l *labels) lack(name string, in, out bool, ports map[string]shown) lack {
	if !in && !out {
		return lack{}
	}
	p, ok := ports[name]
	switch {
	case !ok && slices.Contains(l.exact(), name):
		return lack{"there is no such interface now", "what is said of its labels waits for it"}
	case !ok:
		return lack{"it is no port of shunt now", "name it to \"shunt run\" with --port"}
	case !isEthernet(p.link):
		return lack{"it is no Ethernet", "let labels go by another port"}
	}
	inWhy, inHelp := eligible.LabelsIn(p.link, p.decision)
	outWhy, outHelp := eligible.LabelsOut(p.link, p.decision)
	in, out = in && inWhy != "", out && outWhy != ""
	switch {
	case in && out && inWhy != outWhy:
		return lack{fmt.Sprintf("labels that come in are not switched: %s; and none leave: %s", inWhy, outWhy), inHelp + "; " + outHelp}
	case in && out:
		return lack{"labels that come in are not switched, and none leave: " + inWhy, inHelp}
	case in:
		return lack{"labels that come in are not switched: " + inWhy, inHelp}
	case out:
		return lack{"labels do not leave by it: " + outWhy, outHelp}
	}
	return lack{}
}

// notice finds what ports lack, of those with a name in names, or of all that the tables name if
// that is nil, and logs what is new. The caller holds mu.
func (l *labels) notice(names map[string]bool, ports map[string]shown) {
	now := map[string]lack{}
	if names == nil {
		names = map[string]bool{}
		for _, o := range l.table.Spaces() {
			names[o.Port] = true
		}
		for name := range l.ways.by {
			names[name] = true
		}
	} else {
		maps.Copy(now, l.lacking())
	}
	for name := range names {
		delete(now, name)
		if found := l.lack(name, l.table.Space(name) >= 0, l.ways.by[name] > 0, ports); found != (lack{}) {
			now[name] = found
		}
	}
	was := l.lacking()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] != was[name] {
			l.log.Warn("a port does not do what the label tables say", "port", name,
				"reason", now[name].reason, "remedy", now[name].remedy)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if now[name] == (lack{}) {
			l.log.Info("the port does what the label tables say", "port", name)
		}
	}
	l.lacks.Store(&now)
}

func (l *labels) byName() map[string]shown {
	ports := map[string]shown{}
	for _, p := range l.ports() {
		ports[p.link.Name] = p
	}
	return ports
}

// lacking is what notice has found, by port. It waits for nobody, and must only be read.
func (l *labels) lacking() map[string]lack {
	if found := l.lacks.Load(); found != nil {
		return *found
	}
	return nil
}

// warnings are for who has made a change: of the ports that it is about, those that lack what it
// asks for. The caller holds mu.
func (l *labels) warnings(t *lfib.Touched) (list []string) {
	in, out := map[string]bool{}, map[string]bool{}
	for _, name := range t.Ports {
		in[name] = l.table.Space(name) >= 0
	}
	for _, id := range t.NHLFEs {
		if w := l.ways.of[id]; w != nil {
			out[w.key.port] = true
		}
	}
	if len(in)+len(out) == 0 {
		return nil
	}
	names, ports := maps.Clone(in), l.byName()
	maps.Copy(names, out)
	l.notice(names, ports)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if why := l.lack(name, in[name], out[name], ports); why != (lack{}) {
			list = append(list, name+": "+why.String())
		}
	}
	return list
}

// checks are what a doctor says of it.
func (l *labels) checks() (list []api.Check) {
	lacking := l.lacking()
	for _, name := range slices.Sorted(maps.Keys(lacking)) {
		list = append(list, api.Check{Name: "labels " + name, Level: api.LevelWarn, Finding: lacking[name].reason, Remedy: lacking[name].remedy})
	}
	return list
}
