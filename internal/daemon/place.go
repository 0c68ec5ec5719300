// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"shunt/internal/config"
	"shunt/internal/dataplane"
)

// place is the state directory, for as long as this process holds its lock.
type place struct {
	paths config.Paths
	lock  *os.File
	made  bool // the directory was not there before
	first bool // nor was the lock file
}

// heldError is enter's while another process holds the lock.
type heldError struct{ words string }

func (e heldError) Error() string { return e.words }

// enter makes the state directory and keeps a second daemon out of it.
func enter(paths config.Paths) (*place, error) {
	p := &place{paths: paths}
	for try := 0; ; try++ {
		err := os.Mkdir(paths.State, 0o755)
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(paths.State, 0o755)
		}
		if err == nil {
			p.made = true
		} else if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("state directory: %w; name another with --state", err)
		}
		_, err = os.Stat(paths.Lock())
		p.first = errors.Is(err, os.ErrNotExist)
		if p.lock, err = os.OpenFile(paths.Lock(), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			if errors.Is(err, os.ErrNotExist) && try < 10 { // a daemon that ends removed the directory
				continue
			}
			if p.made {
				os.Remove(paths.State)
			}
			return nil, fmt.Errorf("lock file: %w; run as root, or name another directory with --state", err)
		}
		if err := unix.Flock(int(p.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			p.close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("%s: lock: %w; name another directory with --state", paths.Lock(), err)
			}
			return nil, heldError{fmt.Sprintf("%s: a daemon runs already%s; %q takes over from it, %q ends it, or give this one another --state and --bpffs",
				paths.Lock(), ofPID(holder(paths.Lock())), paths.Command("run --replace"), paths.Command("stop"))}
		}
		if p.current() {
			return p, nil
		}
		p.close()
	}
}

// traces is the text of the lock file. It stays when the daemon ends, so that whoever comes
// later finds the data path that belongs to the state directory.
type traces struct {
	BPFFS string `json:"bpffs"` // absolute
	Netns uint32 `json:"netns"` // inode
}

// leaveTraces writes the lock file. On a full file system it fails, and nothing is written.
func (p *place) leaveTraces(netns uint32) error {
	bpffs, err := filepath.Abs(p.paths.BPFFS)
	if err != nil {
		return err
	}
	text, err := json.Marshal(traces{bpffs, netns})
	if err != nil {
		return err
	}
	size := int64(len(text))
	_, err = p.lock.WriteAt(text, 0) // first: it needs no room where as much was written before
	if err != nil {
		size = 0
	}
	return errors.Join(err, p.lock.Truncate(size))
}

// readTraces is the zero value where no daemon of this version has been.
func readTraces(paths config.Paths) (t traces) {
	text, err := os.ReadFile(paths.Lock())
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err != nil {
		return traces{}
	}
	return t
}

// Locate completes paths: a state directory knows the bpffs directory of its data path. Another
// one that is named is an error while the data path is there.
func Locate(paths config.Paths) (config.Paths, error) {
	t := readTraces(paths)
	named, err := filepath.Abs(paths.BPFFS)
	if err != nil || t.BPFFS == "" || t.BPFFS == named {
		return paths, err
	}
	if _, err := os.Stat(t.BPFFS); errors.Is(err, os.ErrNotExist) {
		return paths, nil
	}
	if paths.BPFFS != config.DefaultBPFFS {
		return paths, fmt.Errorf("%s: its data path is at --bpffs %s, not %s; leave --bpffs out, or name another --state", paths.State, t.BPFFS, paths.BPFFS)
	}
	paths.BPFFS = t.BPFFS
	return paths, nil
}

// holder is the process that has a file locked, as /proc/locks lists it; 0 if none has, or it
// cannot be told.
func holder(path string) (pid int) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF
		if words := strings.Fields(line); len(words) > 5 && words[1] == "FLOCK" && words[5] == file {
			pid, _ = strconv.Atoi(words[4])
			return pid
		}
	}
	return 0
}

// ofPID is words to be appended.
func ofPID(pid int) string {
	if pid <= 0 {
		return ""
	}
	return fmt.Sprintf(", pid %d", pid)
}

// current tells whether the lock is still the file of that name: a daemon that ended may
// have removed it after it was opened here.
func (p *place) current() bool {
	mine, err := p.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(p.paths.Lock())
	return err == nil && os.SameFile(mine, there)
}

// undo leaves the directory as enter found it.
func (p *place) undo() {
	if p.first {
		os.Remove(p.paths.Lock())
	}
	if p.made {
		os.Remove(p.paths.State)
	}
}

// remove takes journal, lock, socket and directory away; a directory with something else in it,
// or that belongs to others, stays.
func (p *place) remove() error {
	removeJournal(p.paths.Labels())
	os.Remove(p.paths.Socket())
	err := os.Remove(p.paths.Lock())
	os.Remove(p.paths.State)
	return err
}

func (p *place) close() { p.lock.Close() }

// cleanUpPatience is how long enterLater waits for the lock.
const cleanUpPatience = 10 * time.Second

// enterLater is enter, but waits for another process that removes the data path: a "shunt stop" by
// hand and that of a unit run at the same time.
func enterLater(paths config.Paths) (*place, error) {
	end := time.Now().Add(cleanUpPatience)
	for {
		p, err := enter(paths)
		if !errors.As(err, &heldError{}) || time.Now().After(end) {
			return p, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// CleanUp removes what a dead daemon left. It refuses while one lives.
func CleanUp(paths config.Paths) error {
	paths, err := Locate(paths)
	if err != nil {
		return err
	}
	_, state := os.Stat(paths.State)
	_, pins := os.Stat(paths.BPFFS)
	if errors.Is(state, os.ErrNotExist) {
		if errors.Is(pins, os.ErrNotExist) {
			if err := elsewhere(paths); err != nil {
				return err
			}
		}
		settleDead(paths)
		return errors.Join(dataplane.Remove(paths.BPFFS), removePair())
	}
	place, err := enterLater(paths)
	if err != nil {
		return err
	}
	defer place.close()
	settleDead(paths)
	if err := errors.Join(dataplane.Remove(paths.BPFFS), removePair()); err != nil {
		return err // the lock file stays, and says where to look; no offload goes on above a program
	}
	if err := errors.Join(restoreCards(paths.Cards(), slog.Default()), place.remove()); err != nil || pins == nil {
		return err
	}
	return elsewhere(paths)
}

// elsewhere is an error if this network namespace has programs of shunt although nothing is where
// they were looked for.
func elsewhere(paths config.Paths) error {
	names, err := dataplane.Strays()
	if err != nil || len(names) == 0 {
		return nil // without the right to look, there was none to attach
	}
	return fmt.Errorf("nothing is at --state %s and --bpffs %s, but %s has programs of shunt: name the directories of their daemon",
		paths.State, paths.BPFFS, strings.Join(names, ", "))
}
