// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"shunt/internal/api"
	"shunt/internal/dataplane"
	"shunt/internal/lfib"
)

// labels is label switching: it keeps the tables, over the daemon's end too, and puts in force
// what they say.
//
// A transaction goes through the table, which judges it, then into the journal, then to the
// data path. If the last refuses it, it is taken back from the others, and what it touched is
// written once more as it was. What the data path is told is always made from the table as it
// is, never from the change. Where frames go, and whether they can, is the kernel's to say (run
// in mplslook.go).
//
// Limit: one transaction at a time; one of a million entries keeps the next, and those who
// ask for the tables, waiting for seconds.
type labels struct {
	log      *slog.Logger
	kernel   resolver
	plane    labelPlane
	ports    func() []shown  // of the daemon
	exact    func() []string // ports that the configuration names, there or not
	news     news
	monitors monitors
	punts    *punts // nil: there is no socket for them

	mu      sync.Mutex // guards the rest
	table   *lfib.Table
	seq     uint64 // of its last event
	journal *journal
	ways    ways
	spaces  map[string]dataplane.LabelPort // as the data path has them, by port
	byTC    map[dataplane.LabelKey]bool    // labels with entries for single TCs
	imposer dataplane.Imposer              // where IP packets get labels, as the data path has it
	paired  bool                           // this daemon has made that, or found it
	unsure  bool                           // what is in force: an update and its undoing both failed
	inUse   inUse
	failed  string // what the log was told last

	lacks    atomic.Pointer[map[string]lack] // of ports
	imposing atomic.Bool                     // there is an imposer, for those who must not wait for mu
}

func newLabels(log *slog.Logger, plane labelPlane, ports func() []shown, exact func() []string) *labels {
	return &labels{log: log, plane: plane, ports: ports, exact: exact, news: newNews(),
		table: lfib.New(), ways: newWays(), spaces: map[string]dataplane.LabelPort{}, byTC: map[dataplane.LabelKey]bool{}}
}

// begin reads the journal and puts in force what it says, and nothing else. It comes before all
// else but news.
func (l *labels) begin(path string, kernel resolver) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kernel = kernel
	whole, torn, err := readJournal(path, l.redo)
	if err != nil {
		return err
	}
	if torn {
		l.log.Warn("an earlier daemon died while it wrote the last transaction with labels, which was never answered and is left out",
			"journal", path)
	}
	if err := l.putAll(); err != nil {
		return fmt.Errorf("labels: %w; remove %s to begin with empty tables", err, path)
	}
	l.notice(nil, l.byName())
	if !l.table.Imposes() {
		if err := kernel.RemovePair(); err != nil { // of an earlier daemon
			return err
		}
	}
	if l.journal, err = newJournal(path, l.everything()); err != nil {
		l.log.Warn("the journal of the labels cannot be written anew; the one that is there is kept, and grows", "err", err)
		l.journal = keepJournal(path, whole)
	}
	return nil
}

// end closes the journal, which stays.
func (l *labels) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.journal != nil {
		l.journal.close()
	}
}

func (l *labels) redo(r record) error {
	changes, err := parseLines(r.Lines)
	if err != nil {
		return err
	}
	commit, err := l.table.Apply(r.Origin, changes)
	if err == nil {
		l.seq = commit.Seq
	}
	return err
}

// manyChanges are so many that the memory they took is to be given back at once.
const manyChanges = 100_000

func parseLines(lines []string) ([]lfib.Change, error) {
	all := make([]lfib.Change, 0, len(lines))
	for _, line := range lines {
		var err error
		if all, err = lfib.ParseTo(all, line); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Apply implements api.MPLS.
func (l *labels) Apply(c api.MPLSChange) (api.MPLSDone, error) {
	changes, err := parseLines(c.Lines)
	if err == nil {
		err = l.checkPorts(changes)
	}
	if err != nil {
		return api.MPLSDone{}, api.Wrong(err)
	}
	if len(changes) >= manyChanges {
		defer func() { go debug.FreeOSMemory() }() // what it took to read them is gigabytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	commit, err := l.table.Apply(c.Origin, changes)
	if err != nil {
		return api.MPLSDone{}, api.Wrong(err)
	}
	done := api.MPLSDone{Seq: commit.Seq, Changed: commit.Changed()}
	if done.Changed == 0 {
		return done, nil
	}
	before := l.journal.size
	if err := l.journal.add(record{time.Now(), c.Origin, c.Lines}); err != nil {
		l.table.Undo(commit)
		return api.MPLSDone{}, err
	}
	if err := l.put(&commit.Touched, false); err != nil {
		return api.MPLSDone{}, errors.Join(err, l.takeBack(commit, before))
	}
	l.seq = commit.Seq
	done.Warnings = l.warnings(&commit.Touched)
	if l.monitors.wanted() {
		l.monitors.tell(eventsOf(commit))
	}
	if l.journal.long() {
		if err := l.journal.compact(l.everything()); err != nil {
			l.log.Error("the journal of the labels grows, and could not be made shorter", "err", err)
		}
	}
	return done, nil
}

// takeBack undoes what the data path refused. The caller holds mu.
func (l *labels) takeBack(commit *lfib.Commit, journal int64) error {
	l.table.Undo(commit)
	err := l.journal.drop(journal)
	if again := l.put(&commit.Touched, false); again != nil {
		l.unsure = true
		err = errors.Join(err, fmt.Errorf("what is in force is not certain, and is tried again each second: %w", again))
	}
	return err
}

func eventsOf(commit *lfib.Commit) []api.MPLSEvent {
	events := make([]api.MPLSEvent, commit.Changed())
	for i, e := range commit.Events() {
		events[i] = api.MPLSEvent{Seq: e.Seq, Time: e.Time, Origin: e.Origin, Verb: e.Verb, Kind: e.Kind, Line: e.Line}
	}
	return events
}

// everything is the transaction that makes these tables. The caller holds mu.
func (l *labels) everything() record { return record{time.Now(), "journal", l.table.Save()} }

// checkPorts refuses a port that shunt does not have: more likely a slip than a wish.
func (l *labels) checkPorts(changes []lfib.Change) error {
	known := map[string]bool{}
	for _, name := range l.exact() {
		known[name] = true
	}
	for _, p := range l.ports() {
		known[p.link.Name] = true
	}
	for _, c := range changes {
		port := ""
		switch o := c.Object.(type) {
		case lfib.NHLFE:
			if to := sendOf(&o); to != nil {
				port = to.port
			}
		case lfib.PortSpace:
			if o.Space >= 0 {
				port = o.Port
			}
		}
		if port != "" && !known[port] {
			return fmt.Errorf("%s: %s is no port: name it to \"shunt run\" with --port, or use one of %s", c, port, words(known))
		}
	}
	return nil
}

func words(set map[string]bool) string {
	var words []string
	for word := range set {
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// sendOf is where an NHLFE's own list sends to; nil: nowhere.
func sendOf(n *lfib.NHLFE) *wayOut {
	if len(n.List) == 0 {
		return nil
	}
	last := &n.List[len(n.List)-1]
	if last.Op != lfib.OpSend {
		return nil
	}
	k := wayOutOf(&lfib.Send{Port: last.Port, Via: last.Via, MAC: last.MAC})
	return &k
}
