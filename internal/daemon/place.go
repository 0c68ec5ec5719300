// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"shunt/internal/config"
	"shunt/internal/dataplane"
)

// place is the state directory, for as long as this process holds its lock.
type place struct {
	paths config.Paths
	lock  *os.File
	made  bool // the directory was not there before
}

// enter makes the state directory and keeps a second daemon out of it.
func enter(paths config.Paths) (*place, error) {
	p := &place{paths: paths}
	for {
		err := os.Mkdir(paths.State, 0o755)
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(paths.State, 0o755)
		}
		if err == nil {
			p.made = true
		} else if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("state directory: %w; name another with --state", err)
		}
		if p.lock, err = os.OpenFile(paths.Lock(), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
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
			return nil, fmt.Errorf("%s: a daemon runs already; end it with \"shunt stop\" or give this one another --state and --bpffs", paths.Lock())
		}
		if p.current() {
			return p, nil
		}
		p.close()
	}
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
	os.Remove(p.paths.Lock())
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

// CleanUp removes what a dead daemon left. It refuses while one lives.
func CleanUp(paths config.Paths) error {
	if _, err := os.Stat(paths.State); errors.Is(err, os.ErrNotExist) {
		return errors.Join(dataplane.Remove(paths.BPFFS), removePair())
	}
	place, err := enter(paths)
	if err != nil {
		return err
	}
	defer place.close()
	return errors.Join(dataplane.Remove(paths.BPFFS), removePair(), place.remove())
}
