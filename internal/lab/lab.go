// SPDX-License-Identifier: Apache-2.0

// Package lab makes small networks out of network namespaces, in which shunt is
// tested, shown and measured.
//
// A [Lab] keeps namespaces, the veth pairs between them, a directory under
// /run/shunt-lab with a bpffs of its own, and the daemons started in it. All
// names are private to the lab, so that labs of one or many processes stand
// side by side and the host's own interfaces are never touched. [Firewall]
// builds the topology that most callers want: client, router, server. [LSR] makes its router
// one that switches labels, [NewChain] puts several in a row.
//
// A private lab ([New]) belongs to the process that made it. Its owner is
// written down before anything else is made, by process id and start time, so
// whatever a crash leaves behind is removed at the next New. A lab that is to
// outlive its maker ([NewKept], [Lab.Keep]) is named after itself alone, exists
// once, and stands until [Down].
//
// Tests, benchmarks and `shunt lab` call it. It needs root, a kernel with veth,
// and iproute2, nftables and ethtool; it does not load BPF programs itself.
package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// root holds one directory per lab.
const root = "/run/shunt-lab"

// serial tells labs of the same name in one process apart.
var serial atomic.Uint32

// Lab is a set of namespaces with a directory and a bpffs. Its methods may be
// called from several goroutines.
type Lab struct {
	mu     sync.Mutex
	dir    string
	record record
	closed bool
}

// record is what the next process must know to remove this lab. It is written
// before the thing it speaks of is made.
type record struct {
	PID        int      `json:"pid"`
	Start      uint64   `json:"start"` // clock ticks since boot: a pid alone may be reused
	Kept       bool     `json:"kept"`
	Prefix     string   `json:"prefix"`
	Namespaces []string `json:"namespaces"`
}

// New makes an empty lab that belongs to this process, after removing those
// whose owner is gone. Close removes it.
func New(name string) (*Lab, error) {
	id := fmt.Sprintf("%s-%d-%d", name, os.Getpid(), serial.Add(1))
	return create(name, id)
}

// NewKept makes an empty lab that can be told to outlive this process. It is
// known by its name alone; while one of that name stands, it fails. Until Keep
// is called it belongs to this process like any other.
func NewKept(name string) (*Lab, error) {
	return create(name, name)
}

func create(name, id string) (*Lab, error) {
	if name == "" || strings.ContainsAny(name, "/. ") {
		return nil, fmt.Errorf("lab %q: a name is letters, digits and dashes", name)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("lab %s: needs root; run it with sudo", name)
	}
	unlock, err := lockRoot()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := sweep(); err != nil {
		return nil, err
	}

	l := &Lab{dir: filepath.Join(root, id)}
	l.record = record{PID: os.Getpid(), Start: startTime(os.Getpid()), Prefix: "shunt-" + id}
	if err := os.Mkdir(l.dir, 0o700); errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("lab %s: is up already; take it down with `shunt lab %s down`", name, name)
	} else if err != nil {
		return nil, fmt.Errorf("lab %s: %w", name, err)
	}
	if err := l.furnish(); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", name, err), remove(l.dir))
	}
	return l, nil
}

// furnish fills the new directory.
func (l *Lab) furnish() error {
	if err := l.save(); err != nil {
		return err
	}
	bpffs := filepath.Join(l.dir, "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs on %s: %w; the kernel needs CONFIG_BPF_SYSCALL", bpffs, err)
	}
	return nil
}

// Dir is the lab's directory, for logs and captures. It goes with the lab.
func (l *Lab) Dir() string { return l.dir }

// BPFFS is the directory for a daemon's pins, inside the lab's own bpffs. The
// daemon makes it.
func (l *Lab) BPFFS() string { return filepath.Join(l.dir, "bpf", "shunt") }

// State is the directory for a daemon's lock and socket. The daemon makes it.
func (l *Lab) State() string { return filepath.Join(l.dir, "state") }

// StateAt is the same for the daemon that StartDaemonAt has started at a place.
func (l *Lab) StateAt(place string) string { return filepath.Join(l.dir, "state-"+place) }

// Keep leaves the lab standing after this process ends, until Down. Close then
// does nothing.
func (l *Lab) Keep() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record.Kept = true
	return l.save()
}

// Close ends everything that runs in the lab's namespaces and removes the lab.
// It may be called twice.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.record.Kept {
		return nil
	}
	unlock, err := lockRoot()
	if err != nil {
		return err
	}
	defer unlock()
	if err := remove(l.dir); err != nil {
		return err
	}
	l.closed = true
	return nil
}

// Find opens a kept lab by its name, to run something in it.
func Find(name string) (*Lab, error) {
	dir := filepath.Join(root, name)
	r, err := load(dir)
	if err != nil || !r.Kept {
		return nil, fmt.Errorf("lab %s: is not up; start it with `shunt lab %s up`", name, name)
	}
	return &Lab{dir: dir, record: r}, nil
}

// Down removes a kept lab and ends everything that runs in it.
func Down(name string) error {
	l, err := Find(name)
	if err != nil {
		return err
	}
	l.record.Kept = false
	return l.Close()
}

// save writes the record so that a reader finds the old or the new one, whole.
func (l *Lab) save() error {
	text, err := json.Marshal(l.record)
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, "lab.json")
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func load(dir string) (record, error) {
	var r record
	text, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// lockRoot keeps two processes from making and sweeping labs at the same time.
func lockRoot() (unlock func(), err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lab: lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// startTime is when a process started, in clock ticks since boot; 0 if there is
// no such process (proc(5), stat field 22).
func startTime(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the name in parentheses and may hold anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	ticks, _ := strconv.ParseUint(fields[19], 10, 64)
	return ticks
}
